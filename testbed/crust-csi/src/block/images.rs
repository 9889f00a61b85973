//! The image files of volumes. They are sparse.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crust_state::files::{Directory, FileError};
use rustix::fs::StatVfsMountFlags;

use crate::refusal::DataError;
use crate::store::short_id;

/// The name of the directory with the images, in the data directory.
const IMAGES: &str = "images";

/// Sizes are multiples of this, and so of the block size of every file system.
pub(crate) const MEBIBYTE: u64 = 1 << 20;

/// The failure of an operation on an image.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ImageError {
    /// A system call failed.
    #[error("{call} {}: {source}", path.display())]
    Call {
        call: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("{}: the volume's image is missing; hint: check that the file system of the data directory is mounted", .0.display())]
    Missing(PathBuf),
    /// The image of a volume exists, but not its record.
    #[error("{}: the image exists without a record of its volume; hint: restore the record, or move the image away", .0.display())]
    NoRecord(PathBuf),
    /// Another directory is at the path of the images.
    #[error("{}: the directory was replaced since crust-csi was started; hint: check whether a file system was mounted over it or unmounted, and restart crust-csi", .0.display())]
    DirectoryReplaced(PathBuf),
}

impl DataError for ImageError {}

/// The space in the file system of the images.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileSystemSpace {
    /// The bytes that images occupy, and those that are free.
    pub(crate) bytes: u64,
    /// Whether the file system is read-only, possibly because of an error.
    pub(crate) is_read_only: bool,
}

/// The images of all volumes.
#[derive(Debug)]
pub(crate) struct Images {
    directory: PathBuf,
    /// The directory that was opened at the start. The loop driver takes paths, so the path must still lead here.
    opened: File,
}

impl Images {
    /// Opens the directory of the images in a data directory. Creates it if it is missing.
    pub(crate) fn open(data: &Directory) -> Result<Self, FileError> {
        let directory = data.create_directory(IMAGES)?;
        let directory = directory.path().to_owned();
        let opened = File::open(&directory).map_err(|source| FileError::Call {
            call: "open",
            path: directory.clone(),
            source,
        })?;
        Ok(Self { directory, opened })
    }

    /// Checks that the directory is still at its path. A file system may have been mounted over it since the start.
    pub(crate) fn check(&self) -> Result<(), ImageError> {
        let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
        let current = self.directory.symlink_metadata().map(identity);
        let opened = self.opened.metadata().map(identity);
        match (current, opened) {
            (Ok(current), Ok(opened)) if current == opened => Ok(()),
            _ => Err(ImageError::DirectoryReplaced(self.directory.clone())),
        }
    }

    /// Returns the path of a volume's image, which need not exist.
    pub(crate) fn path(&self, id: &str) -> PathBuf {
        self.directory.join(format!("{}.img", short_id(id)))
    }

    /// Creates an empty image of `size` bytes. Fails if it exists.
    pub(crate) fn create(&self, id: &str, size: u64) -> Result<(), ImageError> {
        self.check()?;
        let image = create_file(&self.path(id), size)?;
        image.sync_all().map_err(failed("fsync", &self.path(id)))?;
        self.sync()
    }

    /// Returns an image's size in bytes.
    pub(crate) fn size(&self, id: &str) -> Result<u64, ImageError> {
        self.check()?;
        let path = self.path(id);
        match fs::symlink_metadata(&path) {
            Ok(image) => Ok(image.len()),
            Err(error) if error.kind() == ErrorKind::NotFound => Err(ImageError::Missing(path)),
            Err(error) => Err(failed("lstat", &path)(error)),
        }
    }

    /// Extends an image to `size` bytes, unless it is that large already.
    pub(crate) fn grow(&self, id: &str, size: u64) -> Result<(), ImageError> {
        let path = self.path(id);
        if self.size(id)? >= size {
            return Ok(());
        }
        let image = File::options().write(true).open(&path);
        let image = image.map_err(failed("open", &path))?;
        image.set_len(size).map_err(failed("ftruncate", &path))?;
        image.sync_all().map_err(failed("fsync", &path))
    }

    /// Creates a replacement of a volume's image: an empty file of the same size next to it. Returns its path.
    pub(crate) fn begin_replacement(&self, id: &str) -> Result<PathBuf, ImageError> {
        self.discard_replacement(id)?;
        let replacement = self.replacement_path(id);
        create_file(&replacement, self.size(id)?)?;
        Ok(replacement)
    }

    /// Replaces a volume's image by the replacement.
    pub(crate) fn commit_replacement(&self, id: &str) -> Result<(), ImageError> {
        self.check()?;
        let replacement = self.replacement_path(id);
        fs::rename(&replacement, self.path(id)).map_err(failed("rename", &replacement))?;
        self.sync()
    }

    /// Removes the replacement of a volume's image, if there is one.
    pub(crate) fn discard_replacement(&self, id: &str) -> Result<(), ImageError> {
        self.check()?;
        self.unlink(&self.replacement_path(id))
    }

    /// Removes an image and its replacement, if they exist.
    pub(crate) fn remove(&self, id: &str) -> Result<(), ImageError> {
        self.discard_replacement(id)?;
        self.unlink(&self.path(id))
    }

