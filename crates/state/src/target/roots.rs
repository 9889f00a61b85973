//! Checks whether a target path is below the kubelet directories or the match roots. Callers of the socket may stage no
//! other paths.

use std::path::{Component, Path, PathBuf};

use super::{TargetLookup, TargetPath};

impl TargetLookup<'_> {
    /// Returns whether the path is that of a CSI volume below one of the `kubelet_dirs`
    /// (`<kubelet dir>/pods/<uid>/volumes/kubernetes.io~csi/<pv>/mount`), or is below one of `match_roots`.
    ///
    /// A volume is also staged under its resolved path, which therefore has to be below the same directory. Symbolic
    /// links are accepted in the path of the configured directory. The rest of the path must not have any.
    #[must_use]
    pub fn is_within(&self, kubelet_dirs: &[PathBuf], match_roots: &[PathBuf]) -> bool {
        if self.is_within_as_written(kubelet_dirs, match_roots) {
            return true;
        }
        let Ok(resolved) = self.resolved() else {
            return false;
        };
        let path = self.path.as_path();
        rules(kubelet_dirs, match_roots).any(|(directory, is_accepted)| {
            let Some(real) = resolved_directory(directory) else {
                return false;
            };
            let given_or_real = [directory, &real].into_iter();
            let mut rests = given_or_real.filter_map(|directory| path.strip_prefix(directory).ok());
            rests.any(|rest| is_accepted(rest) && real.join(rest) == resolved.as_path())
        })
    }

    /// Returns whether the path is known to have no symbolic links, and its text alone shows that [`Self::is_within`]
    /// returns `true`. If this returns `false`, [`Self::is_within`] may still return `true`.
    #[must_use]
    pub fn is_within_as_written(&self, kubelet_dirs: &[PathBuf], match_roots: &[PathBuf]) -> bool {
        let below = |directory| self.path.as_path().strip_prefix(directory);
        let mut rules = rules(kubelet_dirs, match_roots);
        self.link_free.is_some()
            && rules.any(|(directory, is_accepted)| below(directory).is_ok_and(is_accepted))
    }

    /// Returns whether the path is known not to exist. `false` means that it exists, or that this is unknown.
    #[must_use]
    pub fn is_known_missing(&self) -> bool {
        let found = self.link_free.as_ref();
        found.is_some_and(|found| found.part != self.path.as_path())
    }
}

/// Returns the configured directories, each with a predicate that accepts the rest of a path below it.
fn rules<'a>(
    kubelet_dirs: &'a [PathBuf],
    match_roots: &'a [PathBuf],
) -> impl Iterator<Item = (&'a Path, fn(&Path) -> bool)> {
    let kubelets = kubelet_dirs
        .iter()
        .map(|directory| (directory.as_path(), is_csi_volume as _));
    kubelets.chain(
        match_roots
            .iter()
            .map(|directory| (directory.as_path(), is_below as _)),
    )
}

/// Returns the path of a configured directory with its symbolic links resolved. Components that don't exist are kept.
fn resolved_directory(directory: &Path) -> Option<PathBuf> {
    let given = TargetPath::new(directory).ok();
    let resolved = given.and_then(|given| given.resolved().ok());
    let resolved = resolved.map(|resolved| resolved.as_path().to_owned());
    // A configured directory may be `/` or contain `..`, which `TargetPath` rejects.
    resolved.or_else(|| directory.canonicalize().ok())
}

fn is_below(rest: &Path) -> bool {
    !rest.as_os_str().is_empty()
}

/// Returns whether a path relative to a kubelet directory is that of a CSI volume.
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
    fn csi_volumes_and_paths_below_the_match_roots_are_accepted() {
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
                target.look_up().is_within(&kubelets, &roots),
                expected,
                "{path}"
            );
        }
    }

    #[test]
    fn links_below_a_kubelet_directory_are_refused() {
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
        let volume = |kubelet: &str, pv: &str| {
            root.join(kubelet)
                .join(format!("pods/u/volumes/kubernetes.io~csi/{pv}/mount"))
        };
        for (kubelet, path, expected) in [
            ("kubelet", volume("kubelet", "pv"), true),
            ("kubelet", volume("kubelet", "not-yet"), true),
            ("kubelet", volume("data", "pv"), true),
            ("data", volume("data", "pv"), true),
            // The given path isn't below the configured directory, only the resolved one is.
            ("data", volume("kubelet", "pv"), false),
            ("kubelet", volume("kubelet", "astray"), false),
            ("data", volume("data", "astray"), false),
            ("kubelet", volume("kubelet", "out"), false),
            ("data", volume("data", "out"), false),
            ("dangling", volume("dangling", "pv"), false),
        ] {
            let target = TargetPath::new(&path).unwrap();
            let kubelets = [root.join(kubelet)];
            let is_within = target.look_up().is_within(&kubelets, &[]);
            assert_eq!(is_within, expected, "{kubelet}: {path:?}");
        }
    }

    /// A link may have the same name as the directory that it leads to.
    #[test]
    fn a_link_below_a_directory_is_refused_whatever_its_name() {
        let guard = tempfile::tempdir().unwrap();
        let at = |name: &str| guard.path().canonicalize().unwrap().join(name);
        let [inside, outside] = ["m/inside", "elsewhere/mnt/sub"].map(at);
        for directory in [&inside, &outside, &at("elsewhere").join(VOLUME)] {
            fs::create_dir_all(directory).unwrap();
        }
        for (link, to) in [
            ("m/mnt", "elsewhere/mnt"),
            ("m/other", "elsewhere/mnt"),
            ("m/again", "m/inside"),
            ("m/pods", "elsewhere/pods"),
            ("linked", "m"),
            ("to-be-made", "m/not-yet"),
        ] {
            symlink(at(to), at(link)).unwrap();
        }
        let volume = format!("m/{VOLUME}");
        let linked_volume = format!("linked/{VOLUME}");
        for (directory, path, expected) in [
            ("m", "m/inside", true),
            ("m", "m/not-yet/a", true),
            ("m", "m/mnt", false),
            ("m", "m/mnt/sub", false),
            ("m", "m/mnt/not-yet", false),
            ("m", "m/other", false),
            ("m", "m/again", false),
            ("m", &volume, false),
            ("linked", "linked/inside", true),
            ("linked", "m/inside", true),
            ("linked", "linked/mnt", false),
            ("linked", "m/mnt", false),
            ("linked", "m", false),
            ("linked", &linked_volume, false),
            // The configured directory itself is a link.
            ("m/mnt", "m/mnt/sub", true),
            ("m/mnt", "elsewhere/mnt/sub", true),
            ("linked/mnt", "m/mnt/sub", false),
            // Components that don't exist yet.
            ("linked/not-yet", "linked/not-yet/a", true),
            ("to-be-made", "to-be-made/a", false),
        ] {
            let target = TargetPath::new(at(path)).unwrap();
            let is_below_root = target.look_up().is_within(&[], &[at(directory)]);
            assert_eq!(is_below_root, expected, "{directory}: {path}");
            let is_volume = target.look_up().is_within(&[at(directory)], &[]);
            assert!(!is_volume, "{directory}: {path}");
        }
        let target = TargetPath::new(at("m/mnt/sub")).unwrap();
        let roots = [at("m"), at("m/mnt")];
        assert!(
            target.look_up().is_within(&[], &roots),
            "one of them is enough"
        );
    }
}
