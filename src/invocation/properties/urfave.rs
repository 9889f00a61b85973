//! Models of the ways in which versions of urfave/cli read a command line of runc's.
//!
//! Go's `flag.Parse` stops at the first word, so v1 sorts what follows the subcommand, flags to the
//! front; how, has changed twice. Which one a runc has depends on who built it: upstream's stays at
//! 1.22.1, Debian 12's runc 1.1.5 has 1.22.9. v3 has a parser of its own, which reads in order.

use super::{Model, owned, verb};
use crate::invocation::goflag::boolean;
use crate::invocation::{Start, Verb};

/// The flags of a command: those with a value, and switches; names between blanks.
#[derive(Clone, Copy, Default)]
struct Flags {
    values: [&'static str; 3],
    switches: [&'static str; 3],
}

/// The flags that were given.
#[derive(Default)]
struct Said<'a> {
    bundle: &'a [u8],
    config: &'a [u8],
    /// Help, or the version.
    help: bool,
}

/// Sorts arguments: flags to the front, and the rest behind them.
type Sort = fn(&Flags, &[&[u8]]) -> (Vec<Vec<u8>>, Vec<Vec<u8>>);

/// A runc of 1.1, and a later one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Age {
    Old,
    New,
}

pub(super) fn models() -> Vec<(&'static str, Model)> {
    let mut models: Vec<(&'static str, Model)> = vec![("v3", Box::new(v3))];
    for (version, sort) in [
        ("1.22.1", v1_22_1 as Sort),
        ("1.22.2", v1_22_2),
        ("1.22.9", v1_22_9),
    ] {
        for age in [Age::Old, Age::New] {
            models.push((version, Box::new(move |arguments| v1(sort, age, arguments))));
        }
    }
    models
}

/// What has been there for long, what came later, and what the command has from above it.
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

fn of(verb: Verb, age: Age) -> Flags {
    let mut all = match verb {
        Verb::Create => flags(
            "bundle b console-socket pid-file preserve-fds",
            "no-pivot no-new-keyring help h",
        ),
        Verb::Run => flags(
            "bundle b console-socket pid-file preserve-fds",
            "detach d no-subreaper no-pivot no-new-keyring help h",
        ),
        Verb::Restore => flags(
            "bundle b console-socket pid-file image-path work-path manage-cgroups-mode empty-ns \
             lsm-profile lsm-mount-context",
            "detach d no-subreaper no-pivot tcp-established ext-unix-sk shell-job file-locks \
             auto-dedup lazy-pages help h",
        ),
    };
    if age == Age::New {
        (all.values[1], all.switches[1]) = match verb {
            Verb::Create => ("pidfd-socket config", ""),
            Verb::Run => ("pidfd-socket config", "keep"),
            Verb::Restore => ("pidfd-socket", "link-remap"),
        };
    }
    all
}

/// Whether one of the lists has a name.
fn has(lists: &[&str], name: &[u8]) -> bool {
    let mut names = lists.iter().flat_map(|list| list.split_ascii_whitespace());
    names.any(|it| it.as_bytes() == name)
}

impl Flags {
    fn is_value(&self, name: &[u8]) -> bool {
        has(&self.values, name)
    }

    fn is_switch(&self, name: &[u8]) -> bool {
        has(&self.switches, name)
    }

    fn knows(&self, argument: &[u8]) -> bool {
        named(argument).is_some_and(|(name, _)| self.is_value(name) || self.is_switch(name))
    }
}

impl<'a> Said<'a> {
    fn value(&mut self, name: &[u8], value: &'a [u8]) {
        match name {
            b"bundle" | b"b" => self.bundle = value,
            b"config" => self.config = value,
            _ => {}
        }
    }

    fn switch(&mut self, name: &[u8], on: bool) {
        if matches!(name, b"help" | b"h" | b"version" | b"v") {
            self.help = on;
        }
    }

    /// runc wants one argument, and takes an empty path for none.
    fn start(&self, verb: Verb, words: &[&[u8]]) -> Option<Start> {
        let [id] = words else { return None };
        let given = |path: &[u8]| (!path.is_empty()).then(|| owned(path).into());
        (!self.help).then(|| Start {
            verb,
            bundle: given(self.bundle).unwrap_or_else(|| ".".into()),
            config: given(self.config),
            id: owned(id),
        })
    }
}

/// `-name`, `--name`, with a value or without.
fn named(argument: &[u8]) -> Option<(&[u8], Option<&[u8]>)> {
    let bare = argument.strip_prefix(b"-")?;
    let bare = bare.strip_prefix(b"-").unwrap_or(bare);
    let mut parts = bare.splitn(2, |byte| *byte == b'=');
    let name = parts.next().filter(|name| !name.is_empty())?;
    Some((name, parts.next()))
}

fn v1(sort: Sort, age: Age, arguments: &[&[u8]]) -> Option<Start> {
    let (said, rest) = go(&globals(), arguments)?;
    let (word, rest) = rest.split_first().filter(|_| !said.help)?;
    let (verb, flags) = verb(word).map(|verb| (verb, of(verb, age)))?;
    let (mut sorted, words) = sort(&flags, rest);
    sorted.extend(words);
    let sorted: Vec<&[u8]> = sorted.iter().map(Vec::as_slice).collect();
    let (said, words) = go(&flags, &sorted)?;
    said.start(verb, words)
}

/// Go's `flag.Parse`: what the flags say, and what follows them. Nothing where it ends in an error.
fn go<'a, 'b>(flags: &Flags, arguments: &'b [&'a [u8]]) -> Option<(Said<'a>, &'b [&'a [u8]])> {
    let (mut said, mut at) = (Said::default(), 0);
    while let Some(argument) = arguments.get(at) {
        if !argument.starts_with(b"-") || *argument == b"-" {
            break;
        }
        at += 1;
        if *argument == b"--" {
            break;
        }
        let (name, value) = named(argument)?;
        if flags.is_value(name) {
            let next = || {
                at += 1;
                arguments.get(at - 1).copied()
            };
            said.value(name, value.or_else(next)?);
        } else if flags.is_switch(name) {
            said.switch(name, value.map_or(Some(true), boolean)?);
        } else {
            return None;
        }
    }
    Some((said, arguments.get(at..).unwrap_or_default()))
}

/// Whatever has a dash is a flag, known or not.
fn v1_22_1(_flags: &Flags, arguments: &[&[u8]]) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let (mut flags, mut rest, mut value_next) = (Vec::new(), Vec::new(), false);
    for (at, argument) in arguments.iter().enumerate() {
        if *argument == b"--" {
            rest.extend(arguments[at..].iter().map(|it| it.to_vec()));
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

/// Only what the subcommand knows is a flag.
fn v1_22_2(known: &Flags, arguments: &[&[u8]]) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let (mut flags, mut rest, mut value_next) = (Vec::new(), Vec::new(), false);
    for (at, argument) in arguments.iter().enumerate() {
        if *argument == b"--" {
            rest.extend(arguments[at..].iter().map(|it| it.to_vec()));
            break;
        } else if value_next && !argument.starts_with(b"-") {
            value_next = false;
            flags.push(argument.to_vec());
        } else if known.knows(argument) {
            value_next = !argument.contains(&b'=');
            flags.push(argument.to_vec());
        } else {
            rest.push(argument.to_vec());
        }
    }
    (flags, rest)
}

/// A value is whatever isn't a flag, `--` too; and another `--` goes before the rest.
fn v1_22_9(known: &Flags, arguments: &[&[u8]]) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let (mut flags, mut rest, mut value_next) = (Vec::new(), Vec::new(), false);
    for (at, argument) in arguments.iter().enumerate() {
        if value_next && !known.knows(argument) {
            value_next = false;
            flags.push(argument.to_vec());
        } else if *argument == b"--" {
            rest.insert(0, argument.to_vec());
            rest.extend(arguments[at + 1..].iter().map(|it| it.to_vec()));
            break;
        } else if known.knows(argument) {
            value_next = !argument.contains(&b'=');
            flags.push(argument.to_vec());
        } else {
            rest.push(argument.to_vec());
        }
    }
    (flags, rest)
}

/// In v3 the global flags are known after the subcommand too.
fn v3(arguments: &[&[u8]]) -> Option<Start> {
    let (said, words) = in_order(&globals(), arguments, true)?;
    let (word, rest) = words.split_first().filter(|_| !said.help)?;
    let verb = verb(word)?;
    let mut flags = of(verb, Age::New);
    (flags.values[2], flags.switches[2]) = (GLOBAL_VALUES, "debug systemd-cgroup");
    let (said, words) = in_order(&flags, rest, false)?;
    said.start(verb, &words)
}

/// What flags say, and the words among them and after them; `has_commands`: from the name of one on
/// all are words.
fn in_order<'a>(
    flags: &Flags,
    arguments: &[&'a [u8]],
    has_commands: bool,
) -> Option<(Said<'a>, Vec<&'a [u8]>)> {
    let (mut said, mut words) = (Said::default(), Vec::new());
    let mut rest = arguments.iter().copied();
    while let Some(given) = rest.next() {
        let argument = given.trim_ascii();
        if argument == b"--" {
            words.extend(rest);
            break;
        }
        let [b'-', after @ ..] = argument else {
            words.push(argument);
            if has_commands && verb(argument).is_some() {
                words.extend(rest);
                break;
            }
            continue;
        };
        let Some(letter) = after.first() else {
            words.push(argument);
            break;
        };
        if *letter != b'-' && !letter.is_ascii_alphabetic() {
            words.push(given);
            words.extend(rest);
            break;
        }
        let (name, value) = named(argument)?;
        if flags.is_switch(name) {
            let on = value.filter(|value| !value.is_empty());
            said.switch(name, on.map_or(Some(true), boolean)?);
        } else if flags.is_value(name) {
            said.value(name, value.or_else(|| rest.next())?);
        } else {
            return None;
        }
    }
    Some((said, words))
}
