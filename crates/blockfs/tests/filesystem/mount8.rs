//! Options as mount(8) takes them: the same list gives the same line in mountinfo, for each file
//! system and every option that it has.
//!
//! Two things differ on purpose and aren't in the tables: of `noatime`, `relatime` and
//! `strictatime` the last one counts here, while mount(2) has an order of its own; and a device
//! that is read-only is an error for a read-write mount, while mount(8) makes it a read-only one.

use std::path::PathBuf;

use crust_blockfs::device::DeviceNumber;
use crust_blockfs::mountinfo::{Mount, Propagation};

use crate::mount;
use crate::support::{Image, Loop, Mounted, in_own_mount_namespace, wait_until_free};

/// What any file system takes, or only programs that read fstab.
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

/// ext3's are a part of them, since its driver is ext4's.
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

/// What a kernel may have been built without: there neither takes it.
const BY_CONFIGURATION: &[&str] = &[
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

struct Scene {
    fstype: &'static str,
    on: Loop,
    point: tempfile::TempDir,
    _image: Image,
}

impl Scene {
    fn new(fstype: &'static str) -> Self {
        let image = Image::made(fstype, &[]);
        let scene = Self {
            fstype,
            on: image.attach(),
            point: tempfile::tempdir().expect("a temporary directory"),
            _image: image,
        };
        // The first mount of all may leave its mark (btrfs makes its free space tree).
        scene.by_mount8("rw").expect("it can be mounted");
        scene
    }

    fn by_mount8(&self, options: &str) -> Result<Mount, String> {
        let mount = Mounted::device(self.on.path(), self.point.path(), self.fstype, options)?;
        Ok(Self::line(&mount))
    }

    fn by_us(&self, options: &str) -> Result<Mount, String> {
        let mount = mount(&self.on, self.fstype, &[options], true);
        let mount = mount.map_err(|error| error.to_string())?;
        Ok(Self::line(&Mounted::attached(&mount, self.point.path())))
    }

    /// What mountinfo says, without what differs from mount to mount.
    fn line(mounted: &Mounted) -> Mount {
        Mount {
            id: 0,
            parent: 0,
            device: DeviceNumber::new(0, 0),
            mount_point: PathBuf::new(),
            propagation: Propagation::default(),
            ..mounted.info()
        }
    }

    /// What differs. Where both are to take the options, neither is a difference too.
    fn compare(&self, options: &str, both: bool) -> Option<String> {
        wait_until_free(&self.on.device());
        let theirs = self.by_mount8(options);
        wait_until_free(&self.on.device());
        let ours = self.by_us(options);
        let same = match (&theirs, &ours) {
            (Ok(theirs), Ok(ours)) => theirs == ours,
            (Err(_), Err(_)) => !both,
            _ => false,
        };
        let fstype = self.fstype;
        let told = || format!("{fstype} {options}\n  mount(8): {theirs:?}\n  here: {ours:?}");
        (!same).then(told)
    }
}

fn the_same_as_by_mount8(test: &str, fstype: &'static str, tables: &[&[&str]]) {
    in_own_mount_namespace(&format!("mount8::{test}"), || {
        let scene = Scene::new(fstype);
        let options = tables.concat().into_iter().map(|options| (options, true));
        let maybe = BY_CONFIGURATION.iter().map(|options| (*options, false));
        let different = options
            .chain(maybe)
            .filter_map(|(options, both)| scene.compare(options, both));
        let different: Vec<_> = different.collect();
        assert!(different.is_empty(), "{}", different.join("\n"));
    });
}

#[test]
fn ext4_is_mounted_as_by_mount8() {
    the_same_as_by_mount8(
        "ext4_is_mounted_as_by_mount8",
        "ext4",
        &[GENERIC, EXT, EXT4],
    );
}

#[test]
fn ext3_is_mounted_as_by_mount8() {
    the_same_as_by_mount8("ext3_is_mounted_as_by_mount8", "ext3", &[GENERIC, EXT]);
}

#[test]
fn xfs_is_mounted_as_by_mount8() {
    the_same_as_by_mount8("xfs_is_mounted_as_by_mount8", "xfs", &[GENERIC, XFS]);
}

#[test]
fn btrfs_is_mounted_as_by_mount8() {
    the_same_as_by_mount8("btrfs_is_mounted_as_by_mount8", "btrfs", &[GENERIC, BTRFS]);
}
