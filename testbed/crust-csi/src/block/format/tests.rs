//! Tests with real loop devices. They need root.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crust_blockfs::Deadline;
use crust_blockfs::device::DeviceError;
use crust_blockfs::filesystem::{MountRequest, mount_detached};
use crust_blockfs::options;
use rustix::fs::{Mode, OFlags, openat};

use super::*;
use crate::refusal::NodeError as _;

/// A volume for one test. Dropping it detaches its loop device.
struct Volume {
    _directory: tempfile::TempDir,
    image: PathBuf,
    device: Device,
}

impl Volume {
    fn with_size(mebibytes: u64) -> Self {
        Self::with(mebibytes, |_| ())
    }

    /// Creates a volume on an image that `write` has written to before it is attached.
    fn with(mebibytes: u64, write: impl FnOnce(&Path)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let name = format!("{}.img", directory.path().file_name().unwrap().display());
        let image = directory.path().join(name);
        let file = File::create_new(&image).unwrap();
        file.set_len(mebibytes << 20).unwrap();
        write(&image);
        let attached = loops::attach(&image, false).unwrap();
        Self {
            _directory: directory,
            device: Device::open(&attached.device).unwrap(),
            image,
        }
    }

    /// Creates a volume with a file system.
    fn formatted(fstype: Fstype) -> Self {
        let mut volume = Self::with_size(fstype.min_device_bytes() >> 20);
        volume.make(fstype);
        volume
    }

    fn request(&self, fstype: Fstype) -> FormatRequest<'_> {
        FormatRequest {
            device: &self.device,
            image: &self.image,
            fstype,
            read_only: false,
        }
    }

    fn mkfs(&self, fstype: Fstype) -> Mkfs<'_> {
        match inspect(self.request(fstype)).unwrap() {
            NextStep::Mkfs(make) => make,
            next => panic!("{next:?}"),
        }
    }

    /// Creates a replacement of the image.
    fn create_replacement(&self) -> PathBuf {
        let replacement = self.image.with_extension("new");
        let file = File::create_new(&replacement).unwrap();
        file.set_len(self.image.metadata().unwrap().len()).unwrap();
        replacement
    }

    fn make(&mut self, fstype: Fstype) {
        let replacement = self.create_replacement();
        self.mkfs(fstype).run(&replacement).unwrap();
        loops::detach(&self.image, deadline()).unwrap();
        fs::rename(replacement, &self.image).unwrap();
        let attached = loops::attach(&self.image, false).unwrap();
        self.device = Device::open(&attached.device).unwrap();
    }

    fn check(&self, fstype: Fstype) -> Result<(), FormatError> {
        match inspect(self.request(fstype)).unwrap() {
            NextStep::Fsck(check) => check.run(),
            next => panic!("{next:?}"),
        }
    }

    fn mount(&self, fstype: Fstype) -> OwnedFd {
        let request = MountRequest {
            device: &self.device.clone().into(),
            fstype: &fstype.to_string(),
            options: &options::parse(&[] as &[&str]).unwrap(),
            exclusive: true,
        };
        mount_detached(&request).unwrap()
    }

    fn unmount(&self, mount: OwnedFd) {
        drop(mount);
        let free = deadline().poll(|| {
            let is_free = !self.device.is_held_exclusively()?;
            Ok::<_, DeviceError>(is_free.then_some(()))
        });
        assert_eq!(free.unwrap(), Some(()));
    }

    /// Writes to the device and flushes its cache.
    fn write(&self, at: u64, bytes: &[u8]) {
        let device = File::options()
            .write(true)
            .open(self.device.path())
            .unwrap();
        device.write_all_at(bytes, at).unwrap();
        device.sync_all().unwrap();
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(&self.image).unwrap()
    }

    /// Asserts that the volume is refused and not written to, and returns the error.
    fn expect_refusal(&self, request: FormatRequest<'_>) -> FormatError {
        let before = self.bytes();
        let error = inspect(request).expect_err("it is refused");
        let message = error.to_string();
        assert!(message.contains("; hint: "), "{message}");
        assert!(self.bytes() == before, "{message}, and was written to");
        error
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        // A failure here would hide the failure of the test.
        let _ = Command::new("losetup")
            .arg("-d")
            .arg(self.device.path())
            .status();
    }
}

fn deadline() -> Deadline {
    Deadline::after(Duration::from_secs(10))
}

