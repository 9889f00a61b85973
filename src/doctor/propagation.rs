//! Checks that mounts propagate between the host and containers with `mountPropagation`.

use std::path::{Path, PathBuf};

use crust_blockfs::mountinfo::{self, Mount};
use crust_state::Config;
use crust_state::check::Finding;

const CHECK: &str = "propagation";

/// A path, and whether it is on a shared mount.
#[derive(Debug)]
struct PathPropagation {
    path: PathBuf,
    is_shared: bool,
}

pub(super) fn check(config: &Config) -> Finding {
    let mounts = match mountinfo::read_own() {
        Ok(mounts) => mounts,
        Err(error) => return Finding::from_error(CHECK, &error),
    };
    let kubelets = config.kubelet_dirs.iter().filter(|path| path.is_dir());
    let kubelets: Vec<PathPropagation> = kubelets
        .map(|path| PathPropagation::new(path, &mounts))
        .collect();
    let others = [Path::new("/"), &config.state_dir];
    let others: Vec<PathPropagation> = others
        .iter()
        .map(|path| PathPropagation::new(path, &mounts))
        .collect();
    judge(&kubelets, &others)
}

impl PathPropagation {
    fn new(path: &Path, mounts: &[Mount]) -> Self {
        // If the path doesn't exist, its nearest existing parent is checked.
        let real = path.ancestors().find_map(|path| path.canonicalize().ok());
        let real = real.unwrap_or_else(|| path.to_owned());
        // The last of several mounts on one path is on top.
        let containing = mounts
            .iter()
            .filter(|mount| real.starts_with(&mount.mount_point));
        let mount = containing.max_by_key(|mount| mount.mount_point.components().count());
        Self {
            path: path.to_owned(),
            is_shared: mount.is_some_and(|mount| mount.propagation.shared.is_some()),
        }
    }
}

/// `mountPropagation` of pods needs kubelet's directories to be shared. Deferred volumes don't need it.
fn judge(kubelets: &[PathPropagation], others: &[PathPropagation]) -> Finding {
    let describe = |path: &PathPropagation| {
        let propagation = if path.is_shared { "shared" } else { "private" };
        format!("{} is {propagation}", path.path.display())
    };
    let descriptions = others.iter().chain(kubelets).map(describe);
    let found = descriptions.collect::<Vec<_>>().join(", ");
    if kubelets.iter().all(|path| path.is_shared) {
        return Finding::pass(CHECK, found);
    }
    Finding::warn(
        CHECK,
        format!("{found}: mountPropagation HostToContainer and Bidirectional have no effect"),
        "run `mount --make-rshared /`, as systemd does at boot, before containerd and kubelet start; if this runs in \
         a container, give its hostPath mounts a mountPropagation",
    )
}

#[cfg(test)]
mod tests {
    use crust_state::check::CheckVerdict;

    use super::*;

    #[test]
    fn a_path_is_shared_if_its_mount_is() {
        let text = "1 1 8:1 / / rw shared:1 - ext4 x rw\n\
                    2 1 0:2 / /proc rw - proc x rw\n\
                    3 1 0:3 / /proc rw shared:2 - tmpfs x rw\n\
                    4 1 0:4 / /dev rw master:1 - devtmpfs x rw\n";
        let mounts = mountinfo::parse(text.as_bytes()).unwrap();
        for (path, expected) in [
            ("/", true),
            ("/no/such/place", true),
            ("/proc/self", true),
            ("/dev", false),
        ] {
            let propagation = PathPropagation::new(Path::new(path), &mounts);
            assert_eq!(propagation.is_shared, expected, "{path}");
        }
    }

    #[test]
    fn only_kubelets_directories_have_to_be_shared() {
        let propagation = |path: &str, is_shared| PathPropagation {
            path: path.into(),
            is_shared,
        };
        for (kubelet, root, expected) in [
            (Some(true), true, CheckVerdict::Pass),
            (Some(true), false, CheckVerdict::Pass),
            (None, false, CheckVerdict::Pass),
            (Some(false), true, CheckVerdict::Warn),
        ] {
            let kubelets: Vec<PathPropagation> = kubelet
                .map(|it| propagation("/k", it))
                .into_iter()
                .collect();
            let finding = judge(&kubelets, &[propagation("/", root)]);
            assert_eq!(finding.verdict, expected, "{finding}");
            let expected_text = if root { "/ is shared" } else { "/ is private" };
            assert!(finding.found.starts_with(expected_text), "{finding}");
        }
    }
}
