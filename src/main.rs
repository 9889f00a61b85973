//! The program; what it does is the library's, so that its manual can be made from the same.

use std::process::ExitCode;

fn main() -> ExitCode {
    runcrust::main()
}
