//! Writes manifests, for `crustlet run` and `crustlet delete`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crust_blockfs::bounded;
use crust_state::files::{Directory, FileError, MakerState};
use serde_json::{Value, json};

use super::trusted::Untrusted;
use super::{LARGEST, Loaded, Origin};
use crate::objects::manifest::{self, DocumentError, Manifest, ManifestError, Object};
use crate::objects::name::UidError;
use crate::objects::{Kind, Name, Pod};

/// A manifest can't be written or taken away.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    /// The text has no valid manifests.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// It would be none.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// There are no objects in it.
    #[error("there is no object in it")]
    Empty,
    /// A pod is what it is until it is deleted.
    #[error(
        "Pod {0} is there, and is another; hint: only deferFSMount may become true before it starts, delete it first"
    )]
    Changed(Name),
    /// The same, but for a volume that would be mounted by another.
    #[error(
        "Pod {0} has begun, and who mounts its volumes is fixed since; hint: leave deferFSMount as it is, or delete the pod first"
    )]
    Begun(Name),
    /// It is about to go.
    #[error("{0} {1} is being deleted; hint: wait until it is gone")]
    Deleted(Kind, Name),
    /// Its file has others.
    #[error("{kind} {name} is in {} with other objects; hint: take it out of that file", path.display())]
    Shared {
        kind: Kind,
        name: Name,
        /// The file.
        path: PathBuf,
    },
    /// It is another one by now.
    #[error("{kind} {name}: {} was written again meanwhile", path.display())]
    Rewritten {
        kind: Kind,
        name: Name,
        /// The file.
        path: PathBuf,
    },
    /// There is no such object.
    #[error("{0} {1} not found")]
    None(Kind, Name),
    /// It can't be turned into a text.
    #[error("{0} {1}: {2}")]
    Text(Kind, Name, String),
    /// The kernel gives none.
    #[error(transparent)]
    Uid(#[from] UidError),
    /// The file.
    #[error(transparent)]
    File(FileError),
    /// Others could have it read something else.
    #[error(transparent)]
    Untrusted(#[from] Untrusted),
    /// The disk has failed on the way.
    #[error("{} written, and nothing after that", .written.join(", "))]
    Partly {
        /// The objects that were written.
        written: Vec<String>,
        /// The error of the next one.
        source: Box<Self>,
    },
}

impl From<FileError> for WriteError {
    fn from(error: FileError) -> Self {
        Untrusted::of(error).map_or_else(Self::File, Self::Untrusted)
    }
}

impl WriteError {
    fn after(self, written: Vec<String>) -> Self {
        if written.is_empty() {
            return self;
        }
        let source = Box::new(self);
        Self::Partly { written, source }
    }
}

/// The state before a manifest is written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Written<'a> {
    /// The manifests.
    pub(crate) loaded: &'a Loaded,
    /// The deferred volumes of the pods that have begun.
    pub(crate) begun: &'a BTreeMap<Name, BTreeSet<String>>,
}

/// The outcome for an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is new.
    Created,
    /// It was there, and is another now.
    Configured,
    /// It was there as it is.
    Unchanged,
}

/// An object that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Applied {
    pub(crate) kind: Kind,
    pub(crate) name: Name,
    pub(crate) outcome: Outcome,
}

impl fmt::Display for Applied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}

/// A change of an object.
struct Change {
    applied: Applied,
    /// The file and its object, of which each file has one.
    write: Option<(PathBuf, Value)>,
}

