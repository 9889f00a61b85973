//! The errors of mount options.

/// The error of a list of options that can't be used. No sentence repeats a value, since it may be a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// `bind`, `remount`, `shared`, `loop`…: not an option of a new mount of a device.
    #[error("mount option {option}: {why}; hint: remove it from the volume's mount options")]
    NotAnOption {
        /// Its name.
        option: String,
        /// The effect that the option would have.
        why: &'static str,
    },
    /// `password=…`: it would be on disk in the clear (KEP 2857, "Security").
    #[error(
        "mount option {option}: looks like a secret, and mount options are kept in clear text; \
         hint: use a CSI secret (nodeStageSecretRef, nodePublishSecretRef)"
    )]
    Secret {
        /// Its name.
        option: String,
    },
    /// A generic option with a value, as `ro=recurse`: the kernel would ignore the value.
    #[error("mount option {option}: takes no value; hint: write just {option}")]
    NoValueWanted {
        /// Its name.
        option: String,
    },
    /// `=value`.
    #[error("mount option number {position}: has no name before the \"=\"")]
    NoName {
        /// Counted from 1, over all lists.
        position: usize,
    },
    /// A NUL byte, which no C string can carry.
    #[error("mount option number {position}: contains a NUL byte")]
    Nul {
        /// Counted from 1, in the list given.
        position: usize,
    },
    /// A quotation that isn't closed.
    #[error("mount option number {position}: a \" is not closed")]
    Quote {
        /// Counted from 1, in the list given.
        position: usize,
    },
    /// Longer than fsconfig(2) takes.
    #[error("mount option {option}: {length} bytes, and the kernel takes 255")]
    TooLong {
        /// Its name, cut where it is the name that is too long.
        option: String,
        /// In bytes; the name's or the value's.
        length: usize,
    },
    /// More options than a volume may have.
    #[error("{count} mount options are more than the {most} that a volume may have")]
    TooMany {
        /// How many there are.
        count: usize,
        /// How many there may be.
        most: usize,
    },
    /// More text than a volume's options may have.
    #[error(
        "the {length} bytes of the mount options are more than the {most} that a volume's may have"
    )]
    TooMuch {
        /// In bytes, a separator after each list counted.
        length: usize,
        /// The most, in bytes.
        most: usize,
    },
}
