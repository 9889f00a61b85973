use std::cell::Cell;
use std::hash::{DefaultHasher, Hash, Hasher};

use crust_mount::mountinfo::{self, MountInfoError};
use crust_mount::place::Position;
use crust_state::DeviceNumber;
use crust_state::crust::EntryError;

use super::*;
use crate::matching::{PodError, match_source};

const PV: &str = "/k/pods/u/volumes/kubernetes.io~csi/pv-1/mount";
const DOCKER: &str = "/var/lib/docker/volumes/v/_data";

/// A node with some mounts: kubelet's directory is `/k`, and everything is there but one path.
struct Host {
    /// `<device> <root> <mount point> [type]`, as mountinfo writes them.
    mounts: Vec<&'static str>,
    staged: Vec<&'static str>,
    gone: &'static str,
    layers: Vec<&'static str>,
    tables_read: Cell<usize>,
    read_only_root: bool,
}

/// `/` and some mounts, and what is staged.
fn host(mounts: &[&'static str], staged: &[&'static str]) -> Host {
    Host {
        mounts: [&["8:1 / /"], mounts].concat(),
        staged: staged.to_vec(),
        gone: "/gone",
        layers: Vec::new(),
        tables_read: Cell::new(0),
        read_only_root: false,
    }
}

fn config() -> Config {
    Config {
        kubelet_dirs: vec!["/k".into()],
        match_roots: vec!["/roots".into()],
        unstaged: crust_state::config::Unstaged::Pass,
        ..Config::default()
    }
}

impl Host {
    fn table(&self) -> Vec<mountinfo::Mount> {
        let lines = self.mounts.iter().enumerate().map(|(id, line)| {
            let mut fields = line.split(' ');
            let mut next = || fields.next().unwrap_or("ext4");
            let (device, root, point, fstype) = (next(), next(), next(), next());
            format!("{id} 1 {device} {root} {point} rw - {fstype} dev rw\n")
        });
        mountinfo::parse(lines.collect::<String>().as_bytes()).unwrap()
    }

    fn position(&self, path: &Path) -> Option<(Position, Place, bool)> {
        if !self.exists(path) {
            return None;
        }
        let table = self.table();
        let over = table.iter().filter(|it| path.starts_with(&it.mount_point));
        let mount = over.max_by_key(|it| it.mount_point.components().count())?;
        let is_root = path == mount.mount_point;
        let position = Position {
            mount: mount.id.into(),
            path: path.to_owned(),
            is_mount_root: is_root,
        };
        let place = position.place(mount)?;
        Some((position, place, is_root))
    }

    fn find(&self, source: &str) -> Result<Option<(String, String)>, String> {
        let found = match_source(Path::new(source), &config(), self);
        let found = found.map_err(|error| error.to_string())?;
        Ok(found.map(|found| {
            let subpath = found.subpath.display().to_string();
            (found.volume.to_string(), subpath)
        }))
    }

    #[track_caller]
    fn assert_refused(&self, source: &str, wanted: &[&str]) {
        let error = self.find(source).unwrap_err();
        for text in wanted {
            assert!(error.contains(text), "{error:?} doesn't have {text:?}");
        }
    }
}

impl Node for Host {
    fn staged(&self, path: &TargetPath) -> Result<Option<TargetPath>, EntryError> {
        if path.as_path().ends_with("broken") {
            return Err(EntryError::NoInfo("/run/crust/0/mountInfo.json".into()));
        }
        let mut staged = self.staged.iter();
        let is_staged = staged.any(|staged| Path::new(staged) == path.as_path());
        Ok(is_staged.then(|| path.clone()))
    }

    fn targets_elsewhere(&self) -> Vec<TargetPath> {
        let mut all = self.all_staged().unwrap();
        all.retain(|target| target.csi_volume().is_none());
        // One that was unstaged.
        all.push(TargetPath::new("/unstaged").unwrap());
        all
    }

    fn all_staged(&self) -> Result<Vec<TargetPath>, PodError> {
        let staged = self.staged.iter();
        Ok(staged.map(|path| TargetPath::new(path).unwrap()).collect())
    }