fn run(program: &str, arguments: &[&str], on: &Path) {
    let output = Command::new(program)
        .args(arguments)
        .arg(on)
        .output()
        .unwrap();
    assert!(output.status.success(), "{program}: {output:?}");
}

fn an_empty_volume_is_made_and_then_only_checked(fstype: Fstype) {
    const CONTENTS: &[u8] = b"contents";
    let volume = Volume::formatted(fstype);
    let create = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
    let mount = volume.mount(fstype);
    let file = openat(&mount, "file", create, Mode::from(0o600)).unwrap();
    let file = File::from(file);
    file.write_all_at(CONTENTS, 0).unwrap();
    drop(file);
    assert!(
        matches!(inspect(volume.request(fstype)), Ok(NextStep::Nothing)),
        "it is mounted"
    );
    volume.unmount(mount);
    volume.check(fstype).unwrap();
    let mount = volume.mount(fstype);
    let file = openat(
        &mount,
        "file",
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    );
    let mut found = [0; CONTENTS.len()];
    File::from(file.unwrap())
        .read_exact_at(&mut found, 0)
        .unwrap();
    assert_eq!(&found, CONTENTS);
    volume.unmount(mount);
}

#[test]
fn an_empty_volume_is_made_an_ext4_and_then_only_checked() {
    an_empty_volume_is_made_and_then_only_checked(fstype_named("ext4"));
}

#[test]
fn an_empty_volume_is_made_an_ext3_and_then_only_checked() {
    an_empty_volume_is_made_and_then_only_checked(fstype_named("ext3"));
}

#[test]
fn an_empty_volume_is_made_an_xfs_and_then_only_checked() {
    an_empty_volume_is_made_and_then_only_checked(fstype_named("xfs"));
}

#[test]
fn an_empty_volume_is_made_a_btrfs_and_then_only_checked() {
    an_empty_volume_is_made_and_then_only_checked(fstype_named("btrfs"));
}

#[test]
fn a_volume_of_written_zeroes_is_empty() {
    let mut volume = Volume::with(8, |image| {
        let file = File::options().write(true).open(image).unwrap();
        file.write_all_at(&vec![0; 3 << 20], 1 << 20).unwrap();
    });
    volume.make(fstype_named("ext4"));
}

#[test]
fn unknown_data_is_refused_at_any_position() {
    for at in [0, 1024, (4 << 20) + 17, (8 << 20) - 1] {
        let volume = Volume::with(8, |image| {
            let file = File::options().write(true).open(image).unwrap();
            file.write_all_at(b"x", at).unwrap();
        });
        let error = volume.expect_refusal(volume.request(fstype_named("ext4")));
        assert!(
            matches!(error, FormatError::UnknownData { at: found, .. } if found == at),
            "{error}"
        );
    }
}

#[test]
fn data_in_the_devices_cache_is_found() {
    let volume = Volume::with_size(8);
    let device = File::options()
        .write(true)
        .open(volume.device.path())
        .unwrap();
    device.write_all_at(b"x", 5 << 20).unwrap();
    let error = inspect(volume.request(fstype_named("ext4"))).unwrap_err();
    assert!(
        matches!(error, FormatError::UnknownData { at, .. } if at == 5 << 20),
        "{error}"
    );
}

#[test]
fn a_volume_with_a_damaged_superblock_is_not_empty() {
    let volume = Volume::formatted(fstype_named("ext4"));
    // Without the magic number blkid finds nothing.
    volume.write(0x438, &[0; 2]);
    let error = volume.expect_refusal(volume.request(fstype_named("ext4")));
    assert!(matches!(error, FormatError::UnknownData { .. }), "{error}");
}

#[test]
fn another_file_system_is_refused_with_both_names() {
    let volume = Volume::formatted(fstype_named("ext4"));
    let error = volume.expect_refusal(volume.request(fstype_named("xfs")));
    let message = error.to_string();
    assert!(
        message.contains("ext4") && message.contains("xfs"),
        "{message}"
    );
    assert!(error.is_volume_state());
}

#[test]
fn ext3_can_be_mounted_as_ext4_but_not_vice_versa() {
    let volume = Volume::formatted(fstype_named("ext3"));
    volume.check(fstype_named("ext4")).unwrap();
    let volume = Volume::formatted(fstype_named("ext4"));
    let error = volume.expect_refusal(volume.request(fstype_named("ext3")));
    assert!(
        matches!(error, FormatError::OtherContents { .. }),
        "{error}"
    );
}

