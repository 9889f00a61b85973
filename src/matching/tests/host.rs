//! A node with some mounts, for tests. Kubelet's directory is `/k`. Every path exists, except for [`Host::gone`] and
//! the paths below it.

use std::cell::{Cell, OnceCell, RefCell};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Component, Path, PathBuf};

use crust_blockfs::DeviceNumber;
use crust_blockfs::identity::{CachedIdentity, FileIdentity, LookupError, MountId};
use crust_blockfs::location::{FsLocation, LocationError, LocationResolver, MountPosition};
use crust_blockfs::mount_kind::MountKind;
use crust_blockfs::mountinfo;
use crust_state::crust::EntryError;
use crust_state::{Config, TargetPath};
use rustix::io::Errno;

use crate::matching::{NodeLookup, NonCsiTargets, ResolvedSource, StagedListError, match_source};

pub(super) struct Host {
    /// The mount table: `<device> <root> <mount point> [type]`, in mountinfo's spelling.
    pub(super) mounts: Vec<String>,
    /// Target paths of the staged volumes.
    pub(super) staged: Vec<String>,
    pub(super) is_bare: bool,
    /// A path that doesn't exist. Nothing below it exists either.
    pub(super) gone: PathBuf,
    /// A symbolic link and its target.
    pub(super) link: Option<(&'static str, &'static str)>,
    /// Layers of every overlay.
    pub(super) layers: Vec<&'static str>,
    pub(super) index: IndexState,
    /// A path on a server that doesn't answer: nothing at or below it is in a cache.
    pub(super) silent: Option<&'static str>,
    /// A path whose lookup fails with this error.
    pub(super) failing: Option<(&'static str, Errno)>,
    pub(super) read_only_root: bool,
    /// Number of times that the mount table was read.
    pub(super) tables_read: Cell<usize>,
    pub(super) paths_to_calls: Cell<usize>,
    /// Paths whose identity or location was looked up.
    pub(super) looked_up: RefCell<Vec<PathBuf>>,
    pub(super) config: Config,
    pub(super) non_csi_targets: OnceCell<NonCsiTargets>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IndexState {
    /// The index lists everything that is staged.
    Complete,
    /// The index lists the target paths, but not their file systems.
    WithoutDevices,
    /// The node has no index.
    Missing,
}

/// The result of a match, for comparison: the volume's target path and the subPath.
pub(super) type MatchResult = Result<Option<(String, String)>, String>;

impl Host {
    pub(super) fn new<S: ToString>(mounts: &[S], staged: &[&str]) -> Self {
        Self {
            mounts: mounts.iter().map(ToString::to_string).collect(),
            staged: staged.iter().map(ToString::to_string).collect(),
            is_bare: false,
            gone: "/gone".into(),
            link: None,
            layers: Vec::new(),
            index: IndexState::Complete,
            silent: None,
            failing: None,
            read_only_root: false,
            tables_read: Cell::default(),
            paths_to_calls: Cell::default(),
            looked_up: RefCell::default(),
            config: Config {
                kubelet_dirs: vec!["/k".into()],
                match_roots: vec!["/roots".into()],
                unstaged: crust_state::config::Unstaged::Pass,
                ..Config::default()
            },
            non_csi_targets: OnceCell::new(),
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

    fn exists(&self, path: &Path) -> bool {
        !path.starts_with(&self.gone)
    }

    /// Follows the link, as the kernel does.
    fn follow_link(&self, path: &Path) -> PathBuf {
        let mut real = PathBuf::from("/");
        for component in path.components() {
            match component {
                Component::ParentDir => _ = real.pop(),
                Component::Normal(name) => real.push(name),
                _ => {}
            }
            if let Some((from, to)) = self.link
                && real == Path::new(from)
            {
                real = to.into();
            }
        }
        real
    }

    fn position(&self, path: &Path) -> Option<(MountPosition, Option<FsLocation>)> {
        let path = self.follow_link(path);
        if !self.exists(&path) {
            return None;
        }
        let table = self.mountinfo();
        let containing = table.iter().filter(|it| path.starts_with(&it.mount_point));
        let mount = containing.max_by_key(|it| it.mount_point.components().count())?;
        let position = MountPosition {
            mount_id: mount.id.into(),
            is_mount_root: path == mount.mount_point,
            path,
        };
        let location = position.location(mount);
        Some((position, location))
    }

    /// Returns whether each target path is on the root directory's mount or has the form of a CSI volume's path. Only
    /// then does the node look up the mount of a source.
    fn are_all_on_root(&self) -> bool {
        let targets = self.non_csi_targets();
        targets.is_some_and(|it| it.is_empty() || it.are_on(MountId::Unique(0), self))
    }

    fn record_lookup(&self, path: &Path) -> Result<(), LookupError> {
        self.looked_up.borrow_mut().push(path.to_owned());
        self.fail_if_configured(path)
    }

    fn fail_if_configured(&self, path: &Path) -> Result<(), LookupError> {
        match self.failing {
            Some((failing, errno)) if path == Path::new(failing) => {
                Err(LookupError::new("statx", path, errno))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn find(&self, source: &str) -> MatchResult {
        let found = match_source(Path::new(source), &self.config, self);
        let found = found.map_err(|error| error.to_string())?;
        Ok(found.map(|found| {
            let subpath = found.subpath.display().to_string();
            (found.volume.to_string(), subpath)
        }))
    }

    #[track_caller]
    pub(super) fn assert_refused(&self, source: &str, expected: &[&str]) {
        let error = self.find(source).unwrap_err();
        for text in expected {
            assert!(error.contains(text), "{error:?} doesn't contain {text:?}");
        }
    }
}

impl NodeLookup for Host {
    fn staged(&self, path: &TargetPath) -> Result<Option<TargetPath>, EntryError> {
        if path.as_path().ends_with("broken") || path.as_path().ends_with("broken/mount") {
            return Err(EntryError::NoInfo("/run/crust/0/mountInfo.json".into()));
        }
        let mut staged = self.staged.iter();
        let is_staged = staged.any(|staged| Path::new(staged) == path.as_path());
        Ok(is_staged.then(|| path.clone()))
    }

    fn resolve(&self, path: &Path) -> Result<ResolvedSource, LookupError> {
        self.fail_if_configured(path)?;
        let real = self.follow_link(path);
        let is_other = self.exists(&real) && real != path;
        let is_on_root = self.position(&real).is_some_and(|(it, _)| it.mount_id == 0);
        Ok(ResolvedSource {
            path: TargetPath::new(&real).ok().filter(|_| is_other),
            matches_only_by_path: is_on_root && !is_other && self.are_all_on_root(),
            identity: None,
        })
    }

    fn staged_in(&self, csi_directory: &Path) -> Result<Vec<TargetPath>, StagedListError> {
        let mut all: Vec<TargetPath> = self.staged.iter().map(target).collect();
        all.retain(|target| target.as_path().ancestors().nth(2) == Some(csi_directory));
        Ok(all)
    }

    fn locate(&self, path: &Path) -> Result<Option<FsLocation>, LocationError> {
        self.record_lookup(path)?;
        self.tables_read.set(self.tables_read.get() + 1);
        Ok(self.position(path).and_then(|(_, location)| location))
    }

    fn locate_target(&self, target: &TargetPath) -> Result<Option<FsLocation>, LocationError> {
        self.record_lookup(target.as_path())?;
        let mut parts = target.as_path().ancestors();
        let found = parts.find_map(|part| Some((part, self.position(part)?.1?)));
        Ok(found.map(|(part, mut location)| {
            location
                .path
                .extend(target.as_path().strip_prefix(part).unwrap());
            location
        }))
    }

    fn paths_to(&self, location: &FsLocation) -> Vec<TargetPath> {
        self.paths_to_calls.set(self.paths_to_calls.get() + 1);
        let locations = LocationResolver::from_mounts(self.mountinfo());
        let paths = locations.paths_to(location).into_iter();
        paths
            .filter_map(|path| TargetPath::new(path).ok())
            .collect()
    }

    fn non_csi_targets(&self) -> Option<&NonCsiTargets> {
        Some(self.non_csi_targets.get_or_init(|| {
            let mut all: Vec<TargetPath> = self.staged.iter().map(target).collect();
            all.retain(|target| target.csi_volume().is_none());
            if !all.is_empty() {
                // A target path that is no longer staged.
                all.push(target("/unstaged"));
            }
            NonCsiTargets::new((self.index != IndexState::Missing).then_some(all))
        }))
    }

    fn cached_identity(&self, path: &Path) -> CachedIdentity {
        if self.silent.is_some_and(|silent| path.starts_with(silent)) {
            return CachedIdentity::Unknown;
        }
        match self.identity(path) {
            Ok(found) => found.map_or(CachedIdentity::Missing, CachedIdentity::Found),
            Err(_) => CachedIdentity::Unknown,
        }
    }

    fn identity(&self, path: &Path) -> Result<Option<FileIdentity>, LookupError> {
        self.record_lookup(path)?;
        let Some((position, location)) = self.position(path) else {
            return Ok(None);
        };
        // A file system that doesn't report locations still has a device number.
        let location = location.unwrap_or(FsLocation {
            device: DeviceNumber::new(0, 99),
            path: position.path.clone(),
            is_deleted: false,
        });
        let mut hasher = DefaultHasher::new();
        (&location.path, location.is_deleted).hash(&mut hasher);
        Ok(Some(FileIdentity {
            device: location.device,
            inode: hasher.finish(),
            mount: MountId::Unique(position.mount_id),
            is_mount_root: position.is_mount_root,
            is_directory: !path.ends_with("file"),
        }))
    }

    fn is_indexed(&self, device: DeviceNumber) -> bool {
        let lacks_devices = self.index == IndexState::WithoutDevices;
        let mut staged = self.staged.iter().filter(|_| !lacks_devices);
        self.index == IndexState::Missing
            || staged.any(|path| {
                let mut parts = Path::new(path).ancestors();
                let location = parts.find_map(|path| self.position(path)?.1);
                location.is_some_and(|location| location.device == device)
            })
    }

    fn is_root_or_kubelet_mount(&self, mount: MountId) -> bool {
        let mut usual = ["/", "/k"].iter();
        usual.any(|path| {
            let found = self.position(Path::new(path));
            found.is_some_and(|(position, _)| MountId::Unique(position.mount_id) == mount)
        })
    }

    fn is_read_only(&self, path: &Path) -> Result<bool, LocationError> {
        Ok(path.starts_with("/ro") || self.read_only_root)
    }

    fn mount_kind(&self, path: &Path, _: MountId) -> Result<MountKind, LocationError> {
        let (position, _) = self.position(path).unwrap();
        let mounts = self.mountinfo();
        let mut mounts = mounts.iter();
        let mount = mounts.find(|it| u64::from(it.id) == position.mount_id);
        Ok(MountKind::from_fstype(&mount.unwrap().fstype))
    }

    fn overlay_layers(&self, path: &Path) -> Result<Vec<PathBuf>, LocationError> {
        self.tables_read.set(self.tables_read.get() + 1);
        let (_, location) = self.position(path).unwrap();
        let below = location.unwrap().path;
        let below = below.strip_prefix("/").unwrap();
        let layers = self.layers.iter().map(Path::new);
        let inner = layers.clone().map(|layer| layer.join(below));
        Ok(layers.map(Path::to_owned).chain(inner).collect())
    }

    fn is_bare_directory(&self, _: &Path) -> Result<bool, LookupError> {
        Ok(self.is_bare)
    }

    fn resolve_in_rootfs(&self, _: &Path, path: &Path) -> PathBuf {
        path.to_owned()
    }
}

fn target(path: impl AsRef<str>) -> TargetPath {
    TargetPath::new(path.as_ref()).unwrap()
}
