//! Errors for command lines that are refused.

use std::fmt;

/// A command line that creates a container, or may create one, and that can be parsed in more than one way.
///
/// It isn't passed through, because its container could start without its volumes.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum InvocationError {
    /// The ambiguous argument is before the subcommand.
    #[error(
        "can't determine whether `{verb}` is the subcommand: global argument {argument} {ambiguity}; \
         hint: {}", ambiguity.hint()
    )]
    BeforeSubcommand {
        /// The ambiguous argument, quoted and escaped.
        argument: String,
        /// The `create`, `run` or `restore` that comes after the argument.
        verb: &'static str,
        ambiguity: Ambiguity,
    },
    /// The ambiguous argument is after the subcommand.
    #[error(
        "can't determine which bundle `{verb}` is given: argument {argument} {ambiguity}; hint: {}", ambiguity.hint()
    )]
    AfterSubcommand {
        /// The ambiguous argument, quoted and escaped.
        argument: String,
        verb: &'static str,
        ambiguity: Ambiguity,
    },
}

/// The reason that an argument is ambiguous.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ambiguity {
    /// The flag isn't in the table, so it may or may not take the next argument as its value.
    Unknown,
    /// The flag abbreviates several long options.
    Abbreviation,
    /// The value of a runc or youki flag begins with `-`. urfave/cli v1 moves flags before the other arguments, but
    /// doesn't move such a value with its flag. In clap each option decides whether it accepts such a value.
    DashedValue,
    /// A runc flag that needs a value is the last argument. urfave/cli v1 takes an earlier argument as its value
    /// (`create A x --bundle` uses bundle A in runc 1.1.5).
    NoValue,
    /// A runc argument has white space around it. urfave/cli v3 trims it, v1 doesn't.
    Padded,
    /// `--` follows flags of runc, and there is no id. urfave/cli 1.22.9 takes an unknown flag as the id
    /// (`create --root=r --`).
    Separator,
    /// A lone `-` for runc. urfave/cli v3 drops everything after it, v1 takes it as the id.
    Dash,
}

impl Ambiguity {
    const fn hint(self) -> &'static str {
        match self {
            Self::Unknown => {
                "omit the argument, or call the delegate directly for containers that need it"
            }
            Self::Abbreviation => "write the option's full name",
            Self::DashedValue => "write it as --flag=value",
            Self::NoValue => "give the flag a value",
            Self::Padded => "remove the white space",
            Self::Separator => "add the container id",
            Self::Dash => "use another container id",
        }
    }
}

impl fmt::Display for Ambiguity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "is unknown and may or may not take the next argument as its value",
            Self::Abbreviation => "abbreviates more than one option",
            Self::DashedValue => "has a value that begins with `-`",
            Self::NoValue => "needs a value but is the last argument",
            Self::Padded => "begins or ends with white space",
            Self::Separator => {
                "is not followed by a container id, and some versions of runc take a flag before it as the id"
            }
            Self::Dash => "has different meanings in different versions of runc",
        })
    }
}
