//! The signatures of formats that a device can hold, as libblkid knows them (`libblkid/src/superblocks` and
//! `…/partitions` of util-linux 2.41). The first match counts, so containers come before file systems, and signatures
//! of two bytes come last.

/// A format that a device can hold.
#[derive(Debug, PartialEq, Eq)]
pub struct KnownFormat {
    /// The name with an article, such as "an LVM physical volume".
    pub name: &'static str,
    /// The type that it is mounted as; `None` if it isn't a file system.
    pub fstype: Option<&'static str>,
    /// The next step for an operator.
    pub hint: &'static str,
    /// The signatures. One match is enough.
    pub(super) signatures: &'static [SignatureLocation],
}

/// A signature, and the offsets where it may be.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SignatureLocation {
    pub(super) offsets: Offsets,
    pub(super) magic: &'static [u8],
}

/// A set of offsets on a device, in bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Offsets {
    /// Offsets from the beginning of the device.
    FromStart(&'static [u64]),
    /// Distances from the end of the device.
    FromEnd(&'static [u64]),
    /// The offset `distance` before the end of the device, rounded down to a multiple of `unit`.
    AlignedFromEnd { distance: u64, unit: u64 },
    /// `count` offsets, starting at `first` and `interval` bytes apart.
    Repeated {
        first: u64,
        interval: u64,
        count: u64,
    },
}

impl Offsets {
    /// Returns the offsets on a device of `size` bytes.
    pub(super) fn on_device(&self, size: u64) -> Vec<u64> {
        match *self {
            Self::FromStart(offsets) => offsets.to_vec(),
            Self::FromEnd(distances) => distances
                .iter()
                .filter_map(|distance| size.checked_sub(*distance))
                .collect(),
            Self::AlignedFromEnd { distance, unit } => {
                let offset = size.checked_sub(distance).map(|at| at - at % unit);
                offset.into_iter().collect()
            }
            Self::Repeated {
                first,
                interval,
                count,
            } => (0..count).map(|number| first + number * interval).collect(),
        }
    }
}

/// The length of the longest signature in bytes.
pub(super) const LONGEST_MAGIC: usize = 16;

const OPEN_ENCRYPTED: &str = "open it (cryptsetup open) and stage the mapped device instead";
const ASSEMBLE: &str = "assemble it and stage the resulting device";
const USE_PARTITION: &str =
    "stage the partition that holds the file system instead of the whole disk";
const CHECK_DEVICE: &str =
    "check that this is the volume's device: something else on the node uses it";
const SET_FSTYPE: &str = "set the volume's fsType to the type found, if `fstypes` in runcrust's \
     configuration allows it, or check that this is the volume's device";

const fn at_start(offsets: &'static [u64], magic: &'static [u8]) -> SignatureLocation {
    let offsets = Offsets::FromStart(offsets);
    SignatureLocation { offsets, magic }
}

const fn device(
    name: &'static str,
    hint: &'static str,
    signatures: &'static [SignatureLocation],
) -> KnownFormat {
    KnownFormat {
        name,
        fstype: None,
        hint,
        signatures,
    }
}

const fn file_system(
    name: &'static str,
    fstype: &'static str,
    signatures: &'static [SignatureLocation],
) -> KnownFormat {
    KnownFormat {
        name,
        fstype: Some(fstype),
        hint: SET_FSTYPE,
        signatures,
    }
}

/// The magic number of md's superblock (`MD_SB_MAGIC`), little-endian.
const MD_MAGIC: &[u8] = b"\xfc\x4e\x2b\xa9";
/// Offsets of the swap signature, for pages of 4 to 64 KiB.
const PAGE_ENDS: &[u64] = &[4086, 8182, 16_374, 32_758, 65_526];
const ZFS_UBERBLOCKS: Offsets = Offsets::Repeated {
    first: 128 << 10,
    interval: 1 << 10,
    count: 128,
};

pub(super) static KNOWN_FORMATS: &[KnownFormat] = &[
    device(
        "an encrypted LUKS volume",
        OPEN_ENCRYPTED,
        &[
            at_start(&[0], b"LUKS\xba\xbe"),
            // The second header of LUKS2, for each size of the first one.
            at_start(
                &[
                    0x4000, 0x8000, 0x1_0000, 0x2_0000, 0x4_0000, 0x8_0000, 0x10_0000, 0x20_0000,
                    0x40_0000,
                ],
                b"SKUL\xba\xbe",
            ),
        ],
    ),
    device(
        "an encrypted BitLocker volume",
        OPEN_ENCRYPTED,
        &[at_start(&[3], b"-FVE-FS-")],
    ),
    device(
        "an LVM physical volume",
        "stage one of its logical volumes (lvs) instead of the physical volume",
        &[at_start(&[0, 512, 1024, 1536], b"LABELONE")],
    ),
    device(
        "a member of an md array",
        ASSEMBLE,
        &[
            at_start(&[0, 4096], MD_MAGIC),
            // Version 0.90 is aligned to 64 KiB, version 1.0 to 4 KiB.
            SignatureLocation {
                offsets: Offsets::AlignedFromEnd {
                    distance: 64 << 10,
                    unit: 64 << 10,
                },
                magic: MD_MAGIC,
            },
            SignatureLocation {
                offsets: Offsets::AlignedFromEnd {
                    distance: 8 << 10,
                    unit: 4 << 10,
                },
                magic: MD_MAGIC,
            },
        ],
    ),
    device(
        "a DRBD device's metadata",
        "stage the /dev/drbd device instead",
        &[
            SignatureLocation {
                offsets: Offsets::FromEnd(&[4096 - 0x3c]),
                magic: b"\x83\x74\x02\x6b",
            },
            SignatureLocation {
                offsets: Offsets::FromEnd(&[4096 - 0x3c]),
                magic: b"\x83\x74\x02\x6d",
            },
        ],
    ),
    device(
        "dm-integrity data",
        OPEN_ENCRYPTED,
        &[at_start(&[0], b"integrt\0")],
    ),
    device(
        "a dm-verity hash tree",
        CHECK_DEVICE,
        &[at_start(&[0], b"verity\0\0")],
    ),
    device(
        "the changes of a device-mapper snapshot",
        CHECK_DEVICE,
        &[at_start(&[0], b"SnAp")],
    ),
    device("a VDO volume", ASSEMBLE, &[at_start(&[0], b"dmvdo001")]),
    device(
        "a member of a Stratis pool",
        CHECK_DEVICE,
        &[at_start(&[0x204, 0x1204], b"!Stra0tis\x86\xff\x02^\x41rh")],
    ),
    device(
        "a bcache device",
        "stage the /dev/bcache device instead",
        &[at_start(
            &[0x1018],
            b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81",
        )],
    ),
    device(
        "a Ceph BlueStore device",
        CHECK_DEVICE,
        &[at_start(&[0], b"bluestore block ")],
    ),
    device(
        "a member of a ZFS pool",
        CHECK_DEVICE,
        &[
            SignatureLocation {
                offsets: ZFS_UBERBLOCKS,
                magic: b"\x0c\xb1\xba\0\0\0\0\0",
            },
            SignatureLocation {
                offsets: ZFS_UBERBLOCKS,
                magic: b"\0\0\0\0\0\xba\xb1\x0c",
            },
        ],
    ),
    device(
        "a qcow2 image",
        "convert the image to raw on another device (qemu-img convert -O raw) and stage that device",
        &[at_start(&[0], b"QFI\xfb")],
    ),
    device(
        "swap space",
        CHECK_DEVICE,
        &[
            at_start(PAGE_ENDS, b"SWAPSPACE2"),
            at_start(PAGE_ENDS, b"SWAP-SPACE"),
            at_start(PAGE_ENDS, b"S1SUSPEND\0"),
        ],
    ),
    device(
        "the external journal of an ext4",
        CHECK_DEVICE,
        // `probe` comes first, and identifies every other ext file system.
        &[at_start(&[0x438], b"\x53\xef")],
    ),
    device(
        "a GPT partition table",
        USE_PARTITION,
        &[
            at_start(&[512, 4096], b"EFI PART"),
            SignatureLocation {
                offsets: Offsets::FromEnd(&[512, 4096]),
                magic: b"EFI PART",
            },
        ],
    ),
    file_system(
        "an erofs",
        "erofs",
        &[at_start(&[1024], b"\xe2\xe1\xf5\xe0")],
    ),
    file_system(
        "a squashfs",
        "squashfs",
        &[at_start(&[0], b"hsqs"), at_start(&[0], b"sqsh")],
    ),
    file_system("an f2fs", "f2fs", &[at_start(&[1024], b"\x10\x20\xf5\xf2")]),
    file_system(
        "a bcachefs",
        "bcachefs",
        &[at_start(
            &[0x1018],
            b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef",
        )],
    ),
    file_system("an exfat", "exfat", &[at_start(&[3], b"EXFAT   ")]),
    file_system("an NTFS", "ntfs3", &[at_start(&[3], b"NTFS    ")]),
    file_system(
        "a FAT file system",
        "vfat",
        &[
            at_start(&[0x52], b"FAT32   "),
            at_start(&[0x36], b"FAT16   "),
            at_start(&[0x36], b"FAT12   "),
            at_start(&[0x36, 0x52], b"MSDOS"),
        ],
    ),
    file_system(
        "an ISO 9660 image",
        "iso9660",
        &[at_start(&[0x8001], b"CD001")],
    ),
    file_system("a UDF", "udf", &[at_start(&[0x8001], b"BEA01")]),
    file_system("a JFS", "jfs", &[at_start(&[0x8000], b"JFS1")]),
    file_system(
        "a GFS2",
        "gfs2",
        &[at_start(&[0x1_0000], b"\x01\x16\x19\x70")],
    ),
    file_system(
        "an OCFS2",
        "ocfs2",
        &[at_start(&[0x400, 0x800, 0x1000, 0x2000], b"OCFSV2")],
    ),
    file_system(
        "a ReiserFS",
        "reiserfs",
        &[at_start(&[0x1_0034, 0x2034], b"ReIsEr")],
    ),
    file_system("a cramfs", "cramfs", &[at_start(&[0], b"\x45\x3d\xcd\x28")]),
    file_system("a romfs", "romfs", &[at_start(&[0], b"-rom1fs-")]),
    file_system("an APFS", "apfs", &[at_start(&[32], b"NXSB")]),
    file_system("a zonefs", "zonefs", &[at_start(&[0], b"SFOZ")]),
    file_system(
        "an HFS+",
        "hfsplus",
        &[
            at_start(&[1024], b"H+\0\x04"),
            at_start(&[1024], b"HX\0\x05"),
        ],
    ),
    device(
        "a VMFS volume",
        CHECK_DEVICE,
        &[at_start(&[0x10_0000], b"\x0d\xd0\x01\xc0")],
    ),
    file_system("a NILFS2", "nilfs2", &[at_start(&[0x406], b"\x34\x34")]),
    // A FAT has these two bytes as well.
    device(
        "an MBR partition table, or a boot sector",
        USE_PARTITION,
        &[at_start(&[510], b"\x55\xaa")],
    ),
];
