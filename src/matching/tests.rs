mod host;
mod indirect;
mod subpath;

use std::cell::RefCell;

use crust_blockfs::location::FsLocation;

use super::*;

const MOUNT: &str = "/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/pv-1/mount";

/// A node with some staged volumes and one symbolic link.
struct TestNode<'a> {
    staged: &'a [&'a str],
    link: Option<(&'a str, &'a str)>,
    /// Whether all CSI directories are bare.
    is_bare: bool,
}

impl NodeLookup for TestNode<'_> {
    fn staged(&self, path: &TargetPath) -> Result<Option<TargetPath>, EntryError> {
        if path.as_path().ends_with("broken") {
            return Err(EntryError::NoInfo("/run/crust/0/mountInfo.json".into()));
        }
        let is_staged = self.staged.iter().any(|it| Path::new(it) == path.as_path());
        Ok(is_staged.then(|| path.clone()))
    }

    fn resolve(&self, path: &Path) -> Result<ResolvedSource, LookupError> {
        let resolved = self.link.and_then(|(from, to)| {
            let rest = path.strip_prefix(from).ok()?;
            TargetPath::new(Path::new(to).join(rest)).ok()
        });
        Ok(ResolvedSource {
            path: resolved,
            ..ResolvedSource::default()
        })
    }

    fn staged_in(&self, _: &Path) -> Result<Vec<TargetPath>, StagedListError> {
        Ok(vec![])
    }

    fn locate(&self, _: &Path) -> Result<Option<FsLocation>, LocationError> {
        Ok(None)
    }

    fn is_bare_directory(&self, _: &Path) -> Result<bool, LookupError> {
        Ok(self.is_bare)
    }

    fn resolve_in_rootfs(&self, _: &Path, path: &Path) -> std::path::PathBuf {
        path.to_owned()
    }
}

fn find_match(staged: &[&str], source: &str) -> Option<(String, String)> {
    let node = TestNode {
        staged,
        link: None,
        is_bare: false,
    };
    let config = Config {
        match_roots: vec!["/data".into()],
        ..Config::default()
    };
    let found = match_source(Path::new(source), &config, &node).unwrap()?;
    Some((
        found.volume.to_string(),
        found.subpath.display().to_string(),
    ))
}

#[test]
fn the_exact_source_matches_anywhere() {
    for source in [MOUNT, "/data", "/data/x", "/srv/anything"] {
        assert_eq!(
            find_match(&[source], source),
            Some((source.into(), String::new()))
        );
    }
    assert_eq!(
        find_match(&["/srv/a"], "//srv/./a/"),
        Some(("/srv/a".into(), String::new()))
    );
}

#[test]
fn a_path_below_a_volume_is_its_subpath() {
    let sub = format!("{MOUNT}/db/main");
    assert_eq!(
        find_match(&[MOUNT], &sub),
        Some((MOUNT.into(), "db/main".into()))
    );
    assert_eq!(
        find_match(&["/data/v"], "/data/v/a"),
        Some(("/data/v".into(), "a".into()))
    );
}

#[test]
fn the_nearest_volume_wins() {
    let inner = format!("{MOUNT}/inner");
    let sub = format!("{MOUNT}/inner/x");
    let found = find_match(&[MOUNT, &inner], &sub);
    assert_eq!(found, Some((inner.clone(), "x".into())));
}

#[test]
fn only_paths_of_listed_lengths_are_looked_up() {
    struct LengthRecorder(RefCell<Vec<usize>>);
    impl NodeLookup for LengthRecorder {
        fn staged(&self, path: &TargetPath) -> Result<Option<TargetPath>, EntryError> {
            self.0.borrow_mut().push(path.length());
            Ok((path.as_path() == Path::new(MOUNT)).then(|| path.clone()))
        }
        fn staged_lengths(&self, _: &TargetPath) -> Option<Vec<usize>> {
            Some(vec![5, MOUNT.len(), MOUNT.len() + 4])
        }
        fn resolve(&self, _: &Path) -> Result<ResolvedSource, LookupError> {
            Ok(ResolvedSource::default())
        }
        fn staged_in(&self, _: &Path) -> Result<Vec<TargetPath>, StagedListError> {
            unreachable!("the source isn't a bind of kubelet's")
        }
        fn locate(&self, _: &Path) -> Result<Option<FsLocation>, LocationError> {
            unreachable!("the source isn't a bind of kubelet's")
        }
        fn is_bare_directory(&self, _: &Path) -> Result<bool, LookupError> {
            Ok(false)
        }
        fn resolve_in_rootfs(&self, _: &Path, _: &Path) -> std::path::PathBuf {
            unreachable!("matching looks up no destinations")
        }
    }
    let looked_up = |below: &str| {
        let node = LengthRecorder(RefCell::default());
        let source = format!("{MOUNT}{below}");
        let found = match_source(Path::new(&source), &Config::default(), &node).unwrap();
        let found = found.map(|found| (found.volume.to_string(), found.subpath));
        assert_eq!(found, Some((MOUNT.to_owned(), below[1..].into())));
        node.0.into_inner()
    };
    let deep = "/a".repeat(2000);
    assert_eq!(looked_up(&deep), [MOUNT.len() + 4, MOUNT.len()]);
}

