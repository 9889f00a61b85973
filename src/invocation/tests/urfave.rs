//! Models of the ways in which versions of urfave/cli read what follows a subcommand of runc.
//!
//! Go's `flag.Parse` stops at the first word, so v1 sorts the flags to the front; how, has changed
//! twice. Which one a runc has depends on who built it: upstream's stays at 1.22.1, Debian 12's
//! runc 1.1.5 has 1.22.9.

use std::ffi::OsString;
use std::path::PathBuf;

use proptest::prelude::*;

use super::super::goflag::boolean;
use super::{Command, Flavour, argv, parse};

const VALUES: [&str; 5] = ["bundle", "b", "pid-file", "console-socket", "preserve-fds"];
const SWITCHES: [&str; 4] = ["no-pivot", "no-new-keyring", "help", "h"];

/// Flags, and the rest.
type Sorted = (Vec<String>, Vec<String>);

fn name(argument: &str) -> Option<&str> {
    let bare = argument
        .strip_prefix("--")
        .or_else(|| argument.strip_prefix('-'))?;
    bare.split('=').next().filter(|name| !name.is_empty())
}

fn is_flag(argument: &str) -> bool {
    name(argument).is_some_and(|name| VALUES.contains(&name) || SWITCHES.contains(&name))
}

/// Whatever has a dash is a flag, known or not.
fn v1_22_1(arguments: &[String]) -> Sorted {
    let (mut flags, mut rest, mut value_next) = (Vec::new(), Vec::new(), false);
    for (at, argument) in arguments.iter().enumerate() {
        if argument == "--" {
            rest.extend_from_slice(&arguments[at..]);
            break;
        }
        let dashed = argument.starts_with('-');
        if value_next && !dashed {
            value_next = false;
            flags.push(argument.clone());
        } else if argument != "-" && dashed {
            value_next = !argument.contains('=');
            flags.push(argument.clone());
        } else {
            value_next = false;
            rest.push(argument.clone());
        }
    }
    (flags, rest)
}

/// Only what the subcommand knows is a flag.
fn v1_22_2(arguments: &[String]) -> Sorted {
    let (mut flags, mut rest, mut value_next) = (Vec::new(), Vec::new(), false);
    for (at, argument) in arguments.iter().enumerate() {
        if argument == "--" {
            rest.extend_from_slice(&arguments[at..]);
            break;
        } else if value_next && !argument.starts_with('-') {
            value_next = false;
            flags.push(argument.clone());
        } else if is_flag(argument) {
            value_next = !argument.contains('=');
            flags.push(argument.clone());
        } else {
            rest.push(argument.clone());
        }
    }
    (flags, rest)
}

/// A value is whatever isn't a flag, `--` too; and another `--` goes before the rest.
fn v1_22_9(arguments: &[String]) -> Sorted {
    let (mut flags, mut rest, mut value_next) = (Vec::new(), Vec::new(), false);
    for (at, argument) in arguments.iter().enumerate() {
        if value_next && !is_flag(argument) {
            value_next = false;
            flags.push(argument.clone());
        } else if argument == "--" {
            rest.insert(0, argument.clone());
            rest.extend_from_slice(&arguments[at + 1..]);
            break;
        } else if is_flag(argument) {
            value_next = !argument.contains('=');
            flags.push(argument.clone());
        } else {
            rest.push(argument.clone());
        }
    }
    (flags, rest)
}

/// The bundle and the words that Go's `flag.Parse` finds; nothing where runc ends with an error,
/// or a help text.
fn go(arguments: &[String]) -> Option<(PathBuf, Vec<String>)> {
    let (mut bundle, mut help, mut at) = (String::new(), false, 0);
    while let Some(argument) = arguments.get(at) {
        if !argument.starts_with('-') || argument == "-" {
            break;
        }
        at += 1;
        if argument == "--" {
            break;
        }
        let name = name(argument)?;
        let value = argument.split_once('=').map(|(_, value)| value.to_owned());
        if VALUES.contains(&name) {
            let value = if let Some(value) = value {
                value
            } else {
                at += 1;
                arguments.get(at - 1)?.clone()
            };
            if name == "bundle" || name == "b" {
                bundle = value;
            }
        } else if SWITCHES.contains(&name) {
            let on = value.map_or(Some(true), |value| boolean(value.as_bytes()))?;
            help |= on && name.starts_with('h');
        } else {
            return None;
        }
    }
    if bundle.is_empty() {
        bundle.push('.');
    }
    let words = arguments.get(at..).unwrap_or_default().to_vec();
    (words.len() == 1 && !help).then_some((bundle.into(), words))
}

/// Arguments that meet the interesting branches often.
pub(super) fn argument() -> impl Strategy<Value = String> {
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
            "--root=r",
            "--debug=zz",
            "--debug",
            "--help",
            "--help=false",
            "--frob",
        ])
        .prop_map(str::to_owned),
        "[-a-z= ]{0,6}",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8192))]

    #[test]
    fn whatever_a_runc_starts_is_read_the_same_way_or_refused(
        arguments in prop::collection::vec(argument(), 0..6)
    ) {
        let mut argv = argv(&["create"]);
        argv.extend(arguments.iter().map(OsString::from));
        for (version, sort) in [
            ("1.22.1", v1_22_1 as fn(&[String]) -> Sorted),
            ("1.22.2", v1_22_2),
            ("1.22.9", v1_22_9),
        ] {
            let (mut sorted, rest) = sort(&arguments);
            sorted.extend(rest);
            let Some((bundle, words)) = go(&sorted) else { continue };
            match parse(Flavour::Runc, &argv).command {
                Err(_) => {}
                Ok(Command::Start(start)) => {
                    prop_assert_eq!(start.bundle, bundle, "{}", version);
                    prop_assert_eq!(start.id, OsString::from(&words[0]), "{}", version);
                }
                Ok(other) => prop_assert!(false, "{version} starts it, we say {other:?}"),
            }
        }
    }
}
