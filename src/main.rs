//! The `runcrust` program. Everything that it does is in the library, which its manual is made from too.

use std::process::ExitCode;

use dlmalloc::GlobalDlmalloc;

/// A create parses a config in thousands of small allocations, and takes nearly twice as long with musl's allocator
/// (docs/performance.md).
#[global_allocator]
static ALLOCATOR: GlobalDlmalloc = GlobalDlmalloc;

fn main() -> ExitCode {
    let argv: Vec<_> = std::env::args_os().collect();
    ExitCode::from(runcrust::main(&argv))
}
