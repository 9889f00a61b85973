//! Compares mount options with mount(8): for each file system and each of its options, the same list must give the same
//! line in mountinfo.
//!
//! Two differences are intended and aren't in the tables. If several of `noatime`, `relatime` and `strictatime` are
//! given, the last one takes effect here, while mount(2) has its own order of precedence. A read-write mount of a
//! read-only device fails here, while mount(8) mounts it read-only.

use std::path::PathBuf;

use crust_blockfs::device::DeviceNumber;
use crust_blockfs::mountinfo::{Mount, Propagation};

use crate::mount;
use crate::support::{Image, TestLoopDevice, TestMount, in_mount_namespace, wait_until_free};

/// Options of any file system, and options for programs that read fstab.
const GENERIC: &[&str] = &[
    "defaults",
    "rw",
    "ro",
    "ro,rw",
    "rw,ro,defaults",
    "defaults,_netdev,nofail,x-systemd.requires=a.service,x-gvfs-hide,auto,nouser,comment=by-hand",
    "nosuid,nodev,noexec",
    "nosuid,nodev,noexec,suid,dev,exec",
    "nosymfollow",
    "noatime",
    "noatime,atime",
    "atime",
    "relatime",
    "norelatime",
    "strictatime",
    "strictatime,nostrictatime",
    "nodiratime",
    "nodiratime,diratime",
    "noatime,nodiratime",
    "sync",
    "sync,async",
    "async",
    "dirsync",
    "lazytime",
    "lazytime,nolazytime",
    "iversion",
    "noiversion",
    "mand",
    "mand,nomand",
    "silent",
    "loud",
    "user",
    "users,exec",
    "owner",
    "group,suid",
    "ro,noatime,nosuid,sync,dirsync,lazytime",
];

/// Options of ext3 and ext4, which have the same driver.
const EXT: &[&str] = &[
    "discard",
    "discard,nodiscard",
    "commit=30",
    "data=writeback",
    "data=journal",
    "barrier=0",
    "nobarrier",
    "nobarrier,barrier",
    "errors=continue",
    "errors=remount-ro",
    "errors=panic,errors=remount-ro",
    "noload,ro",
    "norecovery,ro",
    "grpid",
    "bsdgroups,sysvgroups",
    "minixdf",
    "minixdf,bsddf",
    "resuid=1000,resgid=1000",
    "block_validity",
    "noblock_validity",
    "debug",
    "nouid32",
    "sb=1",
];

const EXT4: &[&str] = &[
    "delalloc",
    "nodelalloc",
    "noauto_da_alloc",
    "auto_da_alloc=0",
    "dioread_nolock",
    "dioread_lock",
    "stripe=16",
    "max_batch_time=0,min_batch_time=0",
    "journal_ioprio=3",
    "journal_checksum",
    "data=writeback,journal_async_commit",
    "inode_readahead_blks=16",
    "init_itable=5",
    "noinit_itable",
    "max_dir_size_kb=64",
    "i_version",
    "warn_on_error",
    "prefetch_block_bitmaps",
    "no_prefetch_block_bitmaps",
    "mb_optimize_scan=1",
];

const XFS: &[&str] = &[
    "discard",
    "discard,nodiscard",
    "nouuid",
    "norecovery,ro",
    "inode32",
    "inode64",
    "logbufs=4",
    "logbsize=64k",
    "logbsize=65536",
    "allocsize=64k",
    "largeio",
    "largeio,nolargeio",
    "swalloc",
    "wsync",
    "grpid",
    "bsdgroups,nogrpid",
    "sysvgroups",
    "noalign",
    "filestreams",
];

const BTRFS: &[&str] = &[
    "compress",
    "compress=zstd:3",
    "compress=lzo",
    "compress-force=zlib:9",
    "compress=no",
    "ssd",
    "nossd",
    "ssd_spread",
    "discard",
    "discard=sync",
    "nodiscard",
    "space_cache=v2",
    "commit=30",
    "autodefrag",
    "noautodefrag",
    "nodatacow",
    "nodatacow,datacow",
    "nodatasum",
    "flushoncommit",
    "notreelog",
    "nobarrier",
    "subvol=/",
    "subvolid=5",
    "user_subvol_rm_allowed",
    "thread_pool=3",
    "max_inline=1k",
    "metadata_ratio=2",
    "skip_balance",
    "enospc_debug",
    "fatal_errors=panic",
    "rescan_uuid_tree",
    "rescue=usebackuproot",
    "rescue=nologreplay,ro",
    "degraded",
];

