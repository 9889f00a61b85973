//! Whether a volume's target directory is gone (KEP-2857, story 5: a driver that doesn't defer any more
//! removes the directory and never unstages).
//!
//! That it isn't there isn't enough: a driver may stage before it makes the directory, by hand a volume
//! may be staged long before, and kubelet's file system may not be mounted. It has to have been there
//! since.

use std::fs::{self, FileType};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crust_state::{Config, TargetPath};

/// What became of a target directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    /// It is there.
    There,
    /// It isn't, and nothing says that it was since the volume was staged.
    Awaited,
    /// It was there and isn't any more.
    Gone,
    /// It can't be told, and why.
    Unknown(String),
}

/// Looks. `is_used`: the volume has been in use since it was staged.
pub(super) fn look(
    target: &TargetPath,
    config: &Config,
    staged_at: Option<SystemTime>,
    is_used: bool,
) -> Target {
    let path = target.as_path();
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => return Target::There,
        Ok(found) => {
            let kind = kind(found.file_type());
            return Target::Unknown(format!("{target} is {kind} and no directory"));
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Target::Unknown(format!("lstat {target}: {error}")),
    }
    let above = match nearest(path) {
        Ok(above) => above,
        Err(why) => return Target::Unknown(why),
    };
    let pods = Pods::of(config);
    Trace {
        is_kubelets: pods.hold(target),
        place: pods.place(&above.real),
        is_changed: staged_at.is_some_and(|staged| above.changed > staged),
        is_used,
        above: above.path,
    }
    .judge()
}

/// What is left of the way to a target directory.
struct Above {
    path: PathBuf,
    /// Without links.
    real: PathBuf,
    /// When something was made in it or removed from it.
    changed: SystemTime,
}

/// The nearest directory above a path.
fn nearest(path: &Path) -> Result<Above, String> {
    let failed =
        |call: &str, path: &Path, error: io::Error| format!("{call} {}: {error}", path.display());
    for above in path.ancestors().skip(1) {
        match fs::symlink_metadata(above) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(failed("lstat", above, error)),
            Ok(_) => {}
        }
        // A link that leads nowhere isn't nothing.
        let found = fs::metadata(above).map_err(|error| failed("stat", above, error))?;
        let real = fs::canonicalize(above).map_err(|error| failed("realpath", above, error))?;
        let changed = found
            .modified()
            .map_err(|error| failed("stat", above, error))?;
        let path = above.to_owned();
        return Ok(Above {
            path,
            real,
            changed,
        });
    }
    Err(format!("nothing is left above {}", path.display()))
}

/// Where kubelets keep their pods.
struct Pods(Vec<PathBuf>);

/// Where something is by them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In a pod's own directory.
    InPod,
    /// Where all pods' are.
    AtPods,
    Elsewhere,
}

impl Pods {
    /// As they are configured, and with their links followed.
    fn of(config: &Config) -> Self {
        let real = |kubelet: &PathBuf| fs::canonicalize(kubelet).ok();
        let kubelets = config.kubelet_dirs.iter();
        let kubelets = kubelets.flat_map(|kubelet| [Some(kubelet.clone()), real(kubelet)]);
        Self(
            kubelets
                .flatten()
                .map(|kubelet| kubelet.join("pods"))
                .collect(),
        )
    }

    fn place(&self, path: &Path) -> Place {
        let below = self
            .0
            .iter()
            .filter_map(|pods| path.strip_prefix(pods).ok());
        match below.map(|rest| rest.as_os_str().is_empty()).min() {
            Some(false) => Place::InPod,
            Some(true) => Place::AtPods,
            None => Place::Elsewhere,
        }
    }

    fn hold(&self, target: &TargetPath) -> bool {
        let resolved = target.resolved();
        let paths = [
            Some(target.as_path()),
            resolved.as_ref().ok().map(TargetPath::as_path),
        ];
        paths
            .into_iter()
            .flatten()
            .any(|path| self.place(path) == Place::InPod)
    }
}

/// What tells of a target directory that isn't there.
#[derive(Debug)]
struct Trace {
    /// It would be in a pod's directory.
    is_kubelets: bool,
    /// The nearest directory above that is there.
    above: PathBuf,
    place: Place,
    /// Something was made in that or removed from it since the volume was staged.
    is_changed: bool,
    is_used: bool,
}

impl Trace {
    fn judge(self) -> Target {
        let above = self.above.display();
        match self.place {
            Place::Elsewhere if self.is_kubelets => Target::Unknown(format!(
                "of its target path nothing is there below {above}; hint: is kubelet's directory mounted?"
            )),
            _ if !self.is_changed => Target::Awaited,
            // kubelet makes that before it publishes, and changes nothing in it until the pod's end but
            // by the volume's own directories.
            Place::InPod => Target::Gone,
            // Other pods' directories come and go there. Whoever has had the volume had the directory.
            _ if self.is_used => Target::Gone,
            _ => Target::Unknown(format!(
                "its target directory isn't there, nor anything above it below {above}, and nobody has \
                 used it: whether it was there can't be told; hint: `runcrust crust unstage` removes it"
            )),
        }
    }
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
    use std::time::Duration;

