//! Property tests of planning: no mount of a volume is overlooked, whatever the config.

use std::path::{Component, Path, PathBuf};

use crust_blockfs::identity::LookupError;
use crust_blockfs::location::{FsLocation, LocationError};
use crust_state::config::{MountMode, SandboxMode};
use crust_state::crust::EntryError;
use crust_state::record::Version;
use crust_state::sandbox::SandboxRecord;
use crust_state::{Config, Process, TargetPath};

use super::{
    ConfigReading, Plan, PlanError, PlanInput, PlanLookup, PlannedMount, SourceLookups, plan,
};
use crate::matching::{NodeLookup, ResolvedSource, StagedListError};
use crate::oci::properties::parse_like_go;
use crate::oci::{Document, Mount, Namespace, ParserFamily};
use crate::role::Role;

const BUNDLE: &str = "/run/b";

/// A node where every CSI volume is staged, and where the record of every sandbox fits the config.
struct AllStaged {
    pod_uid: String,
    pid: i32,
}

/// Checks that the fast path sees every volume that a delegate would mount. Panics otherwise.
pub(crate) fn check_scan_finds_volumes(document: &Document<'_>) {
    let node = AllStaged::new(&[], &[]);
    let config = Config::default();
    let concerns = |delegate| {
        let bundle = Path::new(BUNDLE);
        let reading = ConfigReading {
            document,
            bundle,
            delegate,
        };
        reading
            .subject(&config, &node, &mut SourceLookups::default())
            .is_some()
    };
    let mounts = document.mounts().unwrap_or_default();
    if mounts.iter().any(shows_volume) {
        assert!(concerns(ParserFamily::Go) && concerns(ParserFamily::C));
    }
    let go_value = parse_like_go(document.text().as_bytes()).unwrap_or_default();
    let mounts = go_value["mounts"].as_array().into_iter().flatten();
    let mut sources = mounts.filter_map(|mount| mount["source"].as_str());
    if sources.any(|source| source.starts_with('/') && leads_to_volume(source)) {
        assert!(concerns(ParserFamily::Go));
    }
}

/// Checks the plans of a config. Panics if a property doesn't hold.
pub(crate) fn check(document: &Document<'_>) {
    let (Ok(mounts), Ok(namespaces)) = (document.mounts(), document.namespaces()) else {
        return;
    };
    let node = AllStaged::new(&mounts, &namespaces);
    let mut lookups = SourceLookups::default();
    let reading = ConfigReading {
        document,
        bundle: Path::new(BUNDLE),
        delegate: ParserFamily::Go,
    };
    reading.subject(&Config::default(), &node, &mut lookups);
    for mount_mode in [MountMode::Bind, MountMode::Hook] {
        let input = PlanInput {
            role: Role::from_annotations(|key| document.annotation(key)),
            bundle: Path::new(BUNDLE),
            mounts: &mounts,
            namespaces: &namespaces,
            details: document,
            lookups: lookups.clone(),
            restores: false,
        };
        let config = Config {
            mount_mode,
            sandbox: SandboxMode::Always,
            ..Config::default()
        };
        let volume_mounts: Vec<usize> = mounts
            .iter()
            .filter(|mount| shows_volume(mount))
            .map(|it| it.index)
            .collect();
        match plan(input, &config, &node) {
            Ok(Plan::Container(plan)) => {
                let planned: Vec<usize> = plan.mounts.iter().map(|it| it.index).collect();
                assert_eq!(planned, volume_mounts);
                for planned in &plan.mounts {
                    assert_planned_as_configured(planned, &mounts[planned.index]);
                }
            }
            Ok(Plan::PassThrough | Plan::Sandbox(_)) => assert_eq!(volume_mounts, [0; 0]),
            // A plan may be refused.
            Err(_) => {}
        }
    }
}

/// Returns whether a mount shows a volume, as the kernel would resolve its source if there were no links.
fn shows_volume(mount: &Mount<'_>) -> bool {
    let is_bind = |word: &str| word == "bind" || word == "rbind";
    let binds = mount.kind.as_deref() == Some("bind") || mount.options.iter().any(|it| is_bind(it));
    let source = mount.source.as_deref().unwrap_or_default();
    (binds || source.starts_with('/')) && leads_to_volume(source)
}

