//! Whether a target path is one that callers of a socket may name.

use std::path::{Component, Path, PathBuf};

use super::Look;

impl Look<'_> {
    /// Whether the path is that of a CSI volume of a kubelet with one of these root directories
    /// (`<root>/pods/<uid>/volumes/kubernetes.io~csi/<pv>/mount`), or lies below one of `match_roots`.
    ///
    /// A volume is also staged under what its path's symbolic links lead to. So links are accepted in the
    /// root directories alone, and not in what follows them.
    #[must_use]
    pub fn is_within(&self, kubelet_dirs: &[PathBuf], match_roots: &[PathBuf]) -> bool {
        if self.is_plainly_within(kubelet_dirs, match_roots) {
            return true;
        }
        let Ok(resolved) = self.resolved() else {
            return false;
        };
        if resolved == *self.path {
            // A configured directory may lead here over a link.
            let real = |directories: &[PathBuf]| -> Vec<PathBuf> {
                let real = directories.iter().map(|directory| directory.canonicalize());
                real.filter_map(Result::ok).collect()
            };
            return rest(resolved.as_path(), &real(kubelet_dirs), &real(match_roots)).is_some();
        }
        let rest = rest(self.path.as_path(), kubelet_dirs, match_roots);
        rest.is_some_and(|rest| resolved.as_path().ends_with(rest))
    }

    /// The same for a path that is known to have no symbolic links, by its text alone. `false` may mean
    /// that more has to be looked up.
    #[must_use]
    pub fn is_plainly_within(&self, kubelet_dirs: &[PathBuf], match_roots: &[PathBuf]) -> bool {
        self.plain.is_some() && rest(self.path.as_path(), kubelet_dirs, match_roots).is_some()
    }

    /// Whether nothing is at the path. `false` may mean that more has to be looked up.
    #[must_use]
    pub fn is_plainly_missing(&self) -> bool {
        let plain = self.plain.as_ref();
        plain.is_some_and(|plain| plain.part != self.path.as_path())
    }
}

/// Returns what follows the root directory in an acceptable path.
fn rest<'a>(path: &'a Path, kubelet_dirs: &[PathBuf], match_roots: &[PathBuf]) -> Option<&'a Path> {
    let below = |directory: &PathBuf| path.strip_prefix(directory).ok();
    let volume = kubelet_dirs
        .iter()
        .filter_map(below)
        .find(|rest| is_csi_volume(rest));
    let mut others = match_roots.iter().filter_map(below);
    volume.or_else(|| others.find(|rest| !rest.as_os_str().is_empty()))
}

/// Whether a path below a kubelet's root directory is a CSI volume's.
fn is_csi_volume(rest: &Path) -> bool {
    let names: Vec<&[u8]> = rest
        .components()
        .filter_map(|component| match component {
            Component::Normal(name) => Some(name.as_encoded_bytes()),
            _ => None,
        })
        .collect();
    matches!(
        names[..],
        [b"pods", _, b"volumes", b"kubernetes.io~csi", _, b"mount"]
    )
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use crate::TargetPath;

    const VOLUME: &str = "pods/u/volumes/kubernetes.io~csi/pv/mount";

    #[test]
    fn csi_volumes_of_the_kubelets_and_what_is_below_the_roots() {
        let kubelets = ["/var/lib/kubelet".into(), "/k0s/".into()];
        let roots = ["/volumes".into()];
        for (path, expected) in [
            (format!("/var/lib/kubelet/{VOLUME}"), true),
            (format!("/k0s/{VOLUME}"), true),
            (format!("/var/lib/kubelet/{VOLUME}/sub"), false),
            (format!("/var/lib/{VOLUME}"), false),
            (format!("/var/lib/kubelet/plugins/{VOLUME}"), false),
            (
                "/var/lib/kubelet/pods/u/volumes/kubernetes.io~secret/t/mount".into(),
                false,
            ),
            (
                "/var/lib/kubelet/pods/u/volumes/kubernetes.io~projected/t".into(),
                false,
            ),
            (
                "/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/pv".into(),
                false,
            ),
            ("/var/lib/kubelet".into(), false),
            ("/volumes/a".into(), true),
            ("/volumes/a/b".into(), true),
            ("/volumes".into(), false),
            ("/volumes2/a".into(), false),
            ("/etc".into(), false),
            ("/proc".into(), false),
        ] {
            let target = TargetPath::new(&path).unwrap();
            assert_eq!(
                target.look().is_within(&kubelets, &roots),
                expected,
                "{path}"
            );
        }
    }

    #[test]
    fn links_lead_to_the_kubelet_and_not_out_of_it() {
        let guard = tempfile::tempdir().unwrap();
        let root = guard.path().canonicalize().unwrap();
        let data = root.join("data");
        for volume in [VOLUME, "pods/u/volumes/kubernetes.io~csi/other/mount"] {
            fs::create_dir_all(data.join(volume)).unwrap();
        }
        fs::create_dir(data.join("etc")).unwrap();
        symlink("data", root.join("kubelet")).unwrap();
        let csi = data.join("pods/u/volumes/kubernetes.io~csi");
        symlink("other", csi.join("astray")).unwrap();
        fs::create_dir(csi.join("out")).unwrap();
        symlink(data.join("etc"), csi.join("out/mount")).unwrap();
        symlink("nowhere", root.join("dangling")).unwrap();
        symlink(data.join("etc"), data.join("link")).unwrap();
        let volume = |kubelet: &str, pv: &str| {
            root.join(kubelet)
                .join(format!("pods/u/volumes/kubernetes.io~csi/{pv}/mount"))
        };
        for (kubelet, path, expected) in [
            ("kubelet", volume("kubelet", "pv"), true),
            ("kubelet", volume("kubelet", "not-yet"), true),
            ("kubelet", volume("data", "pv"), true),
            ("data", volume("data", "pv"), true),
            // It isn't what it was said to be.
            ("data", volume("kubelet", "pv"), false),
            ("kubelet", volume("kubelet", "astray"), false),
            ("data", volume("data", "astray"), false),
            ("kubelet", volume("kubelet", "out"), false),
            ("data", volume("data", "out"), false),
            ("dangling", volume("dangling", "pv"), false),
        ] {
            let target = TargetPath::new(&path).unwrap();
            let kubelets = [root.join(kubelet)];
            let is_within = target.look().is_within(&kubelets, &[]);
            assert_eq!(is_within, expected, "{kubelet}: {path:?}");
        }
        let target = TargetPath::new(data.join("link")).unwrap();
        assert!(
            !target.look().is_within(&[], std::slice::from_ref(&data)),
            "it leads to another name"
        );
        let target = TargetPath::new(data.join("etc")).unwrap();
        assert!(target.look().is_within(&[], &[root.join("kubelet")]));
    }
}
