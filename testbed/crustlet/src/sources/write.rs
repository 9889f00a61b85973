//! Writes manifests for `crustlet run` and `crustlet delete`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crust_blockfs::bounded;
use crust_state::files::{Directory, FileError, MakerState};
use serde_json::{Value, json};

use super::trusted::Untrusted;
use super::{LoadedManifests, MAX_FILE_SIZE, Origin};
use crate::objects::manifest::{self, DocumentError, Manifest, ManifestError, Object};
use crate::objects::name::UidError;
use crate::objects::{Kind, Name, Pod};

/// The reason why a manifest can't be written or removed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    /// The text has no valid manifests.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The manifest would not be valid.
    #[error(transparent)]
    Document(#[from] DocumentError),
    #[error("the manifest contains no object")]
    Empty,
    /// The specification of an existing pod can't change.
    #[error(
        "Pod {0} already exists with a different spec; hint: delete the pod first; before it starts, only deferFSMount can be set to true"
    )]
    PodChanged(Name),
    /// The mounter of a volume of a started pod would change.
    #[error(
        "Pod {0} has started, and the mounters of its volumes cannot change; hint: leave deferFSMount as it is, or delete the pod first"
    )]
    PodStarted(Name),
    #[error("{0} {1} is being deleted; hint: wait until it is gone")]
    BeingDeleted(Kind, Name),
    /// The object's file contains other objects.
    #[error("{kind} {name} is in {} with other objects; hint: remove it from that file", path.display())]
    SharedFile {
        kind: Kind,
        name: Name,
        path: PathBuf,
    },
    /// The file was written by another program since it was read.
    #[error("{kind} {name}: {} has changed since it was read", path.display())]
    FileChanged {
        kind: Kind,
        name: Name,
        path: PathBuf,
    },
    #[error("{0} {1} not found")]
    NotFound(Kind, Name),
    /// The object can't be written as YAML.
    #[error("{0} {1}: {2}")]
    Yaml(Kind, Name, String),
    /// No UID could be generated.
    #[error(transparent)]
    Uid(#[from] UidError),
    /// The file can't be read or written.
    #[error(transparent)]
    File(FileError),
    /// A user other than root could change the file.
    #[error(transparent)]
    Untrusted(#[from] Untrusted),
    /// An error has left some of the objects unwritten.
    #[error("wrote only {}", .written.join(", "))]
    PartiallyWritten {
        /// The objects that were written.
        written: Vec<String>,
        /// The error of the next object.
        source: Box<Self>,
    },
}

impl From<FileError> for WriteError {
    fn from(error: FileError) -> Self {
        Untrusted::from_file_error(error).map_or_else(Self::File, Self::Untrusted)
    }
}

impl WriteError {
    /// Adds the objects that were written before this error.
    fn after(self, written: Vec<String>) -> Self {
        if written.is_empty() {
            return self;
        }
        let source = Box::new(self);
        Self::PartiallyWritten { written, source }
    }
}

/// The state before manifests are applied: the current manifests, and the pods that have started.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CurrentState<'a> {
    pub(crate) loaded: &'a LoadedManifests,
    /// The deferred volumes of each pod that has started.
    pub(crate) started: &'a BTreeMap<Name, BTreeSet<String>>,
}

/// The outcome for an applied object, in kubectl's terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ApplyOutcome {
    Created,
    Configured,
    Unchanged,
}

/// The result of applying a manifest's object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Applied {
    pub(crate) kind: Kind,
    pub(crate) name: Name,
    pub(crate) outcome: ApplyOutcome,
}

impl fmt::Display for Applied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}

/// An applied object, and the file that has to be written for it.
struct PlannedWrite {
    applied: Applied,
    /// The path and the document. `None` if the object hasn't changed.
    write: Option<(PathBuf, Value)>,
}

