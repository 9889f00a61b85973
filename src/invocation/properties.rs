//! Properties that hold for every command line. Tests and fuzzing generate some.

mod argp;
mod clap4;
mod urfave;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use super::{Command, DelegateKind, Globals, Invocation, LogFormat, Start, Update, Verb, parse};

/// A model of a version of a delegate: what it starts for a command line.
type Model = Box<dyn Fn(&[&[u8]]) -> Option<Start>>;

/// Panics where a property doesn't hold of `argv` (with `argv[0]`).
pub(crate) fn check(kind: DelegateKind, argv: &[OsString]) {
    let invocation = parse(kind, argv);
    no_version_starts_another(kind, argv, &invocation);
    a_switch_in_front_changes_nothing(kind, argv, &invocation);
    let Invocation { globals, command } = invocation;
    match command {
        Ok(Command::Start(start)) => can_be_said_plainly(kind, &globals, start),
        Ok(Command::Own(own, at)) => assert_eq!(argv[at], *own.name()),
        Ok(Command::Update(update)) => takes_other_resources(argv, &update),
        Ok(Command::PassOn) => {}
        Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
    }
}

/// A container that one of the delegate's versions starts is seen, with the same config, or refused.
fn no_version_starts_another(kind: DelegateKind, argv: &[OsString], invocation: &Invocation) {
    for (version, started) in started(kind, argv) {
        let Some(started) = started else { continue };
        match &invocation.command {
            Err(_) => {}
            Ok(Command::Start(start)) => assert_eq!(*start, started, "{version}: {argv:?}"),
            Ok(other) => panic!("{version} makes {started:?} of {argv:?}, here it is {other:?}"),
        }
    }
}

/// Returns what each version of the delegate starts for a command line, by the models of versions.
pub(super) fn started(
    kind: DelegateKind,
    argv: &[OsString],
) -> impl Iterator<Item = (&'static str, Option<Start>)> {
    let models = match kind {
        DelegateKind::Runc => urfave::models(),
        DelegateKind::Crun => argp::models(),
        DelegateKind::Youki => clap4::models(),
    };
    models.into_iter().map(|(version, starts)| {
        let arguments: Vec<&[u8]> = argv.iter().skip(1).map(|it| it.as_bytes()).collect();
        (version, starts(&arguments))
    })
}

fn a_switch_in_front_changes_nothing(kind: DelegateKind, argv: &[OsString], before: &Invocation) {
    let Some((program, arguments)) = argv.split_first() else {
        return;
    };
    let mut longer = vec![program.clone(), "--debug".into()];
    longer.extend_from_slice(arguments);
    let mut after = parse(kind, &longer);
    match &mut after.command {
        Ok(Command::Own(_, at)) => *at -= 1,
        Ok(Command::Update(update)) => update.after_flags -= 1,
        _ => {}
    }
    let Invocation { globals, command } = before;
    assert_eq!((&after.globals, &after.command), (globals, command));
}

/// Checks that a create that was understood can be written in the one way that every version understands.
fn can_be_said_plainly(kind: DelegateKind, globals: &Globals, start: Start) {
    let mut plain: Vec<OsString> = vec!["runcrust".into()];
    let log = globals.log.as_ref().map(|log| log.as_os_str());
    for (name, value) in [("--root", globals.root.as_deref()), ("--log", log)] {
        plain.extend(value.into_iter().flat_map(|value| option(name, value)));
    }
    if globals.log_format == LogFormat::Json {
        plain.push("--log-format=json".into());
    }
    plain.push(start.verb.name().into());
    let config = start.config.as_ref().map(|config| config.as_os_str());
    for (name, value) in [
        ("--bundle", Some(start.bundle.as_os_str())),
        ("--config", config),
    ] {
        plain.extend(value.into_iter().flat_map(|value| option(name, value)));
    }
    plain.extend(["--".into(), start.id.clone()]);
    let again = parse(kind, &plain);
    assert_eq!(
        (&again.globals, again.command),
        (globals, Ok(Command::Start(start)))
    );
}

/// An option with a value, in one argument where the value could be taken for an option.
fn option(name: &str, value: &OsStr) -> Vec<OsString> {
    if value.as_bytes().starts_with(b"-") {
        let one = [name.as_bytes(), b"=", value.as_bytes()].concat();
        vec![OsString::from_vec(one)]
    } else {
        vec![name.into(), value.to_owned()]
    }
}

/// Checks that an update can be given other resources, as [`crate::update`] does it.
fn takes_other_resources(argv: &[OsString], update: &Update) {
    let mut longer = argv.to_vec();
    longer.insert(update.after_flags, "--resources=/proc/self/fd/7".into());
    let expected = Update {
        resources: "/proc/self/fd/7".into(),
        after_flags: update.after_flags + 1,
        ..update.clone()
    };
    let again = parse(DelegateKind::Crun, &longer).command;
    assert_eq!(again, Ok(Command::Update(expected)));
}

fn verb(word: &[u8]) -> Option<Verb> {
    Verb::from_word(OsStr::from_bytes(word))
}

fn owned(text: &[u8]) -> OsString {
    OsStr::from_bytes(text).to_owned()
}
