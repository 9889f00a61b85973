//! youki's grammar: clap 4.
//!
//! Options and positional arguments can be mixed until `--` (`create x --bundle A` uses bundle A). `--` is only
//! accepted after the subcommand. Option names can't be abbreviated; short options can be joined (`-sl FILE`, `-bA`,
//! `-b=A`). youki rejects repeated options except `--log`. Here the last one wins, as in a version that accepted
//! repetition.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::Ambiguity;
use super::cursor::{Cursor, Token, split_value};
use super::grammar::{Flag, FlagValue, Scope, YOUKI};

pub(super) fn next_token<'a>(cursor: &mut Cursor<'a>, scope: Scope) -> Token<'a> {
    if let Some((index, byte)) = cursor.cluster.take() {
        return short(cursor, scope, index, byte);
    }
    let Some((index, argument)) = cursor.take() else {
        return Token::End;
    };
    match argument.as_bytes() {
        _ if cursor.flags_ended => Token::Positional(index),
        // youki doesn't take the next argument as a subcommand.
        b"--" if scope == Scope::Global => Token::Rejected,
        b"--" => {
            cursor.flags_ended = true;
            next_token(cursor, scope)
        }
        [b'-', b'-', name @ ..] => long(cursor, scope, index, name),
        [b'-', _, ..] => short(cursor, scope, index, 1),
        _ => Token::Positional(index),
    }
}

fn long<'a>(cursor: &mut Cursor<'a>, scope: Scope, index: usize, text: &'a [u8]) -> Token<'a> {
    let (name, value) = split_value(text);
    let Some(flag) = find(scope, |flag| flag.long.as_bytes() == name) else {
        return Token::Ambiguity(index, Ambiguity::Unknown);
    };
    match (flag.takes, value) {
        (FlagValue::Value, None) => separate_value(cursor, index, flag),
        (FlagValue::Value, value) => Token::Flag(flag, value),
        (_, Some(_)) => Token::Rejected,
        (_, None) => Token::Flag(flag, None),
    }
}

fn short<'a>(cursor: &mut Cursor<'a>, scope: Scope, index: usize, byte: usize) -> Token<'a> {
    let Some((letter, rest)) = cursor.short_option(index, byte) else {
        return next_token(cursor, scope);
    };
    let Some(flag) = find(scope, |flag| flag.short.contains(&letter)) else {
        return Token::Ambiguity(index, Ambiguity::Unknown);
    };
    if flag.takes != FlagValue::Value {
        cursor.cluster = (!rest.is_empty()).then_some((index, byte + 1));
        return Token::Flag(flag, None);
    }
    if rest.is_empty() {
        return separate_value(cursor, index, flag);
    }
    let value = rest.strip_prefix(b"=").unwrap_or(rest);
    Token::Flag(flag, Some(OsStr::from_bytes(value)))
}

/// Takes the next argument as the flag's value. A value that begins with `-` is ambiguous: youki 0.7 rejects it, but
/// another version may allow it for the option.
fn separate_value<'a>(cursor: &mut Cursor<'a>, index: usize, flag: &'static Flag) -> Token<'a> {
    match cursor.take() {
        Some((_, value)) if value.len() > 1 && value.as_bytes().starts_with(b"-") => {
            Token::Ambiguity(index, Ambiguity::DashedValue)
        }
        Some((_, value)) => Token::Flag(flag, Some(value)),
        None => Token::Rejected,
    }
}

fn find(scope: Scope, matches: impl Fn(&Flag) -> bool) -> Option<&'static Flag> {
    YOUKI.iter().find(|flag| flag.is_in(scope) && matches(flag))
}
