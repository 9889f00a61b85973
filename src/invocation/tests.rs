//! The table of `cases.txt`, and what doesn't fit into a line.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use proptest::prelude::*;

use super::{
    Command, Doubt, Flavour, Globals, Invocation, InvocationError, LogFormat, Start, Verb, parse,
};

const CASES: &str = include_str!("cases.txt");

/// `a 'b c' ''` → `a`, `b c`, nothing.
fn words(text: &str) -> Vec<OsString> {
    let mut words = Vec::new();
    for (index, part) in text.split('\'').enumerate() {
        if index % 2 == 1 {
            words.push(part.into());
        } else {
            words.extend(part.split_whitespace().map(OsString::from));
        }
    }
    words
}

fn argv(arguments: &[&str]) -> Vec<OsString> {
    [OsString::from("runcrust")]
        .into_iter()
        .chain(arguments.iter().map(Into::into))
        .collect()
}

/// What came out, in the words of the table.
fn spelled(invocation: &Invocation) -> String {
    let mut out = match &invocation.command {
        Err(_) => return "refuse".into(),
        Ok(Command::PassOn) => vec!["pass".to_owned()],
        Ok(Command::Crust { at }) => vec![format!("crust {at}")],
        Ok(Command::Update(update)) => {
            let resources = update.resources.display();
            let id = update.id.display();
            let after_flags = update.after_flags;
            vec![format!(
                "update after={after_flags} resources={resources} id={id}"
            )]
        }
        Ok(Command::Start(start)) => {
            let mut fields = vec![start.verb.name().to_owned()];
            if start.bundle.as_os_str() != "." {
                fields.push(format!("bundle={}", start.bundle.display()));
            }
            fields.extend(
                start
                    .config
                    .iter()
                    .map(|path| format!("config={}", path.display())),
            );
            fields.push(format!("id={}", start.id.display()));
            fields
        }
    };
    let globals = &invocation.globals;
    out.extend(
        globals
            .root
            .iter()
            .map(|root| format!("root={}", root.display())),
    );
    out.extend(
        globals
            .log
            .iter()
            .map(|log| format!("log={}", log.display())),
    );
    if globals.log_format == LogFormat::Json {
        out.push("format=json".into());
    }
    out.join(" ")
}

#[test]
fn every_line_of_the_table_is_read_as_the_delegate_reads_it() {
    let mut wrong = Vec::new();
    let mut count = 0;
    for line in CASES
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        let mut columns = line.split(" | ");
        let (Some(flavour), Some(arguments), Some(expected)) =
            (columns.next(), columns.next(), columns.next())
        else {
            panic!("a line without three columns: {line}");
        };
        let flavour = match flavour {
            "runc" => Flavour::Runc,
            "crun" => Flavour::Crun,
            other => panic!("no such flavour: {other}"),
        };
        let mut argv = argv(&[]);
        argv.extend(words(arguments));
        let got = spelled(&parse(flavour, &argv));
        if got != expected {
            wrong.push(format!("{line}\n    got: {got}"));
        }
        count += 1;
    }
    assert!(
        wrong.is_empty(),
        "{} of {count} lines:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert!(count > 150, "the table has shrunk to {count} lines");
}

#[test]
fn bytes_that_are_not_utf8_survive() {
    let odd = OsString::from_vec(b"A\xff\xfe".to_vec());
    let mut argv = argv(&["--root"]);
    argv.extend([
        odd.clone(),
        "create".into(),
        "-b".into(),
        odd.clone(),
        odd.clone(),
    ]);
    for flavour in [Flavour::Runc, Flavour::Crun] {
        let Invocation { globals, command } = parse(flavour, &argv);
        assert_eq!(globals.root.as_deref(), Some(odd.as_os_str()));
        assert_eq!(
            command,
            Ok(Command::Start(Start {
                verb: Verb::Create,
                bundle: PathBuf::from(&odd),
                config: None,
                id: odd.clone(),
            }))
        );
    }
}

#[test]
fn an_empty_argv_is_passed_on() {
    for argv in [vec![], argv(&[])] {
        let Invocation { globals, command } = parse(Flavour::Runc, &argv);
        assert_eq!(
            (globals, command),
            (Globals::default(), Ok(Command::PassOn))
        );
    }
}

#[test]
fn a_refusal_names_the_argument_and_keeps_the_log_it_is_reported_to() {
    let argv = argv(&[
        "--log",
        "/l",
        "--log-format",
        "json",
        "create",
        "--fr\nob",
        "-b",
        "A",
        "x",
    ]);
    for flavour in [Flavour::Runc, Flavour::Crun] {
        let Invocation { globals, command } = parse(flavour, &argv);
        assert_eq!(globals.log, Some(PathBuf::from("/l")));
        assert_eq!(globals.log_format, LogFormat::Json);
        let error = command.unwrap_err();
        assert_eq!(
            error,
            InvocationError::Start {
                argument: r"`--fr\nob`".into(),
                verb: "create",
                doubt: Doubt::Unknown
            }
        );
        assert_eq!(
            error.to_string(),
            "can't tell which bundle `create` is given: argument `--fr\\nob` isn't known, and may \
             or may not take the argument after it; hint: leave it out, or call the delegate \
             itself for containers that need it"
        );
    }
}

