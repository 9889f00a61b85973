//! The command-line options of the product's programs, from their help texts.

use std::collections::BTreeMap;
use std::process::Command;

use crate::{Run, binary};

/// Returns a program's long options without `--`, with their default values. A default that the help text describes,
/// such as "[default: the host name]", is no value.
pub fn long_options(program: &str) -> BTreeMap<String, Option<String>> {
    long_options_of(program, &[])
}

/// Returns the long options of a program's subcommand, with their defaults.
pub fn long_options_of(program: &str, command: &[&str]) -> BTreeMap<String, Option<String>> {
    let mut help = Command::new(binary(program));
    let help = Run::capture(help.args(command).arg("--help")).success();
    let mut flags = BTreeMap::new();
    let mut last = String::new();
    for line in help.stdout.lines().map(str::trim) {
        let option = line.strip_prefix('-').and_then(|_| line.split_once("--"));
        if let Some(name) = option.and_then(|(_, option)| option.split([' ', '[']).next()) {
            name.clone_into(&mut last);
            flags.insert(last.clone(), None);
        }
        if let Some((_, default)) = line.split_once("[default: ") {
            let default = default.trim_end_matches(']');
            let value = (!default.contains(' ')).then(|| default.to_owned());
            flags.insert(last.clone(), value);
        }
    }
    flags
}