    fn identity(&self, path: &Path) -> Option<Identity> {
        let (position, place, is_mount_root) = self.position(path)?;
        let mut hasher = DefaultHasher::new();
        (&place.path, place.deleted).hash(&mut hasher);
        Some(Identity {
            device: place.device,
            inode: hasher.finish(),
            mount: position.mount,
            is_mount_root,
        })
    }

    fn holds_targets(&self, device: DeviceNumber) -> bool {
        let mut staged = self.staged.iter();
        staged.any(|path| {
            let mut there = Path::new(path).ancestors();
            let place = there.find_map(|path| self.position(path));
            place.is_some_and(|(_, place, _)| place.device == device)
        })
    }

    fn is_usual_mount(&self, id: u64) -> bool {
        let mut usual = ["/", "/k"].iter();
        usual.any(|path| self.position(Path::new(path)).unwrap().0.mount == id)
    }

    fn is_read_only(&self, path: &Path) -> bool {
        path.starts_with("/ro") || self.read_only_root
    }

    fn is_overlay(&self, path: &Path) -> bool {
        self.position(path).is_some_and(|(position, ..)| {
            let table = self.table();
            let mut mounts = table.iter();
            mounts.any(|it| u64::from(it.id) == position.mount && it.fstype == "overlay")
        })
    }

    fn overlay_layers(&self, path: &Path) -> Result<Vec<PathBuf>, MountInfoError> {
        self.tables_read.set(self.tables_read.get() + 1);
        let (_, place, _) = self.position(path).unwrap();
        let below = place.path.strip_prefix("/").unwrap();
        let layers = self.layers.iter().map(|layer| Path::new(layer).join(below));
        Ok(self
            .layers
            .iter()
            .map(PathBuf::from)
            .chain(layers)
            .collect())
    }

    fn resolved(&self, _: &Path) -> Option<TargetPath> {
        None
    }

    fn staged_in(&self, _: &Path) -> Result<Vec<TargetPath>, PodError> {
        Ok(vec![])
    }

    fn places(&self, paths: &[&Path]) -> Result<Vec<Option<Place>>, MountInfoError> {
        self.tables_read.set(self.tables_read.get() + 1);
        let place = |path: &&Path| self.position(path).map(|(_, place, _)| place);
        Ok(paths.iter().map(place).collect())
    }

    fn target_places(&self, targets: &[TargetPath]) -> Result<Vec<Option<Place>>, MountInfoError> {
        self.tables_read.set(self.tables_read.get() + 1);
        let place = |target: &TargetPath| {
            let mut parts = target.as_path().ancestors();
            let (part, (_, mut place, _)) =
                parts.find_map(|part| Some((part, self.position(part)?)))?;
            let missing = target.as_path().strip_prefix(part).unwrap();
            place.path.extend(missing);
            Some(place)
        };
        Ok(targets.iter().map(place).collect())
    }

    fn is_bare_directory(&self, _: &Path) -> bool {
        true
    }

    fn exists(&self, path: &Path) -> bool {
        !path.starts_with(self.gone)
    }

    fn within(&self, _: &Path, path: &Path) -> PathBuf {
        path.to_owned()
    }
}

