//! crun's grammar: argp with `ARGP_IN_ORDER` over `getopt_long`.
//!
//! Options end at the first positional argument, both before and after the subcommand (`crun create x -b A` is
//! rejected: too many arguments). Long options can be abbreviated as long as that is unambiguous; short ones can be
//! joined.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::Ambiguity;
use super::cursor::{Cursor, Token, split_value};
use super::grammar::{CRUN, Flag, FlagValue, Scope};

pub(super) fn next_token<'a>(cursor: &mut Cursor<'a>, scope: Scope) -> Token<'a> {
    if let Some((index, byte)) = cursor.cluster.take() {
        return short(cursor, scope, index, byte);
    }
    let Some((index, argument)) = cursor.take() else {
        return Token::End;
    };
    let global = scope == Scope::Global;
    match argument.as_bytes() {
        _ if cursor.flags_ended => positional(cursor, index, global),
        b"--" => {
            cursor.flags_ended = true;
            next_token(cursor, scope)
        }
        [b'-', b'-', name @ ..] => long(cursor, scope, index, name),
        [b'-', _, ..] => short(cursor, scope, index, 1),
        _ => positional(cursor, index, global),
    }
}

fn positional<'a>(cursor: &mut Cursor<'a>, index: usize, global: bool) -> Token<'a> {
    cursor.flags_ended = !global;
    Token::Positional(index)
}

fn long<'a>(cursor: &mut Cursor<'a>, scope: Scope, index: usize, text: &'a [u8]) -> Token<'a> {
    let (name, value) = split_value(text);
    let flag = match find(name, scope) {
        Ok(flag) => flag,
        Err(ambiguity) => return Token::Ambiguity(index, ambiguity),
    };
    match (flag.takes, value) {
        (FlagValue::Nothing, Some(_)) => Token::Rejected,
        (FlagValue::Value, None) => separate_value(cursor, flag),
        (_, value) => Token::Flag(flag, value),
    }
}

fn short<'a>(cursor: &mut Cursor<'a>, scope: Scope, index: usize, byte: usize) -> Token<'a> {
    let Some((letter, rest)) = cursor.short_option(index, byte) else {
        return next_token(cursor, scope);
    };
    let Some(flag) = CRUN
        .iter()
        .find(|flag| flag.is_in(scope) && flag.short.contains(&letter))
    else {
        return Token::Ambiguity(index, Ambiguity::Unknown);
    };
    match flag.takes {
        FlagValue::Value if rest.is_empty() => separate_value(cursor, flag),
        FlagValue::Value => Token::Flag(flag, Some(OsStr::from_bytes(rest))),
        FlagValue::Nothing | FlagValue::Optional => {
            cursor.cluster = (!rest.is_empty()).then_some((index, byte + 1));
            Token::Flag(flag, None)
        }
    }
}

/// Takes the next argument as the flag's value. getopt accepts any argument, even `--` and other options.
fn separate_value<'a>(cursor: &mut Cursor<'a>, flag: &'static Flag) -> Token<'a> {
    match cursor.take() {
        Some((_, value)) => Token::Flag(flag, Some(value)),
        None => Token::Rejected,
    }
}

/// Returns the option with this name, or the only one that it abbreviates.
///
/// A version with fewer options may accept an abbreviation that is ambiguous here (`--log-` in crun 1.8.1). Such an
/// abbreviation is refused.
fn find(name: &[u8], scope: Scope) -> Result<&'static Flag, Ambiguity> {
    let named = || CRUN.iter().filter(|flag| flag.is_in(scope));
    if let Some(flag) = named().find(|flag| flag.long.as_bytes() == name) {
        return Ok(flag);
    }
    let mut candidates = named().filter(|flag| flag.long.as_bytes().starts_with(name));
    match (candidates.next(), candidates.next()) {
        (Some(flag), None) => Ok(flag),
        (Some(_), Some(_)) => Err(Ambiguity::Abbreviation),
        (None, _) => Err(Ambiguity::Unknown),
    }
}
