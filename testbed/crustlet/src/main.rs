//! The program. Everything is in the library, so that the manual pages can be generated from the same command line.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    crustlet::main()
}
