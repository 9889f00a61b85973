//! Models of two versions of crun's command line parser: glibc's argp over its `getopt_long`.

use super::{VersionModel, owned, verb};
use crate::invocation::{CreateCommand, CreateVerb};

/// Whether an option takes a value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FlagValue {
    Nothing,
    Value,
    /// The value is optional and must be part of the argument (`--option=value`).
    Optional,
}

#[derive(Clone, Copy)]
struct Opt {
    long: &'static str,
    letters: &'static [u8],
    takes: FlagValue,
}

/// A long name and its value, which is empty for a switch.
type ParsedOption<'a> = (&'static str, &'a [u8]);

#[derive(Clone, Copy, PartialEq, Eq)]
enum CrunVersion {
    /// 1.8.1 as Debian 12 builds it, without checkpoint and restore.
    V1_8,
    V1_28,
}

pub(super) fn models() -> Vec<(&'static str, VersionModel)> {
    [("1.8.1", CrunVersion::V1_8), ("1.28", CrunVersion::V1_28)]
        .map(|(name, version)| {
            let model: VersionModel = Box::new(move |arguments| created(version, arguments));
            (name, model)
        })
        .into()
}

/// Lists of options, separated by spaces. Each is `name`, `name=` or `name[=]`, then `,` and its letters if it has any.
type Options = [&'static str; 3];

fn parse_options(options: &Options) -> impl Iterator<Item = Opt> {
    let words = options
        .iter()
        .flat_map(|text| text.split_ascii_whitespace());
    words.map(|word| {
        let (name, letters) = word.split_once(',').unwrap_or((word, ""));
        let (long, takes) = match (name.strip_suffix("[=]"), name.strip_suffix('=')) {
            (Some(long), _) => (long, FlagValue::Optional),
            (None, Some(long)) => (long, FlagValue::Value),
            (None, None) => (name, FlagValue::Nothing),
        };
        let letters = letters.as_bytes();
        Opt {
            long,
            letters,
            takes,
        }
    })
}

/// Returns the options that are accepted after `verb`, or before the subcommand if `verb` is `None`. They include the
/// options that argp adds.
fn options_after(verb: Option<CreateVerb>, version: CrunVersion) -> Options {
    let from_argp = "help,? usage program-name= HANG[=]";
    let (old, new) = match verb {
        None => (
            "cgroup-manager= debug log= log-format= root= rootless= systemd-cgroup version,vV",
            "log-level=",
        ),
        Some(CreateVerb::Create) => (
            "bundle=,b console-socket= config=,f no-new-keyring no-pivot no-subreaper pid-file= \
             preserve-fds=",
            "",
        ),
        Some(CreateVerb::Run) => (
            "bundle=,b console-socket= detach,d config=,f no-new-keyring no-pivot no-subreaper \
             pid-file= preserve-fds=",
            "keep",
        ),
        Some(CreateVerb::Restore) => (
            "",
            "bundle=,b console-socket= detach,d pid-file= image-path= work-path= tcp-established \
             tcp-close ext-unix-sk shell-job file-locks manage-cgroups-mode= network-lock= lsm-profile= \
             lsm-mount-context=",
        ),
    };
    let is_new = version == CrunVersion::V1_28;
    [from_argp, old, if is_new { new } else { "" }]
}

fn created(version: CrunVersion, arguments: &[&[u8]]) -> Option<CreateCommand> {
    let (_, rest) = argp(&options_after(None, version), arguments)?;
    let (word, rest) = rest.split_first()?;
    let can_restore = version == CrunVersion::V1_28;
    let verb = verb(word).filter(|verb| can_restore || *verb != CreateVerb::Restore)?;
    let (parsed, positionals) = argp(&options_after(Some(verb), version), rest)?;
    let max_positionals = if verb == CreateVerb::Restore { 2 } else { 1 };
    let id = positionals
        .first()
        .filter(|_| positionals.len() <= max_positionals)?;
    let last = |name| {
        parsed
            .iter()
            .rfind(|(it, _)| *it == name)
            .map(|(_, value)| *value)
    };
    let (bundle, config) = (last("bundle"), last("config"));
    if bundle.is_some_and(<[u8]>::is_empty) || config.is_some_and(<[u8]>::is_empty) {
        // realpath(3) fails with ENOENT.
        return None;
    }
    Some(CreateCommand {
        verb,
        bundle: owned(bundle.unwrap_or(b".")).into(),
        config: config
            .filter(|config| *config != b"config.json")
            .map(|config| owned(config).into()),
        id: owned(id),
    })
}

/// Parses the options up to the first positional argument. Returns them and the arguments from there on; `None` if argp
/// fails, or prints help, usage or the version.
fn argp<'a, 'b>(
    options: &Options,
    arguments: &'b [&'a [u8]],
) -> Option<(Vec<ParsedOption<'a>>, &'b [&'a [u8]])> {
    let (mut parsed, mut index) = (Vec::new(), 0);
    while let Some(argument) = arguments.get(index) {
        if *argument == b"--" {
            index += 1;
            break;
        }
        let [b'-', after, ..] = argument else { break };
        index += 1;
        let mut next = || {
            index += 1;
            arguments.get(index - 1).copied()
        };
        if *after == b'-' {
            parsed.push(long(options, &argument[2..], &mut next)?);
        } else {
            short(options, &argument[1..], &mut next, &mut parsed)?;
        }
    }
    let exiting = ["help", "usage", "version"];
    if parsed.iter().any(|(name, _)| exiting.contains(name)) {
        return None;
    }
    Some((parsed, arguments.get(index..).unwrap_or_default()))
}

fn long<'a>(
    options: &Options,
    text: &'a [u8],
    next: &mut impl FnMut() -> Option<&'a [u8]>,
) -> Option<ParsedOption<'a>> {
    let mut parts = text.splitn(2, |byte| *byte == b'=');
    let (name, value) = (parts.next()?, parts.next());
    let exact = parse_options(options).find(|it| it.long.as_bytes() == name);
    let mut matching = parse_options(options).filter(|it| it.long.as_bytes().starts_with(name));
    let first = matching.next();
    let only = first.filter(|first| matching.all(|it| key(it.long) == key(first.long)));
    let option = exact.or(only)?;
    let value = match (option.takes, value) {
        (FlagValue::Nothing, Some(_)) => return None,
        (FlagValue::Value, None) => next()?,
        (_, value) => value.unwrap_or_default(),
    };
    Some((option.long, value))
}

/// Returns the key of an option. crun 1.8.1 has the same key for `--root` and `--rootless`, so `getopt_long` doesn't
/// regard an abbreviation of both as ambiguous.
fn key(long: &'static str) -> &'static str {
    match long {
        "rootless" => "root",
        other => other,
    }
}

fn short<'a>(
    options: &Options,
    mut letters: &'a [u8],
    next: &mut impl FnMut() -> Option<&'a [u8]>,
    parsed: &mut Vec<ParsedOption<'a>>,
) -> Option<()> {
    while let Some((letter, rest)) = letters.split_first() {
        let option = parse_options(options).find(|it| it.letters.contains(letter))?;
        letters = rest;
        if option.takes == FlagValue::Value {
            let value = if rest.is_empty() { next()? } else { rest };
            parsed.push((option.long, value));
            break;
        }
        parsed.push((option.long, b""));
    }
    Some(())
}
