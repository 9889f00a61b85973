//! Ids that nobody else has.

use std::io;
use std::path::Path;

use crust_blockfs::bounded;

/// Where the kernel gives them, of its own randomness.
const SOURCE: &str = "/proc/sys/kernel/random/uuid";

/// It gives none.
#[derive(Debug, thiserror::Error)]
#[error("read {SOURCE}: {0}; hint: is /proc mounted?")]
pub(crate) struct UidError(#[source] io::Error);

/// A new one.
pub(crate) fn new() -> Result<String, UidError> {
    let made = bounded::read_to_string(Path::new(SOURCE), bounded::KERNELS_WORD);
    Ok(made.map_err(UidError)?.trim().to_owned())
}

/// Whether a text is one that was made here (RFC 9562, section 4).
pub(crate) fn is_uid(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
    let is_hex = |byte: u8| byte.is_ascii_hexdigit() && !byte.is_ascii_uppercase();
    lengths == [8, 4, 4, 4, 12] && parts.iter().all(|part| part.bytes().all(is_hex))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_gives_is_one_and_no_other() {
        let (one, other) = (new().unwrap(), new().unwrap());
        assert!(is_uid(&one) && is_uid(&other), "{one} {other}");
        assert_ne!(one, other);
        for text in [
            "",
            "node-1",
            &one[1..],
            &one.to_uppercase(),
            &format!("{one}-"),
        ] {
            assert!(!is_uid(text), "{text}");
        }
    }
}
