//! Paths in requests.

/// `PATH_MAX`, which counts the NUL at the end: no system call takes a longer path.
const LONGEST: usize = 4096;

/// A path that no system call takes.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("its {0} bytes are more than a path can have")]
pub struct TooLong(usize);

/// Refuses a path that can be none for its length alone, before it is written down anywhere.
pub fn check_length(path: &str) -> Result<(), TooLong> {
    match path.len() {
        length if length < LONGEST => Ok(()),
        length => Err(TooLong(length)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nul_counts() {
        assert_eq!(check_length(&"x".repeat(4095)), Ok(()));
        assert_eq!(check_length(&"x".repeat(4096)), Err(TooLong(4096)));
    }
}
