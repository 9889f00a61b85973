//! The program `crust_ops`. Its code is in the library, so that the manual can be generated from the same command line.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    crust_ops::main()
}
