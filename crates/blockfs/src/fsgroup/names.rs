//! Names of directories that wait, packed: one directory may have millions.

use std::ffi::{CStr, CString};

/// A stack of names.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// One after the other, each with its NUL.
    bytes: Vec<u8>,
}

impl Names {
    /// So that the first of `names` is the first to be popped.
    pub(super) fn first_to_last<'a>(
        names: impl DoubleEndedIterator<Item = &'a CStr> + Clone,
    ) -> Self {
        // They may be all that fits: growing, there would be as many again for a moment.
        let lengths = names.clone().map(|name| name.count_bytes() + 1);
        let mut bytes = Vec::with_capacity(lengths.sum());
        for name in names.rev() {
            bytes.extend_from_slice(name.to_bytes_with_nul());
        }
        Self { bytes }
    }

    pub(super) fn pop(&mut self) -> Option<CString> {
        let last = self.bytes.len().checked_sub(1)?;
        let start = self.bytes[..last].iter().rposition(|byte| *byte == 0);
        let name = self.bytes.split_off(start.map_or(0, |nul| nul + 1));
        CString::from_vec_with_nul(name).ok()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// In bytes.
    pub(super) fn size(&self) -> usize {
        self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_out_as_they_went_in() {
        let names = [c"a", c"long\nname", c"\xff", c"z"];
        let mut packed = Names::first_to_last(names.into_iter());
        assert_eq!(packed.size(), 2 + 10 + 2 + 2);
        for name in names {
            assert!(!packed.is_empty());
            assert_eq!(packed.pop().as_deref(), Some(name));
        }
        assert!(packed.is_empty());
        assert_eq!(packed.pop(), None);
    }
}
