//! Which of a config's mounts are of deferred volumes (KEP-2857, "Overview of Interactions").

use std::path::{Path, PathBuf};

use crust_state::config::Unstaged;
use crust_state::crust::EntryError;
use crust_state::{Config, TargetPath};

/// What matching asks of the node.
pub(crate) trait Node {
    /// The volume that is staged at a path, by the target path it was staged with.
    fn staged(&self, path: &TargetPath) -> Result<Option<TargetPath>, EntryError>;
    /// The path with its symbolic links resolved, where that is another one.
    fn resolved(&self, path: &Path) -> Option<TargetPath>;
    /// Whether a volume's directory is just that: no mount, and no files below it.
    fn is_bare_directory(&self, directory: &Path) -> bool;
}

/// A mount of a deferred volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Match {
    /// The volume.
    pub(crate) volume: TargetPath,
    /// What the mount shows of it; empty for all.
    pub(crate) subpath: PathBuf,
}

/// Why a mount can neither be matched nor passed on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MatchError {
    /// Once a directory matches, nothing falls back: the workload would write to the node's disk.
    #[error("volume {volume}: {source}")]
    Entry { volume: String, source: EntryError },
    #[error(
        "volume {volume}: {source_path} is kubelet's own bind of a subPath, which leads to the \
         empty directory on the host; hint: this version resolves subPaths only of a kubelet that \
         leaves them to the runtime (KEP-2857)"
    )]
    KubeletSubpath { volume: String, source_path: String },
    #[error(
        "volume {volume}: nothing is staged for {directory}, which is neither mounted nor holds \
         files: data written there would be lost; hint: stage the volume again, or set \
         unstaged = \"pass\" in runcrust's configuration"
    )]
    Unstaged { volume: String, directory: String },
}

/// Matches one mount by its source. The exact source may match anywhere; a parent of it only at
/// or below a CSI volume's own directory, or below one of `match_roots`.
pub(crate) fn match_source(
    source: &str,
    config: &Config,
    node: &impl Node,
) -> Result<Option<Match>, MatchError> {
    if !source.starts_with('/') {
        return Ok(None);
    }
    let given = TargetPath::new(source).ok();
    // containerd and CRI-O resolve sources, others don't: a link must not lead past the match.
    let resolved = node.resolved(Path::new(source));
    let spellings = [
        given.as_ref(),
        resolved
            .as_ref()
            .filter(|path| given.as_ref() != Some(path)),
    ];
    for spelling in spellings.into_iter().flatten() {
        if let Some(found) = match_path(spelling, config, node)? {
            return Ok(Some(found));
        }
    }
    for spelling in spellings.into_iter().flatten() {
        refuse_kubelets_subpath(spelling, node)?;
    }
    if config.unstaged == Unstaged::Refuse {
        for spelling in spellings.into_iter().flatten() {
            refuse_unstaged(spelling, node)?;
        }
    }
    Ok(None)
}

fn match_path(
    path: &TargetPath,
    config: &Config,
    node: &impl Node,
) -> Result<Option<Match>, MatchError> {
    let floor = path
        .csi_volume()
        .map(|volume| volume.directory().to_owned());
    let may_be_a_volume = |parent: &Path| {
        floor
            .as_ref()
            .is_some_and(|floor| parent.starts_with(floor))
            || config
                .match_roots
                .iter()
                .any(|root| parent.starts_with(root) && parent != root)
    };
    for (candidate, below) in path.ancestors() {
        if candidate != *path && !may_be_a_volume(candidate.as_path()) {
            break;
        }
        let staged = node
            .staged(&candidate)
            .map_err(|source| MatchError::Entry {
                volume: candidate.volume_name(),
                source,
            })?;
        if let Some(volume) = staged {
            return Ok(Some(Match {
                volume,
                subpath: below.to_owned(),
            }));
        }
    }
    Ok(None)
}

/// A stock kubelet binds a subPath below `…/pods/<uid>/volume-subpaths/<volume>/` before the runtime
/// sees it. The bind of a deferred volume shows what is on the node's disk.
fn refuse_kubelets_subpath(path: &TargetPath, node: &impl Node) -> Result<(), MatchError> {
    let Some(volume) = path.kubelet_subpath_volume() else {
        return Ok(());
    };
    let entry = |source| MatchError::Entry {
        volume: volume.volume_name(),
        source,
    };
    if node.staged(&volume).map_err(entry)?.is_none() {
        return Ok(());
    }
    Err(MatchError::KubeletSubpath {
        volume: volume.volume_name(),
        source_path: path.to_string(),
    })
}

