//! The error of a command line that is refused.

use std::fmt;

/// A call that makes a container, or may make one, and that can't be read with certainty.
/// Passing it on would let a container start without its volumes.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum InvocationError {
    /// Before the subcommand.
    #[error(
        "can't tell whether `{verb}` is the subcommand: global argument {argument} {doubt}; \
         hint: {}", doubt.hint()
    )]
    Global {
        /// The argument, printable.
        argument: String,
        /// The verb that comes after it.
        verb: &'static str,
        /// The ambiguity.
        doubt: Ambiguity,
    },
    /// After the subcommand.
    #[error("can't tell which bundle `{verb}` is given: argument {argument} {doubt}; hint: {}", doubt.hint())]
    Start {
        /// The argument, printable.
        argument: String,
        /// The subcommand.
        verb: &'static str,
        /// The ambiguity.
        doubt: Ambiguity,
    },
}

/// The ambiguity of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ambiguity {
    /// Not in the table: it may or may not take the next argument.
    Unknown,
    /// A short form of several long options.
    Abbreviation,
    /// The value of a flag of runc or youki begins with `-`: urfave/cli v1 moves the flags before the
    /// other arguments, without such a value; clap has it configured for each option.
    DashedValue,
    /// A flag of runc at the end, without a value: urfave/cli v1 gives it an argument from
    /// before it (`create A x --bundle` uses bundle A in runc 1.1.5).
    NoValue,
    /// White space around an argument of runc: urfave/cli v3 trims it, v1 doesn't.
    Blank,
    /// `--` after flags of runc, and no id: urfave/cli 1.22.9 takes a flag that it doesn't know
    /// for the id (`create --root=r --`).
    Separator,
    /// `-` alone: urfave/cli v3 drops everything after it, v1 takes it for an id.
    Dash,
}

impl Ambiguity {
    const fn hint(self) -> &'static str {
        match self {
            Self::Unknown => {
                "leave it out, or call the delegate itself for containers that need it"
            }
            Self::Abbreviation => "write the option's full name",
            Self::DashedValue => "write --flag=value",
            Self::NoValue => "give it a value",
            Self::Blank => "remove the white space",
            Self::Separator => "name the container",
            Self::Dash => "name the container otherwise",
        }
    }
}

impl fmt::Display for Ambiguity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "isn't known, and may or may not take the argument after it",
            Self::Abbreviation => "is short for more than one option",
            Self::DashedValue => "has a value that begins with `-`",
            Self::NoValue => "needs a value and is the last argument",
            Self::Blank => "begins or ends with white space",
            Self::Separator => {
                "ends flags of which some versions of runc take one for the missing id"
            }
            Self::Dash => "is read in different ways by different versions of runc",
        })
    }
}
