//! The table of `cases.txt`, and what doesn't fit into a line.

mod generated;
mod observed;

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use super::{
    Ambiguity, Command, DelegateKind, Globals, Invocation, InvocationError, LogFormat, Start, Verb,
    parse,
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

/// The arguments of every line of every table.
fn table_rows() -> impl Iterator<Item = Vec<OsString>> {
    let cases = lines(CASES).filter_map(|line| line.split(" | ").nth(1));
    let observed = observed::TABLES
        .iter()
        .flat_map(|(_, _, table)| lines(table));
    let observed = observed.filter_map(|line| line.split(" | ").next());
    cases.chain(observed).map(words)
}

/// Those that aren't blank or a comment.
fn lines(table: &str) -> impl Iterator<Item = &str> {
    let lines = table.lines();
    lines.filter(|line| !line.is_empty() && !line.starts_with('#'))
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
        Ok(Command::Own(own, at)) => vec![format!("{} {at}", own.name())],
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
    for line in lines(CASES) {
        let mut columns = line.split(" | ");
        let (Some(kind), Some(arguments), Some(expected)) =
            (columns.next(), columns.next(), columns.next())
        else {
            panic!("a line without three columns: {line}");
        };
        let kind = DelegateKind::from_name(kind).unwrap_or_else(|| panic!("no such kind: {kind}"));
        let mut argv = argv(&[]);
        argv.extend(words(arguments));
        let got = spelled(&parse(kind, &argv));
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
    for kind in DelegateKind::ALL {
        let Invocation { globals, command } = parse(kind, &argv);
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
        let Invocation { globals, command } = parse(DelegateKind::Runc, &argv);
        assert_eq!(
            (globals, command),
            (Globals::default(), Ok(Command::PassOn))
        );
    }
}

#[test]
fn a_refusal_names_the_argument_and_is_logged() {
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
    for kind in DelegateKind::ALL {
        let Invocation { globals, command } = parse(kind, &argv);
        assert_eq!(globals.log, Some(PathBuf::from("/l")));
        assert_eq!(globals.log_format, LogFormat::Json);
        let error = command.unwrap_err();
        assert_eq!(
            error,
            InvocationError::Start {
                argument: r"`--fr\nob`".into(),
                verb: "create",
                doubt: Ambiguity::Unknown
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
