use std::path::PathBuf;

use crust_mount::mountinfo::{self, MountInfoError};
use crust_mount::place::Position;
use crust_state::Config;
use crust_state::config::Unstaged;
use crust_state::crust::EntryError;

use super::*;
use crate::matching::{PodError, match_source};

const CSI: &str = "/k/pods/u/volumes/kubernetes.io~csi";
const BIND: &str = "/k/pods/u/volume-subpaths/pv-1/app/0";

/// A node with some mounts: kubelet's directory is `/k`, and everything is there but one path.
struct Host {
    /// `<device> <root> <mount point> [type]`, as mountinfo writes them.
    mounts: Vec<String>,
    staged: Vec<&'static str>,
    bare: bool,
    /// Not there, nor what would be below it.
    gone: PathBuf,
}

impl Host {
    fn new(mounts: &[&str], staged: &[&'static str]) -> Self {
        Self {
            mounts: mounts.iter().map(|line| (*line).to_owned()).collect(),
            staged: staged.to_vec(),
            bare: false,
            gone: "/gone".into(),
        }
    }

    fn mountinfo(&self) -> Vec<mountinfo::Mount> {
        let lines = self.mounts.iter().enumerate().map(|(id, line)| {
            let mut fields = line.split(' ');
            let mut next = || fields.next().unwrap_or("ext4");
            let (device, root, point, fstype) = (next(), next(), next(), next());
            format!("{id} 1 {device} {root} {point} rw - {fstype} dev rw\n")
        });
        mountinfo::parse(lines.collect::<String>().as_bytes()).unwrap()
    }

    fn find(&self, source: &str) -> Found {
        let found = match_source(Path::new(source), &Config::default(), self);
        let found = found.map_err(|error| error.to_string())?;
        Ok(found.map(|found| {
            (
                found.volume.volume_name(),
                found.subpath.display().to_string(),
            )
        }))
    }

    #[track_caller]
    fn assert_refused(&self, wanted: &[&str]) {
        let error = self.find(BIND).unwrap_err();
        for text in wanted {
            assert!(error.contains(text), "{error:?} doesn't name {text:?}");
        }
    }
}

impl Node for Host {
    fn staged(&self, path: &TargetPath) -> Result<Option<TargetPath>, EntryError> {
        let here = self
            .staged
            .iter()
            .any(|name| Path::new(CSI).join(name).join("mount") == path.as_path());
        Ok(here.then(|| path.clone()))
    }

    fn resolved(&self, _: &Path) -> Option<TargetPath> {
        None
    }

    fn staged_in(&self, csi_directory: &Path) -> Result<Vec<TargetPath>, PodError> {
        let paths = self
            .staged
            .iter()
            .map(|name| csi_directory.join(name).join("mount"));
        Ok(paths.map(|path| TargetPath::new(path).unwrap()).collect())
    }

    fn places(&self, paths: &[&Path]) -> Result<Vec<Option<Place>>, MountInfoError> {
        let mounts = self.mountinfo();
        let position = |path: &&Path| {
            if !self.exists(path) {
                return None;
            }
            let over = mounts
                .iter()
                .filter(|mount| path.starts_with(&mount.mount_point));
            let mount = over.max_by_key(|mount| mount.mount_point.components().count())?;
            let position = Position {
                mount: mount.id.into(),
                path: path.to_path_buf(),
                is_mount_root: *path == mount.mount_point,
            };
            position.place(mount)
        };
        Ok(paths.iter().map(position).collect())
    }

    fn is_bare_directory(&self, _: &Path) -> bool {
        self.bare
    }

    fn exists(&self, path: &Path) -> bool {
        !path.starts_with(&self.gone)
    }

    fn within(&self, _: &Path, path: &Path) -> std::path::PathBuf {
        path.to_owned()
    }
}

type Found = Result<Option<(String, String)>, String>;

#[track_caller]
fn assert_found(found: Found, subpath: &str, what: &str) {
    let expected = ("pv-1".to_owned(), subpath.to_owned());
    assert_eq!(found.unwrap(), Some(expected), "{what}");
}

#[test]
fn a_bind_is_of_the_target_that_holds_its_root_wherever_kubelets_directory_is() {
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
            "on btrfs, whose mounts share a device",
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
            "all of it",
            vec![format!("8:1 / /"), format!("8:1 /k{target} {BIND}")],
            "",
        ),
        (
            "two binds, of which the later one is on top",
            vec![
                format!("8:1 / /"),
                format!("8:1 /k{target}/old {BIND}"),
                format!("8:1 /k{target}/new {BIND}"),
            ],
            "new",
        ),
    ] {
        let mounts: Vec<&str> = mounts.iter().map(String::as_str).collect();
        let one = Host::new(&mounts, &["pv-1"]);
        assert_found(one.find(BIND), subpath, what);
        let more = Host::new(&mounts, &["pv-0", "pv-1", "pv-2"]);
        assert_found(more.find(BIND), subpath, what);
    }
    let bind = format!("8:1 {CSI}/pv-1/mount/db {BIND}");
    let host = Host::new(&["8:1 / /", &bind], &["pv-1"]);
    assert_found(
        host.find(&format!("{BIND}/x/y")),
        "db/x/y",
        "below the bind",
    );
}

