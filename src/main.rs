//! The `runcrust` program. Everything that it does is in the library, which its manual is made from too.

use std::process::ExitCode;

use crust_blockfs::sys::arena::Arena;

#[global_allocator]
static ALLOCATOR: Arena = Arena::new();

fn main() -> ExitCode {
    let argv: Vec<_> = std::env::args_os().collect();
    ExitCode::from(runcrust::main(&argv))
}
