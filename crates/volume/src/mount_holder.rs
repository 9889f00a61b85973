//! Holds the mount of a share until its user has ended.
//!
//! With version 4.1 and later of NFS, the kernel ends its session with a server when the node's last mount of it goes
//! away (`nfs41_shutdown_client` of fs/nfs/nfs4client.c). The process that gives up this mount waits for the server, for
//! up to six minutes, and neither a signal nor `MNT_FORCE` reaches it. It would be the first process of a pod, or a
//! create that fails after its mount. So another process has a descriptor of the mount: the holder. It gives the mount
//! up after the others, where nobody waits for it.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};

use crust_blockfs::sys;
use crust_state::record::User;
use crust_state::{Config, CrustDirectory, TargetPath, Volume};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Pid, PidfdFlags, chdir, getpid, getppid, pidfd_open};
use rustix::stdio::{dup2_stderr, dup2_stdout, stdin};

use super::error::{Cause, VolumeError};
use crate::privileges::{self, Operation};

/// The subcommand of `runcrust crust` that calls [`hold_mount`].
pub const HOLD_MOUNT: &str = "hold-mount";

/// The holder of a mount that is about to be made.
#[derive(Debug, Clone, Copy)]
pub(super) struct MountHolder<'a> {
    /// runcrust, under the name that selects its configuration.
    pub(super) cli: &'a Path,
    pub(super) target: &'a TargetPath,
    /// The id of the container or sandbox in the volume's record.
    pub(super) user_id: &'a str,
}

impl MountHolder<'_> {
    /// Starts the holder. Returns when it has all that it needs from this process.
    ///
    /// A failure is logged. The mount is as good without a holder, as long as its server answers.
    pub(super) fn start(self, mount: &OwnedFd) {
        if let Err(error) = self.try_start(mount) {
            tracing::warn!(
                volume = %self.target,
                "failed to start the process that holds the share's mount, so the end of the pod may wait for the \
                 server: {error}"
            );
        }
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the program is executed beside the delegate, and not in its place"
    )]
    fn try_start(self, mount: &OwnedFd) -> Result<(), String> {
        let run = || {
            // The holder must not stay a child of this process, which becomes the delegate: `crun run` waits for all
            // its children. So it starts itself again, and the first process ends.
            Command::new(self.cli)
                .args(["crust", HOLD_MOUNT, "--creator"])
                .arg(getpid().to_string())
                .arg("--")
                .args([self.target.as_path().as_os_str(), self.user_id.as_ref()])
                .env_clear()
                .stdin(mount.try_clone()?)
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .output()
        };
        let failed = |reason: &dyn std::fmt::Display| format!("{}: {reason}", self.cli.display());
        let output = run().map_err(|error| failed(&error))?;
        if !output.status.success() {
            let reason = String::from_utf8_lossy(&output.stderr);
            return Err(failed(&format_args!(
                "{}: {}",
                output.status,
                reason.trim()
            )));
        }
        Ok(())
    }
}

fn failed(call: impl Into<String>) -> impl FnOnce(Errno) -> Cause {
    let call = call.into();
    move |errno| Cause::Call { call, errno }
}

/// Holds the mount that is open as standard input until a user of the volume has ended.
///
/// Continues in a new process, in the background. That process keeps nothing but the mount: no other mount and no other
/// descriptor that it was started with, and no capability. It waits for the process `creator`, which makes the user, and
/// then for the process that the volume's record has for the user.
pub fn hold_mount(
    config: &Config,
    target: &TargetPath,
    user_id: &str,
    creator: i32,
) -> Result<(), VolumeError> {
    let held = || -> Result<(), Cause> {
        let flags = fcntl_getfl(stdin()).map_err(failed("fcntl(standard input)"))?;
        if !flags.contains(OFlags::PATH) {
            return Err(Cause::NoMountToHold);
        }
        // The delegate and its caller may have left some open for this process, such as a lock or a pipe.
        sys::close_inherited_descriptors().map_err(failed("close_range"))?;
        let creator = open_parent(creator)?;
        let null = File::options().write(true).open("/dev/null");
        let null = null.map_err(|error| Cause::Call {
            call: "open(\"/dev/null\")".to_owned(),
            errno: Errno::from_io_error(&error).unwrap_or(Errno::IO),
        })?;
        let volume = CrustDirectory::new(config).volume(target)?;
        let volume = volume.ok_or_else(|| Cause::NotStaged(target.clone()))?;
        chdir("/").map_err(failed("chdir(\"/\")"))?;
        // The creator's mount namespace has the container's other volumes, whose devices would stay in use.
        sys::leave_all_mounts().map_err(failed("leave the mounts of the creator"))?;
        privileges::drop_all_but(Operation::Hold)?;
        sys::continue_in_background().map_err(failed("daemon"))?;
        // From here on nobody reads an error. The creator reads standard error until its end.
        let _ = dup2_stdout(&null);
        let _ = dup2_stderr(&null);
        wait_for_end(&creator);
        // Without the user's process, its create has failed.
        if let Some(process) = open_process_of_user(&volume, user_id) {
            wait_for_end(&process);
        }
        Ok(())
    };
    held().map_err(|cause| VolumeError::new(target, cause))
}

/// Opens the process that has started this one. Fails if it has ended already.
fn open_parent(pid: i32) -> Result<OwnedFd, Cause> {
    let call = || format!("pidfd_open({pid})");
    let parent = Pid::from_raw(pid)
        .ok_or(Errno::SRCH)
        .map_err(failed(call()))?;
    let pidfd = pidfd_open(parent, PidfdFlags::empty()).map_err(failed(call()))?;
    if getppid() != Some(parent) {
        return Err(failed(call())(Errno::SRCH));
    }
    Ok(pidfd)
}

/// Opens the process of a user of the volume; `None` if it isn't a user, or has ended.
///
/// There is no `/proc` that could show whether another process has the pid by now. Then the mount is held until that one
/// has ended.
fn open_process_of_user(volume: &Volume, user_id: &str) -> Option<OwnedFd> {
    let record = volume.record().ok()??;
    let is_user = |user: &&User| user.id == user_id;
    let pid = record.users.iter().find(is_user)?.process.pid;
    pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()
}

/// Waits until a process has ended: it has closed its descriptors and left its mount namespace by then.
fn wait_for_end(pidfd: impl AsFd) {
    let mut events = [PollFd::new(&pidfd, PollFlags::IN)];
    let _ = retry_on_intr(|| poll(&mut events, None));
}
