//! The input of a plan: the parts of a config that matter to volumes, lookups on the node, and the sources that were
//! looked up before.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::path::Path;

use crust_blockfs::user_namespace::{IdRange, UserNamespace};
use crust_state::TargetPath;
use crust_state::sandbox::SandboxRecord;

use super::error::PlanError;
use crate::matching::{Match, NodeLookup};
use crate::oci::{Document, DocumentError, IdMapping, Mount, MountSource, Namespace};
use crate::role::{Role, RoleError};

/// The largest number of sources whose lookups are kept. An ordinary config has fewer.
const MAX_LOOKUPS: usize = 1000;

/// Cached lookups of mounts' sources. Errors aren't cached: they end the create.
///
/// The hasher has no random seed. A seed would be a system call for every container, and so few keys don't need one.
#[derive(Clone, Default)]
pub(crate) struct SourceLookups<'d>(
    HashMap<MountSource<'d>, Option<Match>, BuildHasherDefault<DefaultHasher>>,
);

impl<'d> SourceLookups<'d> {
    /// Returns the volume that a source leads to, from the cache or else from `look_up`.
    pub(super) fn get<E>(
        &mut self,
        source: MountSource<'d>,
        look_up: impl FnOnce(&MountSource<'d>) -> Result<Option<Match>, E>,
    ) -> Result<Option<Match>, E> {
        if let Some(found) = self.0.get(&source) {
            return Ok(found.clone());
        }
        let found = look_up(&source)?;
        // Borrowed text takes almost no memory. Owned text is rare, and is looked up each time.
        if matches!(source.text, Some(Cow::Borrowed(_))) && self.0.len() < MAX_LOOKUPS {
            self.0.insert(source, found.clone());
        }
        Ok(found)
    }
}

/// Lookups on the node that planning needs besides those of matching.
pub(crate) trait PlanLookup: NodeLookup {
    /// Returns the target paths of the volumes that are staged for a pod.
    fn staged_for_pod(&self, pod_uid: &str) -> Result<Vec<TargetPath>, PlanError>;
    fn enforces_selinux(&self) -> bool;
    /// Returns the record of a sandbox; `None` if the sandbox has no record.
    fn sandbox(&self, id: &str) -> Result<Option<SandboxRecord>, PlanError>;
}

/// The parts of a config that are read only if a volume is mounted.
pub(crate) trait ConfigDetails {
    /// Returns the mappings of user ids and of group ids.
    fn id_mappings(&self) -> Result<[Vec<IdMapping>; 2], DocumentError>;
    /// Returns `linux.rootfsPropagation`.
    fn root_propagation(&self) -> Result<Option<Cow<'_, str>>, DocumentError>;
    /// Returns `root.path`, which may be relative to the bundle.
    fn root_path(&self) -> Result<Option<Cow<'_, str>>, DocumentError>;
    /// Returns `linux.mountLabel`.
    fn mount_label(&self) -> Result<Option<Cow<'_, str>>, DocumentError>;
}

impl ConfigDetails for Document<'_> {
    fn id_mappings(&self) -> Result<[Vec<IdMapping>; 2], DocumentError> {
        Ok([self.uid_mappings()?, self.gid_mappings()?])
    }

    fn root_propagation(&self) -> Result<Option<Cow<'_, str>>, DocumentError> {
        self.root_propagation()
    }

    fn root_path(&self) -> Result<Option<Cow<'_, str>>, DocumentError> {
        self.root_path()
    }

    fn mount_label(&self) -> Result<Option<Cow<'_, str>>, DocumentError> {
        self.mount_label()
    }
}

/// The parts of a config that matter to volumes.
pub(crate) struct PlanInput<'a> {
    pub(crate) role: Result<Role, RoleError>,
    /// The bundle's directory.
    pub(crate) bundle: &'a Path,
    pub(crate) mounts: &'a [Mount<'a>],
    pub(crate) namespaces: &'a [Namespace<'a>],
    /// Read only if a volume is mounted.
    pub(crate) details: &'a dyn ConfigDetails,
    /// Sources that the fast path has looked up.
    pub(crate) lookups: SourceLookups<'a>,
    /// Whether this is a `restore`, not a `create` or a `run`.
    pub(crate) restores: bool,
}

impl PlanInput<'_> {
    pub(super) fn user_namespace(&self) -> Option<&Namespace<'_>> {
        let mut namespaces = self.namespaces.iter();
        namespaces.find(|namespace| namespace.kind == "user")
    }

    pub(super) fn joins_process_namespace(&self) -> bool {
        let mut joined = self.namespaces.iter().filter_map(|it| it.path.as_deref());
        joined.any(|path| path.starts_with("/proc/"))
    }

    /// Returns the user namespace whose id mappings the container's mounts of volumes use; `None` if the container has
    /// no user namespace.
    pub(super) fn ids(&self, volume: &str) -> Result<Option<UserNamespace>, PlanError> {
        let Some(namespace) = self.user_namespace() else {
            return Ok(None);
        };
        if let Some(path) = namespace.path.as_deref().filter(|path| !path.is_empty()) {
            return Ok(Some(UserNamespace::Joined(Path::new(path).into())));
        }
        let mappings = self.details.id_mappings();
        let mappings = mappings.map_err(|source| PlanError::document(volume, source))?;
        let [users, groups] = mappings.map(|mappings| ranges(&mappings));
        if users.is_empty() || groups.is_empty() {
            return Err(PlanError::Unsupported {
                volume: volume.to_owned(),
                reason: "the container has a user namespace without id mappings; hint: add linux.uidMappings and \
                       linux.gidMappings to config.json",
            });
        }
        Ok(Some(UserNamespace::New { users, groups }))
    }
}

/// Returns the SELinux label that a config gives its volumes' files: the level of the pod, and the type of container
/// files. CRI runtimes write the pod's label into the sandbox's config. A container that asks for no level of its own
/// gets the level of its sandbox. Returns `None` if no policy is enforced.
pub(super) fn label(
    details: &dyn ConfigDetails,
    node: &impl PlanLookup,
) -> Result<Option<String>, DocumentError> {
    let label = details.mount_label()?.filter(|label| !label.is_empty());
    let label = label.filter(|_| node.enforces_selinux());
    Ok(label.map(Cow::into_owned))
}

fn ranges(mappings: &[IdMapping]) -> Vec<IdRange> {
    let range = |mapping: &IdMapping| IdRange {
        container: mapping.container,
        host: mapping.host,
        size: mapping.size,
    };
    mappings.iter().map(range).collect()
}