#[test]
fn a_bind_of_a_volume_is_the_volume_wherever_an_engine_made_it() {
    let found = |mounts: &[&'static str], source: &str, expected: (&'static str, &str)| {
        let found = host(mounts, &["/staged", "/roots/v", PV, "/other"]).find(source);
        let (volume, subpath) = expected;
        let expected = (volume.to_owned(), subpath.to_owned());
        assert_eq!(found, Ok(Some(expected)), "{mounts:?} {source}");
    };
    let pv = |below: &str| -> &'static str { format!("8:1 {PV}{below} /b").leak() };
    found(&["8:1 /staged /b"], "/b", ("/staged", ""));
    found(&[pv("")], "/b", (PV, ""));
    found(&[pv("/a/b")], "/b", (PV, "a/b"));
    found(&[pv("")], "/b/below", (PV, "below"));
    found(&[pv("/a")], "/b/c", (PV, "a/c"));
    found(&["8:1 /roots/v/sub /b"], "/b", ("/roots/v", "sub"));
    found(
        &["8:1 /staged /var/lib/docker/volumes/v/_data"],
        DOCKER,
        ("/staged", ""),
    );
    // A bind of a bind; one of all that is above; kubelet's directory a second time.
    found(&["8:1 /staged /b", "8:1 /staged /c"], "/c", ("/staged", ""));
    found(&["8:1 / /host"], "/host/staged", ("/staged", ""));
    found(&["8:1 / /host"], &format!("/host{PV}/a"), (PV, "a"));
    found(
        &["8:1 /k /mnt/kubelet"],
        &format!("/mnt/kubelet{}", &PV[2..]),
        (PV, ""),
    );
    // A kubelet's directory on its own mount, and the volume bound where its file system is seen.
    let own = [
        "8:2 / /k",
        "8:2 /pods/u/volumes/kubernetes.io~csi/pv-1/mount/a /b",
    ];
    found(&own, "/b", (PV, "a"));
    // A target path that is reached by a bind, and a source that isn't.
    let bound = host(&["8:1 /data/x /mnt/x"], &["/mnt/x/t"]);
    let expected = ("/mnt/x/t".to_owned(), String::new());
    assert_eq!(bound.find("/data/x/t"), Ok(Some(expected)));
}

#[test]
fn what_is_no_volumes_directory_passes() {
    for (mounts, source) in [
        // Of the directory above, as a node agent has it.
        (&["8:1 /k /b"][..], "/b"),
        (&["8:1 /k/pods/u/volumes /b"], "/b"),
        (&["8:1 / /b"], "/b"),
        (&[], "/k/pods/u/volumes"),
        (&["8:2 / /k"], "/k"),
        // Beside it, and elsewhere.
        (&["8:1 /staged2 /b"], "/b"),
        (&["8:1 /stage /b"], "/b"),
        (&["8:9 /staged /b"], "/b"),
        (&["0:40 / /b tmpfs"], "/b"),
        (&["8:1 /unstaged /b"], "/b"),
        (&[], "/unstaged/a"),
        (&[], "/etc/hosts"),
        (&["8:1 /x//deleted /b"], "/b"),
    ] {
        let host = host(mounts, &["/staged", PV]);
        assert_eq!(host.find(source), Ok(None), "{mounts:?} {source}");
    }
}

#[test]
fn ordinary_sources_never_cost_a_mount_table() {
    let csi = "/k/pods/u/volumes/kubernetes.io~csi/plain/mount";
    let secret = "/k/pods/u/volumes/kubernetes.io~secret/s";
    let bind = "/k/pods/u/volume-subpaths/cache/app/0";
    for (mounts, source) in [
        (vec![format!("8:7 / {csi}")], csi.to_owned()),
        // Of a driver that binds a directory of the node's own.
        (vec![format!("8:1 /data/plain {csi}")], csi.to_owned()),
        (vec![format!("8:1 /data/plain {csi}")], format!("{csi}/a")),
        (vec![format!("0:40 / {secret} tmpfs")], secret.to_owned()),
        (vec![format!("8:1 /k/cache/db {bind}")], bind.to_owned()),
        (
            vec!["8:2 / /k".to_owned()],
            "/k/pods/u/etc-hosts".to_owned(),
        ),
        (vec!["8:2 / /data".to_owned()], "/data/a".to_owned()),
        (vec![], "/home/user".to_owned()),
    ] {
        let mounts: Vec<&'static str> = mounts.into_iter().map(|it| &*it.leak()).collect();
        for staged in [&[PV][..], &[PV, "/staged"]] {
            let host = host(&mounts, staged);
            assert_eq!(host.find(&source), Ok(None), "{source}");
            assert_eq!(host.tables_read.get(), 0, "{source}");
        }
    }
}

#[test]
fn a_directory_below_a_volume_outside_match_roots_is_refused_with_the_way_out() {
    let host = host(&["8:1 /staged/sub /b"], &["/staged", "/roots/v"]);
    for source in ["/staged/sub", "/staged/a/b", "/b", "/b/c"] {
        let hint = "hint: set match_roots = [\"/\"]";
        host.assert_refused(source, &["volume /staged: ", source, "match_roots", hint]);
    }
    // A path that holds a kubelet's directory would be everybody's.
    let above = self::host(&[], &["/k/pods"]);
    assert_eq!(above.find("/etc/hosts"), Ok(None));
    let above = self::host(&["8:2 / /srv/k"], &["/k"]);
    assert_eq!(above.find("/k/pods/u/etc-hosts"), Ok(None));
}

