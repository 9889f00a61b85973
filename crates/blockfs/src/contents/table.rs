//! The signatures, as libblkid knows them (`libblkid/src/superblocks`, `…/partitions`, of
//! util-linux 2.41). The first that is found counts: containers come before file systems, and
//! signatures of two bytes last.

/// Something that a device can hold.
#[derive(Debug, PartialEq, Eq)]
pub struct Known {
    /// Its name, with an article.
    pub name: &'static str,
    /// The type it is mounted as, for a file system.
    pub fstype: Option<&'static str>,
    /// The next step for an operator.
    pub hint: &'static str,
    /// The signatures, any of which identifies it.
    pub(super) places: &'static [SignaturePlace],
}

/// One signature at the places where it may be.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SignaturePlace {
    pub(super) at: At,
    pub(super) magic: &'static [u8],
}

/// A set of offsets on a device, in bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum At {
    /// Offsets from the beginning of the device.
    Start(&'static [u64]),
    /// Distances from the end of the device.
    End(&'static [u64]),
    /// A distance from the end of the device, rounded down to a multiple of `unit`.
    AlignedEnd { back: u64, unit: u64 },
    /// `count` offsets from `first` on, `every` bytes apart.
    Ring { first: u64, every: u64, count: u64 },
}

impl At {
    /// Returns the offsets on a device of `size` bytes.
    pub(super) fn offsets(&self, size: u64) -> Vec<u64> {
        match *self {
            Self::Start(offsets) => offsets.to_vec(),
            Self::End(back) => back.iter().filter_map(|it| size.checked_sub(*it)).collect(),
            Self::AlignedEnd { back, unit } => {
                let from = size.checked_sub(back).map(|at| at - at % unit);
                from.into_iter().collect()
            }
            Self::Ring {
                first,
                every,
                count,
            } => (0..count).map(|number| first + number * every).collect(),
        }
    }
}

/// Length of the longest signature in bytes.
pub(super) const LONGEST: usize = 16;

const MAPPED: &str = "open it (cryptsetup open), and stage the mapped device in its place";
const ASSEMBLED: &str = "assemble it, and stage the device that comes of it";
const PARTITIONED: &str = "stage the partition that has the file system, not the whole disk";
const OTHERS: &str =
    "check that this is the volume's device: it belongs to something else on the node";
const FILE_SYSTEM: &str = "set the volume's fsType to that, where `fstypes` in runcrust's \
     configuration allows it, or check that this is its device";

const fn start(offsets: &'static [u64], magic: &'static [u8]) -> SignaturePlace {
    let at = At::Start(offsets);
    SignaturePlace { at, magic }
}

const fn device(
    name: &'static str,
    hint: &'static str,
    places: &'static [SignaturePlace],
) -> Known {
    Known {
        name,
        fstype: None,
        hint,
        places,
    }
}

const fn file_system(
    name: &'static str,
    fstype: &'static str,
    places: &'static [SignaturePlace],
) -> Known {
    Known {
        name,
        fstype: Some(fstype),
        hint: FILE_SYSTEM,
        places,
    }
}

/// The magic number of md's superblock (`MD_SB_MAGIC`), little-endian.
const MD: &[u8] = b"\xfc\x4e\x2b\xa9";
/// Offsets of the swap signature, for pages of 4 to 64 KiB.
const PAGE_ENDS: &[u64] = &[4086, 8182, 16_374, 32_758, 65_526];
const ZFS_UBERBLOCKS: At = At::Ring {
    first: 128 << 10,
    every: 1 << 10,
    count: 128,
};

pub(super) static KNOWN: &[Known] = &[
    device(
        "a LUKS header: it is encrypted",
        MAPPED,
        &[
            start(&[0], b"LUKS\xba\xbe"),
            // LUKS2's second header, for each size of the first.
            start(
                &[
                    0x4000, 0x8000, 0x1_0000, 0x2_0000, 0x4_0000, 0x8_0000, 0x10_0000, 0x20_0000,
                    0x40_0000,
                ],
                b"SKUL\xba\xbe",
            ),
        ],
    ),
    device(
        "a BitLocker volume: it is encrypted",
        MAPPED,
        &[start(&[3], b"-FVE-FS-")],
    ),
    device(
        "an LVM physical volume",
        "stage one of its logical volumes (lvs), not the physical one",
        &[start(&[0, 512, 1024, 1536], b"LABELONE")],
    ),
    device(
        "a member of an md array",
        ASSEMBLED,
        &[
            start(&[0, 4096], MD),
            // Version 0.90, in 64 KiB, and 1.0, in 4 KiB.
            SignaturePlace {
                at: At::AlignedEnd {
                    back: 64 << 10,
                    unit: 64 << 10,
                },
                magic: MD,
            },
            SignaturePlace {
                at: At::AlignedEnd {
                    back: 8 << 10,
                    unit: 4 << 10,
                },
                magic: MD,
            },
        ],
    ),
    device(
        "a DRBD device's metadata",
        "stage the /dev/drbd device",
        &[
            SignaturePlace {
                at: At::End(&[4096 - 0x3c]),
                magic: b"\x83\x74\x02\x6b",
            },
            SignaturePlace {
                at: At::End(&[4096 - 0x3c]),
                magic: b"\x83\x74\x02\x6d",
            },
        ],
    ),
    device("dm-integrity data", MAPPED, &[start(&[0], b"integrt\0")]),
    device(
        "a dm-verity hash tree",
        OTHERS,
        &[start(&[0], b"verity\0\0")],
    ),
    device(
        "a device-mapper snapshot's changes",
        OTHERS,
        &[start(&[0], b"SnAp")],
    ),
    device("a VDO volume", ASSEMBLED, &[start(&[0], b"dmvdo001")]),
    device(
        "a Stratis pool's member",
        OTHERS,
        &[start(&[0x204, 0x1204], b"!Stra0tis\x86\xff\x02^\x41rh")],
    ),
    device(
        "a bcache device",
        "stage the /dev/bcache device",
        &[start(
            &[0x1018],
            b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81",
        )],
    ),
    device(
        "a Ceph BlueStore device",
        OTHERS,
        &[start(&[0], b"bluestore block ")],
    ),
    device(
        "a member of a ZFS pool",
        OTHERS,
        &[
            SignaturePlace {
                at: ZFS_UBERBLOCKS,
                magic: b"\x0c\xb1\xba\0\0\0\0\0",
            },
            SignaturePlace {
                at: ZFS_UBERBLOCKS,
                magic: b"\0\0\0\0\0\xba\xb1\x0c",
            },
        ],
    ),
    device(
        "a qcow2 image",
        "the image has to be on a device of its own format: convert it to raw",
        &[start(&[0], b"QFI\xfb")],
    ),
    device(
        "swap space",
        OTHERS,
        &[
            start(PAGE_ENDS, b"SWAPSPACE2"),
            start(PAGE_ENDS, b"SWAP-SPACE"),
            start(PAGE_ENDS, b"S1SUSPEND\0"),
        ],
    ),
    device(
        "the external journal of an ext4",
        OTHERS,
        // What isn't one is known to `probe`.
        &[start(&[0x438], b"\x53\xef")],
    ),
    device(
        "a GPT partition table",
        PARTITIONED,
        &[
            start(&[512, 4096], b"EFI PART"),
            SignaturePlace {
                at: At::End(&[512, 4096]),
                magic: b"EFI PART",
            },
        ],
    ),
    file_system("an erofs", "erofs", &[start(&[1024], b"\xe2\xe1\xf5\xe0")]),
    file_system(
        "a squashfs",
        "squashfs",
        &[start(&[0], b"hsqs"), start(&[0], b"sqsh")],
    ),
    file_system("an f2fs", "f2fs", &[start(&[1024], b"\x10\x20\xf5\xf2")]),
    file_system(
        "a bcachefs",
        "bcachefs",
        &[start(
            &[0x1018],
            b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef",
        )],
    ),
    file_system("an exfat", "exfat", &[start(&[3], b"EXFAT   ")]),
    file_system("an NTFS", "ntfs3", &[start(&[3], b"NTFS    ")]),
    file_system(
        "a FAT file system",
        "vfat",
        &[
            start(&[0x52], b"FAT32   "),
            start(&[0x36], b"FAT16   "),
            start(&[0x36], b"FAT12   "),
            start(&[0x36, 0x52], b"MSDOS"),
        ],
    ),
    file_system(
        "an ISO 9660 image",
        "iso9660",
        &[start(&[0x8001], b"CD001")],
    ),
    file_system("a UDF", "udf", &[start(&[0x8001], b"BEA01")]),
    file_system("a JFS", "jfs", &[start(&[0x8000], b"JFS1")]),
    file_system("a GFS2", "gfs2", &[start(&[0x1_0000], b"\x01\x16\x19\x70")]),
    file_system(
        "an OCFS2",
        "ocfs2",
        &[start(&[0x400, 0x800, 0x1000, 0x2000], b"OCFSV2")],
    ),
    file_system(
        "a ReiserFS",
        "reiserfs",
        &[start(&[0x1_0034, 0x2034], b"ReIsEr")],
    ),
    file_system("a cramfs", "cramfs", &[start(&[0], b"\x45\x3d\xcd\x28")]),
    file_system("a romfs", "romfs", &[start(&[0], b"-rom1fs-")]),
    file_system("an APFS", "apfs", &[start(&[32], b"NXSB")]),
    file_system("a zonefs", "zonefs", &[start(&[0], b"SFOZ")]),
    file_system(
        "an HFS+",
        "hfsplus",
        &[start(&[1024], b"H+\0\x04"), start(&[1024], b"HX\0\x05")],
    ),
    device(
        "a VMFS volume",
        OTHERS,
        &[start(&[0x10_0000], b"\x0d\xd0\x01\xc0")],
    ),
    file_system("a NILFS2", "nilfs2", &[start(&[0x406], b"\x34\x34")]),
    // FAT has these two bytes as well.
    device(
        "an MBR partition table, or a boot sector",
        PARTITIONED,
        &[start(&[510], b"\x55\xaa")],
    ),
];