#[test]
fn what_leads_elsewhere_than_its_name_says_is_refused() {
    let bind = |root: &str| format!("8:1 {root} {BIND}");
    let refused = |line: &str, staged: &[&'static str], wanted: &[&str]| {
        Host::new(&["8:1 / /", line], staged).assert_refused(wanted);
    };
    refused(
        "8:1 /x /x",
        &["pv-1"],
        &["volume pv-1: ", BIND, "isn't in its directory"],
    );
    refused(
        &bind("/elsewhere/db"),
        &["pv-1"],
        &["volume pv-1: ", "leads to /elsewhere/db on device 8:1"],
    );
    let other_device = bind(&format!("{CSI}/pv-1/mount/db")).replace("8:1", "8:9");
    refused(
        &other_device,
        &["pv-1"],
        &["volume pv-1: ", "on device 8:9"],
    );
    let beside = bind(&format!("{CSI}/pv-1/mounted/db"));
    refused(
        &beside,
        &["pv-1"],
        &["volume pv-1: ", "isn't in its directory"],
    );
    let deleted = bind(&format!("{CSI}/pv-1/mount/db//deleted"));
    refused(
        &deleted,
        &["pv-1"],
        &[
            "volume pv-1: ",
            "is a bind of",
            "/pv-1/mount/db, which has been removed",
        ],
    );
    let other = bind(&format!("{CSI}/pv-2/mount/db"));
    for staged in [&["pv-2"][..], &["pv-1", "pv-2"], &["pv-2", "pv-1"]] {
        refused(
            &other,
            staged,
            &["volume pv-2: ", "named after another one", BIND],
        );
    }
    let nfs = format!("{} nfs4", bind("/"));
    refused(
        &nfs,
        &["pv-1"],
        &["volume pv-1: ", "leads to nothing that is known"],
    );
}

#[test]
fn what_is_not_there_is_refused_where_the_name_is_a_staged_volumes() {
    let line = format!("8:1 {CSI}/pv-1/mount/db {BIND}");
    for (gone, why) in [
        (BIND.to_owned(), "leads to nothing that is known"),
        (format!("{CSI}/pv-1/mount"), "isn't there"),
    ] {
        let host = |staged| Host {
            gone: gone.clone().into(),
            ..Host::new(&["8:1 / /", &line], staged)
        };
        host(&["pv-1"]).assert_refused(&["volume pv-1: ", why]);
        host(&["pv-0", "pv-1"]).assert_refused(&["volume pv-1: ", why]);
        assert_eq!(host(&["pv-0"]).find(BIND), Ok(None), "{gone}");
    }
}

#[test]
fn binds_of_other_volumes_pass_whatever_they_are_of() {
    for root in [
        "/k/pods/u/volumes/kubernetes.io~empty-dir/pv-1/db",
        "/x//deleted",
        "/",
    ] {
        let line = format!("8:1 {root} {BIND}");
        for staged in [&[][..], &["pv-2"]] {
            assert_eq!(
                Host::new(&["8:1 / /", &line], staged).find(BIND),
                Ok(None),
                "{root}"
            );
        }
    }
    let unknown = Host::new(&[], &["pv-2"]);
    assert_eq!(
        unknown.find(BIND),
        Ok(None),
        "what can't be known is no volume's by its name"
    );
}

#[test]
fn mounts_are_read_only_where_something_is_staged_for_the_pod() {
    struct Unread(Host);
    impl Node for Unread {
        fn staged(&self, path: &TargetPath) -> Result<Option<TargetPath>, EntryError> {
            self.0.staged(path)
        }
        fn resolved(&self, _: &Path) -> Option<TargetPath> {
            None
        }
        fn staged_in(&self, csi_directory: &Path) -> Result<Vec<TargetPath>, PodError> {
            self.0.staged_in(csi_directory)
        }
        fn places(&self, _: &[&Path]) -> Result<Vec<Option<Place>>, MountInfoError> {
            panic!("mountinfo was read")
        }
        fn is_bare_directory(&self, directory: &Path) -> bool {
            // A missing one is.
            !self.exists(directory)
        }
        fn exists(&self, _: &Path) -> bool {
            false
        }

        fn within(&self, _: &Path, _: &Path) -> std::path::PathBuf {
            unreachable!("no destination is asked for")
        }
    }
    let node = Unread(Host::new(&[], &[]));
    assert_eq!(
        match_source(Path::new(BIND), &Config::default(), &node).unwrap(),
        None
    );
}

#[test]
fn the_rule_for_lost_metadata_reaches_a_bind_into_the_bare_directory() {
    let into = |root: &str| format!("8:1 {root} {BIND}");
    let inside = format!("{CSI}/pv-1/mount/db");
    for (line, bare, refused) in [
        (into(&inside), true, true),
        (into(&format!("{inside}//deleted")), true, true),
        (into(&inside), false, false),
        // An emptyDir of the same name.
        (
            into("/k/pods/u/volumes/kubernetes.io~empty-dir/pv-1/db"),
            true,
            false,
        ),
        ("8:1 /x /x".to_owned(), true, false),
    ] {
        let host = Host {
            bare,
            ..Host::new(&["8:1 / /", &line], &[])
        };
        let found = match_source(Path::new(BIND), &Config::default(), &host);
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
