//! Volumes' image files: sparse, and promised no more room than there is.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crust_state::files::{Directory, FileError};
use rustix::fs::StatVfsMountFlags;

/// The directory of images, in the data directory.
const IMAGES: &str = "images";

/// Sizes are whole numbers of these: every file system's block divides it.
pub(crate) const MEBIBYTE: u64 = 1 << 20;

/// An image can't be made, grown or removed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ImageError {
    /// A call failed.
    #[error("{call} {}: {source}", path.display())]
    Call {
        /// The system call.
        call: &'static str,
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// It should be there.
    #[error("{}: the volume's image isn't there; hint: is the data directory's file system mounted?", .0.display())]
    Missing(PathBuf),
    /// It shouldn't.
    #[error("{}: it is there, without a record of its volume; hint: bring the record back, or move the image away", .0.display())]
    NoRecord(PathBuf),
    /// Another directory has taken its place.
    #[error("{}: it isn't the directory that crust-csi has begun with; hint: was a file system mounted over it, or unmounted? start crust-csi again", .0.display())]
    DirectoryReplaced(PathBuf),
}

/// Space in the images' file system.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileSystemSpace {
    /// Bytes that images take, and those that are free beside them.
    pub(crate) bytes: u64,
    /// It is mounted read-only, or has become so.
    pub(crate) is_read_only: bool,
}

/// All images.
#[derive(Debug)]
pub(crate) struct Images {
    directory: PathBuf,
    /// The same, as it was at the start: the loop driver takes paths.
    held: File,
}

impl Images {
    /// Opens the images of a data directory, and makes their directory if it is missing.
    pub(crate) fn open(data: &Directory) -> Result<Self, FileError> {
        let directory = data.create_directory(IMAGES)?;
        let directory = directory.path().to_owned();
        let held = File::open(&directory).map_err(|source| FileError::Call {
            call: "open",
            path: directory.clone(),
            source,
        })?;
        Ok(Self { directory, held })
    }

    /// Checks that the directory is still at its path: its file system may have been mounted later, over the one that
    /// the driver knows.
    pub(crate) fn check(&self) -> Result<(), ImageError> {
        let place = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
        let now = self.directory.symlink_metadata().map(place);
        let held = self.held.metadata().map(place);
        match (now, held) {
            (Ok(now), Ok(held)) if now == held => Ok(()),
            _ => Err(ImageError::DirectoryReplaced(self.directory.clone())),
        }
    }

    /// Returns the path of a volume's image, which need not exist.
    pub(crate) fn path(&self, id: &str) -> PathBuf {
        self.directory.join(format!("{id}.img"))
    }

    /// Makes an empty image if there is none.
    pub(crate) fn create(&self, id: &str, size: u64) -> Result<(), ImageError> {
        self.check()?;
        let made = created(&self.path(id), size)?;
        made.sync_all().map_err(failed("fsync", &self.path(id)))?;
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

    /// Gives an image more room; one that has it already is left alone.
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

    /// Begins another image of a volume, empty and of the same size, beside the one that it has.
    pub(crate) fn begin_replacement(&self, id: &str) -> Result<PathBuf, ImageError> {
        self.discard_replacement(id)?;
        let beside = self.replacement_path(id);
        created(&beside, self.size(id)?)?;
        Ok(beside)
    }

    /// Has it take the place of the one that the volume has, which is gone then.
    pub(crate) fn commit_replacement(&self, id: &str) -> Result<(), ImageError> {
        self.check()?;
        let beside = self.replacement_path(id);
        fs::rename(&beside, self.path(id)).map_err(failed("rename", &beside))?;
        self.sync()
    }

    /// Removes what was begun and never put; where nothing was, that is fine.
    pub(crate) fn discard_replacement(&self, id: &str) -> Result<(), ImageError> {
        self.check()?;
        self.unlink(&self.replacement_path(id))
    }

    /// Removes an image; one that isn't there is fine.
    pub(crate) fn remove(&self, id: &str) -> Result<(), ImageError> {
        self.discard_replacement(id)?;
        self.unlink(&self.path(id))
    }

    fn replacement_path(&self, id: &str) -> PathBuf {
        self.directory.join(format!("{id}.new"))
    }

    fn unlink(&self, path: &Path) -> Result<(), ImageError> {
        match fs::remove_file(path) {
            Ok(()) => self.sync(),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(failed("unlink", path)(error)),
        }
    }

    /// Returns how much room there is for all images together.
    pub(crate) fn space(&self) -> Result<FileSystemSpace, ImageError> {
        let path = &self.directory;
        let list = |error| failed("getdents64", path)(error);
        let mut taken = 0;
        for entry in fs::read_dir(path).map_err(list)? {
            let entry = entry.map_err(list)?;
            match entry.metadata() {
                Ok(image) => taken += image.blocks() * 512,
                // Another call has removed it meanwhile.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(failed("lstat", &entry.path())(error)),
            }
        }
        let stat = rustix::fs::statvfs(path);
        let stat = stat.map_err(|errno| failed("statvfs", path)(errno.into()))?;
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        Ok(FileSystemSpace {
            bytes: free.saturating_add(taken),
            is_read_only: stat.f_flag.contains(StatVfsMountFlags::RDONLY),
        })
    }

    fn sync(&self) -> Result<(), ImageError> {
        let directory = File::open(&self.directory).and_then(|it| it.sync_all());
        directory.map_err(failed("fsync", &self.directory))
    }
}

/// Makes an empty file if there is none.
fn created(path: &Path, size: u64) -> Result<File, ImageError> {
    let mut made = File::options();
    let made = made.write(true).create_new(true).mode(0o600).open(path);
    let made = made.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => ImageError::NoRecord(path.to_owned()),
        _ => failed("open", path)(error),
    })?;
    made.set_len(size).map_err(failed("ftruncate", path))?;
    Ok(made)
}

fn failed(call: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ImageError {
    let path = path.to_owned();
    move |source| ImageError::Call { call, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn images() -> (tempfile::TempDir, Images) {
        let place = tempfile::tempdir().unwrap();
        let data = Directory::create(&place.path().join("data")).unwrap();
        let images = Images::open(&data).unwrap();
        (place, images)
    }

    #[test]
    fn an_image_is_made_empty_grows_and_goes() {
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
    fn what_is_made_beside_an_image_takes_its_place_or_goes() {
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
    fn another_directory_in_its_place_is_none() {
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
    fn room_counts_what_images_have_taken() {
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
        // Others write beside us; but not that much.
        let alone = free.f_bavail * free.f_frsize;
        assert!(
            images.space().unwrap().bytes >= alone.saturating_sub(8 * MEBIBYTE) + 16 * MEBIBYTE
        );
    }
}
