//! Models of how versions of urfave/cli parse runc's command line.
//!
//! Go's `flag.Parse` stops at the first argument that isn't a flag. v1 therefore reorders the arguments after the
//! subcommand and puts flags first; the way in which it does so has changed twice. The version depends on who built
//! runc: upstream stays at 1.22.1, Debian 12 builds runc 1.1.5 with 1.22.9. v3 has its own parser, which doesn't
//! reorder.

use super::{VersionModel, owned, verb};
use crate::invocation::goflag::parse_bool;
use crate::invocation::{CreateCommand, CreateVerb};

/// The flags that a command accepts. Each string is a list of names, separated by spaces.
///
/// The first list of each array has the flags of runc 1.1, the second the flags that came later, and the third the
/// global flags, if the command accepts them.
#[derive(Clone, Copy, Default)]
struct Flags {
    /// Flags with a value.
    values: [&'static str; 3],
    /// Flags without a value.
    switches: [&'static str; 3],
}

/// The relevant flags of a command line.
#[derive(Default)]
struct ParsedFlags<'a> {
    bundle: &'a [u8],
    config: &'a [u8],
    /// Whether help or the version was requested.
    help: bool,
}

/// Reorders arguments. Returns the flags and their values, and the arguments that come after them.
type Reorder = fn(&Flags, &[&[u8]]) -> (Vec<Vec<u8>>, Vec<Vec<u8>>);

#[derive(Clone, Copy, PartialEq, Eq)]
enum RuncVersion {
    V1_1,
    Later,
}

pub(super) fn models() -> Vec<(&'static str, VersionModel)> {
    let mut models: Vec<(&'static str, VersionModel)> = vec![("v3", Box::new(v3))];
    for (name, reorder) in [
        ("1.22.1", v1_22_1 as Reorder),
        ("1.22.2", v1_22_2),
        ("1.22.9", v1_22_9),
    ] {
        for runc in [RuncVersion::V1_1, RuncVersion::Later] {
            models.push((
                name,
                Box::new(move |arguments| v1(reorder, runc, arguments)),
            ));
        }
    }
    models
}

fn flags(values: &'static str, switches: &'static str) -> Flags {
    Flags {
        values: [values, "", ""],
        switches: [switches, "", ""],
    }
}

fn globals() -> Flags {
    flags(GLOBAL_VALUES, "debug systemd-cgroup help h version v")
}

const GLOBAL_VALUES: &str = "root log log-format criu rootless";

fn flags_after(verb: CreateVerb, version: RuncVersion) -> Flags {
    let mut all = match verb {
        CreateVerb::Create => flags(
            "bundle b console-socket pid-file preserve-fds",
            "no-pivot no-new-keyring help h",
        ),
        CreateVerb::Run => flags(
            "bundle b console-socket pid-file preserve-fds",
            "detach d no-subreaper no-pivot no-new-keyring help h",
        ),
        CreateVerb::Restore => flags(
            "bundle b console-socket pid-file image-path work-path manage-cgroups-mode empty-ns \
             lsm-profile lsm-mount-context",
            "detach d no-subreaper no-pivot tcp-established ext-unix-sk shell-job file-locks \
             auto-dedup lazy-pages help h",
        ),
    };
    if version == RuncVersion::Later {
        (all.values[1], all.switches[1]) = match verb {
            CreateVerb::Create => ("pidfd-socket config", ""),
            CreateVerb::Run => ("pidfd-socket config", "keep"),
            CreateVerb::Restore => ("pidfd-socket", "link-remap"),
        };
    }
    all
}

fn lists_contain(lists: &[&str], name: &[u8]) -> bool {
    let mut names = lists.iter().flat_map(|list| list.split_ascii_whitespace());
    names.any(|it| it.as_bytes() == name)
}

impl Flags {
    fn is_value(&self, name: &[u8]) -> bool {
        lists_contain(&self.values, name)
    }

    fn is_switch(&self, name: &[u8]) -> bool {
        lists_contain(&self.switches, name)
    }

    fn contains(&self, argument: &[u8]) -> bool {
        split_flag(argument).is_some_and(|(name, _)| self.is_value(name) || self.is_switch(name))
    }
}

impl<'a> ParsedFlags<'a> {
    fn set_value(&mut self, name: &[u8], value: &'a [u8]) {
        match name {
            b"bundle" | b"b" => self.bundle = value,
            b"config" => self.config = value,
            _ => {}
        }
    }

    fn set_switch(&mut self, name: &[u8], on: bool) {
        if matches!(name, b"help" | b"h" | b"version" | b"v") {
            self.help = on;
        }
    }

    /// Returns the container that runc creates. runc requires exactly one positional argument, and treats an empty
    /// path as not given.
    fn created(&self, verb: CreateVerb, positionals: &[&[u8]]) -> Option<CreateCommand> {
        let [id] = positionals else { return None };
        let given = |path: &[u8]| (!path.is_empty()).then(|| owned(path).into());
        (!self.help).then(|| CreateCommand {
            verb,
            bundle: given(self.bundle).unwrap_or_else(|| ".".into()),
            config: given(self.config),
            id: owned(id),
        })
    }
}

/// Splits `-name`, `--name` or `--name=value`.
fn split_flag(argument: &[u8]) -> Option<(&[u8], Option<&[u8]>)> {
    let bare = argument.strip_prefix(b"-")?;
    let bare = bare.strip_prefix(b"-").unwrap_or(bare);
    let mut parts = bare.splitn(2, |byte| *byte == b'=');
    let name = parts.next().filter(|name| !name.is_empty())?;
    Some((name, parts.next()))
}

fn v1(reorder: Reorder, version: RuncVersion, arguments: &[&[u8]]) -> Option<CreateCommand> {
    let (parsed, rest) = go_flag_parse(&globals(), arguments)?;
    let (word, rest) = rest.split_first().filter(|_| !parsed.help)?;
    let (verb, flags) = verb(word).map(|verb| (verb, flags_after(verb, version)))?;
    let (mut reordered, positionals) = reorder(&flags, rest);
    reordered.extend(positionals);
    let reordered: Vec<&[u8]> = reordered.iter().map(Vec::as_slice).collect();
    let (parsed, positionals) = go_flag_parse(&flags, &reordered)?;
    parsed.created(verb, positionals)
}

/// Parses flags like Go's `flag.Parse`. Returns them and the arguments that follow; `None` for an error.
fn go_flag_parse<'a, 'b>(
    flags: &Flags,
    arguments: &'b [&'a [u8]],
) -> Option<(ParsedFlags<'a>, &'b [&'a [u8]])> {
    let (mut parsed, mut index) = (ParsedFlags::default(), 0);
    while let Some(argument) = arguments.get(index) {
        if !argument.starts_with(b"-") || *argument == b"-" {
            break;
        }
        index += 1;
        if *argument == b"--" {
            break;
        }
        let (name, value) = split_flag(argument)?;
        if flags.is_value(name) {
            let next = || {
                index += 1;
                arguments.get(index - 1).copied()
            };
            parsed.set_value(name, value.or_else(next)?);
        } else if flags.is_switch(name) {
            parsed.set_switch(name, value.map_or(Some(true), parse_bool)?);
        } else {
            return None;
        }
    }
    Some((parsed, arguments.get(index..).unwrap_or_default()))
}

/// Reorders like urfave/cli 1.22.1: every argument with a dash is a flag, known or not.
fn v1_22_1(_flags: &Flags, arguments: &[&[u8]]) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let (mut flags, mut rest, mut value_next) = (Vec::new(), Vec::new(), false);
    for (index, argument) in arguments.iter().enumerate() {
        if *argument == b"--" {
            rest.extend(arguments[index..].iter().map(|it| it.to_vec()));
            break;
        }
        let dashed = argument.starts_with(b"-");
        if value_next && !dashed {
            value_next = false;
            flags.push(argument.to_vec());
        } else if *argument != b"-" && dashed {
            value_next = !argument.contains(&b'=');
            flags.push(argument.to_vec());
        } else {
            value_next = false;
            rest.push(argument.to_vec());
        }
    }
    (flags, rest)
}

/// Reorders like urfave/cli 1.22.2: only the subcommand's own flags count as flags.
fn v1_22_2(known: &Flags, arguments: &[&[u8]]) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let (mut flags, mut rest, mut value_next) = (Vec::new(), Vec::new(), false);
    for (index, argument) in arguments.iter().enumerate() {
        if *argument == b"--" {
            rest.extend(arguments[index..].iter().map(|it| it.to_vec()));
            break;
        } else if value_next && !argument.starts_with(b"-") {
            value_next = false;
            flags.push(argument.to_vec());
        } else if known.contains(argument) {
            value_next = !argument.contains(&b'=');
            flags.push(argument.to_vec());
        } else {
            rest.push(argument.to_vec());
        }
    }
    (flags, rest)
}

