//! The input of a plan: a config's parts that matter to volumes, the records, and sources that were looked up before.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::path::Path;

use crust_blockfs::user_namespace::{IdRange, UserNamespace};
use crust_state::TargetPath;
use crust_state::sandbox::SandboxRecord;

use super::error::PlanError;
use crate::matching::{Match, Node};
use crate::oci::{Document, DocumentError, IdMapping, Mount, MountSource, Namespace};
use crate::role::{Role, RoleError};

/// The number of sources that are looked up once, however often a config has them: more than an ordinary one has.
const MOST_LOOKUPS: usize = 1000;

/// The results of looking up mounts' sources. An error isn't kept: it ends the create.
///
/// A seed for the hash would be a system call for every container, and so few sources need none.
#[derive(Clone, Default)]
pub(crate) struct Lookups<'d>(
    HashMap<MountSource<'d>, Option<Match>, BuildHasherDefault<DefaultHasher>>,
);

impl<'d> Lookups<'d> {
    /// Returns the volume that a source leads to, from an earlier lookup or else from `look_up`.
    pub(super) fn get<E>(
        &mut self,
        source: MountSource<'d>,
        look_up: impl FnOnce(&MountSource<'d>) -> Result<Option<Match>, E>,
    ) -> Result<Option<Match>, E> {
        if let Some(found) = self.0.get(&source) {
            return Ok(found.clone());
        }
        let found = look_up(&source)?;
        // Borrowed text costs next to no memory. Owned text is rare, and looked up each time.
        if matches!(source.text, Some(Cow::Borrowed(_))) && self.0.len() < MOST_LOOKUPS {
            self.0.insert(source, found.clone());
        }
        Ok(found)
    }
}

/// The records that planning asks for beside the mounts.
pub(crate) trait Records: Node {
    /// The volumes that are staged for a pod.
    fn staged_for_pod(&self, pod_uid: &str) -> Result<Vec<TargetPath>, PlanError>;
    /// Whether an SELinux policy is enforced.
    fn enforces_selinux(&self) -> bool;
    /// The record of a sandbox.
    fn sandbox(&self, id: &str) -> Result<Option<SandboxRecord>, PlanError>;
}

/// The parts of a config that matter only if a volume is mounted.
pub(crate) trait ConfigDetails {
    /// The id mappings of users and of groups.
    fn id_mappings(&self) -> Result<[Vec<IdMapping>; 2], DocumentError>;
    /// `linux.rootfsPropagation`.
    fn root_propagation(&self) -> Result<Option<Cow<'_, str>>, DocumentError>;
    /// `root.path`, which may be relative to the bundle.
    fn root_path(&self) -> Result<Option<Cow<'_, str>>, DocumentError>;
    /// `linux.mountLabel`.
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
    /// Asked only where a volume is mounted.
    pub(crate) details: &'a dyn ConfigDetails,
    /// Sources that the first look at the config has looked up.
    pub(crate) lookups: Lookups<'a>,
    /// `restore` instead of `create` or `run`.
    pub(crate) restores: bool,
}

impl PlanInput<'_> {
    pub(super) fn user_namespace(&self) -> Option<&Namespace<'_>> {
        let mut namespaces = self.namespaces.iter();
        namespaces.find(|namespace| namespace.kind == "user")
    }

    pub(super) fn joins_a_process(&self) -> bool {
        let mut joined = self.namespaces.iter().filter_map(|it| it.path.as_deref());
        joined.any(|path| path.starts_with("/proc/"))
    }

    /// The ids that the container's mounts are to show, where it has a user namespace.
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
                what: "the container has a user namespace without id mappings; hint: \
                       linux.uidMappings and linux.gidMappings say what its ids are on the host",
            });
        }
        Ok(Some(UserNamespace::New { users, groups }))
    }
}

/// The SELinux label that a config gives its volumes' files: the pod's level, and the type that is
/// the containers' files'. CRI runtimes give a sandbox's config the pod's, and a container that asks
/// for no level of its own has that of its sandbox. Without a policy that is enforced it says nothing.
pub(super) fn label(
    details: &dyn ConfigDetails,
    node: &impl Records,
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
