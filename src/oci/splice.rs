//! Replacements in a text, by position.

use std::borrow::Cow;
use std::ops::Range;

/// Replacements that don't overlap, in any order.
#[derive(Debug)]
pub(super) struct Splices<'a> {
    text: &'a str,
    list: Vec<(Range<usize>, Cow<'a, str>)>,
}

impl<'a> Splices<'a> {
    pub(super) const fn new(text: &'a str) -> Self {
        Self {
            text,
            list: Vec::new(),
        }
    }

    pub(super) const fn text(&self) -> &'a str {
        self.text
    }

    pub(super) fn replace(&mut self, range: Range<usize>, with: impl Into<Cow<'a, str>>) {
        self.list.push((range, with.into()));
    }

    pub(super) fn insert(&mut self, at: usize, text: impl Into<Cow<'a, str>>) {
        self.replace(at..at, text);
    }

    pub(super) fn delete(&mut self, range: Range<usize>) {
        self.replace(range, "");
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The text with all replacements made.
    pub(super) fn apply(mut self) -> Vec<u8> {
        self.list.sort_by_key(|(range, _)| range.start);
        let added: usize = self.list.iter().map(|(_, with)| with.len()).sum();
        let mut out = Vec::with_capacity(self.text.len() + added);
        let mut done = 0;
        for (range, with) in &self.list {
            debug_assert!(done <= range.start, "splices overlap at {}", range.start);
            out.extend_from_slice(
                self.text
                    .as_bytes()
                    .get(done..range.start)
                    .unwrap_or_default(),
            );
            out.extend_from_slice(with.as_bytes());
            done = range.end;
        }
        out.extend_from_slice(self.text.as_bytes().get(done..).unwrap_or_default());
        out
    }
}