/// Reorders like urfave/cli 1.22.9: any argument that isn't a known flag can be a value, even `--`. A `--` that isn't a
/// value is moved before the other arguments.
fn v1_22_9(known: &Flags, arguments: &[&[u8]]) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let (mut flags, mut rest, mut value_next) = (Vec::new(), Vec::new(), false);
    for (index, argument) in arguments.iter().enumerate() {
        if value_next && !known.contains(argument) {
            value_next = false;
            flags.push(argument.to_vec());
        } else if *argument == b"--" {
            rest.insert(0, argument.to_vec());
            rest.extend(arguments[index + 1..].iter().map(|it| it.to_vec()));
            break;
        } else if known.contains(argument) {
            value_next = !argument.contains(&b'=');
            flags.push(argument.to_vec());
        } else {
            rest.push(argument.to_vec());
        }
    }
    (flags, rest)
}

/// Parses like v3, which accepts the global flags after the subcommand, too.
fn v3(arguments: &[&[u8]]) -> Option<CreateCommand> {
    let (parsed, positionals) = parse_in_order(&globals(), arguments, true)?;
    let (word, rest) = positionals.split_first().filter(|_| !parsed.help)?;
    let verb = verb(word)?;
    let mut flags = flags_after(verb, RuncVersion::Later);
    (flags.values[2], flags.switches[2]) = (GLOBAL_VALUES, "debug systemd-cgroup");
    let (parsed, positionals) = parse_in_order(&flags, rest, false)?;
    parsed.created(verb, &positionals)
}

