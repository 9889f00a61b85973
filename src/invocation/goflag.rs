//! runc's grammar: urfave/cli over Go's `flag`, v1 (runc 1.1.5 to 1.5.0-rc.1) and v3 (its main).
//!
//! Global flags end at the first word. After the subcommand flags and words mix; v1 sorts them
//! ("reorderArgs") where v3 reads them in order. This reads in order, and what v1's sorting
//! would read otherwise is an `Ambiguity`:
//! - a value that begins with `-` isn't moved along with its flag;
//! - a flag at the end without a value takes what was sorted behind it;
//! - what isn't known before `--` is sorted behind that, and is a word there (1.22.9, which Debian
//!   12 builds runc 1.1.5 with): `create --root=r --` makes a container called `--root=r`.
//!
//! With these excluded v1 either agrees, or counts more words and rejects.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use super::Ambiguity;
use super::grammar::{Flag, RUNC, Scope, Takes};
use super::scan::{Token, Walk, split_value};

pub(super) fn step<'a>(walk: &mut Walk<'a>, scope: Scope) -> Token<'a> {
    let Some((at, argument)) = walk.take() else {
        return Token::End;
    };
    if is_padded(argument) {
        return Token::Ambiguity(at, Ambiguity::Blank);
    }
    let global = scope == Scope::Global;
    if walk.ended {
        return word(walk, at, global);
    }
    let text = argument.as_bytes();
    let name = match text {
        b"--" => {
            walk.ended = true;
            return step(walk, scope);
        }
        b"-" if !global => return Token::Ambiguity(at, Ambiguity::Dash),
        [b'-', b'-', name @ ..] | [b'-', name @ ..] if !name.is_empty() => name,
        _ => return word(walk, at, global),
    };
    let (name, value) = split_value(name);
    let Some(flag) = find(name, scope) else {
        return Token::Ambiguity(at, Ambiguity::Unknown);
    };
    match (flag.takes, value) {
        (Takes::Value, Some(value)) => Token::Flag(flag, Some(value)),
        (Takes::Value, None) => separate_value(walk, flag, at, global),
        // v3 reads `--debug=` as true.
        (_, Some(value)) if !value.is_empty() && boolean(value.as_bytes()).is_none() => {
            Token::Rejected
        }
        (_, value) => Token::Flag(flag, value),
    }
}

fn word<'a>(walk: &mut Walk<'a>, at: usize, global: bool) -> Token<'a> {
    // The subcommand has a flag set of its own: its `--` and its words count anew.
    walk.ended &= !global;
    Token::Word(at)
}

fn separate_value<'a>(
    walk: &mut Walk<'a>,
    flag: &'static Flag,
    at: usize,
    global: bool,
) -> Token<'a> {
    match walk.peek() {
        None if global => Token::Rejected,
        None => Token::Ambiguity(at, Ambiguity::NoValue),
        // Global flags aren't sorted: there the value is the next argument, whatever it is.
        Some(value) if !global && value.as_bytes().starts_with(b"-") => {
            Token::Ambiguity(at, Ambiguity::DashedValue)
        }
        Some(value) => {
            walk.take();
            Token::Flag(flag, Some(value))
        }
    }
}

fn find(name: &[u8], scope: Scope) -> Option<&'static Flag> {
    RUNC.iter()
        .find(|flag| flag.long.as_bytes() == name || (name.len() == 1 && flag.short == name))
        .filter(|flag| flag.is_in(scope))
}

/// The `--` that ends the flags after the subcommand, where there are any before it.
pub(super) fn end_of_flags(argv: &[OsString], from: usize) -> Option<usize> {
    let arguments = argv.get(from..)?;
    let at = arguments.iter().position(|argument| argument == "--")?;
    let is_flag = |argument: &OsString| argument.as_bytes().starts_with(b"-");
    arguments[..at].iter().any(is_flag).then_some(from + at)
}

/// Go's `strings.TrimSpace` would change it.
fn is_padded(argument: &OsStr) -> bool {
    let bytes = argument.as_bytes();
    let ends = [bytes.first(), bytes.last()];
    if ends.into_iter().flatten().all(u8::is_ascii_graphic) {
        return false;
    }
    let text = argument.to_string_lossy();
    text.trim().len() != text.len()
}

/// Go's `strconv.ParseBool`.
pub(super) fn boolean(text: &[u8]) -> Option<bool> {
    match text {
        b"1" | b"t" | b"T" | b"true" | b"TRUE" | b"True" => Some(true),
        b"0" | b"f" | b"F" | b"false" | b"FALSE" | b"False" => Some(false),
        _ => None,
    }
}
