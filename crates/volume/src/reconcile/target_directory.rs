//! Decides whether a volume's target directory is gone (KEP-2857, story 5: a driver that no longer defers removes the
//! directory and never unstages).
//!
//! It isn't enough that the directory doesn't exist: a driver may stage before it creates the directory, an
//! administrator may stage a volume long before its pod exists, and kubelet's file system may not be mounted. A part of
//! the path that existed when the volume was staged or used must be missing.

use std::fs::{self, FileType};
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;

use crust_state::target::TargetPresence;
use crust_state::{Config, TargetPath};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TargetState {
    Present,
    /// The directory doesn't exist, but every directory of its path that existed before still does.
    NotYetCreated,
    /// The directory, or one above it, existed before and is gone.
    Gone,
    /// The state is unknown. Contains the reason.
    Unknown(String),
}

/// Examines a target directory. `before` says how much of its path existed when the volume was staged or used, if that
/// was recorded.
pub(super) fn examine(
    target: &TargetPath,
    before: Option<&TargetPresence>,
    config: &Config,
) -> TargetState {
    match fs::symlink_metadata(target) {
        Ok(found) if found.is_dir() => return TargetState::Present,
        Ok(found) => {
            let kind = kind(found.file_type());
            return TargetState::Unknown(format!("{target} is {kind} and not a directory"));
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return TargetState::Unknown(format!("lstat {target}: {error}")),
    }
    match target.presence() {
        Ok(now) => compare(target, before, &now, &pods_directories(config)),
        Err(error) => TargetState::Unknown(error.to_string()),
    }
}

/// Returns the directories in which kubelets keep their pods, as configured and with links resolved.
fn pods_directories(config: &Config) -> Vec<PathBuf> {
    let kubelets = config.kubelet_dirs.iter();
    let kubelets =
        kubelets.flat_map(|kubelet| [Some(kubelet.clone()), fs::canonicalize(kubelet).ok()]);
    kubelets
        .flatten()
        .map(|kubelet| kubelet.join("pods"))
        .collect()
}

fn compare(
    target: &TargetPath,
    before: Option<&TargetPresence>,
    now: &TargetPresence,
    pods_directories: &[PathBuf],
) -> TargetState {
    let Some(before) = before else {
        return TargetState::Unknown(format!(
            "{target} doesn't exist, and it isn't recorded whether it did when the volume was staged; hint: \
             remove the volume with `runcrust crust unstage`"
        ));
    };
    let (existed, exists) = (before.directory.display(), now.directory.display());
    if now.directory.starts_with(&before.directory) {
        TargetState::NotYetCreated
    } else if !before.directory.starts_with(&now.directory) {
        TargetState::Unknown(format!(
            "its target path leads to {exists}, and led to {existed}; hint: check whether a symbolic \
             link of the path was changed"
        ))
    } else if now.is_of_another_boot(before) {
        TargetState::Unknown(format!(
            "{existed} existed in an earlier boot of the node, and its file system may not be mounted \
             yet; hint: if it is mounted, remove the volume with `runcrust crust unstage`"
        ))
    } else if before.device != now.device || is_kubelet_gone(before, now, pods_directories) {
        TargetState::Unknown(format!(
            "{existed} doesn't exist; the deepest directory on its path that does is {exists}; hint: check \
             that kubelet's directory is mounted"
        ))
    } else {
        TargetState::Gone
    }
}

/// Returns true if the whole directory of pods is missing. Kubelet only removes the directories of single pods.
fn is_kubelet_gone(
    before: &TargetPresence,
    now: &TargetPresence,
    pods_directories: &[PathBuf],
) -> bool {
    let mut containing = pods_directories
        .iter()
        .filter(|pods| before.directory.starts_with(pods));
    containing.any(|pods| !now.directory.starts_with(pods))
}

fn kind(found: FileType) -> &'static str {
    match found {
        _ if found.is_symlink() => "a symbolic link",
        _ if found.is_file() => "a file",
        _ if found.is_block_device() || found.is_char_device() => "a device",
        _ => "something else",
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use crust_state::record::Version;

    use super::*;

    #[test]
    fn a_target_is_gone_only_if_part_of_its_path_disappeared() {
        let target = TargetPath::new("/k/pods/a/pv/mount").unwrap();
        let presence = |directory: &str, device: &str| TargetPresence {
            version: Version,
            directory: directory.into(),
            device: device.parse().unwrap(),
            boot_id: Some("now".into()),
        };
        let pods = [PathBuf::from("/k/pods")];
        let state = |before: Option<(&str, &str)>, now, device| {
            let before = before.map(|(directory, device)| presence(directory, device));
            compare(&target, before.as_ref(), &presence(now, device), &pods)
        };
        let after_a_boot = |before: &str| {
            let before = TargetPresence {
                boot_id: Some("before".into()),
                ..presence(before, "8:1")
            };
            compare(
                &target,
                Some(&before),
                &presence("/k/pods/a/pv", "8:1"),
                &pods,
            )
        };
        assert_eq!(after_a_boot("/k/pods/a/pv"), TargetState::NotYetCreated);
        let on_one_device = |before, now| state(Some((before, "8:1")), now, "8:1");
        for (before, now, expected) in [
            ("/k/pods/a/pv/mount", "/k/pods/a/pv", TargetState::Gone),
            ("/k/pods/a/pv/mount", "/k/pods", TargetState::Gone),
            ("/k/pods/a/pv", "/k/pods/a", TargetState::Gone),
            // A driver that stages before it creates the directory.
            ("/k/pods/a/pv", "/k/pods/a/pv", TargetState::NotYetCreated),
            // An administrator who stages before the pod exists.
            ("/k", "/k/pods/a/pv", TargetState::NotYetCreated),
        ] {
            assert_eq!(on_one_device(before, now), expected, "{before} {now}");
        }
        for (state, words) in [
            (
                on_one_device("/k/pods/a/pv", "/other/pods"),
                "leads to /other/pods",
            ),
            (on_one_device("/k/pods/a/pv", "/k/pods-b"), "leads to"),
            (
                on_one_device("/k/pods/a/pv", "/k"),
                "check that kubelet's directory is mounted",
            ),
            (
                state(Some(("/k/pods/a", "8:1")), "/k/pods", "8:2"),
                "check that kubelet's directory is mounted",
            ),
            (state(None, "/k", "8:1"), "isn't recorded whether"),
            (after_a_boot("/k/pods/a/pv/mount"), "in an earlier boot"),
        ] {
            assert!(
                matches!(&state, TargetState::Unknown(reason) if reason.contains(words)),
                "{state:?}"
            );
        }
    }

    #[test]
    fn a_target_that_cannot_be_examined_is_unknown() {
        let guard = tempfile::tempdir().unwrap();
        let root = guard.path().canonicalize().unwrap();
        let target = |path: &str| TargetPath::new(root.join(path)).unwrap();
        let mount = target("pv/mount");
        fs::create_dir_all(&mount).unwrap();
        let before = mount.presence().unwrap();
        let examine = |target: &TargetPath, before: Option<&TargetPresence>| {
            examine(target, before, &Config::default())
        };
        let assert_unknown = |path: &str, words: &str| {
            let state = examine(&target(path), Some(&before));
            assert!(
                matches!(&state, TargetState::Unknown(reason) if reason.contains(words)),
                "{state:?}"
            );
        };
        assert_eq!(examine(&mount, Some(&before)), TargetState::Present);
        assert_eq!(examine(&mount, None), TargetState::Present);
        fs::remove_dir(&mount).unwrap();
        assert_eq!(examine(&mount, Some(&before)), TargetState::Gone);
        fs::write(&mount, "").unwrap();
        assert_unknown("pv/mount", "is a file and not a directory");
        // lstat fails with ENOTDIR.
        assert_unknown("pv/mount/sub", "lstat ");
        fs::remove_file(&mount).unwrap();
        symlink("nowhere", &mount).unwrap();
        assert_unknown("pv/mount", "is a symbolic link");
        assert_unknown("pv/mount/sub", "stat ");
        fs::remove_file(&mount).unwrap();
        fs::remove_dir(root.join("pv")).unwrap();
        symlink("nowhere", root.join("pv")).unwrap();
        assert_unknown("pv/mount", "stat ");
    }
}