/// Applies manifests. A new object gets a file of its own in the directory; an existing one is replaced in its file.
/// All objects are checked before the first is written. `uid` generates the UIDs of new pods, and `now` is their
/// creation time.
pub(crate) fn apply(
    directory: &Path,
    current: CurrentState<'_>,
    text: &str,
    now: &str,
    uid: &mut dyn FnMut() -> Result<String, UidError>,
) -> Result<Vec<Applied>, WriteError> {
    let manifests = manifest::read(text)?;
    if manifests.is_empty() {
        return Err(WriteError::Empty);
    }
    let planned = manifests
        .into_iter()
        .map(|manifest| plan_write(directory, current, manifest, now, uid));
    let planned = planned.collect::<Result<Vec<_>, _>>()?;
    let mut files = Vec::new();
    for PlannedWrite { applied, write } in &planned {
        if let Some((path, document)) = write {
            files.push((
                applied,
                NewFile::new(path, applied.kind, &applied.name, document)?,
            ));
        }
    }
    for (index, (_, file)) in files.iter().enumerate() {
        file.write().map_err(|error| {
            let written = files[..index]
                .iter()
                .map(|(applied, _)| applied.to_string());
            error.after(written.collect())
        })?;
    }
    Ok(planned.into_iter().map(|planned| planned.applied).collect())
}

fn plan_write(
    directory: &Path,
    CurrentState { loaded, started }: CurrentState<'_>,
    manifest: Manifest,
    now: &str,
    uid: &mut dyn FnMut() -> Result<String, UidError>,
) -> Result<PlannedWrite, WriteError> {
    let Manifest {
        kind,
        name,
        mut document,
        object,
    } = manifest;
    let key = (kind, name.clone());
    if let (Object::Pod(pod), Some(existing)) = (&object, loaded.objects.pods.get(&name)) {
        check_pod_update(pod, existing, started.get(&name))?;
    }
    let existing = loaded.objects.documents.get(&key);
    let path = match loaded.origins.get(&key) {
        Some(origin) => exclusive_file(origin, &key)?,
        None => directory.join(file_name(kind, &name)),
    };
    let metadata = &mut document["metadata"];
    if let Some(existing) = existing {
        let existing = &existing["metadata"];
        if !existing["deletionTimestamp"].is_null() {
            return Err(WriteError::BeingDeleted(kind, name));
        }
        // Immutable fields that crustlet has set, and that the new manifest may lack.
        for field in ["uid", "creationTimestamp"] {
            if metadata[field].is_null() && !existing[field].is_null() {
                metadata[field] = existing[field].clone();
            }
        }
    } else {
        if kind == Kind::Pod && metadata["uid"].is_null() {
            metadata["uid"] = json!(uid()?);
        }
        if metadata["creationTimestamp"].is_null() {
            metadata["creationTimestamp"] = json!(now);
        }
    }
    let outcome = match existing {
        None => ApplyOutcome::Created,
        Some(existing) if **existing == document => ApplyOutcome::Unchanged,
        Some(_) => ApplyOutcome::Configured,
    };
    Ok(PlannedWrite {
        applied: Applied {
            kind,
            name,
            outcome,
        },
        write: (outcome != ApplyOutcome::Unchanged).then_some((path, document)),
    })
}

/// Checks that a pod may replace an existing one. `started` has the deferred volumes of the existing pod if it has
/// started.
fn check_pod_update(
    pod: &Pod,
    existing: &Pod,
    started: Option<&BTreeSet<String>>,
) -> Result<(), WriteError> {
    // The manifest may be the original manifest, or the manifest with the deferral that a policy has added.
    let is_kept = |deferred: &BTreeSet<String>| {
        pod.deferred == *deferred || pod.deferred == existing.deferred
    };
    match started {
        _ if !pod.has_same_spec(existing) => Err(WriteError::PodChanged(pod.name.clone())),
        Some(deferred) if is_kept(deferred) => Ok(()),
        Some(_) => Err(WriteError::PodStarted(pod.name.clone())),
        None if pod.may_replace(existing) => Ok(()),
        None => Err(WriteError::PodChanged(pod.name.clone())),
    }
}

/// Sets the deletion timestamp in an object's manifest, so that a restarted crustlet finds it.
pub(crate) fn delete(
    loaded: &LoadedManifests,
    kind: Kind,
    name: &Name,
    now: &str,
    grace: Option<i64>,
) -> Result<(), WriteError> {
    let key = (kind, name.clone());
    let document = loaded.objects.documents.get(&key);
    let document = document.ok_or_else(|| WriteError::NotFound(kind, name.clone()))?;
    let origin = &loaded.origins[&key];
    let path = exclusive_file(origin, &key)?;
    let mut document = document.as_ref().clone();
    let metadata = &mut document["metadata"];
    if metadata["deletionTimestamp"].is_null() {
        metadata["deletionTimestamp"] = json!(now);
    }
    if let Some(grace) = grace {
        metadata["deletionGracePeriodSeconds"] = json!(grace);
    }
    NewFile::new(&path, kind, name, &document)?.write()
}

