//! Tells whether a volume's target directory is gone (KEP-2857, story 5: a driver that doesn't defer any more
//! removes the directory and never unstages).
//!
//! That it isn't there isn't enough: a driver may stage before it makes the directory, by hand a volume
//! may be staged long before, and kubelet's file system may not be mounted. Something has to be missing
//! that was there when the volume was staged, or used.

use std::fs::{self, FileType};
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;

use crust_state::target::TargetPresence;
use crust_state::{Config, TargetPath};

/// The state of a target directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    /// It is there.
    There,
    /// It isn't, and all that was is.
    Awaited,
    /// It was there, or what it was to be in, and isn't any more.
    Gone,
    /// It can't be told, and why.
    Unknown(String),
}

/// Looks. `before` is how much of the path was there, where that is known.
pub(super) fn look(
    target: &TargetPath,
    before: Option<&TargetPresence>,
    config: &Config,
) -> Target {
    match fs::symlink_metadata(target) {
        Ok(found) if found.is_dir() => return Target::There,
        Ok(found) => {
            let kind = kind(found.file_type());
            return Target::Unknown(format!("{target} is {kind} and no directory"));
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Target::Unknown(format!("lstat {target}: {error}")),
    }
    match target.presence() {
        Ok(now) => judge(target, before, &now, &pods(config)),
        Err(error) => Target::Unknown(error.to_string()),
    }
}

/// Returns the directories where kubelets keep their pods, as configured and with links followed.
fn pods(config: &Config) -> Vec<PathBuf> {
    let kubelets = config.kubelet_dirs.iter();
    let kubelets =
        kubelets.flat_map(|kubelet| [Some(kubelet.clone()), fs::canonicalize(kubelet).ok()]);
    kubelets
        .flatten()
        .map(|kubelet| kubelet.join("pods"))
        .collect()
}

fn judge(
    target: &TargetPath,
    before: Option<&TargetPresence>,
    now: &TargetPresence,
    pods: &[PathBuf],
) -> Target {
    let Some(before) = before else {
        return Target::Unknown(format!(
            "{target} isn't there, and whoever staged the volume didn't say whether it was; hint: \
             `runcrust crust unstage` removes it"
        ));
    };
    let (then, left) = (before.directory.display(), now.directory.display());
    if now.directory.starts_with(&before.directory) {
        Target::Awaited
    } else if !before.directory.starts_with(&now.directory) {
        Target::Unknown(format!(
            "its target path leads to {left}, and led to {then}; hint: was a symbolic link changed?"
        ))
    } else if now.is_of_another_boot(before) {
        Target::Unknown(format!(
            "{then} was there in an earlier boot of the node, and its file system may not be mounted \
             yet; hint: if it is, `runcrust crust unstage` removes what is staged"
        ))
    } else if before.device != now.device || is_kubelet_gone(before, now, pods) {
        Target::Unknown(format!(
            "{then} isn't there, and of the way to it no more than {left}; hint: is kubelet's \
             directory mounted?"
        ))
    } else {
        Target::Gone
    }
}

/// Pods' directories are removed one by one.
fn is_kubelet_gone(before: &TargetPresence, now: &TargetPresence, pods: &[PathBuf]) -> bool {
    let mut its = pods
        .iter()
        .filter(|pods| before.directory.starts_with(pods));
    its.any(|pods| !now.directory.starts_with(pods))
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
    fn something_has_to_be_missing_that_was_there() {
        let target = TargetPath::new("/k/pods/a/pv/mount").unwrap();
        let presence = |directory: &str, device: &str| TargetPresence {
            version: Version,
            directory: directory.into(),
            device: device.parse().unwrap(),
            boot_id: Some("now".into()),
        };
        let pods = [PathBuf::from("/k/pods")];
        let judge = |before: Option<(&str, &str)>, now, device| {
            let before = before.map(|(directory, device)| presence(directory, device));
            judge(&target, before.as_ref(), &presence(now, device), &pods)
        };
        let after_a_boot = |before: &str| {
            let before = TargetPresence {
                boot_id: Some("before".into()),
                ..presence(before, "8:1")
            };
            super::judge(
                &target,
                Some(&before),
                &presence("/k/pods/a/pv", "8:1"),
                &pods,
            )
        };
        assert_eq!(after_a_boot("/k/pods/a/pv"), Target::Awaited);
        let says = |before, now| judge(Some((before, "8:1")), now, "8:1");
        for (before, now, expected) in [
            ("/k/pods/a/pv/mount", "/k/pods/a/pv", Target::Gone),
            ("/k/pods/a/pv/mount", "/k/pods", Target::Gone),
            ("/k/pods/a/pv", "/k/pods/a", Target::Gone),
            // A driver that stages first; by hand, before there is a pod.
            ("/k/pods/a/pv", "/k/pods/a/pv", Target::Awaited),
            ("/k", "/k/pods/a/pv", Target::Awaited),
        ] {
            assert_eq!(says(before, now), expected, "{before} {now}");
        }
        for (judged, words) in [
            (says("/k/pods/a/pv", "/other/pods"), "leads to /other/pods"),
            (says("/k/pods/a/pv", "/k/pods-b"), "leads to"),
            (
                says("/k/pods/a/pv", "/k"),
                "is kubelet's directory mounted?",
            ),
            (
                judge(Some(("/k/pods/a", "8:1")), "/k/pods", "8:2"),
                "is kubelet's directory mounted?",
            ),
            (judge(None, "/k", "8:1"), "didn't say"),
            (after_a_boot("/k/pods/a/pv/mount"), "in an earlier boot"),
        ] {
            assert!(
                matches!(&judged, Target::Unknown(why) if why.contains(words)),
                "{judged:?}"
            );
        }
    }

    #[test]
    fn what_cannot_be_looked_at_may_be_there() {
        let guard = tempfile::tempdir().unwrap();
        let root = guard.path().canonicalize().unwrap();
        let target = |path: &str| TargetPath::new(root.join(path)).unwrap();
        let mount = target("pv/mount");
        fs::create_dir_all(&mount).unwrap();
        let before = mount.presence().unwrap();
        let look = |target: &TargetPath, before: Option<&TargetPresence>| {
            look(target, before, &Config::default())
        };
        let says = |path: &str, words: &str| {
            let judged = look(&target(path), Some(&before));
            assert!(
                matches!(&judged, Target::Unknown(why) if why.contains(words)),
                "{judged:?}"
            );
        };
        assert_eq!(look(&mount, Some(&before)), Target::There);
        assert_eq!(look(&mount, None), Target::There);
        fs::remove_dir(&mount).unwrap();
        assert_eq!(look(&mount, Some(&before)), Target::Gone);
        fs::write(&mount, "").unwrap();
        says("pv/mount", "is a file and no directory");
        // ENOTDIR.
        says("pv/mount/sub", "lstat ");
        fs::remove_file(&mount).unwrap();
        symlink("nowhere", &mount).unwrap();
        says("pv/mount", "is a symbolic link");
        says("pv/mount/sub", "stat ");
        fs::remove_file(&mount).unwrap();
        fs::remove_dir(root.join("pv")).unwrap();
        symlink("nowhere", root.join("pv")).unwrap();
        says("pv/mount", "stat ");
    }
}
