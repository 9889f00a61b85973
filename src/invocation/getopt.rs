//! crun's grammar: argp with `ARGP_IN_ORDER` over `getopt_long`.
//!
//! Options end at the first word, before and after the subcommand alike (`crun create x -b A`
//! is rejected: too many arguments). Long options can be cut short while that stays
//! unambiguous, short ones can be joined.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::Ambiguity;
use super::grammar::{CRUN, Flag, Scope, Takes};
use super::scan::{Token, Walk, split_value};

pub(super) fn step<'a>(walk: &mut Walk<'a>, scope: Scope) -> Token<'a> {
    if let Some((at, byte)) = walk.cluster.take() {
        return short(walk, scope, at, byte);
    }
    let Some((at, argument)) = walk.take() else {
        return Token::End;
    };
    let global = scope == Scope::Global;
    match argument.as_bytes() {
        _ if walk.ended => word(walk, at, global),
        b"--" => {
            walk.ended = true;
            step(walk, scope)
        }
        [b'-', b'-', name @ ..] => long(walk, scope, at, name),
        [b'-', _, ..] => short(walk, scope, at, 1),
        _ => word(walk, at, global),
    }
}

fn word<'a>(walk: &mut Walk<'a>, at: usize, global: bool) -> Token<'a> {
    walk.ended = !global;
    Token::Word(at)
}

fn long<'a>(walk: &mut Walk<'a>, scope: Scope, at: usize, text: &'a [u8]) -> Token<'a> {
    let (name, value) = split_value(text);
    let flag = match find(name, scope) {
        Ok(flag) => flag,
        Err(doubt) => return Token::Ambiguity(at, doubt),
    };
    match (flag.takes, value) {
        (Takes::Nothing, Some(_)) => Token::Rejected,
        (Takes::Value, None) => separate_value(walk, flag),
        (_, value) => Token::Flag(flag, value),
    }
}

fn short<'a>(walk: &mut Walk<'a>, scope: Scope, at: usize, byte: usize) -> Token<'a> {
    let Some((letter, rest)) = walk.short_option(at, byte) else {
        return step(walk, scope);
    };
    let Some(flag) = CRUN
        .iter()
        .find(|flag| flag.is_in(scope) && flag.short.contains(&letter))
    else {
        return Token::Ambiguity(at, Ambiguity::Unknown);
    };
    match flag.takes {
        Takes::Value if rest.is_empty() => separate_value(walk, flag),
        Takes::Value => Token::Flag(flag, Some(OsStr::from_bytes(rest))),
        Takes::Nothing | Takes::Optional => {
            walk.cluster = (!rest.is_empty()).then_some((at, byte + 1));
            Token::Flag(flag, None)
        }
    }
}

/// getopt takes whatever comes next, `--` and other options too.
fn separate_value<'a>(walk: &mut Walk<'a>, flag: &'static Flag) -> Token<'a> {
    match walk.take() {
        Some((_, value)) => Token::Flag(flag, Some(value)),
        None => Token::Rejected,
    }
}

/// An exact name, or the only one that begins so. A version with fewer options may accept a
/// short form that is ambiguous here (`--log-` in crun 1.8.1): no guessing.
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
