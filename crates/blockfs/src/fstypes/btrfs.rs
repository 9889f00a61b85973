//! btrfs on a single device: its row in the table, its superblock, and its growth.

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
        no_journal_replay_aliases: &["nologreplay", "norecovery"],
        // btrfs accepts several `rescue=`, and all of them have an effect.
        cumulative: &["rescue"],
        ..OptionRules::NONE
    },
    before_mount: Some(|device, _| {
        clones::check(device)?;
        Ok(RequiredOptions::default())
    }),
    // A clone may have been mounted meanwhile. Since Linux 6.7 the second of the two file systems gets a temporary id;
    // earlier kernels refuse to mount it.
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
        // Without `-f` mkfs.btrfs refuses a device that isn't empty.
        options: &[],
        // The minimum of mkfs.btrfs(8) 6.2 with its defaults.
        min_device_bytes: 109 << 20,
        check_by_backup: None,
    }),
    has_anonymous_device: true,
    id_mapping_since: Some((5, 15)),
    // Earlier versions set the security module's defaults for the new superblock, and these conflict with the mount's
    // option.
    selinux_label_since: (6, 8),
    ..FileSystemType::BASE
};

const SUPERBLOCK: SuperblockFormat = SuperblockFormat {
    offset: 0x1_0000,
    length: 0x100,
    parse,
};

/// A seed device, which can be mounted only read-only (btrfs-seed(5)).
static SEED: Restriction = Restriction {
    errno: Errno::ACCESS,
    reason: "it is a btrfs seed, which can only be mounted read-only, and a read-write mount was asked for",
    hint: "mark the volume read-only, or clear the flag if no other btrfs was made from the seed (btrfstune -S 0)",
};

/// Parses `struct btrfs_super_block` (`include/uapi/linux/btrfs_tree.h`), which is packed. The size is that of its
/// `dev_item`: the size of the device that has this superblock.
fn parse(superblock: &[u8]) -> Option<Signature> {
    /// `BTRFS_SUPER_FLAG_SEEDING`
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

/// Minimum size in bytes that the kernel resizes a device to (`btrfs_ioctl_resize`).
const MIN_BYTES: u64 = 256 << 20;

fn size(
    root: &OwnedFd,
    device: &DeviceFacts,
    fstype: &FileSystemType,
) -> Result<FileSystemSize, GrowthError> {
    let (_, size) = only_device(root, device, fstype.name)?;
    Ok(size)
}

/// Returns the id of the file system's only device, and the size of the file system. Fails if there are several
/// devices.
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
        return Err(several_devices(device, fstype));
    }
    // Ids aren't reused: after a device was replaced, the id of the only device isn't 1.
    let id = info.max_device_id;
    let bytes = growth::btrfs_device_bytes(root, id).map_err(failed("BTRFS_IOC_DEV_INFO"))?;
    let size = FileSystemSize {
        bytes,
        block_size: NonZeroU64::new(info.sector_size.into()).unwrap_or(NonZeroU64::MIN),
        min_bytes: MIN_BYTES,
        max_bytes: u64::MAX,
        max_bytes_hint: "",
    };
    Ok((id, size))
}

fn size_on_disk(
    device: &DeviceFacts,
    fstype: &FileSystemType,
    found: &Signature,
) -> Result<Option<FileSystemSize>, GrowthError> {
    if found.devices != 1 {
        return Err(several_devices(device, fstype.name));
    }
    let size = FileSystemSize::on_disk(found);
    Ok(size.map(|size| FileSystemSize {
        min_bytes: MIN_BYTES,
        ..size
    }))
}

/// Returns the error for a file system that has further devices.
fn several_devices(device: &DeviceFacts, fstype: &str) -> GrowthError {
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
    let argument = format!("{id}:{bytes}");
    growth::btrfs_resize(root, &argument).map_err(|errno| {
        let call = ioctl(device, format_args!("BTRFS_IOC_RESIZE, {argument}"));
        GrowthError::ioctl_failed(call, errno)
    })
}
