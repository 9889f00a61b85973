//! Runs the table in `cases.txt`, and tests what the table can't express.

mod generated;
mod observed;

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use super::{
    Ambiguity, Command, CreateCommand, CreateVerb, DelegateKind, GlobalFlags, Invocation,
    InvocationError, LogFormat, parse,
};

const CASES: &str = include_str!("cases.txt");

/// Splits a table's column into arguments: `a 'b c' ''` becomes `a`, `b c` and an empty argument.
fn split_arguments(text: &str) -> Vec<OsString> {
    let mut arguments = Vec::new();
    for (index, part) in text.split('\'').enumerate() {
        if index % 2 == 1 {
            arguments.push(part.into());
        } else {
            arguments.extend(part.split_whitespace().map(OsString::from));
        }
    }
    arguments
}

/// Returns the arguments of every row of every table.
fn table_rows() -> impl Iterator<Item = Vec<OsString>> {
    let cases = lines(CASES).filter_map(|line| line.split(" | ").nth(1));
    let observed = observed::TABLES
        .iter()
        .flat_map(|(_, _, table)| lines(table));
    let observed = observed.filter_map(|line| line.split(" | ").next());
    cases.chain(observed).map(split_arguments)
}

/// Returns the lines that aren't empty or comments.
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

/// Formats an invocation as in the third column of the table.
fn table_notation(invocation: &Invocation) -> String {
    let mut out = match &invocation.command {
        Err(_) => return "refuse".into(),
        Ok(Command::PassThrough) => vec!["pass".to_owned()],
        Ok(Command::Own(own, index)) => vec![format!("{} {index}", own.name())],
        Ok(Command::Update(update)) => {
            let resources = update.resources.display();
            let id = update.id.display();
            let after_flags = update.after_flags;
            vec![format!(
                "update after={after_flags} resources={resources} id={id}"
            )]
        }
        Ok(Command::Create(start)) => {
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
fn every_case_of_the_table_is_parsed_as_expected() {
    let mut wrong = Vec::new();
    let mut count = 0;
    for line in lines(CASES) {
        let mut columns = line.split(" | ");
        let (Some(kind), Some(arguments), Some(expected)) =
            (columns.next(), columns.next(), columns.next())
        else {
            panic!("line with fewer than three columns: {line}");
        };
        let kind =
            DelegateKind::from_name(kind).unwrap_or_else(|| panic!("unknown delegate: {kind}"));
        let mut argv = argv(&[]);
        argv.extend(split_arguments(arguments));
        let got = table_notation(&parse(kind, &argv));
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
    assert!(count > 150, "the table has only {count} lines");
}

#[test]
fn arguments_that_are_not_utf8_are_preserved() {
    let not_utf8 = OsString::from_vec(b"A\xff\xfe".to_vec());
    let mut argv = argv(&["--root"]);
    argv.extend([
        not_utf8.clone(),
        "create".into(),
        "-b".into(),
        not_utf8.clone(),
        not_utf8.clone(),
    ]);
    for kind in DelegateKind::ALL {
        let Invocation { globals, command } = parse(kind, &argv);
        assert_eq!(globals.root.as_deref(), Some(not_utf8.as_os_str()));
        assert_eq!(
            command,
            Ok(Command::Create(CreateCommand {
                verb: CreateVerb::Create,
                bundle: PathBuf::from(&not_utf8),
                config: None,
                id: not_utf8.clone(),
            }))
        );
    }
}

#[test]
fn an_empty_command_line_is_passed_through() {
    for argv in [vec![], argv(&[])] {
        let Invocation { globals, command } = parse(DelegateKind::Runc, &argv);
        assert_eq!(
            (globals, command),
            (GlobalFlags::default(), Ok(Command::PassThrough))
        );
    }
}

#[test]
fn a_refusal_names_the_argument_and_keeps_the_log_flags() {
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
            InvocationError::AfterSubcommand {
                argument: r"`--fr\nob`".into(),
                verb: "create",
                ambiguity: Ambiguity::Unknown
            }
        );
        assert_eq!(
            error.to_string(),
            "can't determine which bundle `create` is given: argument `--fr\\nob` is unknown and may or \
             may not take the next argument as its value; hint: omit the argument, or call the \
             delegate directly for containers that need it"
        );
    }
}

#[test]
fn no_flag_is_listed_twice_in_a_scope() {
    use super::grammar::{CRUN, RUNC, Scope};
    let scopes = [
        Scope::Global,
        Scope::Create(CreateVerb::Create),
        Scope::Create(CreateVerb::Run),
        Scope::Create(CreateVerb::Restore),
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