/// The opposite of matching a directory that isn't a volume: its metadata may be lost.
fn refuse_unstaged(path: &TargetPath, node: &impl Node) -> Result<(), MatchError> {
    let Some(volume) = path.csi_volume() else {
        return Ok(());
    };
    if !node.is_bare_directory(volume.directory()) {
        return Ok(());
    }
    let directory = volume.directory().display().to_string();
    Err(MatchError::Unstaged {
        volume: path.volume_name(),
        directory,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNT: &str = "/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/pv-1/mount";

    /// A node with some volumes, one link, and CSI directories that are all bare.
    struct Table<'a> {
        staged: &'a [&'a str],
        link: Option<(&'a str, &'a str)>,
        bare: bool,
    }

    impl Node for Table<'_> {
        fn staged(&self, path: &TargetPath) -> Result<Option<TargetPath>, EntryError> {
            if path.as_path().ends_with("broken") {
                return Err(EntryError::NoInfo("/run/crust/0/mountInfo.json".into()));
            }
            let here = |staged: &&&str| Path::new(staged) == path.as_path();
            Ok(self.staged.iter().find(here).map(|_| path.clone()))
        }

        fn resolved(&self, path: &Path) -> Option<TargetPath> {
            let (from, to) = self.link?;
            let rest = path.strip_prefix(from).ok()?;
            TargetPath::new(Path::new(to).join(rest)).ok()
        }

        fn is_bare_directory(&self, _: &Path) -> bool {
            self.bare
        }
    }

    fn matched(staged: &[&str], source: &str) -> Option<(String, String)> {
        let node = Table {
            staged,
            link: None,
            bare: false,
        };
        let config = Config {
            match_roots: vec!["/data".into()],
            ..Config::default()
        };
        let found = match_source(source, &config, &node).unwrap()?;
        Some((
            found.volume.to_string(),
            found.subpath.display().to_string(),
        ))
    }

    #[test]
    fn the_exact_source_matches_anywhere() {
        for source in [MOUNT, "/data", "/data/x", "/srv/anything", "/"] {
            assert_eq!(
                matched(&[source], source),
                Some((source.into(), String::new()))
            );
        }
        assert_eq!(
            matched(&["/srv/a"], "//srv/./a/"),
            Some(("/srv/a".into(), String::new()))
        );
    }

    #[test]
    fn what_is_below_a_volume_is_its_subpath() {
        let sub = format!("{MOUNT}/db/main");
        assert_eq!(
            matched(&[MOUNT], &sub),
            Some((MOUNT.into(), "db/main".into()))
        );
        assert_eq!(
            matched(&["/data/v"], "/data/v/a"),
            Some(("/data/v".into(), "a".into()))
        );
    }

    #[test]
    fn the_nearest_volume_wins() {
        let inner = format!("{MOUNT}/inner");
        let sub = format!("{MOUNT}/inner/x");
        let found = matched(&[MOUNT, &inner], &sub);
        assert_eq!(found, Some((inner.clone(), "x".into())));
    }

    #[test]
    fn no_parent_above_the_volume_layer_ever_matches() {
        let above = Path::new(MOUNT)
            .ancestors()
            .skip(1)
            .map(|path| path.to_str().unwrap());
        let above: Vec<&str> = above.collect();
        assert_eq!(matched(&above, &format!("{MOUNT}/sub")), None);
        assert_eq!(matched(&["/", "/etc"], "/etc/hosts"), None);
        assert_eq!(
            matched(&["/data"], "/data/v/a"),
            None,
            "a root is no volume of what is in it"
        );
    }

    #[test]
    fn what_is_no_absolute_path_is_left_alone() {
        for source in ["proc", "", "./a", "tmpfs"] {
            assert_eq!(matched(&["/"], source), None, "{source}");
        }
    }

    #[test]
    fn a_link_does_not_lead_past_a_volume() {
        let (staged, link) = ([MOUNT], Some(("/alias", MOUNT)));
        let node = Table {
            staged: &staged,
            link,
            bare: false,
        };
        for (source, subpath) in [("/alias", ""), ("/alias/a/b", "a/b")] {
            let found = match_source(source, &Config::default(), &node).unwrap();
            assert_eq!(found.unwrap().subpath, Path::new(subpath), "{source}");
        }
    }

    #[test]
    fn an_entry_that_cannot_be_read_fails_the_create() {
        let node = Table {
            staged: &[],
            link: None,
            bare: false,
        };
        let error = match_source("/srv/broken", &Config::default(), &node)
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("volume /srv/broken: /run/crust/0/mountInfo.json"),
            "{error}"
        );
    }

    #[test]
    fn kubelets_own_bind_of_a_staged_volumes_subpath_is_refused() {
        let staged = [MOUNT];
        let node = Table {
            staged: &staged,
            link: None,
            bare: false,
        };
        let bind = |volume: &str| format!("/var/lib/kubelet/pods/u/volume-subpaths/{volume}/app/0");
        let refused = match_source(&bind("pv-1"), &Config::default(), &node);
        let error = refused.unwrap_err().to_string();
        assert!(
            error.starts_with("volume pv-1: ") && error.contains("volume-subpaths/pv-1"),
            "{error}"
        );
        let other = match_source(&bind("pv-2"), &Config::default(), &node);
        assert_eq!(other.unwrap(), None);
    }

    #[test]
    fn a_bare_csi_directory_is_refused_unless_configured_otherwise() {
        let node = Table {
            staged: &[],
            link: None,
            bare: true,
        };
        for source in [MOUNT.to_owned(), format!("{MOUNT}/sub")] {
            let error = match_source(&source, &Config::default(), &node)
                .unwrap_err()
                .to_string();
            assert!(
                error.starts_with("volume pv-1: nothing is staged for /var/lib"),
                "{error}"
            );
            let pass = Config {
                unstaged: Unstaged::Pass,
                ..Config::default()
            };
            assert_eq!(match_source(&source, &pass, &node).unwrap(), None);
        }
        assert_eq!(
            match_source("/srv/plain", &Config::default(), &node).unwrap(),
            None
        );
        let used = Table {
            staged: &[],
            link: None,
            bare: false,
        };
        assert_eq!(
            match_source(MOUNT, &Config::default(), &used).unwrap(),
            None
        );
    }
}
