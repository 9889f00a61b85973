//! The program. Its code is in the library, from which the manual is generated, too.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    crust_e2e::main()
}
