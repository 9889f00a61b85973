//! The program; what it does is the library's, so that its manual can be made from the same.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    crustlet::main()
}
