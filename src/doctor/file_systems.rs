//! The file systems that this kernel can mount. It is asked as a first mount would ask it: a module is
//! loaded.

use crust_state::Config;
use crust_state::check::Finding;
use crust_volume::capabilities::{CapabilitiesError, mountable};

const WHAT: &str = "file systems";

pub(super) fn check(config: &Config) -> Finding {
    judge(&config.fstypes, mountable(&config.fstypes))
}

fn judge(wanted: &[String], found: Result<Vec<String>, CapabilitiesError>) -> Finding {
    let found = match found {
        Ok(found) => found,
        Err(error) => return Finding::failed(WHAT, &error),
    };
    let missing: Vec<&str> = wanted
        .iter()
        .filter(|fstype| !found.contains(fstype))
        .map(String::as_str)
        .collect();
    let fix = "install the kernel's modules, or take them out of `fstypes`";
    if found.is_empty() {
        let missing = format!("this kernel has none of {}", missing.join(", "));
        return Finding::fail(WHAT, missing, fix);
    }
    let found = found.join(", ");
    if missing.is_empty() {
        return Finding::pass(WHAT, found);
    }
    Finding::warn(WHAT, format!("{found}; not {}", missing.join(", ")), fix)
}

#[cfg(test)]
mod tests {
    use crust_state::check::Verdict;

    use super::*;

    #[test]
    fn one_that_is_missing_is_told() {
        let list =
            |names: &[&str]| -> Vec<String> { names.iter().map(|&name| name.to_owned()).collect() };
        let wanted = list(&["ext4", "xfs"]);
        for (found, expected) in [
            (&["ext4", "xfs"][..], "pass  file systems: ext4, xfs"),
            (&["ext4"], "warn  file systems: ext4; not xfs; hint: "),
            (&[], "FAIL  file systems: this kernel has none of ext4, xfs"),
        ] {
            let line = judge(&wanted, Ok(list(found))).to_string();
            assert!(line.starts_with(expected), "{line}");
        }
        let errno = rustix::io::Errno::PERM;
        let call = "fsopen(\"ext4\")".to_owned();
        let finding = judge(&wanted, Err(CapabilitiesError::FileSystem { call, errno }));
        assert_eq!(finding.verdict, Verdict::Fail);
        assert!(finding.fix.contains("only root"), "{finding}");
    }
}
