//! The hook.

use crust_state::Config;
use crust_state::check::{self, Finding};

use crate::programs;

const WHAT: &str = "hook";

pub(super) fn check(config: &Config) -> Finding {
    match programs::hook(config) {
        Ok(program) => {
            let hint = "install crust-mount-hook beside runcrust";
            check::program(WHAT, &program, hint)
        }
        Err(error) => Finding::failed(WHAT, error.as_ref()),
    }
}
