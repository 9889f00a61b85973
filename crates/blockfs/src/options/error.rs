//! The errors of mount options.

/// The error of a list of options that can't be used. No message contains a value, since it may be a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// The option can't be used for a new mount of a device (`bind`, `remount`, `shared`, `loop`), or names another
    /// device or file than the volume's device.
    #[error("mount option {option}: {reason}; hint: remove it from the volume's mount options")]
    Refused {
        /// The option's name, without its value.
        option: String,
        /// The reason, as a predicate about the option.
        reason: &'static str,
    },
    /// The option is probably a secret, such as `password=…`. It would be stored in clear text (KEP-2857, "Security").
    #[error(
        "mount option {option}: looks like a secret, and mount options are stored in clear text; \
         hint: use a CSI secret (nodeStageSecretRef, nodePublishSecretRef)"
    )]
    Secret {
        /// The option's name, without its value.
        option: String,
    },
    /// A generic option has a value, as in `ro=recurse`. The kernel would ignore the value.
    #[error("mount option {option}: takes no value; hint: write only {option}")]
    UnexpectedValue {
        /// The option's name, without its value.
        option: String,
    },
    /// The option has a value but no name, as in `=value`.
    #[error(
        "mount option number {position}: has no name before the \"=\"; hint: correct the volume's mount options"
    )]
    NoName {
        /// The number of the option in all lists, starting at 1.
        position: usize,
    },
    /// The list item contains a NUL byte, which a C string can't contain.
    #[error(
        "mount option number {position}: contains a NUL byte; hint: correct the volume's mount options"
    )]
    Nul {
        /// The number of the list item, starting at 1.
        position: usize,
    },
    /// The list item contains a quotation mark without its counterpart.
    #[error(
        "mount option number {position}: a \" is not closed; hint: correct the volume's mount options"
    )]
    Quote {
        /// The number of the list item, starting at 1.
        position: usize,
    },
    /// The name or the value is longer than fsconfig(2) accepts.
    #[error(
        "mount option {option}: is {length} bytes long, and the kernel accepts at most 255; hint: shorten it"
    )]
    TooLong {
        /// The first characters of the option's name.
        option: String,
        /// The length of the name or the value in bytes.
        length: usize,
    },
    /// A volume has too many options.
    #[error(
        "{count} mount options are more than the {most} that a volume may have; hint: remove some of them"
    )]
    TooMany {
        /// The number of options.
        count: usize,
        /// The largest number that is accepted.
        most: usize,
    },
    /// The options of a volume are too long in total.
    #[error(
        "the mount options take {length} bytes, and a volume's may take at most {most}; hint: remove some of them"
    )]
    TooMuch {
        /// The total length in bytes, with one byte for a separator after each list item.
        length: usize,
        /// The largest length that is accepted, in bytes.
        most: usize,
    },
}
