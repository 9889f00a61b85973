//! A manifest file. It is read again when it changes.

use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use crust_blockfs::bounded;

use super::{MAX_FILE_SIZE, trusted};
use crate::objects::manifest::{self, Manifest};
use crate::objects::{Kind, Name};

/// The time for which objects must be missing from a file before they count as removed.
const SETTLE_TIME: Duration = Duration::from_millis(500);

/// A manifest file, and its last readable contents.
#[derive(Debug, Default)]
pub(super) struct ManifestFile {
    /// The state in which the file was last read.
    state: Option<FileState>,
    modified: Option<SystemTime>,
    /// The last readable manifests. `None` if the file could never be read.
    manifests: Option<Arc<[Manifest]>>,
    error: Option<String>,
    /// A loss of manifests that isn't accepted yet, and the time at which it was noticed.
    loss: Option<(Loss, Instant)>,
    is_gone: bool,
}

/// A loss of manifests in a file.
#[derive(Debug, Clone)]
enum Loss {
    /// The file doesn't exist.
    Gone,
    /// The file is empty, or lacks an object that it had. Contains the remaining manifests.
    Fewer(Arc<[Manifest]>),
}

/// The state of a file. Any change of the file changes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileState([i64; 4], u64, u64);

impl FileState {
    fn new(metadata: &Metadata) -> Self {
        let times = [
            metadata.mtime(),
            metadata.mtime_nsec(),
            metadata.ctime(),
            metadata.ctime_nsec(),
        ];
        Self(times, metadata.ino(), metadata.len())
    }
}

impl ManifestFile {
    /// Reads the file if it has changed. If a loss isn't accepted yet, returns the time after which to call this again.
    pub(super) fn refresh(&mut self, path: &Path, now: Instant) -> Option<Duration> {
        let reason = match fs::symlink_metadata(path) {
            Ok(metadata) if !metadata.is_file() => "not a regular file".to_owned(),
            Ok(metadata) => match trusted::check_file(path, &metadata) {
                Ok(()) => {
                    if self.state != Some(FileState::new(&metadata)) {
                        self.read(path, &metadata, now);
                    }
                    return self.accept_loss(now);
                }
                Err(reason) => reason,
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // The file is read when it comes back, even if its state is the same.
                self.state = None;
                match self.loss {
                    Some((Loss::Gone, _)) => {}
                    _ => self.loss = Some((Loss::Gone, now)),
                }
                return self.accept_loss(now);
            }
            Err(error) => error.to_string(),
        };
        self.state = None;
        self.loss = None;
        self.error = Some(reason);
        None
    }

    fn read(&mut self, path: &Path, metadata: &Metadata, now: Instant) {
        self.loss = None;
        let read = bounded::read_to_string(path, MAX_FILE_SIZE).map_err(|error| error.to_string());
        match read.and_then(|text| manifest::read(&text).map_err(|error| error.to_string())) {
            Ok(manifests) => {
                if manifests.is_empty() || !self.names().is_subset(&names(&manifests)) {
                    self.loss = Some((Loss::Fewer(manifests.into()), now));
                } else {
                    self.error = None;
                    self.manifests = Some(manifests.into());
                }
            }
            Err(reason) => self.error = Some(reason),
        }
        self.state = Some(FileState::new(metadata));
        self.modified = metadata.modified().ok();
    }

    /// Accepts a loss of manifests after the settle time. Returns the remaining time until then.
    fn accept_loss(&mut self, now: Instant) -> Option<Duration> {
        let (loss, since) = self.loss.as_ref()?;
        let remaining = SETTLE_TIME.saturating_sub(now.duration_since(*since));
        if !remaining.is_zero() {
            return Some(remaining);
        }
        match loss {
            Loss::Gone => self.is_gone = true,
            Loss::Fewer(manifests) => self.manifests = Some(Arc::clone(manifests)),
        }
        self.loss = None;
        self.error = None;
        None
    }

    /// Returns the last readable manifests.
    pub(super) fn manifests(&self) -> &[Manifest] {
        self.manifests.as_deref().unwrap_or_default()
    }

    /// Returns the file's modification time when it was last read.
    pub(super) fn modified(&self) -> SystemTime {
        self.modified.unwrap_or(SystemTime::UNIX_EPOCH)
    }

    /// Returns whether the file could be read at least once.
    pub(super) const fn was_read(&self) -> bool {
        self.manifests.is_some()
    }

    /// Returns whether the file is gone, and its loss is accepted.
    pub(super) const fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// Returns whether the file lacks an object, but the loss isn't accepted yet.
    pub(super) fn may_have_lost(&self, kind: Kind, name: &Name) -> bool {
        match &self.loss {
            None => false,
            Some((Loss::Gone, _)) => true,
            Some((Loss::Fewer(remaining), _)) => !names(remaining).contains(&(kind, name)),
        }
    }

    /// Returns the error of the last attempt to read the file. While there is one, the last readable manifests are
    /// used.
    pub(super) fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    fn names(&self) -> BTreeSet<(Kind, &Name)> {
        names(self.manifests())
    }
}

fn names(manifests: &[Manifest]) -> BTreeSet<(Kind, &Name)> {
    let manifests = manifests.iter();
    manifests
        .map(|manifest| (manifest.kind, &manifest.name))
        .collect()
}
