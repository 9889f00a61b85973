//! Shares of NFS servers as the source of volumes.
//!
//! Several mounts of a share don't endanger its data, since the server coordinates them. So nothing is locked or held,
//! and owners are recorded only to enforce `SINGLE_NODE_SINGLE_WRITER`.

use std::fmt;
use std::os::fd::OwnedFd;

use crust_blockfs::DiskSeq;
use crust_blockfs::device::DeviceFacts;
use crust_blockfs::errno::{Name, from_io_error};
use crust_blockfs::fsgroup::FsGroupError;
use crust_nfs::mount::{MountedShare, ShareMountRequest, mount_detached};
use crust_nfs::{Share, client};
use crust_state::config::NfsNetwork;
use crust_state::lock::{Lock, LockName};
use crust_state::{Backing, BackingKey, MountInfo};
use rustix::fs::{fstatvfs, stat};
use rustix::io::Errno;

use super::{MountSource, OwnerLists, SourceMount, SourceMountRequest};
use crate::context::Context;
use crate::error::Cause;
use crate::sandbox::Sandbox;
use crate::server_wait::{ANSWER_TIMEOUT, run_with_timeout};
use crate::superblock::ShownOptions;
use crate::thread;

/// Mounts a share from the sandbox's network namespace, which only a thread of its own enters.
fn mount_from_network(
    sandbox: &Sandbox,
    request: ShareMountRequest<'_>,
) -> Result<MountedShare, Cause> {
    thread::run(|| {
        sandbox.enter_network()?;
        Ok(mount_detached(&ShareMountRequest {
            is_host_network: is_in_host_network(),
            ..request
        })?)
    })
}

/// Returns whether the calling thread is in the network namespace of this process, as in a pod with `hostNetwork`.
fn is_in_host_network() -> bool {
    let namespace = |thread: &str| stat(format!("/proc/{thread}/ns/net"));
    match (namespace("thread-self"), namespace("self")) {
        (Ok(own), Ok(host)) => (own.st_dev, own.st_ino) == (host.st_dev, host.st_ino),
        _ => false,
    }
}

#[derive(Debug)]
pub(super) struct ShareSource(pub(super) Share);

impl fmt::Display for ShareSource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

impl MountSource for ShareSource {
    fn backing(&self) -> Backing {
        Backing::Share(self.0.clone())
    }

    fn device(&self) -> Option<&DeviceFacts> {
        None
    }

    /// The server refuses each write by itself.
    fn is_read_only(&self) -> Result<bool, Cause> {
        Ok(false)
    }

    fn disk_seq(&self) -> Result<Option<DiskSeq>, Cause> {
        Ok(None)
    }

    fn check_supported(&self, fstype: &str) -> Result<(), Cause> {
        Ok(client::check_kernel(&self.0, fstype)?)
    }

    fn check_staged(&self, _: &MountInfo) -> Result<(), Cause> {
        Ok(())
    }

    fn lock(&self, _: &Context<'_>) -> Result<Option<Lock>, Cause> {
        Ok(None)
    }

    fn lock_owners(&self, context: &Context<'_>, _: bool) -> Result<OwnerLists, Cause> {
        let lock = context.state.lock(LockName::Owners, context.deadline)?;
        let keys = self.find_owner_lists(context)?;
        Ok(OwnerLists { keys, _lock: lock })
    }

    fn find_owner_lists(&self, _: &Context<'_>) -> Result<Vec<BackingKey>, Cause> {
        Ok(vec![self.backing().key()])
    }

    fn check_not_held(&self, _: &Context<'_>) -> Result<(), Cause> {
        Ok(())
    }

    fn seems_held(&self) -> Result<bool, Cause> {
        Ok(false)
    }

    fn check_answers(&self, root: &OwnedFd) -> Result<(), Cause> {
        let failed = |call, errno| Cause::ShareFailed {
            share: self.0.clone(),
            call,
            errno,
        };
        let root = root.try_clone();
        let root = root.map_err(|error| failed("fcntl", from_io_error(&error)))?;
        let answer = run_with_timeout(ANSWER_TIMEOUT, move || fstatvfs(root).map(drop))?;
        match answer {
            Some(answer) => answer.map_err(|errno| failed("fstatfs", errno)),
            None => Err(Cause::NoAnswer {
                share: self.0.clone(),
                seconds: ANSWER_TIMEOUT.as_secs(),
            }),
        }
    }

    fn refused_fs_group(&self, group: u32, error: &FsGroupError) -> Option<Cause> {
        match error {
            FsGroupError::Call { call, path, errno }
                if matches!(*errno, Errno::PERM | Errno::ACCESS) =>
            {
                Some(Cause::RefusedFsGroup {
                    share: self.0.clone(),
                    group,
                    error: format!("{call}({:?}): {}", path.display(), Name(*errno)),
                })
            }
            _ => None,
        }
    }

    fn fs_group_cause(&self, error: FsGroupError) -> Cause {
        match &error {
            // The limit on open files is this node's.
            FsGroupError::Call { errno, .. } if *errno == Errno::MFILE => error.into(),
            FsGroupError::Call { .. } | FsGroupError::RepeatedEntries { .. } => {
                let share = self.0.clone();
                Cause::ShareFsGroup { share, error }
            }
            _ => error.into(),
        }
    }

    fn shown_options(&self) -> ShownOptions {
        ShownOptions::Negotiated
    }

    fn mount(&self, request: &SourceMountRequest<'_>) -> Result<SourceMount, Cause> {
        let context = request.context;
        let share_request = ShareMountRequest {
            share: &self.0,
            fstype: request.fstype,
            options: request.options,
            is_host_network: true,
            deadline: context.deadline,
        };
        let mounted = match (context.config.nfs_network, request.sandbox) {
            (NfsNetwork::Sandbox, Some(sandbox)) => mount_from_network(sandbox, share_request)?,
            _ => mount_detached(&share_request)?,
        };
        if let Some(holder) = request.holder
            && mounted.version.has_session()
        {
            holder.start(&mounted.mount);
        }
        tracing::debug!(share = %self.0, version = %mounted.version, "mounted the share");
        Ok(SourceMount {
            root: mounted.mount,
            superblock: Some(mounted.superblock),
        })
    }
}