#[test]
fn swap_partitions_and_luks_are_refused() {
    let volume = Volume::with(8, |image| run("mkswap", &[], image));
    let error = volume.expect_refusal(volume.request(fstype_named("ext4")));
    assert!(error.to_string().contains("holds swap"), "{error}");
    let volume = Volume::with(8, |image| {
        // One partition of type Linux, starting at sector 1.
        let entry = [0, 0, 2, 0, 0x83, 0, 0, 0, 1, 0, 0, 0, 0xff, 0x3f, 0, 0];
        let file = File::options().write(true).open(image).unwrap();
        file.write_all_at(&entry, 446).unwrap();
        file.write_all_at(&[0x55, 0xaa], 510).unwrap();
    });
    let error = volume.expect_refusal(volume.request(fstype_named("ext4")));
    assert!(
        matches!(&error, FormatError::PartitionTable { table, .. } if table == "dos"),
        "{error}"
    );
    let volume = Volume::with(8, |image| {
        let file = File::options().write(true).open(image).unwrap();
        file.write_all_at(b"LUKS\xba\xbe\0\x01", 0).unwrap();
    });
    let error = volume.expect_refusal(volume.request(fstype_named("ext4")));
    assert!(error.to_string().contains("crypto_LUKS"), "{error}");
}

#[test]
fn an_image_that_was_truncated_while_attached_is_refused() {
    for made in [false, true] {
        let volume = if made {
            Volume::formatted(fstype_named("ext4"))
        } else {
            Volume::with_size(2)
        };
        let image = File::options().write(true).open(&volume.image).unwrap();
        for size in [1 << 20, 0] {
            image.set_len(size).unwrap();
            let error = volume.expect_refusal(volume.request(fstype_named("ext4")));
            assert!(matches!(error, FormatError::SizeMismatch { .. }), "{error}");
        }
    }
}

/// Changes a volume between its inspection and mkfs. Asserts that mkfs fails and doesn't write to the volume.
fn changed_meanwhile(change: impl FnOnce(&File)) -> FormatError {
    let volume = Volume::with_size(8);
    let (make, replacement) = (
        volume.mkfs(fstype_named("ext4")),
        volume.create_replacement(),
    );
    change(&File::options().write(true).open(&volume.image).unwrap());
    let before = volume.bytes();
    let error = make.run(&replacement).unwrap_err();
    assert!(volume.bytes() == before, "{error}, and was written to");
    error
}

#[test]
fn an_image_truncated_after_its_check_is_not_replaced() {
    let error = changed_meanwhile(|image| image.set_len(4096).unwrap());
    assert!(matches!(error, FormatError::SizeMismatch { .. }), "{error}");
}

#[test]
fn an_image_written_to_after_its_check_is_not_replaced() {
    let error = changed_meanwhile(|image| image.write_all_at(b"x", 5 << 20).unwrap());
    assert!(
        matches!(error, FormatError::UnknownData { at, .. } if at == 5 << 20),
        "{error}"
    );
}

#[test]
fn mkfs_writes_to_the_new_file_and_not_to_the_volume() {
    for fstype in Fstype::all() {
        let volume = Volume::with_size(fstype.min_device_bytes() >> 20);
        let replacement = volume.create_replacement();
        volume.mkfs(fstype).run(&replacement).unwrap();
        let written = volume.image.metadata().unwrap().blocks();
        assert_eq!(written, 0, "{fstype}");
        let found = crust_blockfs::probe::probe(File::open(replacement).unwrap());
        let found = found.unwrap().unwrap();
        assert_eq!(found.fstype, fstype.name());
    }
}

#[test]
fn a_file_that_holds_data_is_not_formatted() {
    for fstype in [fstype_named("xfs"), fstype_named("btrfs")] {
        let (volume, other) = (
            Volume::with_size(fstype.min_device_bytes() >> 20),
            Volume::formatted(fstype_named("ext4")),
        );
        let before = other.bytes();
        let error = volume.mkfs(fstype).run(&other.image).unwrap_err();
        assert!(
            matches!(error, FormatError::ProgramFailed { .. }),
            "{error}"
        );
        assert!(other.bytes() == before, "{fstype}");
    }
}

