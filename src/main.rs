//! The `runcrust` program. Everything is in the library, so that the manual pages can be generated from it.

use std::process::ExitCode;

use dlmalloc::GlobalDlmalloc;

/// A create parses a config with thousands of small allocations. With musl's allocator it takes nearly twice as long
/// (docs/performance.md).
#[global_allocator]
static ALLOCATOR: GlobalDlmalloc = GlobalDlmalloc;

fn main() -> ExitCode {
    let argv: Vec<_> = std::env::args_os().collect();
    ExitCode::from(runcrust::main(&argv))
}