/// Options that depend on the kernel's configuration. Without support, both mounts must fail.
const OPTIONAL: &[&str] = &[
    "acl",
    "noacl",
    "user_xattr",
    "dax=never",
    "quota",
    "noquota",
    "quota,noquota",
    "usrquota,grpquota",
    "uquota,gquota",
    "uqnoenforce,gqnoenforce",
    "prjquota",
    "pquota",
];

struct Comparison {
    fstype: &'static str,
    loop_device: TestLoopDevice,
    mount_point: tempfile::TempDir,
    _image: Image,
}

impl Comparison {
    fn new(fstype: &'static str) -> Self {
        let image = Image::formatted(fstype, &[]);
        let comparison = Self {
            fstype,
            loop_device: image.attach(),
            mount_point: tempfile::tempdir().expect("a temporary directory"),
            _image: image,
        };
        // The first mount may change the file system (btrfs makes its free space tree).
        comparison
            .mount_with_mount8("rw")
            .expect("the volume is mounted");
        comparison
    }

    fn mount_with_mount8(&self, options: &str) -> Result<Mount, String> {
        let mount = TestMount::device(
            self.loop_device.path(),
            self.mount_point.path(),
            self.fstype,
            options,
        )?;
        Ok(Self::entry(&mount))
    }

    fn mount_with_crate(&self, options: &str) -> Result<Mount, String> {
        let mount = mount(&self.loop_device, self.fstype, &[options], true);
        let mount = mount.map_err(|error| error.to_string())?;
        Ok(Self::entry(&TestMount::attached(
            &mount,
            self.mount_point.path(),
        )))
    }

    /// Returns the mount's entry in mountinfo, without the fields that differ between any two mounts.
    fn entry(mounted: &TestMount) -> Mount {
        Mount {
            id: 0,
            parent: 0,
            device: DeviceNumber::new(0, 0),
            mount_point: PathBuf::new(),
            propagation: Propagation::default(),
            ..mounted.info()
        }
    }

    /// Mounts with both, and returns a description of the difference, if any. If `must_succeed` is true, it is also a
    /// difference if both fail.
    fn compare(&self, options: &str, must_succeed: bool) -> Option<String> {
        wait_until_free(&self.loop_device.device());
        let expected = self.mount_with_mount8(options);
        wait_until_free(&self.loop_device.device());
        let found = self.mount_with_crate(options);
        let same = match (&expected, &found) {
            (Ok(expected), Ok(found)) => expected == found,
            (Err(_), Err(_)) => !must_succeed,
            _ => false,
        };
        let fstype = self.fstype;
        let difference =
            || format!("{fstype} {options}\n  mount(8): {expected:?}\n  blockfs: {found:?}");
        (!same).then(difference)
    }
}

fn assert_same_as_mount8(test: &str, fstype: &'static str, tables: &[&[&str]]) {
    in_mount_namespace(&format!("mount8::{test}"), || {
        let comparison = Comparison::new(fstype);
        let options = tables.concat().into_iter().map(|options| (options, true));
        let optional = OPTIONAL.iter().map(|options| (*options, false));
        let differences = options
            .chain(optional)
            .filter_map(|(options, must_succeed)| comparison.compare(options, must_succeed));
        let differences: Vec<_> = differences.collect();
        assert!(differences.is_empty(), "{}", differences.join("\n"));
    });
}

#[test]
fn ext4_is_mounted_like_mount8_does() {
    assert_same_as_mount8(
        "ext4_is_mounted_like_mount8_does",
        "ext4",
        &[GENERIC, EXT, EXT4],
    );
}

#[test]
fn ext3_is_mounted_like_mount8_does() {
    assert_same_as_mount8("ext3_is_mounted_like_mount8_does", "ext3", &[GENERIC, EXT]);
}

#[test]
fn xfs_is_mounted_like_mount8_does() {
    assert_same_as_mount8("xfs_is_mounted_like_mount8_does", "xfs", &[GENERIC, XFS]);
}

#[test]
fn btrfs_is_mounted_like_mount8_does() {
    assert_same_as_mount8(
        "btrfs_is_mounted_like_mount8_does",
        "btrfs",
        &[GENERIC, BTRFS],
    );
}