#[test]
fn a_device_in_use_gets_no_file_system() {
    let mut volume = Volume::with_size(8);
    let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
    let claim = || rustix::fs::open(volume.device.path(), flags, Mode::empty()).unwrap();
    let claimed = claim();
    let error = volume.expect_refusal(volume.request(fstype_named("ext4")));
    assert!(matches!(error, FormatError::InUse { .. }), "{error}");
    drop(claimed);
    let make = volume.mkfs(fstype_named("ext4"));
    let claimed = claim();
    let replacement = volume.create_replacement();
    let error = make.run(&replacement).unwrap_err();
    assert!(matches!(error, FormatError::InUse { .. }), "{error}");
    drop(claimed);
    fs::remove_file(replacement).unwrap();
    volume.make(fstype_named("ext4"));
}

#[test]
fn nothing_is_written_to_a_read_only_volume() {
    let volume = Volume::with_size(8);
    let read_only = |volume: &Volume| {
        inspect(FormatRequest {
            read_only: true,
            ..volume.request(fstype_named("ext4"))
        })
        .map(|_| ())
    };
    let error = read_only(&volume).unwrap_err();
    assert!(
        matches!(error, FormatError::EmptyAndReadOnly { .. }),
        "{error}"
    );
    loops::set_read_only(&volume.image, true).unwrap();
    let error = volume.expect_refusal(volume.request(fstype_named("ext4")));
    assert!(
        matches!(error, FormatError::EmptyAndReadOnly { .. }),
        "{error}"
    );
    let volume = Volume::formatted(fstype_named("ext4"));
    let request = volume.request(fstype_named("ext4"));
    assert!(matches!(
        inspect(FormatRequest {
            read_only: true,
            ..request
        }),
        Ok(NextStep::Nothing)
    ));
    loops::set_read_only(&volume.image, true).unwrap();
    assert!(matches!(inspect(request), Ok(NextStep::Nothing)));
    loops::set_read_only(&volume.image, false).unwrap();
    assert!(matches!(inspect(request), Ok(NextStep::Fsck(_))));
}

fn debugfs(volume: &Volume, request: &str) {
    run("debugfs", &["-w", "-R", request], volume.device.path());
}

#[test]
fn fsck_corrects_errors() {
    const STATE: u64 = 0x43a;
    let volume = Volume::formatted(fstype_named("ext4"));
    // The state "errors detected".
    debugfs(&volume, "set_super_value state 2");
    volume.check(fstype_named("ext4")).unwrap();
    let mut state = [0; 2];
    File::open(volume.device.path())
        .unwrap()
        .read_exact_at(&mut state, STATE)
        .unwrap();
    assert_eq!(state, [1, 0], "it is clean");
}

#[test]
fn errors_that_fsck_cannot_correct_are_an_error() {
    let volume = Volume::formatted(fstype_named("ext4"));
    debugfs(&volume, "clri <2>");
    debugfs(&volume, "set_super_value state 2");
    let error = volume.check(fstype_named("ext4")).unwrap_err();
    assert!(matches!(error, FormatError::Uncorrected { .. }), "{error}");
    assert!(error.to_string().contains("RUN fsck MANUALLY"), "{error}");
    assert!(error.is_volume_state());
}

#[test]
fn a_volume_that_is_too_small_is_refused() {
    for fstype in [fstype_named("xfs"), fstype_named("btrfs")] {
        let least = fstype.min_device_bytes() >> 20;
        let volume = Volume::with_size(least - 1);
        let error = volume.expect_refusal(volume.request(fstype));
        assert!(matches!(error, FormatError::TooSmall { .. }), "{error}");
    }
}

#[test]
fn a_device_of_another_image_is_refused() {
    let (volume, other) = (Volume::with_size(8), Volume::with_size(8));
    let request = FormatRequest {
        image: &other.image,
        ..volume.request(fstype_named("ext4"))
    };
    let error = volume.expect_refusal(request);
    assert!(
        matches!(error, FormatError::DeviceMismatch { .. }),
        "{error}"
    );
}

#[test]
fn a_locked_image_is_not_formatted() {
    let volume = Volume::with_size(8);
    let lock = File::open(&volume.image).unwrap();
    lock.lock().unwrap();
    let replacement = volume.create_replacement();
    let error = volume
        .mkfs(fstype_named("ext4"))
        .run(&replacement)
        .unwrap_err();
    assert!(error.to_string().contains("still runs; hint: "), "{error}");
    let written = replacement.metadata().unwrap().blocks();
    assert_eq!(written, 0, "nothing is written");
}
