//! Kubelet's directories, where a new sandbox's volumes are looked for.

use std::path::PathBuf;

use crust_state::Config;
use crust_state::check::Finding;

const WHAT: &str = "kubelet's directories";

pub(super) fn check(config: &Config) -> Finding {
    let seen = config.kubelet_dirs.iter();
    let seen: Vec<(PathBuf, bool)> = seen.map(|it| (it.clone(), it.is_dir())).collect();
    judge(&seen)
}

fn judge(seen: &[(PathBuf, bool)]) -> Finding {
    let named = |is_there: bool| {
        let named = seen.iter().filter(|(_, there)| *there == is_there);
        let named: Vec<String> = named.map(|(path, _)| path.display().to_string()).collect();
        named.join(", ")
    };
    let missing = named(false);
    if missing.is_empty() {
        return Finding::pass(WHAT, named(true));
    }
    Finding::warn(
        WHAT,
        format!("{missing}: there is no such directory, so no pod's volumes are found in it"),
        "`kubelet_dirs` in runcrust's configuration names where kubelet's is; without a kubelet none \
         is needed",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_is_missing_is_told() {
        let line = |seen: &[(&str, bool)]| {
            let seen: Vec<_> = seen
                .iter()
                .map(|(path, there)| (path.into(), *there))
                .collect();
            judge(&seen).to_string()
        };
        let both = "pass  kubelet's directories: /a, /b";
        assert_eq!(line(&[("/a", true), ("/b", true)]), both);
        let line = line(&[("/a", true), ("/b", false)]);
        assert!(
            line.starts_with("warn  kubelet's directories: /b: there is no"),
            "{line}"
        );
    }
}
