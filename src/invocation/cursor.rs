//! The cursor over argv and the tokens that all grammars share.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use super::Ambiguity;
use super::grammar::Flag;

/// One token of the command line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Token<'a> {
    /// A known flag, and its value if it has one.
    Flag(&'static Flag, Option<&'a OsStr>),
    /// The index in argv of a positional argument, that is, one that is neither a flag nor the value of a flag.
    Positional(usize),
    End,
    /// Every version of the delegate rejects this command line.
    Rejected,
    /// The argument with this index in argv can be parsed in more than one way.
    Ambiguity(usize, Ambiguity),
}

#[derive(Debug)]
pub(super) struct Cursor<'a> {
    argv: &'a [OsString],
    next: usize,
    /// The unread rest of a cluster of short options: the index in argv, and the offset of the next letter.
    pub(super) cluster: Option<(usize, usize)>,
    /// Whether all further arguments are [`Token::Positional`]s, because `--` came before them or the grammar accepts
    /// no more flags.
    pub(super) flags_ended: bool,
}

impl<'a> Cursor<'a> {
    pub(super) const fn new(argv: &'a [OsString]) -> Self {
        Self {
            argv,
            next: 1,
            cluster: None,
            flags_ended: false,
        }
    }

    pub(super) const fn argv(&self) -> &'a [OsString] {
        self.argv
    }

    pub(super) const fn next_index(&self) -> usize {
        self.next
    }

    pub(super) fn argument(&self, index: usize) -> Option<&'a OsStr> {
        self.argv.get(index).map(OsString::as_os_str)
    }

    /// Returns the letter at offset `byte` of the argument with this index, and the bytes after it.
    pub(super) fn short_option(&self, index: usize, byte: usize) -> Option<(u8, &'a [u8])> {
        let rest = self.argument(index)?.as_bytes().get(byte..)?;
        rest.split_first().map(|(letter, rest)| (*letter, rest))
    }

    /// Returns the next argument without taking it.
    pub(super) fn peek(&self) -> Option<&'a OsStr> {
        self.argument(self.next)
    }

    /// Takes the next argument. Returns it and its index in argv.
    pub(super) fn take(&mut self) -> Option<(usize, &'a OsStr)> {
        let index = self.next;
        let argument = self.argument(index)?;
        self.next += 1;
        Some((index, argument))
    }
}

/// Splits `name=value` at the first `=`. Returns the whole text as the name if there is no `=`.
pub(super) fn split_value(text: &[u8]) -> (&[u8], Option<&OsStr>) {
    match text.iter().position(|&byte| byte == b'=') {
        Some(index) => (&text[..index], Some(OsStr::from_bytes(&text[index + 1..]))),
        None => (text, None),
    }
}

/// Formats an argument for an error: quoted, escaped, and at most 128 characters of it.
pub(super) fn quote_argument(argv: &[OsString], index: usize) -> String {
    const MAX_CHARS: usize = 128;
    let text = argv
        .get(index)
        .map(|argument| argument.to_string_lossy())
        .unwrap_or_default();
    let cut: String = text.chars().take(MAX_CHARS).collect();
    format!("`{}`", cut.escape_debug())
}
