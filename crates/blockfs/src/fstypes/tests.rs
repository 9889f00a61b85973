use super::*;

#[test]
fn an_older_ext_mounts_under_newer_names_only() {
    for (found, names) in [
        ("ext2", &["ext2", "ext4"][..]),
        ("ext3", &["ext2", "ext3", "ext4"]),
        ("ext4", &["ext4"]),
        ("xfs", &["xfs"]),
        ("btrfs", &["btrfs"]),
        ("crypto_LUKS", &[]),
    ] {
        for fstype in ["ext2", "ext3", "ext4", "xfs", "btrfs", "vfat"] {
            let expected = names.contains(&fstype);
            assert_eq!(
                is_mountable_as(found, fstype),
                expected,
                "{found} as {fstype}"
            );
        }
    }
}

#[test]
fn each_type_is_in_the_table_once() {
    for (index, fstype) in FILE_SYSTEM_TYPES.iter().enumerate() {
        assert!(!fstype.name.is_empty());
        let is_repeated = FILE_SYSTEM_TYPES[index + 1..].contains(fstype);
        assert!(!is_repeated, "{fstype}");
        assert_eq!(find(fstype.name), Some(*fstype));
    }
    assert_eq!(find("vfat"), None);
}

#[test]
fn only_ext_needs_a_capability_to_grow() {
    for (fstype, with, without) in [
        ("ext4", true, false),
        ("ext3", true, false),
        ("xfs", true, true),
        ("btrfs", true, true),
        ("squashfs", false, false),
    ] {
        let known = find(fstype).expect("the table has the type");
        assert_eq!(
            [known.can_grow(true), known.can_grow(false)],
            [with, without]
        );
    }
}

#[test]
fn btrfs_supports_a_label_since_linux_6_8() {
    for (version, btrfs) in [
        ((6, 7), false),
        ((6, 8), true),
        ((7, 0), true),
        ((5, 15), false),
        ((0, 0), false),
    ] {
        assert_eq!(
            supports_selinux_label_on("btrfs", version),
            btrfs,
            "{version:?}"
        );
        for fstype in ["ext4", "ext3", "xfs", "vfat"] {
            assert!(
                supports_selinux_label_on(fstype, version),
                "{fstype} {version:?}"
            );
        }
    }
}

#[test]
fn lists_in_messages_have_each_name_once() {
    assert_eq!(checkers(), "e2fsck, xfs_repair or btrfs check");
    assert_eq!(types_needing_capability_to_grow(), "ext4 and ext3");
    assert_eq!(
        types_with_id_mapping((5, 11)),
        "no file system of this kernel"
    );
    assert_eq!(types_with_id_mapping((5, 12)), "ext4, ext3 and xfs");
    assert_eq!(types_with_id_mapping((5, 15)), "ext4, ext3, xfs and btrfs");
    let allowed: Vec<&str> = allowed_by_default().collect();
    assert_eq!(allowed, ["ext4", "ext3", "xfs", "btrfs"]);
}

#[test]
fn an_unknown_type_is_checked_by_its_own_fsck() {
    for (fstype, expected) in [
        ("ext3", "e2fsck"),
        ("xfs", "xfs_repair"),
        ("btrfs", "btrfs check"),
        ("vfat", "fsck.vfat"),
    ] {
        assert_eq!(checker(fstype), expected);
    }
}
