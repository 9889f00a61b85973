//! A pod's sandbox, with a tmpfs at `/.crust` in its mount namespace, on which the pod's volumes are mounted.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use crust_blockfs::{DeviceNumber, openat2};
use crust_state::sandbox::SandboxRecord;
use crust_state::{Backing, Digest};
use rustix::fs::{
    AtFlags, Mode, OFlags, ResolveFlags, StatxAttributes, StatxFlags, fchmod, openat, stat, statx,
};
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, move_mount};

use crate::namespace::{self, MountNamespace, NamespaceError};
use crate::tmpfs;
use crust_blockfs::errno::Name;
use crust_blockfs::fstypes::hint_for_volume_error;
use crust_blockfs::mountinfo::{Mount, MountInfo, MountInfoError, has_option};
use crust_blockfs::view::ViewError;
use crust_blockfs::{device_mounts, sys};

/// The directory of the volumes in a sandbox.
pub const SANDBOX_CRUST_DIR: &str = "/.crust";

/// The name of the file with the sandbox's id in [`SANDBOX_CRUST_DIR`].
const ID_FILE: &str = "id";

/// An error of entering or using a sandbox. In all variants, `id` is the sandbox's id, and `pid` its first process.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The sandbox's mount namespace can't be entered.
    #[error(
        "sandbox {id}: {source}; hint: if the pod's sandbox has ended, wait until kubelet has recreated it"
    )]
    Namespace { id: String, source: NamespaceError },
    #[error(
        "sandbox {id}: process {pid} has ended; hint: wait until kubelet has recreated the sandbox"
    )]
    Ended { id: String, pid: i32 },
    /// The pid was reused, and its process belongs to another sandbox.
    #[error(
        "sandbox {id}: the namespace of process {pid} belongs to sandbox {found:?}; hint: wait until kubelet has \
         recreated the sandbox"
    )]
    ForeignNamespace {
        id: String,
        pid: i32,
        /// The id of the other sandbox.
        found: String,
    },
    #[error(
        "sandbox {id}: no tmpfs at {SANDBOX_CRUST_DIR} in the namespace of process {pid}; hint: recreate the pod"
    )]
    NoTmpfs { id: String, pid: i32 },
    /// Another file system is mounted at a volume's mount point.
    #[error(
        "sandbox {id}: the {fstype} mounted at {mount_point} is on device {found} instead of {expected}; hint: recreate \
         the pod"
    )]
    OtherFileSystem {
        id: String,
        mount_point: String,
        /// The number of the mounted superblock.
        found: DeviceNumber,
        fstype: String,
        /// The volume's device or share.
        expected: Backing,
    },
    /// A volume was unmounted while it was being opened.
    #[error(
        "sandbox {id}: the mount at {mount_point} is gone; hint: recreate the pod, if it still \
         exists"
    )]
    Unmounted { id: String, mount_point: String },
    /// The sandbox's mount table can't be read.
    #[error("sandbox {id}: {source}")]
    Mounts { id: String, source: MountInfoError },
    #[error("sandbox {id}: {call}: {}{}", Name(*errno), hint_for_volume_error(*errno))]
    Call {
        id: String,
        /// The call with its arguments.
        call: String,
        errno: Errno,
    },
    /// A view of a volume can't be made.
    #[error(transparent)]
    View(#[from] ViewError),
}

/// A running sandbox, with its mount namespace open.
#[derive(Debug)]
pub struct Sandbox {
    id: String,
    namespace: MountNamespace,
    /// The path of `/.crust` in the namespace. Before `pivot_root` it is below the bundle's root file system.
    directory: PathBuf,
}

