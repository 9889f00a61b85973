//! Whether mounts that a container shares with the host, and those that the host gets later, reach the
//! other.

use std::path::{Path, PathBuf};

use crust_blockfs::mountinfo::{self, Mount};
use crust_state::Config;
use crust_state::check::Finding;

const WHAT: &str = "propagation";

/// A place, and whether the mount that holds it is shared.
#[derive(Debug)]
struct Place {
    path: PathBuf,
    is_shared: bool,
}

pub(super) fn check(config: &Config) -> Finding {
    let mounts = match mountinfo::read_own() {
        Ok(mounts) => mounts,
        Err(error) => return Finding::from_error(WHAT, &error),
    };
    let kubelets = config.kubelet_dirs.iter().filter(|path| path.is_dir());
    let kubelets: Vec<Place> = kubelets.map(|path| Place::of(path, &mounts)).collect();
    let others = [Path::new("/"), &config.state_dir];
    let others: Vec<Place> = others.iter().map(|path| Place::of(path, &mounts)).collect();
    judge(&kubelets, &others)
}

impl Place {
    fn of(path: &Path, mounts: &[Mount]) -> Self {
        // Of what isn't there yet its first parent that is.
        let real = path.ancestors().find_map(|path| path.canonicalize().ok());
        let real = real.unwrap_or_else(|| path.to_owned());
        // Of several on one place the last is on top.
        let below = mounts
            .iter()
            .filter(|mount| real.starts_with(&mount.mount_point));
        let holder = below.max_by_key(|mount| mount.mount_point.components().count());
        Self {
            path: path.to_owned(),
            is_shared: holder.is_some_and(|mount| mount.propagation.shared.is_some()),
        }
    }
}

/// Pods' mountPropagation is about what is below kubelet's directories. Volumes need neither form.
fn judge(kubelets: &[Place], others: &[Place]) -> Finding {
    let told = |place: &Place| {
        let how = if place.is_shared { "shared" } else { "private" };
        format!("{} is {how}", place.path.display())
    };
    let told = others.iter().chain(kubelets).map(told);
    let found = told.collect::<Vec<_>>().join(", ");
    if kubelets.iter().all(|place| place.is_shared) {
        return Finding::pass(WHAT, found);
    }
    Finding::warn(
        WHAT,
        format!("{found}: mountPropagation HostToContainer and Bidirectional do nothing"),
        "mount --make-rshared /, as systemd does, before containerd and kubelet start; in a container \
         of the node's, hostPath mounts with mountPropagation",
    )
}

#[cfg(test)]
mod tests {
    use crust_state::check::CheckVerdict;

    use super::*;

    #[test]
    fn a_place_is_shared_as_the_mount_that_holds_it() {
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
            let place = Place::of(Path::new(path), &mounts);
            assert_eq!(place.is_shared, expected, "{path}");
        }
    }

    #[test]
    fn kubelets_directories_alone_have_to_be_shared() {
        let place = |path: &str, is_shared| Place {
            path: path.into(),
            is_shared,
        };
        for (kubelet, root, expected) in [
            (Some(true), true, CheckVerdict::Pass),
            (Some(true), false, CheckVerdict::Pass),
            (None, false, CheckVerdict::Pass),
            (Some(false), true, CheckVerdict::Warn),
        ] {
            let kubelets: Vec<Place> = kubelet.map(|it| place("/k", it)).into_iter().collect();
            let finding = judge(&kubelets, &[place("/", root)]);
            assert_eq!(finding.verdict, expected, "{finding}");
            let how = if root { "/ is shared" } else { "/ is private" };
            assert!(finding.found.starts_with(how), "{finding}");
        }
    }
}
