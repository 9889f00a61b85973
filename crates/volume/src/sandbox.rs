//! The pod's sandbox: a tmpfs at `/.crust` in its mount namespace, and the volumes on it.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use crust_blockfs::{DeviceNumber, openat2};
use crust_state::Digest;
use crust_state::sandbox::SandboxRecord;
use rustix::fs::{
    AtFlags, Mode, OFlags, ResolveFlags, StatxAttributes, StatxFlags, fchmod, openat, stat, statx,
};
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, move_mount};

use crate::namespace::{self, MountNamespace, NamespaceError};
use crate::tmpfs;
use crust_blockfs::errno::Name;
use crust_blockfs::fstypes::hint_for_volume_error;
use crust_blockfs::mountinfo::{MountInfo, MountInfoError, has_option};
use crust_blockfs::view::ViewError;
use crust_blockfs::{device_mounts, sys};

/// The directory of the volumes in a sandbox.
pub const SANDBOX_CRUST_DIR: &str = "/.crust";

/// The file in it with the sandbox's id.
const ID: &str = "id";

/// The error of entering or using a sandbox.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// Its namespace can't be entered.
    #[error("sandbox {id}: {source}; hint: has the pod's sandbox ended? kubelet makes a new one")]
    Namespace {
        /// The sandbox.
        id: String,
        /// The call.
        source: NamespaceError,
    },
    /// The recorded process lives no more.
    #[error("sandbox {id}: process {pid} has ended; hint: kubelet makes a new sandbox")]
    Ended {
        /// The sandbox.
        id: String,
        /// Its first process.
        pid: i32,
    },
    /// The namespace is another one's: the pid was given away.
    #[error(
        "sandbox {id}: the namespace of process {pid} belongs to sandbox {found:?}; hint: kubelet makes a new sandbox"
    )]
    ForeignNamespace {
        /// The sandbox that was looked for.
        id: String,
        /// The process.
        pid: i32,
        /// What was found.
        found: String,
    },
    /// The delegate made no `/.crust`.
    #[error("sandbox {id}: no tmpfs at {SANDBOX_CRUST_DIR} in the namespace of process {pid}")]
    NoTmpfs {
        /// The sandbox.
        id: String,
        /// The process.
        pid: i32,
    },
    /// Something else is mounted in a volume's place.
    #[error(
        "sandbox {id}: what is mounted at {place} is on device {found} instead of {expected}; hint: \
         let the pod be made anew"
    )]
    OtherDevice {
        /// The sandbox.
        id: String,
        /// The volume's place.
        place: String,
        /// The file system's device number.
        found: DeviceNumber,
        /// The volume's.
        expected: DeviceNumber,
    },
    /// What was mounted in a volume's place isn't any more.
    #[error(
        "sandbox {id}: what was mounted at {place} is gone; hint: has the pod ended meanwhile?"
    )]
    Unmounted {
        /// The sandbox.
        id: String,
        /// The volume's place.
        place: String,
    },
    /// Its mounts can't be read.
    #[error("sandbox {id}: {source}")]
    Mounts {
        /// The sandbox.
        id: String,
        /// The file, and why.
        source: MountInfoError,
    },
    /// A call in the sandbox failed.
    #[error("sandbox {id}: {call}: {}{}", Name(*errno), hint_for_volume_error(*errno))]
    Call {
        /// The sandbox.
        id: String,
        /// The call, with its arguments.
        call: String,
        /// The kernel's answer.
        errno: Errno,
    },
    /// A volume can't be shown as a container wants it.
    #[error(transparent)]
    View(#[from] ViewError),
}

/// A running sandbox.
#[derive(Debug)]
pub struct Sandbox {
    id: String,
    namespace: MountNamespace,
    /// The path of its `/.crust` as long as this value is used: before `pivot_root`, below the bundle's root file
    /// system.
    directory: PathBuf,
}