#[test]
fn no_flag_has_two_lines_in_a_scope() {
    use super::grammar::{CRUN, RUNC, Scope};
    let scopes = [
        Scope::Global,
        Scope::Verb(Verb::Create),
        Scope::Verb(Verb::Run),
        Scope::Verb(Verb::Restore),
    ];
    for table in [RUNC, CRUN] {
        for scope in scopes {
            let names: Vec<_> = table.iter().filter(|flag| flag.is_in(scope)).collect();
            for (index, flag) in names.iter().enumerate() {
                for other in &names[index + 1..] {
                    assert_ne!(flag.long, other.long, "{scope:?}");
                    assert!(!flag.short.iter().any(|letter| other.short.contains(letter)));
                }
            }
        }
    }
}

/// Arguments that meet the interesting branches often.
fn argument() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(vec![
            "--",
            "-",
            "",
            "create",
            "run",
            "x",
            "A",
            "-b",
            "--bundle",
            "--bundle=A",
            "-bA",
            "-d",
            "--no-pivot",
            "--pid-file",
            "--root",
            "--debug",
            "--help",
            "--help=false",
            "--frob",
        ])
        .prop_map(str::to_owned),
        "[-a-z= ]{0,6}",
    ]
}

/// urfave/cli v1's `reorderArgs` and Go's `flag.Parse`, as runc 1.1.5 has them: the bundle and
/// the words of `create`, or nothing where it is rejected.
fn runc_v1(arguments: &[String]) -> Option<(String, Vec<String>)> {
    const VALUES: [&str; 6] = [
        "bundle",
        "b",
        "pid-file",
        "console-socket",
        "preserve-fds",
        "pidfd-socket",
    ];
    const SWITCHES: [&str; 4] = ["no-pivot", "no-new-keyring", "help", "h"];
    let name = |argument: &str| {
        let bare = argument
            .strip_prefix("--")
            .or_else(|| argument.strip_prefix('-'))?;
        let name = bare.split('=').next().unwrap_or_default().to_owned();
        (argument != "-" && (VALUES.contains(&&*name) || SWITCHES.contains(&&*name)))
            .then_some(name)
    };
    let (mut first, mut rest, mut value_next) = (Vec::new(), Vec::new(), false);
    for (at, argument) in arguments.iter().enumerate() {
        if argument == "--" {
            rest.extend_from_slice(&arguments[at..]);
            break;
        } else if value_next && !argument.starts_with('-') {
            value_next = false;
            first.push(argument.clone());
        } else if name(argument).is_some() {
            first.push(argument.clone());
            value_next = !argument.contains('=');
        } else {
            rest.push(argument.clone());
        }
    }
    first.extend(rest);
    let (mut bundle, mut at) = (String::from("."), 0);
    while let Some(argument) = first.get(at) {
        if argument == "--" {
            at += 1;
            break;
        }
        if !argument.starts_with('-') || argument == "-" {
            break;
        }
        let name = name(argument)?;
        let mut value = argument.split_once('=').map(|(_, value)| value.to_owned());
        if VALUES.contains(&&*name) {
            if value.is_none() {
                at += 1;
                value = Some(first.get(at)?.clone());
            }
            if name == "bundle" || name == "b" {
                bundle = value
                    .filter(|value| !value.is_empty())
                    .unwrap_or_else(|| ".".into());
            }
        } else if name == "help" || name == "h" {
            return None;
        }
        at += 1;
    }
    let words = first.get(at..).unwrap_or_default().to_vec();
    (words.len() == 1).then_some((bundle, words))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn whatever_runc_v1_starts_is_read_the_same_way_or_refused(
        arguments in prop::collection::vec(argument(), 0..6)
    ) {
        let mut argv = argv(&["create"]);
        argv.extend(arguments.iter().map(OsString::from));
        if let Some((bundle, words)) = runc_v1(&arguments) {
            match parse(Flavour::Runc, &argv).command {
                Err(_) => {}
                Ok(Command::Start(start)) => {
                    prop_assert_eq!(start.bundle, PathBuf::from(bundle));
                    prop_assert_eq!(start.id, OsString::from(&words[0]));
                }
                Ok(other) => prop_assert!(false, "runc starts it, we say {other:?}"),
            }
        }
    }

    #[test]
    fn nothing_on_the_command_line_panics(
        arguments in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..8), 0..8),
        front in prop::collection::vec(argument(), 0..4),
    ) {
        let mut argv = argv(&[]);
        argv.extend(front.iter().map(OsString::from));
        argv.extend(arguments.iter().map(|bytes| OsStr::from_bytes(bytes).to_os_string()));
        for flavour in [Flavour::Runc, Flavour::Crun] {
            if let Err(error) = parse(flavour, &argv).command {
                prop_assert!(!error.to_string().contains('\n'));
            }
        }
    }
}
