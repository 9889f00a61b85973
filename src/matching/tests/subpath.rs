use std::path::Path;

use crust_blockfs::identity::LookupError;
use crust_blockfs::location::{FsLocation, LocationError};
use crust_state::config::Unstaged;
use crust_state::crust::EntryError;
use crust_state::{Config, TargetPath};

use super::host::{Host, MatchResult};
use crate::matching::{NodeLookup, ResolvedSource, StagedListError, match_source};

const CSI: &str = "/k/pods/u/volumes/kubernetes.io~csi";
const BIND: &str = "/k/pods/u/volume-subpaths/pv-1/app/0";

/// Returns a node where the pod's CSI volumes with these names are staged.
fn host<S: ToString>(mounts: &[S], staged: &[&str]) -> Host {
    let staged: Vec<String> = staged
        .iter()
        .map(|name| format!("{CSI}/{name}/mount"))
        .collect();
    let staged: Vec<&str> = staged.iter().map(String::as_str).collect();
    let mut host = Host::new(mounts, &staged);
    host.config.unstaged = Unstaged::Refuse;
    host
}

#[track_caller]
fn assert_found(found: MatchResult, subpath: &str, what: &str) {
    let expected = (format!("{CSI}/pv-1/mount"), subpath.to_owned());
    assert_eq!(found.unwrap(), Some(expected), "{what}");
}

#[test]
fn a_bind_matches_the_volume_that_contains_its_root() {
    let target = "/pods/u/volumes/kubernetes.io~csi/pv-1/mount";
    for (what, mounts, subpath) in [
        (
            "a plain directory",
            vec![format!("8:1 / /"), format!("8:1 /k{target}/db {BIND}")],
            "db",
        ),
        (
            "a mount",
            vec![
                format!("8:1 / /"),
                format!("8:2 / /k"),
                format!("8:2 {target}/a/b {BIND}"),
            ],
            "a/b",
        ),
        (
            "a bind",
            vec![
                format!("8:1 / /"),
                format!("8:1 /srv/k /k"),
                format!("8:1 /srv/k{target}/db {BIND}"),
            ],
            "db",
        ),
        (
            "a bind on btrfs, whose mounts share a device",
            vec![
                format!("0:30 /@root / btrfs"),
                format!("0:30 /@home /home btrfs"),
                format!("0:30 /@root/k{target}/sv/db {BIND} btrfs"),
            ],
            "sv/db",
        ),
        (
            "the volume's own mount",
            vec![
                format!("8:1 / /"),
                format!("8:1 /stage/pv-1 /k{target}"),
                format!("8:1 /stage/pv-1/db {BIND}"),
            ],
            "db",
        ),
        (
            "a subPath with odd names",
            vec![
                format!("8:1 / /"),
                format!(r"8:1 /k{target}/my\040db\012x\134040 {BIND}"),
            ],
            "my db\nx\\040",
        ),
        (
            "the whole volume",
            vec![format!("8:1 / /"), format!("8:1 /k{target} {BIND}")],
            "",
        ),
        (
            "two binds on one path, the later one on top",
            vec![
                format!("8:1 / /"),
                format!("8:1 /k{target}/old {BIND}"),
                format!("8:1 /k{target}/new {BIND}"),
            ],
            "new",
        ),
    ] {
        let mounts: Vec<&str> = mounts.iter().map(String::as_str).collect();
        let one = host(&mounts, &["pv-1"]);
        assert_found(one.find(BIND), subpath, what);
        let more = host(&mounts, &["pv-0", "pv-1", "pv-2"]);
        assert_found(more.find(BIND), subpath, what);
    }
    let bind = format!("8:1 {CSI}/pv-1/mount/db {BIND}");
    let host = host(&["8:1 / /", &bind], &["pv-1"]);
    assert_found(
        host.find(&format!("{BIND}/x/y")),
        "db/x/y",
        "below the bind",
    );
}

#[test]
fn a_bind_whose_name_and_root_disagree_is_refused() {
    let bind = |root: &str| format!("8:1 {root} {BIND}");
    let assert_refused = |line: &str, staged: &[&'static str], expected: &[&str]| {
        host(&["8:1 / /", line], staged).assert_refused(BIND, expected);
    };
    assert_refused(
        "8:1 /x /x",
        &["pv-1"],
        &["volume pv-1: ", BIND, "isn't in the volume's directory"],
    );
    assert_refused(
        &bind("/elsewhere/db"),
        &["pv-1"],
        &["volume pv-1: ", "leads to /elsewhere/db on device 8:1"],
    );
    let other_device = bind(&format!("{CSI}/pv-1/mount/db")).replace("8:1", "8:9");
    assert_refused(
        &other_device,
        &["pv-1"],
        &["volume pv-1: ", "on device 8:9"],
    );
    let beside = bind(&format!("{CSI}/pv-1/mounted/db"));
    assert_refused(
        &beside,
        &["pv-1"],
        &["volume pv-1: ", "isn't in the volume's directory"],
    );
    let deleted = bind(&format!("{CSI}/pv-1/mount/db//deleted"));
    assert_refused(
        &deleted,
        &["pv-1"],
        &[
            "volume pv-1: ",
            "is a bind mount of",
            "/pv-1/mount/db, which has been removed",
        ],
    );
    let other = bind(&format!("{CSI}/pv-2/mount/db"));
    for staged in [&["pv-2"][..], &["pv-1", "pv-2"], &["pv-2", "pv-1"]] {
        assert_refused(
            &other,
            staged,
            &["volume pv-2: ", "named after another volume", BIND],
        );
    }
    let nfs = format!("{} nfs4", bind("/"));
    assert_refused(
        &nfs,
        &["pv-1"],
        &[
            "volume pv-1: ",
            "on a file system that doesn't report locations",
        ],
    );
}

