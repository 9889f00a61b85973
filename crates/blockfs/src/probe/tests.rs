use std::os::unix::fs::FileExt;

use super::*;

const UUID: Uuid = Uuid(*b"0123456789abcdef");

fn image(writes: &[(u64, &[u8])]) -> std::fs::File {
    let file = tempfile::tempfile().expect("a temporary file");
    file.set_len(0x2_0000).expect("the file grows");
    for (offset, bytes) in writes {
        file.write_all_at(bytes, *offset)
            .expect("the image is written");
    }
    file
}

/// Returns an image with an ext superblock that has these features: compatible, incompatible, read-only compatible.
fn ext_image(features: [u32; 3]) -> std::fs::File {
    let [compatible, incompatible, read_only] = features.map(u32::to_le_bytes);
    image(&[
        (0x438, b"\x53\xEF"),
        (0x468, &UUID.0),
        (0x404, &32_u32.to_le_bytes()),
        (0x418, &2_u32.to_le_bytes()),
        (0x550, &1_u32.to_le_bytes()),
        (0x45c, &compatible),
        (0x460, &incompatible),
        (0x464, &read_only),
    ])
}

fn probe_signature(image: std::fs::File) -> Signature {
    let found = probe(image).expect("the image is read");
    found.expect("a file system is there")
}

#[test]
fn xfs_and_btrfs_are_found_with_uuid_size_and_devices() {
    let xfs = image(&[
        (0, b"XFSB"),
        (4, &4096_u32.to_be_bytes()),
        (8, &81_920_u64.to_be_bytes()),
        (0x20, &UUID.0),
        (0x66, &512_u16.to_be_bytes()),
    ]);
    let expected = |fstype, size, devices, sector| Signature {
        fstype,
        uuid: UUID,
        size,
        block: 4096,
        devices,
        sector,
        is_read_only: false,
        restriction: None,
    };
    assert_eq!(probe_signature(xfs), expected("xfs", 320 << 20, 1, 512));
    let btrfs = image(&[
        (0x1_0040, b"_BHRfS_M"),
        (0x1_0020, &UUID.0),
        (0x1_0088, &2_u64.to_le_bytes()),
        (0x1_0090, &4096_u32.to_le_bytes()),
        (0x1_00d1, &(128_u64 << 20).to_le_bytes()),
    ]);
    assert_eq!(
        probe_signature(btrfs.try_clone().unwrap()),
        expected("btrfs", 128 << 20, 2, 4096)
    );
    btrfs
        .write_all_at(&(1_u64 << 32).to_le_bytes(), 0x1_0038)
        .unwrap();
    let seed = probe_signature(btrfs).restriction.expect("a seed");
    assert_eq!(seed.errno, Errno::ACCESS);
}

#[test]
fn ext2_ext3_and_ext4_are_distinguished_by_their_features() {
    const BLOCKS: u64 = 32 * 4096;
    for (features, fstype, size) in [
        ([0x38, 0x2, 0x3], "ext2", BLOCKS),
        ([0x3c, 0x2, 0x3], "ext3", BLOCKS),
        ([0x3c, 0x6, 0x7], "ext3", BLOCKS),
        // Extents, metadata checksums, and 64 bits, with which the upper half of the block count is used.
        ([0x3c, 0x42, 0x3], "ext4", BLOCKS),
        ([0x38, 0x2, 0x400], "ext4", BLOCKS),
        ([0x3c, 0xc2, 0x3], "ext4", BLOCKS + (4096 << 32)),
        // Fast commits, without and with a journal to replay.
        ([0x43c, 0x42, 0x3], "ext4", BLOCKS),
        ([0x43c, 0x46, 0x3], "ext4", BLOCKS),
        ([0x3c, 0x42, 0x1003], "ext4", BLOCKS),
    ] {
        let found = probe_signature(ext_image(features));
        let has_fast_commits = features == [0x43c, 0x46, 0x3];
        let expected = Signature {
            fstype,
            uuid: UUID,
            size,
            block: 4096,
            devices: 1,
            sector: 4096,
            is_read_only: features[2] == 0x1003,
            restriction: found.restriction.filter(|_| has_fast_commits),
        };
        assert_eq!(found, expected, "{features:x?}");
        assert_eq!(
            found.restriction.is_some(),
            has_fast_commits,
            "{features:x?}"
        );
    }
}

#[test]
fn an_external_journal_is_not_a_file_system() {
    assert_eq!(probe(ext_image([0, 0x8, 0])), Ok(None));
}

#[test]
fn zeroes_and_half_a_magic_number_are_not_a_file_system() {
    assert_eq!(probe(image(&[])), Ok(None));
    assert_eq!(probe(image(&[(0, b"XFS"), (0x438, b"\x53")])), Ok(None));
}

#[test]
fn a_device_too_small_for_a_superblock_holds_none() {
    let file = image(&[]);
    file.set_len(3).expect("the file shrinks");
    assert_eq!(probe(&file), Ok(None));
}

#[test]
fn an_ext_with_an_invalid_block_size_is_found() {
    for bits in [0, 2, 6, 53, 54, 64, u32::MAX] {
        let image = ext_image([0x3c, 0x42, 0x3]);
        image
            .write_all_at(&bits.to_le_bytes(), 0x418)
            .expect("the image is written");
        let found = probe_signature(image);
        let block = if bits < 54 { 1024 << bits } else { 0 };
        assert_eq!((found.fstype, found.block), ("ext4", block), "{bits}");
        assert_eq!(found.size, 32_u64.saturating_mul(block));
    }
}
