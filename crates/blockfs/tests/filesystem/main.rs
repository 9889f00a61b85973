//! Tests of real file systems on loop devices, as detached mounts. They need root.
#![allow(
    clippy::disallowed_methods,
    reason = "tests run programs and prepare files by path"
)]

mod clones;
mod errors;
mod hostile_superblocks;
mod mount8;
#[path = "../support/mod.rs"]
mod support;

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;

use crust_blockfs::filesystem::{MountError, MountErrorCause, MountRequest, mount_detached};
use crust_blockfs::options;
use crust_blockfs::usage::read_usage;
use rustix::fs::{Mode, OFlags, openat};
use support::{Image, TestLoopDevice, wait_until_free};

fn mount(
    loop_device: &TestLoopDevice,
    fstype: &str,
    list: &[&str],
    exclusive: bool,
) -> Result<OwnedFd, MountError> {
    let options = options::parse(list).expect("the options are valid");
    mount_detached(&MountRequest {
        device: &loop_device.facts(),
        fstype,
        options: &options,
        exclusive,
    })
}

/// Checks that a mount failed, and returns the cause and the message of the error. The message must start with `start`,
/// where `{device}` stands for the device's path.
fn expect_error(
    result: Result<OwnedFd, MountError>,
    loop_device: &TestLoopDevice,
    start: &str,
) -> (MountErrorCause, String) {
    let error = result.expect_err("the mount is refused");
    let message = error.to_string();
    let start = start.replace("{device}", &format!("\"{}\"", loop_device.path().display()));
    assert!(
        message.starts_with(&start),
        "{message}\n does not start with\n{start}"
    );
    assert!(message.contains("; hint: "), "{message}");
    assert!(!message.contains('\n'), "{message}");
    (error.cause().expect("the kernel refused").clone(), message)
}

fn write_and_read(mount: &OwnedFd) {
    let create = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = openat(mount, "file", create, Mode::from(0o600)).expect("a file is created");
    rustix::io::write(&file, b"contents").expect("the file is written");
    let reopened = openat(
        mount,
        "file",
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    );
    let mut contents = String::new();
    File::from(reopened.expect("the file opens again"))
        .read_to_string(&mut contents)
        .expect("the file is read");
    assert_eq!(contents, "contents");
}

#[test]
fn a_detached_mount_ends_with_its_descriptor() {
    let image = Image::ext4(&[]);
    let loop_device = image.attach();
    let device = loop_device.device();
    assert!(!device.is_held_exclusively().expect("the device answers"));
    let mount = mount(&loop_device, "ext4", &["noatime,discard", "nosuid"], true)
        .expect("the volume is mounted");
    write_and_read(&mount);
    assert!(read_usage(&mount).expect("statfs succeeds").bytes.total > 16 << 20);
    assert!(device.is_held_exclusively().expect("the device answers"));
    let mounts = crust_blockfs::mountinfo::read_own().expect("our mountinfo");
    assert!(
        mounts.iter().all(|mount| mount.device != device.number()),
        "it is attached nowhere"
    );
    drop(mount);
    wait_until_free(&device);
}

#[test]
fn options_reach_the_mount_and_the_superblock() {
    let image = Image::ext4(&[]);
    let loop_device = image.attach();
    let list = ["nosuid,nodev,noatime,lazytime", "commit=77"];
    let mount = mount(&loop_device, "ext4", &list, true).expect("the volume is mounted");
    let flags = rustix::fs::fstatvfs(&mount)
        .expect("statfs succeeds")
        .f_flag;
    let expected = rustix::fs::StatVfsMountFlags::NOSUID
        | rustix::fs::StatVfsMountFlags::NODEV
        | rustix::fs::StatVfsMountFlags::NOATIME;
    assert!(flags.contains(expected), "{flags:?}");
    let name = loop_device.path().file_name().expect("a name");
    let proc = std::path::Path::new("/proc/fs/ext4")
        .join(name)
        .join("options");
    let options = std::fs::read_to_string(proc).expect("ext4 shows its options");
    assert!(options.lines().any(|line| line == "commit=77"), "{options}");
}

/// A btrfs on a single device needs no device scan.
#[test]
fn other_file_systems_mount_without_a_device_scan() {
    for fstype in ["ext3", "xfs", "btrfs"] {
        let image = Image::formatted(fstype, &[]);
        let loop_device = image.attach();
        let mount = mount(&loop_device, fstype, &["noatime"], true).expect(fstype);
        write_and_read(&mount);
        drop(mount);
        wait_until_free(&loop_device.device());
    }
}

#[test]
fn loop_devices_are_aliases_only_on_the_same_file() {
    let (image, other) = (Image::blank(16), Image::blank(16));
    let (first, second, other) = (image.attach(), image.attach(), other.attach());
    let facts = [&first, &second, &other].map(TestLoopDevice::facts);
    let aliases = [0, 1, 2].map(|index| facts[index].aliases().expect("sysfs is complete"));
    assert!(aliases[0].conflicts_with(&aliases[1]));
    assert!(!aliases[0].conflicts_with(&aliases[2]));
}

#[test]
fn a_device_is_found_through_a_symbolic_link() {
    let image = Image::blank(16);
    let loop_device = image.attach();
    let link = image.directory().join("by-id");
    std::os::unix::fs::symlink(loop_device.path(), &link).expect("a link");
    let device = crust_blockfs::device::Device::open(&link).expect("the link leads to a device");
    assert_eq!(device.path(), link);
    assert_eq!(device.resolved_path(), loop_device.path());
    assert_eq!(device.number(), loop_device.device().number());
}

#[test]
fn a_detached_mount_can_be_made_private() {
    let image = Image::ext4(&[]);
    let loop_device = image.attach();
    let mount = mount(&loop_device, "ext4", &[], true).expect("the volume is mounted");
    crust_blockfs::sys::set_propagation_private(&mount).expect("the propagation is set");
}
