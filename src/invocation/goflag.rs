//! runc's grammar: urfave/cli over Go's `flag`, v1 (runc 1.1.5 to 1.5.0-rc.1) and v3 (runc's main branch).
//!
//! Global flags end at the first positional argument. After the subcommand, flags and positional arguments can be
//! mixed. v3 parses them in order, while v1 first moves flags to the front ("reorderArgs"). This module parses in
//! order, and reports an `Ambiguity` where v1's reordering changes the meaning:
//! - A value that begins with `-` isn't moved along with its flag.
//! - A flag at the end without a value takes the argument that was moved behind it.
//! - An unknown flag before `--` is moved behind it, where it is no longer a flag (urfave/cli 1.22.9, which Debian 12
//!   builds runc 1.1.5 with): `create --root=r --` creates a container with the id `--root=r`.
//!
//! In all other cases v1 parses the command line in the same way, or rejects it because of too many positional
//! arguments.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use super::Ambiguity;
use super::cursor::{Cursor, Token, split_value};
use super::grammar::{Flag, FlagValue, RUNC, Scope};

pub(super) fn next_token<'a>(cursor: &mut Cursor<'a>, scope: Scope) -> Token<'a> {
    let Some((index, argument)) = cursor.take() else {
        return Token::End;
    };
    if is_padded(argument) {
        return Token::Ambiguity(index, Ambiguity::Padded);
    }
    let global = scope == Scope::Global;
    if cursor.flags_ended {
        return positional(cursor, index, global);
    }
    let text = argument.as_bytes();
    let name = match text {
        b"--" => {
            cursor.flags_ended = true;
            return next_token(cursor, scope);
        }
        b"-" if !global => return Token::Ambiguity(index, Ambiguity::Dash),
        [b'-', b'-', name @ ..] | [b'-', name @ ..] if !name.is_empty() => name,
        _ => return positional(cursor, index, global),
    };
    let (name, value) = split_value(name);
    let Some(flag) = find(name, scope) else {
        return Token::Ambiguity(index, Ambiguity::Unknown);
    };
    match (flag.takes, value) {
        (FlagValue::Value, Some(value)) => Token::Flag(flag, Some(value)),
        (FlagValue::Value, None) => separate_value(cursor, flag, index, global),
        // v3 parses `--debug=` as true.
        (_, Some(value)) if !value.is_empty() && parse_bool(value.as_bytes()).is_none() => {
            Token::Rejected
        }
        (_, value) => Token::Flag(flag, value),
    }
}

fn positional<'a>(cursor: &mut Cursor<'a>, index: usize, global: bool) -> Token<'a> {
    // The subcommand's arguments are parsed with their own flag set: a `--` before the subcommand doesn't end them.
    cursor.flags_ended &= !global;
    Token::Positional(index)
}

fn separate_value<'a>(
    cursor: &mut Cursor<'a>,
    flag: &'static Flag,
    index: usize,
    global: bool,
) -> Token<'a> {
    match cursor.peek() {
        None if global => Token::Rejected,
        None => Token::Ambiguity(index, Ambiguity::NoValue),
        // Global flags aren't reordered: the value is the next argument, whatever it is.
        Some(value) if !global && value.as_bytes().starts_with(b"-") => {
            Token::Ambiguity(index, Ambiguity::DashedValue)
        }
        Some(value) => {
            cursor.take();
            Token::Flag(flag, Some(value))
        }
    }
}

fn find(name: &[u8], scope: Scope) -> Option<&'static Flag> {
    RUNC.iter()
        .find(|flag| flag.long.as_bytes() == name || (name.len() == 1 && flag.short == name))
        .filter(|flag| flag.is_in(scope))
}

/// Returns the index in argv of the first `--` after the subcommand. `from` is the index after the subcommand.
/// Returns `None` if there is no `--`, or no flag before it.
pub(super) fn separator_after_flags(argv: &[OsString], from: usize) -> Option<usize> {
    let arguments = argv.get(from..)?;
    let index = arguments.iter().position(|argument| argument == "--")?;
    let is_flag = |argument: &OsString| argument.as_bytes().starts_with(b"-");
    arguments[..index]
        .iter()
        .any(is_flag)
        .then_some(from + index)
}

/// Returns whether Go's `strings.TrimSpace` would change the argument.
fn is_padded(argument: &OsStr) -> bool {
    let bytes = argument.as_bytes();
    let ends = [bytes.first(), bytes.last()];
    if ends.into_iter().flatten().all(u8::is_ascii_graphic) {
        return false;
    }
    let text = argument.to_string_lossy();
    text.trim().len() != text.len()
}

/// Parses a boolean like Go's `strconv.ParseBool`.
pub(super) fn parse_bool(text: &[u8]) -> Option<bool> {
    match text {
        b"1" | b"t" | b"T" | b"true" | b"TRUE" | b"True" => Some(true),
        b"0" | b"f" | b"F" | b"false" | b"FALSE" | b"False" => Some(false),
        _ => None,
    }
}