    fn replacement_path(&self, id: &str) -> PathBuf {
        self.directory.join(format!("{}.new", short_id(id)))
    }

    fn unlink(&self, path: &Path) -> Result<(), ImageError> {
        match fs::remove_file(path) {
            Ok(()) => self.sync(),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(failed("unlink", path)(error)),
        }
    }

    /// Returns the space for all images together.
    pub(crate) fn space(&self) -> Result<FileSystemSpace, ImageError> {
        let path = &self.directory;
        let list = |error| failed("getdents64", path)(error);
        let mut occupied = 0;
        for entry in fs::read_dir(path).map_err(list)? {
            let entry = entry.map_err(list)?;
            match entry.metadata() {
                Ok(image) => occupied += image.blocks() * 512,
                // Another call has removed the file meanwhile.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(failed("lstat", &entry.path())(error)),
            }
        }
        let stat = rustix::fs::statvfs(path);
        let stat = stat.map_err(|errno| failed("statvfs", path)(errno.into()))?;
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        Ok(FileSystemSpace {
            bytes: free.saturating_add(occupied),
            is_read_only: stat.f_flag.contains(StatVfsMountFlags::RDONLY),
        })
    }

    fn sync(&self) -> Result<(), ImageError> {
        let directory = File::open(&self.directory).and_then(|it| it.sync_all());
        directory.map_err(failed("fsync", &self.directory))
    }
}

/// Creates a sparse file. Fails if it exists.
fn create_file(path: &Path, size: u64) -> Result<File, ImageError> {
    let mut options = File::options();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    let file = file.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => ImageError::NoRecord(path.to_owned()),
        _ => failed("open", path)(error),
    })?;
    file.set_len(size).map_err(failed("ftruncate", path))?;
    Ok(file)
}

fn failed(call: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ImageError {
    let path = path.to_owned();
    move |source| ImageError::Call { call, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn images() -> (tempfile::TempDir, Images) {
        let directory = tempfile::tempdir().unwrap();
        let data = Directory::create(&directory.path().join("data")).unwrap();
        let images = Images::open(&data).unwrap();
        (directory, images)
    }

    #[test]
    fn an_image_is_created_empty_extended_and_removed() {
        let (_place, images) = images();
        images.create("a", 4 * MEBIBYTE).unwrap();
        assert!(matches!(
            images.create("a", MEBIBYTE),
            Err(ImageError::NoRecord(_))
        ));
        assert_eq!(fs::metadata(images.path("a")).unwrap().blocks(), 0);
        images.grow("a", 8 * MEBIBYTE).unwrap();
        images.grow("a", MEBIBYTE).unwrap();
        assert_eq!(images.size("a").unwrap(), 8 * MEBIBYTE);
        images.remove("a").unwrap();
        images.remove("a").unwrap();
        assert!(matches!(images.size("a"), Err(ImageError::Missing(_))));
        assert!(images.grow("a", MEBIBYTE).is_err());
    }

    #[test]
    fn a_replacement_is_committed_or_discarded() {
        let (_place, images) = images();
        images.create("a", 4 * MEBIBYTE).unwrap();
        for _ in 0..2 {
            let beside = images.begin_replacement("a").unwrap();
            let begun = fs::metadata(&beside).unwrap();
            assert_eq!((begun.len(), begun.blocks()), (4 * MEBIBYTE, 0));
            fs::write(&beside, "half").unwrap();
        }
        images.discard_replacement("a").unwrap();
        images.discard_replacement("a").unwrap();
        assert_eq!(images.size("a").unwrap(), 4 * MEBIBYTE);
        assert!(images.commit_replacement("a").is_err());
        fs::write(images.begin_replacement("a").unwrap(), "whole").unwrap();
        images.commit_replacement("a").unwrap();
        assert_eq!(fs::read(images.path("a")).unwrap(), b"whole");
        images.begin_replacement("a").unwrap();
        images.remove("a").unwrap();
        assert_eq!(fs::read_dir(&images.directory).unwrap().count(), 0);
    }

    #[test]
    fn a_replaced_directory_is_not_used() {
        let (place, images) = images();
        images.create("a", MEBIBYTE).unwrap();
        let directory = place.path().join("data/images");
        fs::rename(&directory, place.path().join("aside")).unwrap();
        fs::create_dir(&directory).unwrap();
        for tried in [
            images.create("b", MEBIBYTE),
            images.remove("a"),
            images.size("a").map(drop),
        ] {
            assert!(
                matches!(tried, Err(ImageError::DirectoryReplaced(_))),
                "{tried:?}"
            );
        }
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
    }

    #[test]
    fn the_space_includes_what_images_occupy() {
        let (_place, images) = images();
        images.create("a", 64 * MEBIBYTE).unwrap();
        let image = File::options().write(true).open(images.path("a")).unwrap();
        rustix::fs::fallocate(
            &image,
            rustix::fs::FallocateFlags::empty(),
            0,
            16 * MEBIBYTE,
        )
        .unwrap();
        let free = rustix::fs::statvfs(&images.directory).unwrap();
        // Other processes may write to the file system meanwhile, but less than this.
        let free = free.f_bavail * free.f_frsize;
        assert!(images.space().unwrap().bytes >= free.saturating_sub(8 * MEBIBYTE) + 16 * MEBIBYTE);
    }
}