/// Removes an object's file, and returns its path.
pub(crate) fn remove(
    loaded: &LoadedManifests,
    kind: Kind,
    name: &Name,
) -> Result<PathBuf, WriteError> {
    let key = (kind, name.clone());
    let origin = loaded.origins.get(&key);
    let origin = origin.ok_or_else(|| WriteError::NotFound(kind, name.clone()))?;
    let path = exclusive_file(origin, &key)?;
    let (directory, file) = open_parent(&path)?;
    // The file may have been changed since it was read.
    let text = match bounded::read_to_string(&path, MAX_FILE_SIZE) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(path),
        text => text.unwrap_or_default(),
    };
    // A file that can't be parsed counts as changed, too: another program may be writing it.
    let manifests = manifest::read(&text).unwrap_or_default();
    let is_object = |manifest: &Manifest| manifest.kind == kind && manifest.name == *name;
    let document = loaded.objects.documents.get(&key).map(AsRef::as_ref);
    let is_unchanged =
        matches!(&manifests[..], [only] if is_object(only) && Some(&only.document) == document);
    if !is_unchanged {
        let name = name.clone();
        return Err(WriteError::FileChanged { kind, name, path });
    }
    directory.remove(file)?;
    Ok(path)
}

/// Removes temporary files whose writer was killed.
pub(crate) fn remove_temporary_files(directory: &Path) -> Result<(), FileError> {
    let mut removed = Ok(());
    if let Some(directory) = Directory::open(directory)? {
        directory.leftovers(&mut |found| {
            let result = found.and_then(|leftover| match leftover.maker_state() {
                MakerState::Abandoned(_) => leftover.remove(),
                // Files of other programs can have such names.
                MakerState::InProgress | MakerState::Unknown(_) => Ok(()),
            });
            removed = std::mem::replace(&mut removed, Ok(())).and(result);
        });
    }
    removed
}

/// Returns the path of the file that contains only this object. Fails if the file contains other objects.
fn exclusive_file(origin: &Origin, key: &(Kind, Name)) -> Result<PathBuf, WriteError> {
    if origin.is_only_object {
        Ok(origin.path.clone())
    } else {
        Err(WriteError::SharedFile {
            kind: key.0,
            name: key.1.clone(),
            path: origin.path.clone(),
        })
    }
}

/// Returns the file name of a new object. It is unique, because names contain no `_`.
fn file_name(kind: Kind, name: &Name) -> String {
    let kind = kind.as_str().to_ascii_lowercase();
    let Name { namespace, name } = name;
    if namespace.is_empty() {
        format!("{kind}_{name}.yaml")
    } else {
        format!("{kind}_{namespace}_{name}.yaml")
    }
}

/// The new contents of a manifest file.
struct NewFile<'a> {
    path: &'a Path,
    contents: String,
}

impl<'a> NewFile<'a> {
    /// Creates the contents, and checks them and the directory. Nothing is written.
    fn new(path: &'a Path, kind: Kind, name: &Name, document: &Value) -> Result<Self, WriteError> {
        let contents = serde_saphyr::to_string(document)
            .map_err(|error| WriteError::Yaml(kind, name.clone(), error.to_string()))?;
        // The contents are parsed to check them, because YAML can't represent every document unambiguously.
        let parsed = manifest::read(&contents)?;
        if parsed.first().map(|manifest| &manifest.document) != Some(document) {
            let reason = "the object cannot be represented as YAML".to_owned();
            return Err(WriteError::Yaml(kind, name.clone(), reason));
        }
        open_parent(path)?;
        Ok(Self { path, contents })
    }

    fn write(&self) -> Result<(), WriteError> {
        let (directory, file) = open_parent(self.path)?;
        Ok(directory.write(file, self.contents.as_bytes())?)
    }
}

/// Opens the directory of a file. Creates the directory if it doesn't exist. Returns the directory and the file's name.
fn open_parent(path: &Path) -> Result<(Directory, &str), WriteError> {
    let parent = path.parent().unwrap_or(path);
    let file = path.file_name().and_then(|name| name.to_str());
    Ok((Directory::create(parent)?, file.unwrap_or_default()))
}
