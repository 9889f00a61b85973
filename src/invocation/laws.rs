//! What holds of every command line. Tests and fuzzing make some up.

mod argp;
mod urfave;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use super::{Command, Flavour, Globals, Invocation, LogFormat, Start, Update, Verb, parse};

/// What some version of a delegate does of itself.
type Model = Box<dyn Fn(&[&[u8]]) -> Option<Start>>;

/// Panics where a law doesn't hold of `argv` (with `argv[0]`).
pub(crate) fn hold(flavour: Flavour, argv: &[OsString]) {
    let invocation = parse(flavour, argv);
    no_version_starts_another(flavour, argv, &invocation);
    a_switch_in_front_changes_nothing(flavour, argv, &invocation);
    let Invocation { globals, command } = invocation;
    match command {
        Ok(Command::Start(start)) => can_be_said_plainly(flavour, &globals, start),
        Ok(Command::Own(own, at)) => assert_eq!(argv[at], *own.name()),
        Ok(Command::Update(update)) => takes_other_resources(argv, &update),
        Ok(Command::PassOn) => {}
        Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
    }
}

/// A container that one of the delegate's versions starts is seen, with the same config, or refused.
fn no_version_starts_another(flavour: Flavour, argv: &[OsString], invocation: &Invocation) {
    let arguments: Vec<&[u8]> = argv.iter().skip(1).map(|it| it.as_bytes()).collect();
    let models = match flavour {
        Flavour::Runc => urfave::models(),
        Flavour::Crun => argp::models(),
    };
    for (version, starts) in models {
        let Some(started) = starts(&arguments) else {
            continue;
        };
        match &invocation.command {
            Err(_) => {}
            Ok(Command::Start(start)) => assert_eq!(*start, started, "{version}: {argv:?}"),
            Ok(other) => panic!("{version} makes {started:?} of {argv:?}, here it is {other:?}"),
        }
    }
}

fn a_switch_in_front_changes_nothing(flavour: Flavour, argv: &[OsString], before: &Invocation) {
    let Some((program, arguments)) = argv.split_first() else {
        return;
    };
    let mut longer = vec![program.clone(), "--debug".into()];
    longer.extend_from_slice(arguments);
    let mut after = parse(flavour, &longer);
    match &mut after.command {
        Ok(Command::Own(_, at)) => *at -= 1,
        Ok(Command::Update(update)) => update.after_flags -= 1,
        _ => {}
    }
    let Invocation { globals, command } = before;
    assert_eq!((&after.globals, &after.command), (globals, command));
}

/// What was understood can be written in the one way that every version knows.
fn can_be_said_plainly(flavour: Flavour, globals: &Globals, start: Start) {
    let with_value = |name: &str, value: &OsStr| {
        OsString::from_vec([name.as_bytes(), b"=", value.as_bytes()].concat())
    };
    let mut plain: Vec<OsString> = vec!["runcrust".into()];
    plain.extend(globals.root.iter().map(|it| with_value("--root", it)));
    plain.extend(globals.log.iter().map(|it| with_value("--log", it.as_os_str())));
    if globals.log_format == LogFormat::Json {
        plain.push("--log-format=json".into());
    }
    plain.push(start.verb.name().into());
    plain.push(with_value("--bundle", start.bundle.as_os_str()));
    plain.extend(start.config.iter().map(|it| with_value("--config", it.as_os_str())));
    plain.extend(["--".into(), start.id.clone()]);
    let Invocation { globals: again, command } = parse(flavour, &plain);
    assert_eq!((&again, command), (globals, Ok(Command::Start(start))));
}

/// As [`crate::update`] goes about it.
fn takes_other_resources(argv: &[OsString], update: &Update) {
    let mut longer = argv.to_vec();
    longer.insert(update.after_flags, "--resources=/proc/self/fd/7".into());
    let expected = Update {
        resources: "/proc/self/fd/7".into(),
        after_flags: update.after_flags + 1,
        ..update.clone()
    };
    let again = parse(Flavour::Crun, &longer).command;
    assert_eq!(again, Ok(Command::Update(expected)));
}

fn verb(word: &[u8]) -> Option<Verb> {
    Verb::from_word(OsStr::from_bytes(word))
}

fn owned(text: &[u8]) -> OsString {
    OsStr::from_bytes(text).to_owned()
}
