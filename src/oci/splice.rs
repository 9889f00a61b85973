//! Replaces parts of a text by position.

use std::borrow::Cow;
use std::ops::Range;

/// Replacements in a text, in any order. They must not overlap.
#[derive(Debug)]
pub(super) struct Splices<'a> {
    text: &'a str,
    replacements: Vec<(Range<usize>, Cow<'a, str>)>,
}

impl<'a> Splices<'a> {
    pub(super) const fn new(text: &'a str) -> Self {
        Self {
            text,
            replacements: Vec::new(),
        }
    }

    pub(super) const fn text(&self) -> &'a str {
        self.text
    }

    pub(super) fn replace(&mut self, range: Range<usize>, with: impl Into<Cow<'a, str>>) {
        self.replacements.push((range, with.into()));
    }

    pub(super) fn insert(&mut self, at: usize, text: impl Into<Cow<'a, str>>) {
        self.replace(at..at, text);
    }

    pub(super) fn delete(&mut self, range: Range<usize>) {
        self.replace(range, "");
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.replacements.is_empty()
    }

    /// Returns the text with all replacements applied. Insertions at the same position stay in order.
    pub(super) fn apply(mut self) -> Vec<u8> {
        self.replacements.sort_by_key(|(range, _)| range.start);
        let added: usize = self.replacements.iter().map(|(_, with)| with.len()).sum();
        let mut out = Vec::with_capacity(self.text.len() + added);
        let mut copied = 0;
        for (range, with) in &self.replacements {
            debug_assert!(copied <= range.start, "splices overlap at {}", range.start);
            out.extend_from_slice(
                self.text
                    .as_bytes()
                    .get(copied..range.start)
                    .unwrap_or_default(),
            );
            out.extend_from_slice(with.as_bytes());
            copied = range.end;
        }
        out.extend_from_slice(self.text.as_bytes().get(copied..).unwrap_or_default());
        out
    }
}
