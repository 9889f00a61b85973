//! The hook.

use crust_state::Config;
use crust_state::check::{self, Finding, Verdict};

use crate::delegate::version::execute;
use crate::programs;

const WHAT: &str = "hook";

pub(super) fn check(config: &Config) -> Finding {
    match programs::hook(config) {
        Ok(program) => {
            let hint = "install crust-mount-hook beside runcrust";
            let finding = check::program(WHAT, &program, hint);
            if finding.verdict != Verdict::Pass {
                return finding;
            }
            match execute(&program) {
                Ok(()) => finding,
                Err(error) => {
                    let found = format!("{}: execve: {error}", program.display());
                    Finding::fail(WHAT, found, "install the one for this architecture")
                }
            }
        }
        Err(error) => Finding::failed(WHAT, error.as_ref()),
    }
}
