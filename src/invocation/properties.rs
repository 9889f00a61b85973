//! Properties that hold for every command line. Property tests and fuzz targets check them.

mod argp;
mod clap4;
mod urfave;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use super::{
    Command, CreateCommand, CreateVerb, DelegateKind, GlobalFlags, Invocation, LogFormat,
    UpdateCommand, parse,
};

/// A model of one version of a delegate. Returns the container that this version creates for the arguments (without
/// `argv[0]`), or `None` if it creates none.
type VersionModel = Box<dyn Fn(&[&[u8]]) -> Option<CreateCommand>>;

/// Checks all properties for `argv`, which includes `argv[0]`. Panics if one doesn't hold.
pub(crate) fn check(kind: DelegateKind, argv: &[OsString]) {
    let invocation = parse(kind, argv);
    check_against_models(kind, argv, &invocation);
    check_leading_switch(kind, argv, &invocation);
    let Invocation { globals, command } = invocation;
    match command {
        Ok(Command::Create(create)) => check_canonical_form(kind, &globals, create),
        Ok(Command::Own(own, index)) => assert_eq!(argv[index], *own.name()),
        Ok(Command::Update(update)) => check_resources_override(argv, &update),
        Ok(Command::PassThrough) => {}
        Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
    }
}

/// Checks that if any version of the delegate creates a container, the parser found the same container or refused the
/// command line.
fn check_against_models(kind: DelegateKind, argv: &[OsString], invocation: &Invocation) {
    for (version, created) in created_by_versions(kind, argv) {
        let Some(created) = created else { continue };
        match &invocation.command {
            Err(_) => {}
            Ok(Command::Create(create)) => assert_eq!(*create, created, "{version}: {argv:?}"),
            Ok(other) => panic!("{version} parses {argv:?} as {created:?}, runcrust as {other:?}"),
        }
    }
}

/// Returns, for each modelled version of the delegate, the container that it creates for a command line.
pub(super) fn created_by_versions(
    kind: DelegateKind,
    argv: &[OsString],
) -> impl Iterator<Item = (&'static str, Option<CreateCommand>)> {
    let models = match kind {
        DelegateKind::Runc => urfave::models(),
        DelegateKind::Crun => argp::models(),
        DelegateKind::Youki => clap4::models(),
    };
    models.into_iter().map(|(version, model)| {
        let arguments: Vec<&[u8]> = argv.iter().skip(1).map(|it| it.as_bytes()).collect();
        (version, model(&arguments))
    })
}

/// Checks that a leading `--debug` changes nothing but the indices in argv.
fn check_leading_switch(kind: DelegateKind, argv: &[OsString], before: &Invocation) {
    let Some((program, arguments)) = argv.split_first() else {
        return;
    };
    let mut longer = vec![program.clone(), "--debug".into()];
    longer.extend_from_slice(arguments);
    let mut after = parse(kind, &longer);
    match &mut after.command {
        Ok(Command::Own(_, index)) => *index -= 1,
        Ok(Command::Update(update)) => update.after_flags -= 1,
        _ => {}
    }
    let Invocation { globals, command } = before;
    assert_eq!((&after.globals, &after.command), (globals, command));
}

/// Checks that the parsed command, written in a form that every version understands, parses to itself.
fn check_canonical_form(kind: DelegateKind, globals: &GlobalFlags, create: CreateCommand) {
    let mut canonical: Vec<OsString> = vec!["runcrust".into()];
    let log = globals.log.as_ref().map(|log| log.as_os_str());
    for (name, value) in [("--root", globals.root.as_deref()), ("--log", log)] {
        canonical.extend(
            value
                .into_iter()
                .flat_map(|value| option(kind, name, value)),
        );
    }
    if globals.log_format == LogFormat::Json {
        canonical.push("--log-format=json".into());
    }
    canonical.push(create.verb.name().into());
    let config = create.config.as_ref().map(|config| config.as_os_str());
    for (name, value) in [
        ("--bundle", Some(create.bundle.as_os_str())),
        ("--config", config),
    ] {
        canonical.extend(
            value
                .into_iter()
                .flat_map(|value| option(kind, name, value)),
        );
    }
    canonical.extend(["--".into(), create.id.clone()]);
    let reparsed = parse(kind, &canonical);
    assert_eq!(
        (&reparsed.globals, reparsed.command),
        (globals, Ok(Command::Create(create)))
    );
}

/// Returns the arguments for an option with a value: one argument if the value could be taken for an option. runc gets
/// a value that ends with white space as a separate argument, because runcrust refuses `--root=- ` for it.
fn option(kind: DelegateKind, name: &str, value: &OsStr) -> Vec<OsString> {
    let text = value.to_string_lossy();
    let is_separate = kind == DelegateKind::Runc && text.trim_end() != text;
    if text.starts_with('-') && !is_separate {
        let one = [name.as_bytes(), b"=", value.as_bytes()].concat();
        vec![OsString::from_vec(one)]
    } else {
        vec![name.into(), value.to_owned()]
    }
}

/// Checks that a second `--resources`, which [`crate::update`] inserts, overrides the caller's.
fn check_resources_override(argv: &[OsString], update: &UpdateCommand) {
    let mut longer = argv.to_vec();
    longer.insert(update.after_flags, "--resources=/proc/self/fd/7".into());
    let expected = UpdateCommand {
        resources: "/proc/self/fd/7".into(),
        after_flags: update.after_flags + 1,
        ..update.clone()
    };
    let reparsed = parse(DelegateKind::Crun, &longer).command;
    assert_eq!(reparsed, Ok(Command::Update(expected)));
}

fn verb(word: &[u8]) -> Option<CreateVerb> {
    CreateVerb::from_name(OsStr::from_bytes(word))
}

fn owned(text: &[u8]) -> OsString {
    OsStr::from_bytes(text).to_owned()
}