fn leads_to_volume(source: &str) -> bool {
    let is_path = !source.contains('\0');
    is_path && find_target_path(&clean(&Path::new(BUNDLE).join(source))).is_some()
}

/// Returns the target path at or above a path.
fn find_target_path(path: &Path) -> Option<PathBuf> {
    let names: Vec<_> = path.iter().collect();
    let is_volume = |start: &usize| {
        let names = &names[*start..];
        names[0] == "volumes" && names[1] == "kubernetes.io~csi" && names[3] == "mount"
    };
    let start = (0..names.len().saturating_sub(3)).find(is_volume)?;
    Some(names[..start + 4].iter().collect())
}

fn clean(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => _ = clean.pop(),
            Component::CurDir => {}
            other => clean.push(other),
        }
    }
    clean
}

fn assert_planned_as_configured(planned: &PlannedMount, mount: &Mount<'_>) {
    let source = mount.source.as_deref().unwrap_or_default();
    assert_eq!(planned.source, source);
    let path = clean(&Path::new(BUNDLE).join(source));
    let volume = find_target_path(&path).expect("a path in a volume");
    assert_eq!(planned.found.volume.as_path(), volume);
    assert_eq!(
        volume.join(&planned.found.subpath).components().as_path(),
        path
    );
    assert_eq!(planned.destination, Path::new(&*mount.destination));
    let mut read_only = false;
    for option in &mount.options {
        match &**option {
            "ro" | "rro" => read_only = true,
            "rw" | "rrw" => read_only = false,
            _ => {}
        }
    }
    assert_eq!(planned.read_only, read_only);
}

impl AllStaged {
    fn new(mounts: &[Mount<'_>], namespaces: &[Namespace<'_>]) -> Self {
        let sources = mounts.iter().filter_map(|mount| mount.source.as_deref());
        let mut targets = sources.filter_map(|source| TargetPath::new(source).ok());
        let uid = |target: TargetPath| Some(target.pod_uid()?.to_str()?.to_owned());
        let paths = namespaces.iter().filter_map(|it| it.path.as_deref());
        let mut pids = paths.filter_map(|path| path.split('/').nth(2)?.parse().ok());
        Self {
            pod_uid: targets.find_map(uid).unwrap_or_default(),
            pid: pids.next().unwrap_or(1),
        }
    }
}

impl NodeLookup for AllStaged {
    fn staged(&self, path: &TargetPath) -> Result<Option<TargetPath>, EntryError> {
        let is_volume = find_target_path(path.as_path()).is_some_and(|it| it == path.as_path());
        Ok(is_volume.then(|| path.clone()))
    }

    fn resolve(&self, path: &Path) -> Result<ResolvedSource, LookupError> {
        Ok(ResolvedSource {
            path: TargetPath::new(clean(path)).ok(),
            ..ResolvedSource::default()
        })
    }

    fn staged_in(&self, _: &Path) -> Result<Vec<TargetPath>, StagedListError> {
        Ok(Vec::new())
    }

    fn locate(&self, _: &Path) -> Result<Option<FsLocation>, LocationError> {
        Ok(None)
    }

    fn is_bare_directory(&self, _: &Path) -> Result<bool, LookupError> {
        Ok(false)
    }

    fn resolve_in_rootfs(&self, _: &Path, path: &Path) -> PathBuf {
        clean(path)
    }
}

impl PlanLookup for AllStaged {
    fn staged_for_pod(&self, _: &str) -> Result<Vec<TargetPath>, PlanError> {
        Ok(Vec::new())
    }

    fn enforces_selinux(&self) -> bool {
        true
    }

    fn sandbox(&self, id: &str) -> Result<Option<SandboxRecord>, PlanError> {
        let process = Process {
            pid: self.pid,
            start_time: 1,
            boot_id: String::new(),
            pid_namespace: None,
        };
        Ok(Some(SandboxRecord {
            version: Version,
            id: id.to_owned(),
            pod_uid: self.pod_uid.clone(),
            process,
            mount_label: None,
            failures: Vec::new(),
        }))
    }
}
