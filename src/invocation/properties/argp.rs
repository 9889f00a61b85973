//! A model of how versions of crun read a command line: glibc's argp over its `getopt_long`.

use super::{Model, owned, verb};
use crate::invocation::{Start, Verb};

/// Whether an option takes a value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Takes {
    No,
    Yes,
    /// Only one that is written to it.
    Maybe,
}

/// An option.
#[derive(Clone, Copy)]
struct Opt {
    long: &'static str,
    letters: &'static [u8],
    takes: Takes,
}

/// An option's name, and its value.
type Given<'a> = (&'static str, &'a [u8]);

/// crun 1.8.1 as Debian 12 builds it, without checkpoints; and one of 1.28's.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Age {
    Old,
    New,
}

pub(super) fn models() -> Vec<(&'static str, Model)> {
    [("1.8.1", Age::Old), ("1.28", Age::New)]
        .map(|(version, age)| {
            let model: Model = Box::new(move |arguments| starts(age, arguments));
            (version, model)
        })
        .into()
}

/// Options, between blanks: `name`, `name=`, `name[=]`, and `,` with their letters.
type Options = [&'static str; 3];

fn all(options: &Options) -> impl Iterator<Item = Opt> {
    let words = options
        .iter()
        .flat_map(|text| text.split_ascii_whitespace());
    words.map(|word| {
        let (name, letters) = word.split_once(',').unwrap_or((word, ""));
        let (long, takes) = match (name.strip_suffix("[=]"), name.strip_suffix('=')) {
            (Some(long), _) => (long, Takes::Maybe),
            (None, Some(long)) => (long, Takes::Yes),
            (None, None) => (name, Takes::No),
        };
        let letters = letters.as_bytes();
        Opt {
            long,
            letters,
            takes,
        }
    })
}

/// argp's own among them.
fn of(scope: Option<Verb>, age: Age) -> Options {
    let own = "help,? usage program-name= HANG[=]";
    let (old, new) = match scope {
        None => (
            "cgroup-manager= debug log= log-format= root= rootless= systemd-cgroup version,vV",
            "log-level=",
        ),
        Some(Verb::Create) => (
            "bundle=,b console-socket= config=,f no-new-keyring no-pivot no-subreaper pid-file= \
             preserve-fds=",
            "",
        ),
        Some(Verb::Run) => (
            "bundle=,b console-socket= detach,d config=,f no-new-keyring no-pivot no-subreaper \
             pid-file= preserve-fds=",
            "keep",
        ),
        Some(Verb::Restore) => (
            "",
            "bundle=,b console-socket= detach,d pid-file= image-path= work-path= tcp-established \
             tcp-close ext-unix-sk shell-job file-locks manage-cgroups-mode= network-lock= lsm-profile= \
             lsm-mount-context=",
        ),
    };
    [own, old, if age == Age::New { new } else { "" }]
}

fn starts(age: Age, arguments: &[&[u8]]) -> Option<Start> {
    let (_, rest) = argp(&of(None, age), arguments)?;
    let (word, rest) = rest.split_first()?;
    let verb = verb(word).filter(|verb| age == Age::New || *verb != Verb::Restore)?;
    let (given, words) = argp(&of(Some(verb), age), rest)?;
    let most = if verb == Verb::Restore { 2 } else { 1 };
    let id = words.first().filter(|_| words.len() <= most)?;
    let last = |name| {
        given
            .iter()
            .rfind(|(it, _)| *it == name)
            .map(|(_, value)| *value)
    };
    let (bundle, config) = (last("bundle"), last("config"));
    if bundle.is_some_and(<[u8]>::is_empty) || config.is_some_and(<[u8]>::is_empty) {
        // ENOENT of realpath(3).
        return None;
    }
    Some(Start {
        verb,
        bundle: owned(bundle.unwrap_or(b".")).into(),
        config: config
            .filter(|config| *config != b"config.json")
            .map(|config| owned(config).into()),
        id: owned(id),
    })
}

/// The options up to the first word, and what comes from there. Nothing where it ends there, in an
/// error or a text.
fn argp<'a, 'b>(
    options: &Options,
    arguments: &'b [&'a [u8]],
) -> Option<(Vec<Given<'a>>, &'b [&'a [u8]])> {
    let (mut given, mut at) = (Vec::new(), 0);
    while let Some(argument) = arguments.get(at) {
        if *argument == b"--" {
            at += 1;
            break;
        }
        let [b'-', after, ..] = argument else { break };
        at += 1;
        let mut next = || {
            at += 1;
            arguments.get(at - 1).copied()
        };
        if *after == b'-' {
            given.push(long(options, &argument[2..], &mut next)?);
        } else {
            short(options, &argument[1..], &mut next, &mut given)?;
        }
    }
    let ends = ["help", "usage", "version"];
    if given.iter().any(|(name, _)| ends.contains(name)) {
        return None;
    }
    Some((given, arguments.get(at..).unwrap_or_default()))
}

fn long<'a>(
    options: &Options,
    text: &'a [u8],
    next: &mut impl FnMut() -> Option<&'a [u8]>,
) -> Option<Given<'a>> {
    let mut parts = text.splitn(2, |byte| *byte == b'=');
    let (name, value) = (parts.next()?, parts.next());
    let exact = all(options).find(|it| it.long.as_bytes() == name);
    let mut begin_so = all(options).filter(|it| it.long.as_bytes().starts_with(name));
    let first = begin_so.next();
    let only = first.filter(|first| begin_so.all(|it| key(it.long) == key(first.long)));
    let option = exact.or(only)?;
    let value = match (option.takes, value) {
        (Takes::No, Some(_)) => return None,
        (Takes::Yes, None) => next()?,
        (_, value) => value.unwrap_or_default(),
    };
    Some((option.long, value))
}

/// crun 1.8.1 has one key for these two, and to `getopt_long` they are one.
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
    given: &mut Vec<Given<'a>>,
) -> Option<()> {
    while let Some((letter, rest)) = letters.split_first() {
        let option = all(options).find(|it| it.letters.contains(letter))?;
        letters = rest;
        if option.takes == Takes::Yes {
            let value = if rest.is_empty() { next()? } else { rest };
            given.push((option.long, value));
            break;
        }
        given.push((option.long, b""));
    }
    Some(())
}
