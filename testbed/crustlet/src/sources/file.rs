//! One file of manifests, which is read again when it changes.

use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use crust_blockfs::bounded;

use super::{LARGEST, trusted};
use crate::objects::manifest::{self, Manifest};
use crate::objects::{Kind, Name};

/// How long a file has to be less than it was before that is believed.
const SETTLED: Duration = Duration::from_millis(500);

/// A file of manifests, and its state at the last look.
#[derive(Debug, Default)]
pub(super) struct ManifestFile {
    /// The state that was looked at last.
    stamp: Option<Stamp>,
    /// When it was written last.
    written: Option<SystemTime>,
    /// The manifests when it could be read last. `None` if it never could.
    manifests: Option<Arc<[Manifest]>>,
    error: Option<String>,
    /// The loss of manifests that isn't believed yet, and since when it has been seen.
    less: Option<(Loss, Instant)>,
    is_gone: bool,
}

/// A state of a file in which objects are missing that it had before.
#[derive(Debug, Clone)]
enum Loss {
    /// The file doesn't exist.
    Gone,
    /// It has no object, or not all of those that it had.
    Fewer(Arc<[Manifest]>),
}

/// Tells one state of a file from the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp([i64; 4], u64, u64);

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
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
    /// Looks at it; when to look again, if it is less than it was.
    pub(super) fn look(&mut self, path: &Path, now: Instant) -> Option<Duration> {
        let failed = match fs::symlink_metadata(path) {
            Ok(it) if !it.is_file() => "it is no regular file".to_owned(),
            Ok(it) => match trusted::file(path, &it) {
                Ok(()) => {
                    if self.stamp != Some(Stamp::of(&it)) {
                        self.read(path, &it, now);
                    }
                    return self.settle(now);
                }
                Err(reason) => reason,
            },
            Err(failed) if failed.kind() == io::ErrorKind::NotFound => {
                // As it comes back it is read, whatever it looks like.
                self.stamp = None;
                match self.less {
                    Some((Loss::Gone, _)) => {}
                    _ => self.less = Some((Loss::Gone, now)),
                }
                return self.settle(now);
            }
            Err(failed) => failed.to_string(),
        };
        self.stamp = None;
        self.less = None;
        self.error = Some(failed);
        None
    }

    fn read(&mut self, path: &Path, metadata: &Metadata, now: Instant) {
        self.less = None;
        let read = bounded::read_to_string(path, LARGEST).map_err(|error| error.to_string());
        match read.and_then(|text| manifest::read(&text).map_err(|error| error.to_string())) {
            Ok(manifests) => {
                if manifests.is_empty() || !self.names().is_subset(&names(&manifests)) {
                    self.less = Some((Loss::Fewer(manifests.into()), now));
                } else {
                    self.error = None;
                    self.manifests = Some(manifests.into());
                }
            }
            Err(reason) => self.error = Some(reason),
        }
        self.stamp = Some(Stamp::of(metadata));
        self.written = metadata.modified().ok();
    }

    /// Takes it as it is once it has stayed so.
    fn settle(&mut self, now: Instant) -> Option<Duration> {
        let (less, since) = self.less.as_ref()?;
        let remaining = SETTLED.saturating_sub(now.duration_since(*since));
        if !remaining.is_zero() {
            return Some(remaining);
        }
        match less {
            Loss::Gone => self.is_gone = true,
            Loss::Fewer(manifests) => self.manifests = Some(Arc::clone(manifests)),
        }
        self.less = None;
        self.error = None;
        None
    }

    /// Returns its manifests.
    pub(super) fn manifests(&self) -> &[Manifest] {
        self.manifests.as_deref().unwrap_or_default()
    }

    /// When it was written last.
    pub(super) fn written(&self) -> SystemTime {
        self.written.unwrap_or(SystemTime::UNIX_EPOCH)
    }

    /// Whether it could be read once.
    pub(super) const fn was_read(&self) -> bool {
        self.manifests.is_some()
    }

    /// Returns whether the file is gone.
    pub(super) const fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// Whether an object that counts may not be in it any more.
    pub(super) fn doubts(&self, kind: Kind, name: &Name) -> bool {
        match &self.less {
            None => false,
            Some((Loss::Gone, _)) => true,
            Some((Loss::Fewer(left), _)) => !names(left).contains(&(kind, name)),
        }
    }

    /// Returns the error for which its present state isn't used.
    pub(super) fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    fn names(&self) -> BTreeSet<(Kind, &Name)> {
        names(self.manifests())
    }
}

fn names(manifests: &[Manifest]) -> BTreeSet<(Kind, &Name)> {
    let manifests = manifests.iter();
    manifests.map(|it| (it.kind, &it.name)).collect()
}