/// Writes objects into a directory, each into a file of its own; one that is there is replaced where it is.
/// Either all can be written, or none is. `uid` makes those of new pods, `now` is when they were made.
pub(crate) fn apply(
    directory: &Path,
    standing: Written<'_>,
    text: &str,
    now: &str,
    uid: &mut dyn FnMut() -> Result<String, UidError>,
) -> Result<Vec<Applied>, WriteError> {
    let manifests = manifest::read(text)?;
    if manifests.is_empty() {
        return Err(WriteError::Empty);
    }
    let changes = manifests
        .into_iter()
        .map(|manifest| change(directory, standing, manifest, now, uid));
    let changes = changes.collect::<Result<Vec<_>, _>>()?;
    let mut texts = Vec::new();
    for Change { applied, write } in &changes {
        if let Some((path, document)) = write {
            texts.push((
                applied,
                Text::of(path, applied.kind, &applied.name, document)?,
            ));
        }
    }
    for (at, (_, text)) in texts.iter().enumerate() {
        text.write().map_err(|error| {
            let written = texts[..at].iter().map(|(it, _)| it.to_string());
            error.after(written.collect())
        })?;
    }
    Ok(changes.into_iter().map(|change| change.applied).collect())
}

fn change(
    directory: &Path,
    Written { loaded, begun }: Written<'_>,
    manifest: Manifest,
    now: &str,
    uid: &mut dyn FnMut() -> Result<String, UidError>,
) -> Result<Change, WriteError> {
    let Manifest {
        kind,
        name,
        mut document,
        object,
    } = manifest;
    let key = (kind, name.clone());
    if let (Object::Pod(pod), Some(before)) = (&object, loaded.objects.pods.get(&name)) {
        follows(pod, before, begun.get(&name))?;
    }
    let there = loaded.objects.documents.get(&key);
    let path = match loaded.origins.get(&key) {
        Some(origin) => alone(origin, &key)?,
        None => directory.join(file_name(kind, &name)),
    };
    let metadata = &mut document["metadata"];
    if let Some(there) = there {
        let there = &there["metadata"];
        if !there["deletionTimestamp"].is_null() {
            return Err(WriteError::Deleted(kind, name));
        }
        // What whoever writes it again doesn't know, and mustn't change.
        for field in ["uid", "creationTimestamp"] {
            if metadata[field].is_null() && !there[field].is_null() {
                metadata[field] = there[field].clone();
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
    let outcome = match there {
        None => Outcome::Created,
        Some(there) if **there == document => Outcome::Unchanged,
        Some(_) => Outcome::Configured,
    };
    Ok(Change {
        applied: Applied {
            kind,
            name,
            outcome,
        },
        write: (outcome != Outcome::Unchanged).then_some((path, document)),
    })
}

/// Whether a pod may be written in the place of one; `decided` are the volumes that are deferred of one that was begun.
fn follows(pod: &Pod, before: &Pod, decided: Option<&BTreeSet<String>>) -> Result<(), WriteError> {
    // As it was written, or as a policy made it: whoever writes again what is shown changes nothing.
    let is_kept = |it: &BTreeSet<String>| pod.deferred == *it || pod.deferred == before.deferred;
    match decided {
        _ if !pod.is_same(before) => Err(WriteError::Changed(pod.name.clone())),
        Some(decided) if is_kept(decided) => Ok(()),
        Some(_) => Err(WriteError::Begun(pod.name.clone())),
        None if pod.may_follow(before) => Ok(()),
        None => Err(WriteError::Changed(pod.name.clone())),
    }
}

/// Says in a pod's manifest that it is to end: what a restart finds too.
pub(crate) fn delete(
    loaded: &Loaded,
    kind: Kind,
    name: &Name,
    now: &str,
    grace: Option<i64>,
) -> Result<(), WriteError> {
    let key = (kind, name.clone());
    let there = loaded.objects.documents.get(&key);
    let there = there.ok_or_else(|| WriteError::None(kind, name.clone()))?;
    let origin = &loaded.origins[&key];
    let path = alone(origin, &key)?;
    let mut document = there.as_ref().clone();
    let metadata = &mut document["metadata"];
    if metadata["deletionTimestamp"].is_null() {
        metadata["deletionTimestamp"] = json!(now);
    }
    if let Some(grace) = grace {
        metadata["deletionGracePeriodSeconds"] = json!(grace);
    }
    Text::of(&path, kind, name, &document)?.write()
}

/// Takes an object's file away; which one it was.
pub(crate) fn remove(loaded: &Loaded, kind: Kind, name: &Name) -> Result<PathBuf, WriteError> {
    let key = (kind, name.clone());
    let origin = loaded.origins.get(&key);
    let origin = origin.ok_or_else(|| WriteError::None(kind, name.clone()))?;
    let path = alone(origin, &key)?;
    let (directory, file) = split(&path)?;
    // What somebody has written there since is another object, or another word about this one.
    let text = match bounded::read_to_string(&path, LARGEST) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(path),
        text => text.unwrap_or_default(),
    };
    // Half of it, too.
    let now = manifest::read(&text).unwrap_or_default();
    let is_it = |it: &Manifest| it.kind == kind && it.name == *name;
    let there = loaded.objects.documents.get(&key).map(AsRef::as_ref);
    if !matches!(&now[..], [it] if is_it(it) && Some(&it.document) == there) {
        let name = name.clone();
        return Err(WriteError::Rewritten { kind, name, path });
    }
    directory.remove(file)?;
    Ok(path)
}

/// Removes from a directory what was to be a manifest when the crustlet that wrote it was killed.
pub(crate) fn tidy(directory: &Path) -> Result<(), FileError> {
    let mut removed = Ok(());
    if let Some(directory) = Directory::open(directory)? {
        directory.leftovers(&mut |found| {
            let gone = found.and_then(|leftover| match leftover.making() {
                MakerState::Over(_) => leftover.remove(),
                // People may write so, too.
                MakerState::UnderWay | MakerState::Unsure(_) => Ok(()),
            });
            removed = std::mem::replace(&mut removed, Ok(())).and(gone);
        });
    }
    removed
}

/// An object's file, which has no other.
fn alone(origin: &Origin, key: &(Kind, Name)) -> Result<PathBuf, WriteError> {
    if origin.is_alone {
        Ok(origin.path.clone())
    } else {
        Err(WriteError::Shared {
            kind: key.0,
            name: key.1.clone(),
            path: origin.path.clone(),
        })
    }
}

/// Names have no `_`, so no two objects have the same.
fn file_name(kind: Kind, name: &Name) -> String {
    let kind = kind.as_str().to_ascii_lowercase();
    let Name { namespace, name } = name;
    if namespace.is_empty() {
        format!("{kind}_{name}.yaml")
    } else {
        format!("{kind}_{namespace}_{name}.yaml")
    }
}

/// The new text of a file.
struct Text<'a> {
    path: &'a Path,
    contents: String,
}

impl<'a> Text<'a> {
    /// Checks the text and its directory, before anything is written.
    fn of(path: &'a Path, kind: Kind, name: &Name, document: &Value) -> Result<Self, WriteError> {
        let contents = serde_saphyr::to_string(document)
            .map_err(|error| WriteError::Text(kind, name.clone(), error.to_string()))?;
        // What is written is what will be read: a number that looks like another, a text that looks like none.
        let again = manifest::read(&contents)?;
        if again.first().map(|it| &it.document) != Some(document) {
            let reason = "it can't be written as YAML that says the same".to_owned();
            return Err(WriteError::Text(kind, name.clone(), reason));
        }
        split(path)?;
        Ok(Self { path, contents })
    }

    fn write(&self) -> Result<(), WriteError> {
        let (directory, file) = split(self.path)?;
        Ok(directory.write(file, self.contents.as_bytes())?)
    }
}

fn split(path: &Path) -> Result<(Directory, &str), WriteError> {
    let parent = path.parent().unwrap_or(path);
    let file = path.file_name().and_then(|it| it.to_str());
    Ok((Directory::create(parent)?, file.unwrap_or_default()))
}
