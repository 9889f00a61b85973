//! youki's grammar: clap 4.
//!
//! Options and words alternate as they like until `--` (`create x --bundle A` uses bundle A), which may only
//! stand after the subcommand. Names are written in full; short options can be joined (`-sl FILE`, `-bA`,
//! `-b=A`). An option that is given twice is an error to youki, `--log` excepted. Here the last one counts, as it
//! would to a version that took it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::Ambiguity;
use super::grammar::{Flag, Scope, Takes, YOUKI};
use super::scan::{Token, Walk, split_value};

pub(super) fn step<'a>(walk: &mut Walk<'a>, scope: Scope) -> Token<'a> {
    if let Some((at, byte)) = walk.cluster.take() {
        return short(walk, scope, at, byte);
    }
    let Some((at, argument)) = walk.take() else {
        return Token::End;
    };
    match argument.as_bytes() {
        _ if walk.ended => Token::Word(at),
        // No word after it is a subcommand.
        b"--" if scope == Scope::Global => Token::Rejected,
        b"--" => {
            walk.ended = true;
            step(walk, scope)
        }
        [b'-', b'-', name @ ..] => long(walk, scope, at, name),
        [b'-', _, ..] => short(walk, scope, at, 1),
        _ => Token::Word(at),
    }
}

fn long<'a>(walk: &mut Walk<'a>, scope: Scope, at: usize, text: &'a [u8]) -> Token<'a> {
    let (name, value) = split_value(text);
    let Some(flag) = find(scope, |flag| flag.long.as_bytes() == name) else {
        return Token::Ambiguity(at, Ambiguity::Unknown);
    };
    match (flag.takes, value) {
        (Takes::Value, None) => separate_value(walk, at, flag),
        (Takes::Value, value) => Token::Flag(flag, value),
        (_, Some(_)) => Token::Rejected,
        (_, None) => Token::Flag(flag, None),
    }
}

fn short<'a>(walk: &mut Walk<'a>, scope: Scope, at: usize, byte: usize) -> Token<'a> {
    let Some((letter, rest)) = walk.short_option(at, byte) else {
        return step(walk, scope);
    };
    let Some(flag) = find(scope, |flag| flag.short.contains(&letter)) else {
        return Token::Ambiguity(at, Ambiguity::Unknown);
    };
    if flag.takes != Takes::Value {
        walk.cluster = (!rest.is_empty()).then_some((at, byte + 1));
        return Token::Flag(flag, None);
    }
    if rest.is_empty() {
        return separate_value(walk, at, flag);
    }
    let value = rest.strip_prefix(b"=").unwrap_or(rest);
    Token::Flag(flag, Some(OsStr::from_bytes(value)))
}

/// youki 0.7 rejects a value that begins with `-`; a version whose option allowed it would take it.
fn separate_value<'a>(walk: &mut Walk<'a>, at: usize, flag: &'static Flag) -> Token<'a> {
    match walk.take() {
        Some((_, value)) if value.len() > 1 && value.as_bytes().starts_with(b"-") => {
            Token::Ambiguity(at, Ambiguity::DashedValue)
        }
        Some((_, value)) => Token::Flag(flag, Some(value)),
        None => Token::Rejected,
    }
}

fn find(scope: Scope, is_wanted: impl Fn(&Flag) -> bool) -> Option<&'static Flag> {
    YOUKI
        .iter()
        .find(|flag| flag.is_in(scope) && is_wanted(flag))
}