#[test]
fn a_bind_of_a_directory_that_was_removed_is_refused() {
    for (root, gone) in [
        ("/staged//deleted", "/gone"),
        ("/staged/sub//deleted", "/gone"),
        ("/staged//deleted", "/staged"),
    ] {
        let line = format!("8:1 {root} /b").leak();
        let host = Host {
            gone,
            ..host(&[line], &["/staged"])
        };
        host.assert_refused("/b", &["volume /staged: /b ", "has been removed since"]);
    }
}

#[test]
fn a_read_only_bind_shows_the_volume_read_only() {
    for (source, read_only_root, expected) in [
        ("/b", false, false),
        ("/ro", false, true),
        // All of the node is, and the volume isn't.
        ("/ro", true, false),
    ] {
        let host = Host {
            read_only_root,
            ..host(&["8:1 /staged /b", "8:1 /staged /ro"], &["/staged"])
        };
        let found = match_source(Path::new(source), &config(), &host).unwrap();
        assert_eq!(found.unwrap().read_only, expected, "{source}");
    }
}

#[test]
fn an_entry_that_cannot_be_read_fails_the_create() {
    let host = host(&["8:1 /broken /b"], &["/broken"]);
    host.assert_refused("/b", &["volume /broken: /run/crust/0/mountInfo.json"]);
}

#[test]
fn an_overlay_of_a_volume_is_refused_however_it_is_named() {
    let mounts = [
        "0:50 / /merged overlay",
        "8:1 /staged /b",
        "0:50 /s /part overlay",
    ];
    for (layers, is_refused) in [
        (&["/staged"][..], true),
        (&["/lower", "/staged"], true),
        (&["/b"], true),
        (&["/staged/sub"], true),
        (&["staged", "/lower"], false),
        (&["/lower", "/stage"], false),
        (&[], false),
        // Its own mount point, as systemd-sysext makes an overlay of /usr.
        (&["/merged", "/upper"], false),
        (&["/merged/a", "/merged/b", "/merged"], false),
        (&["/merged", "/staged"], true),
    ] {
        let host = Host {
            layers: layers.to_vec(),
            ..host(&mounts, &["/staged"])
        };
        for source in ["/merged", "/merged/a/b", "/part", "/part/a"] {
            if is_refused {
                host.assert_refused(source, &["volume /staged: "]);
            } else {
                assert_eq!(host.find(source), Ok(None), "{layers:?} {source}");
            }
        }
        let is_refused = is_refused || layers.contains(&"staged");
        let options = format!("lowerdir={},upperdir=/u", layers.join(":"));
        let bundle = Path::new("/");
        let refused =
            crate::matching::refuse_overlay("/data", &[options.into()], bundle, &config(), &host);
        assert_eq!(refused.is_err(), is_refused, "{layers:?}");
    }
}

#[test]
fn what_an_overlay_of_a_directory_above_shows_of_a_volume_is_refused() {
    let host = Host {
        layers: vec!["/data"],
        ..host(&["0:50 / /merged overlay"], &["/data/staged"])
    };
    host.assert_refused("/merged/staged", &["volume /data/staged: ", "overlay"]);
    for source in ["/merged", "/merged/other"] {
        assert_eq!(host.find(source), Ok(None), "{source}");
    }
}

#[test]
fn an_overlay_of_the_root_directory_costs_no_mount_table() {
    let host = Host {
        mounts: vec!["0:50 / / overlay", "0:51 / /memory tmpfs"],
        layers: vec!["/staged"],
        ..host(&[], &["/staged"])
    };
    for source in ["/etc/hosts", "/memory", "/memory/a"] {
        assert_eq!(host.find(source), Ok(None), "{source}");
        assert_eq!(host.tables_read.get(), 0, "{source}");
    }
}
