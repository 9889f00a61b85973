//! The file that `log` names.

use crust_state::check::Finding;
use crust_state::{Config, logging};

const WHAT: &str = "log";

pub(super) fn check(config: &Config) -> Finding {
    let Some(path) = &config.log else {
        return Finding::pass(WHAT, "none; what fails is told to the caller");
    };
    match logging::check(path) {
        Ok(()) => Finding::pass(WHAT, path.display().to_string()),
        Err(error) => {
            let finding = Finding::failed(WHAT, &error).softened();
            Finding {
                found: format!("nothing is logged: {}", finding.found),
                ..finding
            }
        }
    }
}
