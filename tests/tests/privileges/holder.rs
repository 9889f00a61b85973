//! The process that holds the mount of a share, `runcrust crust hold-mount`. Here it holds a directory; the suite `nfs`
//! tests with servers that nobody waits for them.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::libc::{O_DIRECTORY, O_PATH};
use runcrust_tests::container::end;
use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::{Run, StagedVolume, on_each_delegate, process, wait_until};

use super::{capability_sets, needed_capabilities, sets};

fn open_directory(path: &Path) -> OwnedFd {
    let mut options = fs::File::options();
    let options = options.read(true).custom_flags(O_PATH | O_DIRECTORY);
    options.open(path).expect("a directory").into()
}

/// Starts a holder of the test's directory for a sandbox. Returns its creator, which has left it a descriptor of `/etc`
/// and waits, and the holder.
fn start_holder(volume: &StagedVolume, sandbox: &str) -> (Child, i32) {
    // It reads standard error until its end, as runcrust does: until the holder is in the background.
    let hold = r#""$0" crust hold-mount --creator $$ -- "$1" "$2" 7< /etc 2>&1"#;
    let script = format!("e=$({hold}) && exec sleep 1000; echo \"$e\"");
    let creator = Command::new("sh")
        .args(["-c", &script])
        .arg(volume.handler().path())
        .arg(&volume.target)
        .arg(sandbox)
        .stdin(open_directory(volume.dir().path()))
        .spawn()
        .expect("sh");
    let pid = i32::try_from(creator.id()).expect("a pid");
    wait_until(
        "the holder to continue in the background",
        WAIT_TIMEOUT,
        || process::with_command_line(|line| line.starts_with("sleep\0")).contains(&pid),
    );
    let found = process::with_command_line(|line| {
        let words: Vec<_> = line.split('\0').collect();
        words.contains(&"hold-mount")
            && words.contains(&sandbox)
            && line.contains(volume.handler().name())
    });
    assert_eq!(found.len(), 1);
    (creator, found[0])
}

/// Returns what the descriptors of a process lead to.
fn descriptors(pid: i32) -> Vec<PathBuf> {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).expect("the process is running");
    // The process may close one meanwhile.
    let links = open.map(|entry| fs::read_link(entry.unwrap().path()).ok());
    links.flatten().collect()
}

/// Returns the processes that a process waits for: those of its pidfds (`/proc/<pid>/fdinfo`).
fn awaited(pid: i32) -> Vec<i32> {
    let open = fs::read_dir(format!("/proc/{pid}/fdinfo")).expect("the process is running");
    let infos = open.map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap_or_default());
    let pids = infos.filter_map(|info| {
        let line = info.lines().find_map(|line| line.strip_prefix("Pid:"))?;
        line.trim().parse().ok()
    });
    pids.collect()
}

#[track_caller]
fn assert_awaits(holder: i32, pid: i32) {
    wait_until("the holder to wait for a process", WAIT_TIMEOUT, || {
        awaited(holder) == [pid]
    });
}

on_each_delegate! {
    fn a_holder_keeps_nothing_else_and_ends_after_its_pod(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        let app = volume.run(&volume.app_bundle(&sandbox).write());
        let (mut creator, holder) = start_holder(&volume, sandbox.id());
        let mounts = fs::read_to_string(format!("/proc/{holder}/mountinfo")).unwrap();
        assert_eq!(mounts, "");
        assert_eq!(fs::read_dir(format!("/proc/{holder}/root")).unwrap().count(), 0);
        assert_eq!(sets(holder), capability_sets(needed_capabilities("hold")));
        let open = descriptors(holder);
        assert!(!open.contains(&"/etc".into()), "{open:?}");
        // A path outside of all mounts is shown without its mount point.
        let held = volume.dir().path().file_name().unwrap();
        assert!(open.iter().any(|path| path.file_name() == Some(held)), "{open:?}");
        // Like a container that has the host's processes.
        let mut attack = Command::new("setpriv");
        attack.args(["--bounding-set", "-all", "--inh-caps", "-all", "ls"]);
        let refused = Run::capture(attack.arg(format!("/proc/{holder}/fd/0/"))).failure();
        assert!(refused.stderr.contains("Permission denied"), "{refused}");

        assert_awaits(holder, i32::try_from(creator.id()).unwrap());
        creator.kill().unwrap();
        creator.wait().unwrap();
        assert_awaits(holder, sandbox.pid());
        // The container still has the mount.
        process::kill_and_wait(sandbox.pid());
        assert_awaits(holder, app.pid());
        end([app, sandbox]);
        wait_until("the holder to end", WAIT_TIMEOUT, || !process::is_alive(holder));
    }

    fn a_holder_without_a_user_ends_after_its_creator(delegate: Delegate) {
        let volume = StagedVolume::new(delegate);
        let (mut creator, holder) = start_holder(&volume, "no-such-sandbox");
        assert_awaits(holder, i32::try_from(creator.id()).unwrap());
        creator.kill().unwrap();
        creator.wait().unwrap();
        wait_until("the holder to end", WAIT_TIMEOUT, || !process::is_alive(holder));
    }

    fn a_holder_is_only_started_by_runcrust(delegate: Delegate) {
        let volume = StagedVolume::new(delegate);
        let hold = |creator: u32, stdin: Stdio| {
            let mut command = volume.handler().command();
            command.args(["crust", "hold-mount", "--creator", &creator.to_string()]);
            let command = command.arg(&volume.target).arg("sandbox").stdin(stdin);
            let output = command.output().expect("runcrust");
            assert!(!output.status.success());
            String::from_utf8(output.stderr).unwrap()
        };
        let own = std::process::id();
        let error = hold(own, Stdio::null());
        assert!(error.contains("only runcrust itself calls hold-mount"), "{error}");
        let error = hold(1, open_directory(volume.dir().path()).into());
        assert!(error.contains("pidfd_open(1): ESRCH"), "{error}");
    }
}