/// Returns the flags and the positional arguments. With `has_subcommands`, parsing stops at a subcommand, and all
/// arguments from there on are positional.
fn parse_in_order<'a>(
    flags: &Flags,
    arguments: &[&'a [u8]],
    has_subcommands: bool,
) -> Option<(ParsedFlags<'a>, Vec<&'a [u8]>)> {
    let (mut parsed, mut positionals) = (ParsedFlags::default(), Vec::new());
    let mut rest = arguments.iter().copied();
    while let Some(untrimmed) = rest.next() {
        let argument = untrimmed.trim_ascii();
        if argument == b"--" {
            positionals.extend(rest);
            break;
        }
        let [b'-', after @ ..] = argument else {
            positionals.push(argument);
            if has_subcommands && verb(argument).is_some() {
                positionals.extend(rest);
                break;
            }
            continue;
        };
        let Some(letter) = after.first() else {
            positionals.push(argument);
            break;
        };
        if *letter != b'-' && !letter.is_ascii_alphabetic() {
            positionals.push(untrimmed);
            positionals.extend(rest);
            break;
        }
        let (name, value) = split_flag(argument)?;
        if flags.is_switch(name) {
            let on = value.filter(|value| !value.is_empty());
            parsed.set_switch(name, on.map_or(Some(true), parse_bool)?);
        } else if flags.is_value(name) {
            parsed.set_value(name, value.or_else(|| rest.next())?);
        } else {
            return None;
        }
    }
    Some((parsed, positionals))
}