impl Sandbox {
    /// The sandbox of a record, for a container that joins it.
    ///
    /// The order is pidfd, setns, then the id in `/.crust`: by then the namespace is fixed and
    /// nothing races. The start time in the record is only a cheap first look; with pid reuse two
    /// processes within one clock tick have the same.
    pub fn open(record: &SandboxRecord) -> Result<Self, SandboxError> {
        let (id, pid) = (record.id.clone(), record.process.pid);
        let namespace =
            MountNamespace::of_process(pid).map_err(|source| out_of_reach(&id, pid, source))?;
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
            reason = "its lifetime is the call's"
        )]
        let found = sandbox.enter(|inside| inside.read_id())?;
        if found == sandbox.id {
            return Ok(sandbox);
        }
        Err(SandboxError::ForeignNamespace {
            id: sandbox.id,
            pid,
            found,
        })
    }

    /// The sandbox whose create runs: its process waits, from runc and older crun before
    /// `pivot_root`, from newer crun after it. Marks the `/.crust` as this sandbox's.
    pub fn open_during_create(id: &str, pid: i32, rootfs: &Path) -> Result<Self, SandboxError> {
        let id = id.to_owned();
        let namespace =
            MountNamespace::of_process(pid).map_err(|source| out_of_reach(&id, pid, source))?;
        let below_rootfs = rootfs.join(SANDBOX_CRUST_DIR.trim_start_matches('/'));
        let mut sandbox = Self {
            id,
            namespace,
            directory: below_rootfs,
        };
        let below_rootfs = sandbox.has_crust();
        if !matches!(below_rootfs, Ok(true)) {
            sandbox.directory = SANDBOX_CRUST_DIR.into();
            if !(sandbox.has_pivoted()? && sandbox.has_crust()?) {
                below_rootfs?;
                let id = sandbox.id;
                return Err(SandboxError::NoTmpfs { id, pid });
            }
        }
        let user_namespace = namespace::has_own_user_namespace(pid);
        if user_namespace.map_err(|errno| sandbox.failed("stat(ns/user)", errno))? {
            // Its tmpfs knows only the ids of its own namespace, and root's isn't one of them.
            let own = tmpfs::detached();
            let own = own.map_err(|errno| sandbox.failed("fsopen(\"tmpfs\")", errno))?;
            sandbox.enter(|inside| inside.cover(&own))?;
        }
        sandbox.enter(|inside| inside.mark(&sandbox.id))?;
        Ok(sandbox)
    }

    /// Whether a tmpfs is mounted on the directory. (The mount table would say so, too, and is as long as the
    /// host's.)
    fn has_crust(&self) -> Result<bool, SandboxError> {
        let looked = self.namespace.enter(|| {
            let crust = self.open_crust()?;
            Ok(is_mount_root(&crust)? && tmpfs::is(&crust)?)
        });
        match looked.map_err(|source| out_of_reach(&self.id, self.namespace.pid(), source))? {
            // A name on the way may be anything of the image's.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(false),
            looked => looked.map_err(|errno| self.failed(self.open_call(), errno)),
        }
    }

    /// Until then `/` is the host's, and a `/.crust` in it somebody else's.
    fn has_pivoted(&self) -> Result<bool, SandboxError> {
        let root = || stat("/").map(|root| (root.st_dev, root.st_ino));
        let there = self.namespace.enter(root);
        let there = there.map_err(|source| out_of_reach(&self.id, self.namespace.pid(), source))?;
        let have_moved = there.and_then(|there| Ok(there != root()?));
        have_moved.map_err(|errno| self.failed("stat(/)", errno))
    }

    /// From within its namespace.
    fn open_crust(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        openat2::open(rustix::fs::CWD, self.directory.as_path(), flags, resolve)
    }

    fn open_call(&self) -> String {
        format!("open({})", self.directory.display())
    }

    /// The sandbox's id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Runs `work` in the sandbox's mount namespace.
    pub fn enter<T>(
        &self,
        work: impl FnOnce(&SandboxNamespace<'_>) -> Result<T, SandboxError>,
    ) -> Result<T, SandboxError> {
        let done = self.namespace.enter(|| {
            let crust = self
                .open_crust()
                .map_err(|errno| self.failed(self.open_call(), errno))?;
            work(&SandboxNamespace {
                sandbox: self,
                crust,
            })
        });
        done.map_err(|source| out_of_reach(&self.id, self.namespace.pid(), source))?
    }

    /// A volume that is mounted in it; `None` if it isn't. Another device's file system in its place
    /// is an error.
    pub fn find_mount(
        &self,
        volume: Digest,
        device: DeviceNumber,
    ) -> Result<Option<SandboxMount>, SandboxError> {
        let name = volume.to_string();
        let Some(root) = self.enter(|inside| inside.mounted(&name))? else {
            return Ok(None);
        };
        // From the host's namespace, where a btrfs' source can be looked at.
        let there = MountInfo::of_process(self.namespace.pid()).and_then(|table| {
            let id = device_mounts::mount_id(&root);
            id.map_or(Ok(None), |id| table.mount(id.into()))
        });
        let id = self.id.clone();
        match there.map_err(|source| SandboxError::Mounts { id, source })? {
            Some(mount) if device_mounts::is_on(&mount, device) => Ok(Some(SandboxMount {
                root,
                is_read_only: has_option(&mount.options, "ro"),
                fstype: mount.fstype,
                super_options: mount.super_options.unescaped(),
            })),
            Some(mount) => Err(SandboxError::OtherDevice {
                id: self.id.clone(),
                place: format!("{SANDBOX_CRUST_DIR}/{name}"),
                found: mount.device,
                expected: device,
            }),
            None => Err(SandboxError::Unmounted {
                id: self.id.clone(),
                place: format!("{SANDBOX_CRUST_DIR}/{name}"),
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

/// A volume that is mounted in a sandbox.
#[derive(Debug)]
pub struct SandboxMount {
    /// Its root.
    pub root: OwnedFd,
    /// This mount is read-only, whatever its superblock is.
    pub is_read_only: bool,
    /// The name of its file system.
    pub fstype: OsString,
    /// Its superblock's options, as the kernel shows them.
    pub super_options: OsString,
}

fn is_mount_root(directory: &OwnedFd) -> Result<bool, Errno> {
    let stat = statx(directory, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
    Ok(stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// Both calls name a process that has ended by ESRCH, once somebody has waited for it.
fn out_of_reach(id: &str, pid: i32, source: NamespaceError) -> SandboxError {
    let id = id.to_owned();
    if source.errno == Errno::SRCH {
        return SandboxError::Ended { id, pid };
    }
    SandboxError::Namespace { id, source }
}

/// The sandbox's `/.crust`, from within its mount namespace.
#[derive(Debug)]
pub struct SandboxNamespace<'a> {
    sandbox: &'a Sandbox,
    crust: OwnedFd,
}

impl SandboxNamespace<'_> {
    fn read_id(&self) -> Result<String, SandboxError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(&self.crust, ID, flags, Mode::empty()).map_err(|errno| {
            self.sandbox
                .failed(format!("open({SANDBOX_CRUST_DIR}/{ID})"), errno)
        })?;
        // An id has at most 240 bytes.
        let mut bytes = [0; 256];
        let length = rustix::io::read(file, &mut bytes).map_err(|errno| {
            self.sandbox
                .failed(format!("read({SANDBOX_CRUST_DIR}/{ID})"), errno)
        })?;
        Ok(String::from_utf8_lossy(&bytes[..length]).into_owned())
    }

    fn cover(&self, tmpfs: &OwnedFd) -> Result<(), SandboxError> {
        let onto =
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        // Private first: what is mounted below a shared mount propagates with its own mounts.
        sys::set_propagation_private(&self.crust)
            .and_then(|()| move_mount(tmpfs, "", &self.crust, "", onto))
            .map_err(|errno| {
                self.sandbox
                    .failed(format!("move_mount(tmpfs, {SANDBOX_CRUST_DIR})"), errno)
            })
    }

    /// Makes the tmpfs private, so that no volume ever propagates out of it, and writes the id.
    fn mark(&self, id: &str) -> Result<(), SandboxError> {
        let fail = |call: &str| {
            let call = call.to_owned();
            move |errno| self.sandbox.failed(call, errno)
        };
        sys::set_propagation_private(&self.crust).map_err(fail("mount_setattr(MS_PRIVATE)"))?;
        // runc gives a tmpfs the mode of the directory that it is mounted on, whatever was asked for.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(&self.crust, ".", flags, Mode::empty()).map_err(fail("open"))?;
        fchmod(directory, Mode::RWXU).map_err(fail("fchmod"))?;
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&self.crust, ID, flags, Mode::RUSR).map_err(fail("create(id)"))?;
        let written = rustix::io::write(file, id.as_bytes()).map_err(fail("write(id)"))?;
        if written == id.len() {
            Ok(())
        } else {
            Err(fail("write(id)")(Errno::NOSPC))
        }
    }

    /// The root of what is mounted for a volume here; `None` if nothing is.
    fn mounted(&self, name: &str) -> Result<Option<OwnedFd>, SandboxError> {
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

    /// Mounts a volume here.
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