impl Sandbox {
    /// Opens a recorded sandbox, for a container that joins it.
    ///
    /// The namespace is entered by a pidfd before the id in `/.crust` is read, so that the pid can't be reused in
    /// between. The start time in the record is only a cheap check before that: two processes that get the same pid
    /// within one clock tick have the same start time.
    pub fn open(record: &SandboxRecord) -> Result<Self, SandboxError> {
        let (id, pid) = (record.id.clone(), record.process.pid);
        let namespace =
            MountNamespace::open(pid).map_err(|source| enter_error(&id, pid, source))?;
        if !record.process.is_alive() {
            return Err(SandboxError::Ended { id, pid });
        }
        let sandbox = Self {
            id,
            namespace,
            directory: SANDBOX_CRUST_DIR.into(),
        };
        #[expect(
            clippy::redundant_closure_for_method_calls,
            reason = "the method path doesn't satisfy the closure's lifetime"
        )]
        let found = sandbox.enter(|namespace| namespace.read_id())?;
        if found == sandbox.id {
            return Ok(sandbox);
        }
        Err(SandboxError::ForeignNamespace {
            id: sandbox.id,
            pid,
            found,
        })
    }

    /// Opens a sandbox whose create is running, and marks its `/.crust` with its id.
    ///
    /// The sandbox's process waits meanwhile: before `pivot_root` with runc and older crun, after it with newer crun.
    pub fn open_during_create(id: &str, pid: i32, rootfs: &Path) -> Result<Self, SandboxError> {
        let id = id.to_owned();
        let namespace =
            MountNamespace::open(pid).map_err(|source| enter_error(&id, pid, source))?;
        let below_rootfs = rootfs.join(SANDBOX_CRUST_DIR.trim_start_matches('/'));
        let mut sandbox = Self {
            id,
            namespace,
            directory: below_rootfs,
        };
        let found_below_rootfs = sandbox.has_tmpfs();
        if !matches!(found_below_rootfs, Ok(true)) {
            sandbox.directory = SANDBOX_CRUST_DIR.into();
            if !(sandbox.has_pivoted()? && sandbox.has_tmpfs()?) {
                found_below_rootfs?;
                let id = sandbox.id;
                return Err(SandboxError::NoTmpfs { id, pid });
            }
        }
        let user_namespace = namespace::has_own_user_namespace(pid);
        if user_namespace.map_err(|errno| sandbox.failed("stat(ns/user)", errno))? {
            // The delegate's tmpfs belongs to the sandbox's user namespace, in which the host's root has no id.
            let own_tmpfs = tmpfs::detached();
            let own_tmpfs =
                own_tmpfs.map_err(|errno| sandbox.failed("fsopen(\"tmpfs\")", errno))?;
            sandbox.enter(|namespace| namespace.cover(&own_tmpfs))?;
        }
        sandbox.enter(|namespace| namespace.mark(&sandbox.id))?;
        Ok(sandbox)
    }

    /// Returns true if a tmpfs is mounted on the directory. The mount table isn't used, because it is as long as the
    /// host's.
    fn has_tmpfs(&self) -> Result<bool, SandboxError> {
        let checked = self.namespace.enter(|| {
            let crust = self.open_crust()?;
            Ok(is_mount_root(&crust)? && tmpfs::is_tmpfs(&crust)?)
        });
        match checked.map_err(|source| enter_error(&self.id, self.namespace.pid(), source))? {
            // The image may have a file or a link on the path.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(false),
            checked => checked.map_err(|errno| self.failed(self.open_call(), errno)),
        }
    }

    /// Returns true if the sandbox's process has called `pivot_root`. Before that, `/` is the host's, and a `/.crust`
    /// in it doesn't belong to the sandbox.
    fn has_pivoted(&self) -> Result<bool, SandboxError> {
        let root = || stat("/").map(|root| (root.st_dev, root.st_ino));
        let sandbox_root = self.namespace.enter(root);
        let sandbox_root =
            sandbox_root.map_err(|source| enter_error(&self.id, self.namespace.pid(), source))?;
        let differs = sandbox_root.and_then(|sandbox_root| Ok(sandbox_root != root()?));
        differs.map_err(|errno| self.failed("stat(/)", errno))
    }

    /// Opens `/.crust`. Must be called within the sandbox's namespace.
    fn open_crust(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        openat2::open(rustix::fs::CWD, self.directory.as_path(), flags, resolve)
    }

    fn open_call(&self) -> String {
        format!("open({})", self.directory.display())
    }

    /// Moves the calling thread to the sandbox's network namespace, for good.
    pub(crate) fn enter_network(&self) -> Result<(), SandboxError> {
        let entered = self.namespace.enter_network();
        entered.map_err(|source| enter_error(&self.id, self.namespace.pid(), source))
    }

    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Runs `work` in the sandbox's mount namespace.
    pub fn enter<T>(
        &self,
        work: impl FnOnce(&SandboxNamespace<'_>) -> Result<T, SandboxError>,
    ) -> Result<T, SandboxError> {
        let result = self.namespace.enter(|| {
            let crust = self
                .open_crust()
                .map_err(|errno| self.failed(self.open_call(), errno))?;
            work(&SandboxNamespace {
                sandbox: self,
                crust,
            })
        });
        result.map_err(|source| enter_error(&self.id, self.namespace.pid(), source))?
    }

    /// Finds the mount of a volume in the sandbox; `None` if the volume isn't mounted. Fails if another file system is
    /// mounted at the volume's mount point. `is_own` recognizes the mounts of the volume on `backing`.
    pub fn find_mount(
        &self,
        volume: Digest,
        backing: &Backing,
        is_own: &dyn Fn(&Mount) -> bool,
    ) -> Result<Option<SandboxMount>, SandboxError> {
        let name = volume.to_string();
        let Some(root) = self.enter(|namespace| namespace.open_mount(&name))? else {
            return Ok(None);
        };
        // Read from the host's namespace, in which the source of a btrfs mount can be opened.
        let mount = MountInfo::read_process(self.namespace.pid()).and_then(|table| {
            let id = device_mounts::mount_id(&root);
            id.map_or(Ok(None), |id| table.mount(id.into()))
        });
        let id = self.id.clone();
        match mount.map_err(|source| SandboxError::Mounts { id, source })? {
            Some(mount) if is_own(&mount) => Ok(Some(SandboxMount {
                root,
                superblock: mount.device,
                is_read_only: has_option(&mount.options, "ro"),
                fstype: mount.fstype,
                super_options: mount.super_options.unescaped(),
            })),
            Some(mount) => Err(SandboxError::OtherFileSystem {
                id: self.id.clone(),
                mount_point: format!("{SANDBOX_CRUST_DIR}/{name}"),
                found: mount.device,
                fstype: mount.fstype.to_string_lossy().into_owned(),
                expected: backing.clone(),
            }),
            None => Err(SandboxError::Unmounted {
                id: self.id.clone(),
                mount_point: format!("{SANDBOX_CRUST_DIR}/{name}"),
            }),
        }
    }

    fn failed(&self, call: impl Into<String>, errno: Errno) -> SandboxError {
        SandboxError::Call {
            id: self.id.clone(),
            call: call.into(),
            errno,
        }
    }
}