    use super::*;

    #[test]
    fn it_has_to_have_been_there() {
        use Place::{AtPods, Elsewhere, InPod};
        let (gone, awaited) = (Some(Target::Gone), Some(Target::Awaited));
        for (is_kubelets, place, is_changed, is_used, expected) in [
            (true, InPod, true, false, gone.clone()),
            (true, InPod, false, true, awaited.clone()),
            (true, AtPods, true, true, gone.clone()),
            (true, AtPods, true, false, None),
            (true, AtPods, false, false, awaited.clone()),
            (true, Elsewhere, true, true, None),
            (true, Elsewhere, false, true, None),
            (false, Elsewhere, true, true, gone),
            (false, Elsewhere, true, false, None),
            (false, Elsewhere, false, true, awaited),
        ] {
            let trace = Trace {
                is_kubelets,
                above: "/above".into(),
                place,
                is_changed,
                is_used,
            };
            let told = format!("{trace:?}");
            let judged = trace.judge();
            match expected {
                Some(expected) => assert_eq!(judged, expected, "{told}"),
                None => assert!(
                    matches!(judged, Target::Unknown(why) if why.contains("/above")),
                    "{told}"
                ),
            }
        }
    }

    struct Lab {
        root: PathBuf,
        config: Config,
        _guard: tempfile::TempDir,
    }

    impl Lab {
        /// Kubelet's directory is a link.
        fn new() -> Self {
            let guard = tempfile::tempdir().unwrap();
            let root = guard.path().canonicalize().unwrap();
            fs::create_dir_all(root.join("data/pods/a/volumes/pv/mount")).unwrap();
            symlink("data", root.join("kubelet")).unwrap();
            let config = Config {
                kubelet_dirs: vec![root.join("kubelet")],
                ..Config::default()
            };
            Self {
                root,
                config,
                _guard: guard,
            }
        }

        /// Staged a minute before now, or after.
        fn look(&self, path: &str, is_before: bool) -> Target {
            let target = TargetPath::new(self.root.join(path)).unwrap();
            let (now, minute) = (SystemTime::now(), Duration::from_secs(60));
            let staged = if is_before {
                now - minute
            } else {
                now + minute
            };
            look(&target, &self.config, Some(staged), false)
        }
    }

    #[test]
    fn a_directory_is_looked_for_by_any_of_its_names() {
        let lab = Lab::new();
        for kubelet in ["kubelet", "data"] {
            let target = format!("{kubelet}/pods/a/volumes/pv/mount");
            assert_eq!(lab.look(&target, true), Target::There);
            fs::remove_dir(lab.root.join(&target)).unwrap();
            assert_eq!(lab.look(&target, true), Target::Gone);
            assert_eq!(lab.look(&target, false), Target::Awaited);
            fs::create_dir(lab.root.join(&target)).unwrap();
        }
        fs::remove_dir_all(lab.root.join("data/pods/a")).unwrap();
        let other = lab.look("kubelet/pods/a/volumes/pv/mount", true);
        assert!(matches!(other, Target::Unknown(why) if why.contains("nobody has used it")));
    }

    #[test]
    fn what_cannot_be_looked_at_may_be_there() {
        let lab = Lab::new();
        let says = |path: &str, words: &str| {
            let target = lab.look(path, true);
            assert!(
                matches!(&target, Target::Unknown(why) if why.contains(words)),
                "{target:?}"
            );
        };
        let volume = lab.root.join("data/pods/a/volumes/pv");
        fs::remove_dir(volume.join("mount")).unwrap();
        fs::write(volume.join("mount"), "").unwrap();
        says(
            "kubelet/pods/a/volumes/pv/mount",
            "is a file and no directory",
        );
        // ENOTDIR.
        says("kubelet/pods/a/volumes/pv/mount/sub", "lstat");
        fs::remove_file(volume.join("mount")).unwrap();
        symlink("nowhere", volume.join("mount")).unwrap();
        says("kubelet/pods/a/volumes/pv/mount", "is a symbolic link");
        says("kubelet/pods/a/volumes/pv/mount/sub", "stat ");
        fs::rename(lab.root.join("data"), lab.root.join("away")).unwrap();
        says("kubelet/pods/a/volumes/pv/mount", "stat ");
        fs::create_dir(lab.root.join("data")).unwrap();
        says(
            "kubelet/pods/a/volumes/pv/mount",
            "is kubelet's directory mounted?",
        );
    }
}