#[test]
fn a_missing_bind_named_after_a_staged_volume_is_refused() {
    let line = format!("8:1 {CSI}/pv-1/mount/db {BIND}");
    for (gone, reason) in [
        (BIND.to_owned(), "doesn't exist, or is on a file system"),
        (
            format!("{CSI}/pv-1/mount"),
            "because the volume's directory",
        ),
    ] {
        let host = |staged| Host {
            gone: gone.clone().into(),
            ..host(&["8:1 / /", &line], staged)
        };
        host(&["pv-1"]).assert_refused(BIND, &["volume pv-1: ", reason]);
        host(&["pv-0", "pv-1"]).assert_refused(BIND, &["volume pv-1: ", reason]);
        assert_eq!(host(&["pv-0"]).find(BIND), Ok(None), "{gone}");
    }
}

#[test]
fn binds_named_after_other_volumes_do_not_match() {
    for root in [
        "/k/pods/u/volumes/kubernetes.io~empty-dir/pv-1/db",
        "/x//deleted",
        "/",
    ] {
        let line = format!("8:1 {root} {BIND}");
        for staged in [&[][..], &["pv-2"]] {
            assert_eq!(
                host(&["8:1 / /", &line], staged).find(BIND),
                Ok(None),
                "{root}"
            );
        }
    }
    let unknown = host::<&str>(&[], &["pv-2"]);
    assert_eq!(
        unknown.find(BIND),
        Ok(None),
        "an unknown location doesn't match by name"
    );
}

#[test]
fn a_bind_is_not_located_if_nothing_is_staged() {
    struct Unread;
    impl NodeLookup for Unread {
        fn staged(&self, path: &TargetPath) -> Result<Option<TargetPath>, EntryError> {
            let _ = path;
            Ok(None)
        }
        fn resolve(&self, _: &Path) -> Result<ResolvedSource, LookupError> {
            Ok(ResolvedSource::default())
        }
        fn staged_in(&self, _: &Path) -> Result<Vec<TargetPath>, StagedListError> {
            Ok(Vec::new())
        }
        fn locate(&self, path: &Path) -> Result<Option<FsLocation>, LocationError> {
            let target = format!("{CSI}/pv-1/mount");
            assert_eq!(path, Path::new(&target), "the missing directory");
            Ok(None)
        }
        fn is_bare_directory(&self, _: &Path) -> Result<bool, LookupError> {
            // A missing directory is bare.
            Ok(true)
        }

        fn resolve_in_rootfs(&self, _: &Path, _: &Path) -> std::path::PathBuf {
            unreachable!("matching looks up no destinations")
        }
    }
    assert_eq!(
        match_source(Path::new(BIND), &Config::default(), &Unread).unwrap(),
        None
    );
}

#[test]
fn a_bind_into_a_bare_directory_is_refused() {
    let bind_of = |root: &str| format!("8:1 {root} {BIND}");
    let inside = format!("{CSI}/pv-1/mount/db");
    for (line, bare, refused) in [
        (bind_of(&inside), true, true),
        (bind_of(&format!("{inside}//deleted")), true, true),
        (bind_of(&inside), false, false),
        // An emptyDir of the same name.
        (
            bind_of("/k/pods/u/volumes/kubernetes.io~empty-dir/pv-1/db"),
            true,
            false,
        ),
        ("8:1 /x /x".to_owned(), true, false),
    ] {
        let host = Host {
            is_bare: bare,
            ..host(&["8:1 / /", &line], &[])
        };
        let found = match_source(Path::new(BIND), &host.config, &host);
        assert_eq!(found.is_err(), refused, "{line} {bare}: {found:?}");
        if let Err(error) = found {
            let error = error.to_string();
            assert!(
                error.starts_with("volume pv-1: nothing is staged for /k/pods"),
                "{error}"
            );
        }
        let pass = Config {
            unstaged: Unstaged::Pass,
            ..Config::default()
        };
        assert_eq!(
            match_source(Path::new(BIND), &pass, &host).unwrap(),
            None,
            "{line}"
        );
    }
}

/// Kubelet binds the subPath of a hostPath volume below `volume-subpaths` too.
#[test]
fn a_subpath_bind_of_a_volume_outside_the_pod_is_recognized() {
    let other = "/k/pods/other/volumes/kubernetes.io~csi/pv-9/mount";
    let bind = |root: &str| format!("8:1 {root} {BIND}");
    for pod_volumes in [&[][..], &["pv-0"]] {
        let with = |line: String, target: &str| {
            let mut host = host(&["8:1 / /".to_owned(), line], pod_volumes);
            host.staged.push(target.to_owned());
            host
        };
        let elsewhere = with(bind("/lab/staged/sub"), "/lab/staged");
        elsewhere.assert_refused(BIND, &["volume /lab/staged: ", BIND, "match_roots"]);
        elsewhere.assert_refused(&format!("{BIND}/below"), &["volume /lab/staged: "]);
        for (root, target, subpath) in [
            ("/lab/staged", "/lab/staged", ""),
            ("/roots/v/a/b", "/roots/v", "a/b"),
            (&format!("{other}/db"), other, "db"),
            (other, other, ""),
        ] {
            let expected = (target.to_owned(), subpath.to_owned());
            let found = with(bind(root), target).find(BIND);
            assert_eq!(found, Ok(Some(expected)), "{root}");
        }
    }
}