#[derive(Debug)]
pub struct SandboxMount {
    /// The root of the volume, opened with `O_PATH`.
    pub root: OwnedFd,
    /// The number of the superblock, as mountinfo shows it.
    pub superblock: DeviceNumber,
    /// Whether the mount is read-only. The superblock may be writable nevertheless.
    pub is_read_only: bool,
    pub fstype: OsString,
    /// The superblock's options as the mount table shows them.
    pub super_options: OsString,
}

fn is_mount_root(directory: &OwnedFd) -> Result<bool, Errno> {
    // Without asking a server, which may not answer.
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = statx(directory, "", flags, StatxFlags::empty())?;
    Ok(stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

fn enter_error(id: &str, pid: i32, source: NamespaceError) -> SandboxError {
    let id = id.to_owned();
    // pidfd_open(2) and setns(2) return ESRCH for a process that has ended and has been waited for.
    if source.errno == Errno::SRCH {
        return SandboxError::Ended { id, pid };
    }
    SandboxError::Namespace { id, source }
}

/// The inside of a sandbox, while the calling thread is in its mount namespace.
#[derive(Debug)]
pub struct SandboxNamespace<'a> {
    sandbox: &'a Sandbox,
    crust: OwnedFd,
}

impl SandboxNamespace<'_> {
    fn read_id(&self) -> Result<String, SandboxError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(&self.crust, ID_FILE, flags, Mode::empty()).map_err(|errno| {
            self.sandbox
                .failed(format!("open({SANDBOX_CRUST_DIR}/{ID_FILE})"), errno)
        })?;
        // Ids have at most 240 bytes.
        let mut bytes = [0; 256];
        let length = rustix::io::read(file, &mut bytes).map_err(|errno| {
            self.sandbox
                .failed(format!("read({SANDBOX_CRUST_DIR}/{ID_FILE})"), errno)
        })?;
        Ok(String::from_utf8_lossy(&bytes[..length]).into_owned())
    }

    /// Mounts another tmpfs over `/.crust`.
    fn cover(&self, tmpfs: &OwnedFd) -> Result<(), SandboxError> {
        let flags =
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        // Made private first, because a mount on a shared mount would propagate.
        sys::set_propagation_private(&self.crust)
            .and_then(|()| move_mount(tmpfs, "", &self.crust, "", flags))
            .map_err(|errno| {
                self.sandbox
                    .failed(format!("move_mount(tmpfs, {SANDBOX_CRUST_DIR})"), errno)
            })
    }

    /// Makes the tmpfs private, so that no volume propagates out of it, and writes the id.
    fn mark(&self, id: &str) -> Result<(), SandboxError> {
        let failed = |call: &str| {
            let call = call.to_owned();
            move |errno| self.sandbox.failed(call, errno)
        };
        sys::set_propagation_private(&self.crust).map_err(failed("mount_setattr(MS_PRIVATE)"))?;
        // runc gives a tmpfs the mode of the directory that it is mounted on, and ignores the requested mode.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(&self.crust, ".", flags, Mode::empty()).map_err(failed("open"))?;
        fchmod(directory, Mode::RWXU).map_err(failed("fchmod"))?;
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&self.crust, ID_FILE, flags, Mode::RUSR).map_err(failed("create(id)"))?;
        let written = rustix::io::write(file, id.as_bytes()).map_err(failed("write(id)"))?;
        if written == id.len() {
            Ok(())
        } else {
            Err(failed("write(id)")(Errno::NOSPC))
        }
    }

    /// Opens the root of the file system that is mounted for a volume; `None` if none is mounted.
    fn open_mount(&self, name: &str) -> Result<Option<OwnedFd>, SandboxError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = match openat(&self.crust, name, flags, Mode::empty()) {
            Ok(root) => root,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => {
                return Err(self
                    .sandbox
                    .failed(format!("open({SANDBOX_CRUST_DIR}/{name})"), errno));
            }
        };
        let is_root = is_mount_root(&root).map_err(|errno| {
            self.sandbox
                .failed(format!("statx({SANDBOX_CRUST_DIR}/{name})"), errno)
        })?;
        Ok(is_root.then_some(root))
    }

    /// Attaches a detached mount of a volume at the volume's mount point.
    pub fn attach(&self, volume: Digest, mount: &OwnedFd) -> Result<(), SandboxError> {
        let name = volume.to_string();
        match rustix::fs::mkdirat(&self.crust, &name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => {
                return Err(self
                    .sandbox
                    .failed(format!("mkdir({SANDBOX_CRUST_DIR}/{name})"), errno));
            }
        }
        move_mount(
            mount,
            "",
            &self.crust,
            &name,
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
        )
        .map_err(|errno| {
            self.sandbox
                .failed(format!("move_mount({SANDBOX_CRUST_DIR}/{name})"), errno)
        })
    }
}
