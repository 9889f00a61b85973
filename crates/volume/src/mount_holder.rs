//! Holds the mount of a share until its users have ended.
//!
//! With version 4.1 and later of NFS, the kernel ends its session with a server when the node's last mount of it goes
//! away (`nfs41_shutdown_client` of fs/nfs/nfs4client.c). The process that gives up this mount waits for the server, for
//! up to six minutes, and neither a signal nor `MNT_FORCE` reaches it. It would be the first process of a pod, or a
//! create that fails after its mount. So another process has a descriptor of the mount: the holder. It gives the mount
//! up after the others, where nobody waits for it.

use std::ffi::CStr;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crust_blockfs::sys;
use crust_state::record::User;
use crust_state::{Config, CrustDirectory, Process, TargetPath, Volume};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{
    DumpableBehavior, Pid, PidfdFlags, chroot, fchdir, getpid, getppid, pidfd_open,
    set_dumpable_behavior,
};
use rustix::stdio::{dup2_stderr, dup2_stdout, stdin};
use rustix::thread::set_name;

use super::error::{Cause, VolumeError};
use super::server_wait::ANSWER_TIMEOUT;
use crate::privileges::{self, Operation};
use crate::tmpfs;

/// The subcommand of `runcrust crust` that calls [`hold_mount`], and the name of the process (`/proc/<pid>/comm`).
pub const HOLD_MOUNT: &str = "hold-mount";
const PROCESS_NAME: &CStr = c"hold-mount";

/// The time for which the mount is held after its last user has ended. Processes that still call the server then, such
/// as `gc` and `stats`, give up first.
const LINGER: Duration = ANSWER_TIMEOUT.saturating_add(Duration::from_secs(5));

/// The holder of a mount that is about to be made.
#[derive(Debug, Clone, Copy)]
pub(super) struct MountHolder<'a> {
    /// runcrust, under the name that selects its configuration.
    pub(super) cli: &'a Path,
    pub(super) target: &'a TargetPath,
    /// The id of the sandbox that has the mount; for a container without a sandbox, its own id.
    pub(super) sandbox_id: &'a str,
}

impl MountHolder<'_> {
    /// Starts the holder, and returns when it runs in the background.
    ///
    /// A failure is logged and otherwise ignored, because a holder is only needed if the server stops answering.
    pub(super) fn start(self, mount: &OwnedFd) {
        if let Err(error) = self.try_start(mount) {
            tracing::warn!(
                volume = %self.target,
                "failed to start the process that holds the share's mount: {error}; hint: if the server doesn't answer \
                 when the pod ends, the pod's end takes up to six minutes"
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
            // its children. So the holder continues as a new process, and this call waits for the first one only.
            Command::new(self.cli)
                .args(["crust", HOLD_MOUNT, "--creator"])
                .arg(getpid().to_string())
                .arg("--")
                .args([self.target.as_path().as_os_str(), self.sandbox_id.as_ref()])
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

/// Holds the mount that is open as standard input until all users of the volume in a sandbox have ended.
///
/// Continues in a new process, in the background. That process leaves all mounts and capabilities behind, and all
/// descriptors that it was started with. It waits for the process `creator`, which makes the user, and then for the
/// processes that the volume's record has for the sandbox and its containers.
pub fn hold_mount(
    config: &Config,
    target: &TargetPath,
    sandbox_id: &str,
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
        let own = Process::current().map_err(|source| Cause::Process {
            pid: getpid().as_raw_nonzero().get(),
            source,
        })?;
        leave_host()?;
        sys::continue_in_background().map_err(failed("daemon"))?;
        // From here on nobody reads an error. The creator reads standard error until its end.
        let _ = dup2_stdout(&null);
        let _ = dup2_stderr(&null);
        drop(null);
        wait_for_end(creator);
        // Without a user, the create has failed. Containers may join the sandbox meanwhile.
        while let Some(process) = find_live_user(&volume, sandbox_id, &own) {
            wait_for_end(process);
        }
        drop(volume);
        std::thread::sleep(LINGER);
        Ok(())
    };
    held().map_err(|cause| VolumeError::new(target, cause))
}

/// Gives up the mounts, the root directory and the capabilities. So the process neither keeps devices of the node busy
/// nor gives other processes access to the share.
fn leave_host() -> Result<(), Cause> {
    set_name(PROCESS_NAME).map_err(failed("prctl(PR_SET_NAME)"))?;
    // A process without capabilities could otherwise be accessed by one of a container that has the host's processes
    // (ptrace(2), "Ptrace access mode checking"), which would reach the share by `/proc/<pid>/fd`.
    let behavior = DumpableBehavior::NotDumpable;
    set_dumpable_behavior(behavior).map_err(failed("prctl(PR_SET_DUMPABLE)"))?;
    let root = tmpfs::detached().map_err(failed("fsopen(\"tmpfs\")"))?;
    // The creator's mount namespace has the container's other volumes, whose devices would stay in use.
    sys::leave_all_mounts().map_err(failed("leave the mounts of the creator"))?;
    fchdir(&root).map_err(failed("fchdir(tmpfs)"))?;
    chroot(".").map_err(failed("chroot(tmpfs)"))?;
    Ok(privileges::drop_all_but(Operation::Hold)?)
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

/// Opens the process of a user of the volume in a sandbox that is still alive; `None` if all of them have ended.
///
/// Without `/proc`, a reused pid can't be recognised. In that case the mount is held until the other process has ended.
fn find_live_user(volume: &Volume, sandbox_id: &str, own: &Process) -> Option<OwnedFd> {
    let record = volume.record().ok()??;
    let is_of_sandbox = |user: &&User| {
        user.sandbox == sandbox_id && user.process.pid_namespace == own.pid_namespace
    };
    record.users.iter().filter(is_of_sandbox).find_map(|user| {
        let process = pidfd_open(Pid::from_raw(user.process.pid)?, PidfdFlags::empty());
        process.ok().filter(|process| !has_ended(process))
    })
}

/// Returns whether a process has ended, also if its parent hasn't waited for it yet.
fn has_ended(pidfd: impl AsFd) -> bool {
    let mut events = [PollFd::new(&pidfd, PollFlags::IN)];
    matches!(poll(&mut events, Some(&Timespec::default())), Ok(1))
}

/// Waits until a process has ended: it has closed its descriptors and left its mount namespace by then.
#[expect(
    clippy::needless_pass_by_value,
    reason = "the descriptor is closed at the end"
)]
fn wait_for_end(process: OwnedFd) {
    let mut events = [PollFd::new(&process, PollFlags::IN)];
    let _ = retry_on_intr(|| poll(&mut events, None));
}
