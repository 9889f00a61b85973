//! Manifests that are written for somebody: by `crustlet run`, and when something is deleted.

use std::path::{Path, PathBuf};

use crust_state::bounded;
use crust_state::files::{Directory, FileError, Making};
use serde_json::{Value, json};

use super::{LARGEST, Loaded, Origin};
use crate::objects::manifest::{self, DocumentError, Manifest, ManifestError, Object};
use crate::objects::uid::UidError;
use crate::objects::{Kind, Name};

/// A manifest can't be written or taken away.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    /// It is none.
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
    /// It is about to go.
    #[error("{0} {1} is being deleted; hint: wait until it is gone")]
    Deleted(Kind, Name),
    /// Its file has others.
    #[error("{kind} {name} is in {} with other objects; hint: take it out of that file", path.display())]
    Shared {
        /// Of what.
        kind: Kind,
        /// Which.
        name: Name,
        /// Where.
        path: PathBuf,
    },
    /// It is another one by now.
    #[error("{kind} {name}: {} was written again meanwhile", path.display())]
    Rewritten {
        /// Of what.
        kind: Kind,
        /// Which.
        name: Name,
        /// Where.
        path: PathBuf,
    },
    /// There is none.
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
    File(#[from] FileError),
}

/// What an object became.
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
    /// Of what.
    pub(crate) kind: Kind,
    /// Which.
    pub(crate) name: Name,
    /// What it became.
    pub(crate) outcome: Outcome,
}

/// What is to be written of an object.
struct Change {
    applied: Applied,
    /// Where, and what: one object a file.
    write: Option<(PathBuf, Value)>,
}

/// Writes objects into a directory, each into a file of its own; one that is there is replaced where it is.
/// Either all can be written, or none is. `uid` makes those of new pods, `now` is when they were made.
pub(crate) fn apply(
    directory: &Path,
    loaded: &Loaded,
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
        .map(|manifest| change(directory, loaded, manifest, now, uid));
    let changes = changes.collect::<Result<Vec<_>, _>>()?;
    for change in &changes {
        if let Some((path, document)) = &change.write {
            write(path, change.applied.kind, &change.applied.name, document)?;
        }
    }
    Ok(changes.into_iter().map(|change| change.applied).collect())
}

fn change(
    directory: &Path,
    loaded: &Loaded,
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
    if let (Object::Pod(pod), Some(before)) = (&object, loaded.objects.pods.get(&name))
        && !pod.may_follow(before)
    {
        return Err(WriteError::Changed(name));
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
    write(&path, kind, name, &document)
}

/// Takes an object's file away; which one it was.
pub(crate) fn remove(loaded: &Loaded, kind: Kind, name: &Name) -> Result<PathBuf, WriteError> {
    let key = (kind, name.clone());
    let origin = loaded.origins.get(&key);
    let origin = origin.ok_or_else(|| WriteError::None(kind, name.clone()))?;
    let path = alone(origin, &key)?;
    let (directory, file) = split(&path)?;
    // What somebody has written there since is another object, or another word about this one.
    let text = bounded::read_to_string(&path, LARGEST).unwrap_or_default();
    let now = manifest::read(&text).unwrap_or_default();
    let is_it = |it: &Manifest| it.kind == kind && it.name == *name;
    let there = loaded.objects.documents.get(&key).map(AsRef::as_ref);
    if now
        .iter()
        .any(|it| !is_it(it) || Some(&it.document) != there)
    {
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
                Making::Over(_) => leftover.remove(),
                // People may write so, too.
                Making::UnderWay | Making::Unsure(_) => Ok(()),
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

fn write(path: &Path, kind: Kind, name: &Name, document: &Value) -> Result<(), WriteError> {
    let text = serde_saphyr::to_string(document)
        .map_err(|error| WriteError::Text(kind, name.clone(), error.to_string()))?;
    // What is written is what will be read: a number that looks like another, a text that looks like none.
    let again = manifest::read(&text)?;
    if again.first().map(|it| &it.document) != Some(document) {
        let reason = "it can't be written as YAML that says the same".to_owned();
        return Err(WriteError::Text(kind, name.clone(), reason));
    }
    let (directory, file) = split(path)?;
    Ok(directory.write(file, text.as_bytes())?)
}

fn split(path: &Path) -> Result<(Directory, &str), WriteError> {
    let parent = path.parent().unwrap_or(path);
    let file = path.file_name().and_then(|it| it.to_str());
    Ok((Directory::create(parent)?, file.unwrap_or_default()))
}
