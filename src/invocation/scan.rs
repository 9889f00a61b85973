//! The walk along argv that all grammars share.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use super::Ambiguity;
use super::grammar::Flag;

/// The next thing on the command line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Token<'a> {
    /// A flag of the table, and its value where it has one.
    Flag(&'static Flag, Option<&'a OsStr>),
    /// An argument that isn't a flag, by its index in argv.
    Word(usize),
    /// Nothing is left.
    End,
    /// Every version of the delegate rejects this command line.
    Rejected,
    /// The argument with this index can be read in more than one way.
    Ambiguity(usize, Ambiguity),
}

/// A place in argv.
#[derive(Debug)]
pub(super) struct Walk<'a> {
    argv: &'a [OsString],
    next: usize,
    /// The rest of a cluster of short options: index in argv, and the byte to go on with.
    pub(super) cluster: Option<(usize, usize)>,
    /// `--` was seen: only words from here.
    pub(super) ended: bool,
}

impl<'a> Walk<'a> {
    pub(super) const fn new(argv: &'a [OsString]) -> Self {
        Self {
            argv,
            next: 1,
            cluster: None,
            ended: false,
        }
    }

    pub(super) const fn argv(&self) -> &'a [OsString] {
        self.argv
    }

    /// The index of the next argument.
    pub(super) const fn next_index(&self) -> usize {
        self.next
    }

    pub(super) fn argument(&self, at: usize) -> Option<&'a OsStr> {
        self.argv.get(at).map(OsString::as_os_str)
    }

    /// Returns the letter of a short option at this byte of an argument, and the bytes after it.
    pub(super) fn short_option(&self, at: usize, byte: usize) -> Option<(u8, &'a [u8])> {
        let rest = self.argument(at)?.as_bytes().get(byte..)?;
        rest.split_first().map(|(letter, rest)| (*letter, rest))
    }

    /// The next argument, without taking it.
    pub(super) fn peek(&self) -> Option<&'a OsStr> {
        self.argument(self.next)
    }

    /// Takes the next argument and its index.
    pub(super) fn take(&mut self) -> Option<(usize, &'a OsStr)> {
        let at = self.next;
        let argument = self.argument(at)?;
        self.next += 1;
        Some((at, argument))
    }
}

/// Splits `name=value`.
pub(super) fn split_value(text: &[u8]) -> (&[u8], Option<&OsStr>) {
    match text.iter().position(|&byte| byte == b'=') {
        Some(at) => (&text[..at], Some(OsStr::from_bytes(&text[at + 1..]))),
        None => (text, None),
    }
}

/// An argument for an error: quoted, printable, and not endless.
pub(super) fn shown(argv: &[OsString], at: usize) -> String {
    const MOST: usize = 128;
    let text = argv
        .get(at)
        .map(|argument| argument.to_string_lossy())
        .unwrap_or_default();
    let cut: String = text.chars().take(MOST).collect();
    format!("`{}`", cut.escape_debug())
}