#[test]
fn no_parent_above_a_csi_volumes_directory_matches() {
    let above = Path::new(MOUNT)
        .ancestors()
        .skip(1)
        .map(|path| path.to_str().unwrap());
    let above: Vec<&str> = above.collect();
    assert_eq!(find_match(&above, &format!("{MOUNT}/sub")), None);
    assert_eq!(find_match(&["/", "/etc"], "/etc/hosts"), None);
    assert_eq!(find_match(&["/etc"], "/"), None, "no volume, and no error");
    assert_eq!(
        find_match(&["/data"], "/data/v/a"),
        None,
        "a match root itself doesn't match paths below it"
    );
}

#[test]
fn a_source_that_is_no_absolute_path_does_not_match() {
    for source in ["proc", "", "./a", "tmpfs"] {
        assert_eq!(find_match(&["/"], source), None, "{source}");
    }
}

#[test]
fn a_link_to_a_volume_matches() {
    let (staged, link) = ([MOUNT], Some(("/alias", MOUNT)));
    let node = TestNode {
        staged: &staged,
        link,
        is_bare: false,
    };
    for (source, subpath) in [("/alias", ""), ("/alias/a/b", "a/b")] {
        let found = match_source(Path::new(source), &Config::default(), &node).unwrap();
        assert_eq!(found.unwrap().subpath, Path::new(subpath), "{source}");
    }
}

#[test]
fn an_entry_that_cannot_be_read_fails_the_create() {
    let node = TestNode {
        staged: &[],
        link: None,
        is_bare: false,
    };
    let error = match_source(Path::new("/srv/broken"), &Config::default(), &node)
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("volume /srv/broken: /run/crust/0/mountInfo.json"),
        "{error}"
    );
}

#[test]
fn a_bare_csi_directory_is_refused_unless_configured_otherwise() {
    let node = TestNode {
        staged: &[],
        link: None,
        is_bare: true,
    };
    for source in [MOUNT.to_owned(), format!("{MOUNT}/sub")] {
        let error = match_source(Path::new(&source), &Config::default(), &node)
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
        assert_eq!(
            match_source(Path::new(&source), &pass, &node).unwrap(),
            None
        );
    }
    assert_eq!(
        match_source(Path::new("/srv/plain"), &Config::default(), &node).unwrap(),
        None
    );
    let used = TestNode {
        staged: &[],
        link: None,
        is_bare: false,
    };
    assert_eq!(
        match_source(Path::new(MOUNT), &Config::default(), &used).unwrap(),
        None
    );
}

#[test]
fn a_match_reports_how_its_source_led_to_the_volume() {
    let target = |path: &str| TargetPath::new(path).unwrap();
    let linked = ("/var/lib/kubelet", "/data/kubelet");
    let real = MOUNT.replace(linked.0, linked.1);
    let matched_by = |staged: &str, link, source: &str| {
        let node = TestNode {
            staged: &[staged],
            link,
            is_bare: false,
        };
        let found = match_source(Path::new(source), &Config::default(), &node);
        let found = found.unwrap().unwrap();
        (found.by, found.resolved)
    };
    let below = format!("{MOUNT}/sub");
    assert_eq!(matched_by(MOUNT, None, MOUNT), (MatchedBy::Exact, None));
    let parent = MatchedBy::Parent {
        prefix: target(MOUNT),
    };
    assert_eq!(matched_by(MOUNT, None, &below), (parent.clone(), None));
    assert_eq!(
        matched_by(MOUNT, Some(linked), &below),
        (parent, None),
        "as given"
    );
    assert_eq!(
        matched_by(&real, Some(linked), MOUNT),
        (MatchedBy::Exact, Some(target(&real)))
    );
    assert_eq!(
        matched_by(&real, Some(linked), &below),
        (
            MatchedBy::Parent {
                prefix: target(&real),
            },
            Some(target(&format!("{real}/sub")))
        )
    );
}

/// The kernel refuses paths of `PATH_MAX` bytes and more. runc removes the dots of a relative source before it mounts
/// it.
#[test]
fn a_source_too_long_to_mount_does_not_match() {
    let deep = |depth| format!("{MOUNT}{}", "/a".repeat(depth));
    assert_eq!(find_match(&[MOUNT], &deep(2000)).unwrap().0, MOUNT);
    assert_eq!(find_match(&[MOUNT], &deep(2100)), None);
    assert_eq!(find_match(&[MOUNT], &deep(10_000_000)), None);
    let dots = format!("{MOUNT}{}/sub", "/./a/..".repeat(1000));
    let expected = (MOUNT.to_owned(), "sub".to_owned());
    assert_eq!(find_match(&[MOUNT], &dots), Some(expected));
}
