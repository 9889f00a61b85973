//! btrfs, on one device: its row of the table, its superblock, and its growth.

mod clones;

use std::num::NonZeroU64;
use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::descriptor::{
    FileSystemType, Format, Growth, OptionRules, RequiredOptions, SECOND_DEVICE, SuperblockFormat,
    field,
};
use super::growth::{FileSystemSize, GrowthError, ioctl};
use crate::device::DeviceFacts;
use crate::signature::{Restriction, Signature, Uuid};
use crate::sys::growth;

pub(super) static BTRFS: FileSystemType = FileSystemType {
    name: "btrfs",
    is_allowed_by_default: true,
    checker: Some("btrfs check"),
    superblock: Some(SUPERBLOCK),
    options: OptionRules {
        refused: &[("device", SECOND_DEVICE)],
        // `nologreplay` by itself is deprecated since Linux 5.9.
        no_journal_replay: Some("rescue=nologreplay"),
        no_journal_replay_too: &["nologreplay", "norecovery"],
        // It takes several `rescue=`, and does each.
        cumulative: &["rescue"],
        ..OptionRules::NONE
    },
    before_mount: Some(|device, _| {
        clones::check(device)?;
        Ok(RequiredOptions::default())
    }),
    // Two may be mounted at once: from Linux 6.7 on the second gets a temporary id, before that the kernel refuses it.
    after_mount: Some(clones::check),
    growth: Some(&Growth {
        needs_cap_sys_resource: false,
        size,
        size_on_disk,
        check_allowed: |_, _| Ok(()),
        grow,
    }),
    format: Some(Format {
        mkfs: "mkfs.btrfs",
        // Without `-f` it refuses what isn't empty.
        options: &[],
        // mkfs.btrfs(8) 6.2, with its own defaults.
        min_device_bytes: 109 << 20,
        check_by_backup: None,
    }),
    has_anonymous_device: true,
    id_mapping_since: Some((5, 15)),
    // Before that it gives its new superblock the security module's defaults itself, which the mount's own option then
    // contradicts.
    selinux_label_since: (6, 8),
    ..FileSystemType::BASE
};

const SUPERBLOCK: SuperblockFormat = SuperblockFormat {
    offset: 0x1_0000,
    length: 0x100,
    parse,
};

/// A seed can be mounted read-only alone (btrfs-seed(5)).
static SEED: Restriction = Restriction {
    errno: Errno::ACCESS,
    reason: "it is a btrfs seed, which is only ever mounted read-only, and a read-write mount was asked for",
    hint: "mark the volume read-only, or clear the flag where no other btrfs was grown from it (btrfstune -S 0)",
};

/// `struct btrfs_super_block` (`include/uapi/linux/btrfs_tree.h`), packed; the size is that of its
/// `dev_item`, the device that this copy is on.
fn parse(superblock: &[u8]) -> Option<Signature> {
    /// The superblock's flag `BTRFS_SUPER_FLAG_SEEDING`.
    const SEEDING: u64 = 1 << 32;
    let sector = u64::from(u32::from_le_bytes(field(superblock, 0x90)));
    let is_seed = u64::from_le_bytes(field(superblock, 0x38)) & SEEDING != 0;
    (superblock[0x40..0x48] == *b"_BHRfS_M").then(|| Signature {
        fstype: "btrfs",
        uuid: Uuid(field(superblock, 0x20)),
        size: u64::from_le_bytes(field(superblock, 0xd1)),
        block: sector,
        devices: u64::from_le_bytes(field(superblock, 0x88)),
        sector,
        is_read_only: false,
        restriction: is_seed.then_some(&SEED),
    })
}

/// The smallest size that the kernel resizes a device to, in bytes (`btrfs_ioctl_resize`).
const LEAST: u64 = 256 << 20;

fn size(
    root: &OwnedFd,
    device: &DeviceFacts,
    fstype: &FileSystemType,
) -> Result<FileSystemSize, GrowthError> {
    let (_, size) = only_device(root, device, fstype.name)?;
    Ok(size)
}

/// Returns the id of the only device and the size of its part of the file system.
fn only_device(
    root: &OwnedFd,
    device: &DeviceFacts,
    fstype: &str,
) -> Result<(u64, FileSystemSize), GrowthError> {
    let failed = |name: &str| {
        let call = ioctl(device, name);
        move |errno| GrowthError::Call { call, errno }
    };
    let info = growth::btrfs_info(root).map_err(failed("BTRFS_IOC_FS_INFO"))?;
    if info.devices != 1 {
        return Err(several(device, fstype));
    }
    // Ids are given once: after a replacement the only device's needn't be 1.
    let id = info.max_device_id;
    let bytes = growth::btrfs_device_bytes(root, id).map_err(failed("BTRFS_IOC_DEV_INFO"))?;
    let size = FileSystemSize {
        bytes,
        block: NonZeroU64::new(info.sector_size.into()).unwrap_or(NonZeroU64::MIN),
        least: LEAST,
        most: u64::MAX,
        hint_above: "",
    };
    Ok((id, size))
}

fn size_on_disk(
    device: &DeviceFacts,
    fstype: &FileSystemType,
    found: &Signature,
) -> Result<Option<FileSystemSize>, GrowthError> {
    if found.devices != 1 {
        return Err(several(device, fstype.name));
    }
    let size = FileSystemSize::on_disk(found);
    Ok(size.map(|size| FileSystemSize {
        least: LEAST,
        ..size
    }))
}

/// Returns the error for a file system that isn't on this device alone.
fn several(device: &DeviceFacts, fstype: &str) -> GrowthError {
    const REASON: &str = "it is on several devices; hint: grow it with `btrfs filesystem resize`";
    GrowthError::unsupported(device, fstype, REASON)
}

fn grow(
    root: &OwnedFd,
    device: &DeviceFacts,
    _: FileSystemSize,
    bytes: u64,
) -> Result<(), GrowthError> {
    let (id, _) = only_device(root, device, "btrfs")?;
    let what = format!("{id}:{bytes}");
    growth::btrfs_resize(root, &what).map_err(|errno| {
        let call = ioctl(device, format_args!("BTRFS_IOC_RESIZE, {what}"));
        GrowthError::refusal(call, errno)
    })
}
