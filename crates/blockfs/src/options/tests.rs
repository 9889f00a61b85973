use super::*;

const NOATIME: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOATIME;
const STRICTATIME: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_STRICTATIME;
const NODIRATIME: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NODIRATIME;
const NOSUID: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOSUID;
const NODEV: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NODEV;
const NOEXEC: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOEXEC;
const NOSYMFOLLOW: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOSYMFOLLOW;

fn valid(list: &[&str]) -> MountOptions {
    parse(list).expect("the options are valid")
}

fn words(list: &[&str]) -> Vec<String> {
    valid(list)
        .fs_options
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[test]
fn generic_options_become_attributes_and_the_last_one_wins() {
    let none = MountAttrFlags::empty();
    for (list, expected) in [
        (&[][..], none),
        (
            &["nosuid", "nodev", "noexec", "nosymfollow"],
            NOSUID | NODEV | NOEXEC | NOSYMFOLLOW,
        ),
        (
            &["nosuid,nodev,noexec,nosymfollow", "suid,dev,exec,symfollow"],
            none,
        ),
        (&["suid", "nosuid"], NOSUID),
        (&["noatime"], NOATIME),
        (&["noatime", "atime"], none),
        (&["noatime", "relatime"], none),
        (&["noatime", "strictatime"], STRICTATIME),
        (&["strictatime", "noatime"], NOATIME),
        (&["strictatime", "nostrictatime"], none),
        (&["nodiratime", "noatime"], NODIRATIME | NOATIME),
        (&["nodiratime,noatime", "diratime"], NOATIME),
        (&["user"], NOSUID | NODEV | NOEXEC),
        (&["users", "exec"], NOSUID | NODEV),
        (&["owner"], NOSUID | NODEV),
        (&["defaults", "nouser", "rw"], none),
    ] {
        let options = valid(list);
        assert_eq!(options.attributes, expected, "{list:?}");
        assert_eq!(options.fs_options, [], "{list:?}");
    }
}

#[test]
fn the_last_one_of_ro_and_rw_wins() {
    for (list, read_only) in [
        (&[][..], false),
        (&["ro"], true),
        (&["ro", "rw"], false),
        (&["rw,ro"], true),
        (&["ro", "defaults"], true),
    ] {
        assert_eq!(valid(list).read_only, read_only, "{list:?}");
    }
}

#[test]
fn options_for_fstab_are_ignored() {
    let list = [
        "defaults,_netdev,nofail,auto,noauto,silent,loud,iversion,noiversion,comment=by hand",
        "x-systemd.device-timeout=30s,X-fstrim.notrim,x-mount.mkdir,uhelper=udisks2",
    ];
    assert_eq!(valid(&list), MountOptions::default());
}

#[test]
fn other_options_are_passed_to_the_file_system_in_their_order() {
    assert_eq!(
        words(&[
            "discard,noatime",
            "commit=30,,data=ordered ",
            "subvol=a=b",
            "commit="
        ]),
        [
            "discard",
            "commit=30",
            "data=ordered",
            "subvol=a=b",
            "commit="
        ]
    );
}

#[test]
fn superblock_flags_are_passed_as_flags_and_the_last_one_wins() {
    assert_eq!(
        words(&["sync,dirsync,lazytime,mand", "discard"]),
        ["discard", "dirsync", "lazytime", "mand", "sync"]
    );
    assert_eq!(
        words(&["sync,lazytime,mand", "async,nolazytime,nomand"]),
        [""; 0]
    );
    assert_eq!(words(&["async,sync"]), ["sync"]);
}

#[test]
fn a_quoted_comma_does_not_separate_options() {
    assert_eq!(
        words(&[r#"context="system_u:object_r:t:s0:c1,c2",discard"#]),
        ["context=system_u:object_r:t:s0:c1,c2", "discard"]
    );
    assert_eq!(
        parse(&["rw", r#"context="s0:c1,c2"#]),
        Err(OptionsError::Quote { position: 2 })
    );
}

#[test]
fn an_option_that_is_not_for_a_new_mount_is_refused_by_name() {
    for option in [
        "bind",
        "rbind",
        "remount",
        "move",
        "shared",
        "rshared",
        "private",
        "rprivate",
        "slave",
        "rslave",
        "unbindable",
        "runbindable",
        "loop",
        "loop=/dev/loop1",
        "offset=512",
        "source=/dev/sda",
        "verity.roothash=00",
        "X-mount.subdir=secret",
        "X-mount.idmap=b:0:1:1",
    ] {
        let key = option.split('=').next().expect("a key");
        let error = parse(&["rw,noatime", option]).expect_err(option);
        assert!(
            matches!(&error, OptionsError::Refused { option, .. } if option == key),
            "{option}: {error:?}"
        );
        assert!(
            error
                .to_string()
                .starts_with(&format!("mount option {key}: ")),
            "{error}"
        );
    }
}

/// Exclusive use covers one device. A second one would be read and written although something else may hold it.
#[test]
fn an_option_that_names_a_second_device_or_file_is_refused() {
    for option in [
        "logdev=/dev/sdb",
        "LOGDEV=/dev/sdb",
        "rtdev=/dev/sdb",
        "journal_dev=0x700",
        "journal_dev=1792",
        "Journal_Path=/dev/sdb",
        "journal_path=\"/dev/a,b\"",
        "jdev=/dev/sdb",
        "device=/dev/sdb",
        "device",
        "device=/dev/sdb,device=/dev/sdc",
        "device =/dev/sdb",
        "devices=/dev/sdb",
        "usrjquota=aquota.user",
        "grpjquota=aquota.group",
        "prjjquota=aquota.project",
        "jqfmt=vfsv1",
        "usrquota=/etc/aquota.user",
        "grpquota=aquota.group",
        "usrquota=aquota",
        "prjquota=",
        "GrpQuota=x",
        "QUOTA=/x",
        "quota=x",
        "sb=0x1",
        "sb=0X1",
        "sb=010",
        "sb=00",
        "sb=+1",
        "sb=-1",
        "sb=",
        "sb= 1",
        "sb=\"0x1\"",
        "sb=4294967296",
        "lowerdir=/etc",
        "upperdir=/etc",
        "workdir=/etc",
        "fd=3",
        "fsid=blob",
        "domain_id=d",
    ] {
        let key = option.split('=').next().expect("a key").to_owned();
        for list in [vec![option], vec!["rw,noatime", option, "discard"]] {
            let error = parse(&list).expect_err(option);
            let is_named = matches!(&error, OptionsError::Refused { option, .. } if *option == key);
            assert!(is_named, "{option}: {error:?}");
            // The value may be a secret.
            assert!(!error.to_string().contains("/dev/sd"), "{error}");
        }
    }
    // Without a value the quota options are switches. Plain decimal values have only one meaning.
    for option in [
        "usrquota",
        "grpquota",
        "prjquota",
        "quota",
        "quota=on",
        "sb=0",
        "sb=8193",
        "subvol=device",
    ] {
        assert_eq!(words(&[option]), [option]);
    }
}

#[test]
fn secrets_are_refused_and_are_not_in_the_error() {
    for key in [
        "password",
        "passwd",
        "pass",
        "PASSWORD",
        "password2",
        "credentials",
        "cred",
        "secret",
        "secretfile",
        "token",
        "access_key",
        "apikey",
        "passphrase",
        "smb_password",
        "x-password",
        "X-Mount.Password",
        "x-smb.cred",
        "pwd",
        "userpwd",
        "passkey",
        "key",
        "sig",
        "sas-sig",
        "accountkey",
    ] {
        let error = parse(&[format!("rw,{key}=hunter2,noatime")]).expect_err(key);
        assert_eq!(
            error,
            OptionsError::Secret {
                option: key.to_owned()
            }
        );
        assert!(!error.to_string().contains("hunter2"), "{error}");
        assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    }
}

#[test]
fn options_of_common_file_systems_are_not_taken_for_secrets() {
    // All options in ext4(5), xfs(5) and btrfs(5), and in fs/*/super.c.
    for (fstype, options) in [
        (
            "ext4",
            "bsddf minixdf grpid bsdgroups nogrpid sysvgroups resgid resuid sb errors nouid32 debug \
             oldalloc orlov user_xattr nouser_xattr acl noacl norecovery noload bh nobh commit \
             min_batch_time max_batch_time journal_checksum \
             nojournal_checksum journal_async_commit abort data data_err \
             grpquota quota noquota usrquota prjquota barrier nobarrier i_version stripe \
             delalloc nodelalloc mblk_io_submit nomblk_io_submit auto_da_alloc noauto_da_alloc \
             dioread_nolock dioread_lock nodioread_nolock discard nodiscard init_itable \
             noinit_itable max_dir_size_kb test_dummy_encryption inlinecrypt nombcache \
             no_mbcache prefetch_block_bitmaps no_prefetch_block_bitmaps mb_optimize_scan check \
             nocheck reservation noreservation journal journal_ioprio inode_readahead_blks \
             warn_on_error nowarn_on_error dax fc_debug_force fc_debug_max_replay debug_want_extra_isize",
        ),
        (
            "xfs",
            "logbufs logbsize wsync noalign swalloc sunit swidth nouuid grpid nogrpid \
             bsdgroups sysvgroups allocsize norecovery inode64 inode32 ikeep noikeep largeio \
             nolargeio attr2 noattr2 filestreams quota noquota usrquota grpquota prjquota uquota \
             gquota pquota uqnoenforce gqnoenforce pqnoenforce qnoenforce discard nodiscard dax \
             max_open_zones lifetime nolifetime max_atomic_write",
        ),
        (
            "btrfs",
            "acl noacl autodefrag noautodefrag barrier nobarrier check_int check_int_data \
             check_int_print_mask clear_cache commit compress compress-force datacow nodatacow \
             datasum nodatasum degraded discard nodiscard enospc_debug noenospc_debug \
             fatal_errors flushoncommit noflushoncommit fragment max_inline metadata_ratio \
             nologreplay norecovery rescan_uuid_tree rescue skip_balance space_cache \
             nospace_cache ssd nossd ssd_spread nossd_spread subvol subvolid thread_pool treelog \
             notreelog usebackuproot user_subvol_rm_allowed inode_cache ref_verify \
             ignorebadroots ignoredatacsums ignoremetacsums ignoresuperflags recovery",
        ),
        (
            "any",
            "context fscontext defcontext rootcontext seclabel smackfsdef",
        ),
    ] {
        for option in options.split_whitespace() {
            let options = valid(&[option]).fs_options;
            assert_eq!(options.len(), 1, "{fstype} {option}");
        }
    }
    let dropped = "x-systemd.automount,x-systemd.requires=a,x-gvfs-show,x-initrd.mount";
    assert_eq!(valid(&[dropped]), MountOptions::default());
}

#[test]
fn a_generic_option_takes_no_value() {
    for key in ["ro", "rw", "noatime", "sync"] {
        assert_eq!(
            parse(&[format!("{key}=recurse")]),
            Err(OptionsError::UnexpectedValue {
                option: key.to_owned()
            })
        );
    }
}

#[test]
fn malformed_options_are_refused_by_position() {
    assert_eq!(
        parse(&["rw", "a\0b"]),
        Err(OptionsError::Nul { position: 2 })
    );
    assert_eq!(
        parse(&["rw,noatime,=x"]),
        Err(OptionsError::NoName { position: 3 })
    );
}

#[test]
fn an_option_too_long_for_fsconfig_is_refused() {
    let fits = "v".repeat(255);
    assert_eq!(words(&[&format!("k={fits}")]).len(), 1);
    assert_eq!(
        parse(&[format!("k=v{fits}")]),
        Err(OptionsError::TooLong {
            option: "k".to_owned(),
            length: 256
        })
    );
}

#[test]
fn superblock_options_do_not_depend_on_order_and_attributes() {
    for (a, b, same) in [
        (
            &["discard,commit=30"][..],
            &["commit=30", "discard"][..],
            true,
        ),
        (&["noatime", "nosuid"], &[], true),
        (&["defaults", "x-a"], &["rw"], true),
        (&["ro"], &["rw"], false),
        (&["discard"], &[], false),
        (&["commit=30"], &["commit=31"], false),
        (&["commit"], &["commit="], false),
        (&["commit=5,commit=30"], &["commit=30"], true),
        (&["commit=5,commit=30"], &["commit=30,commit=5"], false),
        (&["barrier,nobarrier"], &["nobarrier"], true),
        (&["barrier,nobarrier"], &["nobarrier,barrier"], false),
        (
            &["rescue=nologreplay,rescue=ibadroots"],
            &["rescue=ibadroots,rescue=nologreplay"],
            true,
        ),
        (&["rescue=a,rescue=b"], &["rescue=b"], false),
        (&["sync,async"], &["async"], true),
        (&["nouuid,logbufs=4"], &["logbufs=4"], true),
        (&["sync"], &["discard,sync"], false),
    ] {
        let superblock = |list| {
            let options = valid(list);
            (options.read_only, options.superblock_options())
        };
        assert_eq!(superblock(a) == superblock(b), same, "{a:?} {b:?}");
    }
}

#[test]
fn each_file_system_has_its_option_against_journal_replay() {
    for (fstype, given, expected) in [
        ("ext4", "ro", "noload"),
        ("ext3", "ro", "noload"),
        ("xfs", "ro", "norecovery"),
        ("btrfs", "ro", "rescue=nologreplay"),
        ("ext4", "ro,norecovery", "norecovery"),
        ("xfs", "ro,norecovery", "norecovery"),
        ("btrfs", "ro,nologreplay", "nologreplay"),
    ] {
        let options = valid(&[given]).without_journal_replay(fstype);
        let words: Vec<_> = options.fs_options.iter().map(ToString::to_string).collect();
        assert_eq!(words, [expected], "{fstype} {given}");
    }
    let ext2 = valid(&["ro"]).without_journal_replay("ext2");
    assert_eq!(ext2, valid(&["ro"]));
}

#[test]
fn a_label_with_a_comma_is_one_option() {
    let label = "system_u:object_r:container_file_t:s0:c1,c2";
    let labelled = |list: &[&str]| parse(list).unwrap().with_label(label).unwrap();
    let options = labelled(&["noatime", "discard"]).superblock_options();
    assert_eq!(options, [format!("context={label}").as_str(), "discard"]);
    for own in [
        "context=\"u:r:t:s0:c3,c4\"",
        "fscontext=u:r:t:s0",
        "defcontext=u:r:t:s0",
        "rootcontext=u:r:t:s0",
    ] {
        assert_eq!(labelled(&[own]), parse(&[own]).unwrap(), "{own}");
    }
    // The label as kubelet writes it gives the same options as the label in a container's config.
    let written = parse(&[format!("context=\"{label}\"")]).unwrap();
    assert_eq!(
        written.superblock_options(),
        labelled(&[]).superblock_options()
    );
    let long = "x".repeat(256);
    let error = MountOptions::default()
        .with_label(&long)
        .unwrap_err()
        .to_string();
    assert!(error.contains("context"), "{error}");
}
