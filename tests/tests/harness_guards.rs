//! Tests of the harness: loop devices, the mount watcher, and the cleanup after an interrupted process or script.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::mount::umount;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use runcrust_tests::{
    Bundle, Container, Delegate, Handler, LoopDevice, MountWatcher, TestDir, host, mounts, process,
    volume, wait_until,
};

const TIMEOUT: Duration = Duration::from_secs(10);

#[test]
fn a_loop_device_holds_a_volume_that_the_host_never_sees() {
    let dir = TestDir::new();
    let device = LoopDevice::ext4(&dir, 16);
    let watcher = MountWatcher::start(device.path());
    volume::with_mounted(device.path(), |root| {
        fs::write(root.join("file"), "content").unwrap();
        assert!(!device.is_free());
        assert!(device.host_mounts().is_empty());
    });
    device.wait_until_free(TIMEOUT);
    let content = volume::with_mounted(device.path(), |root| fs::read(root.join("file")).unwrap());
    assert_eq!(content, b"content");
    watcher.assert_never_mounted();
    volume::fsck_ext4(device.path());

    let (path, file) = (device.path().to_owned(), device.file().to_owned());
    drop(device);
    assert!(!is_attached(&path, &file));
}

#[test]
fn a_watcher_sees_a_mount_on_the_host() {
    let dir = TestDir::new();
    let device = LoopDevice::ext4(&dir, 16);
    let at = dir.subdir("mounted here");
    let watcher = MountWatcher::start(device.path());
    mounts::mount(device.path(), &at, "ext4");
    assert_eq!(host::mounts_below(dir.path()), std::slice::from_ref(&at));
    wait_until("the watcher to see it", TIMEOUT, || {
        !watcher.seen().is_empty()
    });
    umount(&at).unwrap();
    let seen = watcher.finish();
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert!(seen[0].contains("mounted\\040here"), "{seen:?}");
}

#[test]
fn dropping_a_directory_unmounts_what_is_in_it() {
    let dir = TestDir::new();
    let device = LoopDevice::ext4(&dir, 16);
    let inner = TestDir::new();
    let at = inner.subdir("at");
    mounts::mount(device.path(), &at, "ext4");
    fs::write(at.join("file"), "content").unwrap();
    drop(inner);
    assert!(!at.exists());
    device.wait_until_free(TIMEOUT);
    volume::with_mounted(device.path(), |root| assert!(root.join("file").exists()));
}

/// The test starts its own executable as the process that is interrupted. In that process runc replaces runcrust.
#[test]
fn an_interrupted_process_cleans_up() {
    if let Some(report) = std::env::var_os("INTERRUPTED_REPORT") {
        create_resources_and_wait(Path::new(&report));
    }
    let dir = TestDir::new();
    let binaries = dir.subdir("binaries");
    symlink(Delegate::Runc.program(), binaries.join("runcrust")).unwrap();
    symlink("/bin/true", binaries.join("crust-mount-hook")).unwrap();
    let report = dir.join("report");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "an_interrupted_process_cleans_up", "--nocapture"])
        .env("RUNCRUST_BIN_DIR", &binaries)
        .env("INTERRUPTED_REPORT", &report)
        .spawn()
        .unwrap();
    wait_until("the other process to create its resources", TIMEOUT, || {
        report.exists() || child.try_wait().unwrap().is_some()
    });
    let lines = fs::read_to_string(&report).expect("the other process's report");
    let lines: Vec<&str> = lines.lines().collect();
    let [base, configuration, device, file, pid] = lines[..] else {
        panic!("{lines:?}")
    };
    assert!(Path::new(base).exists() && Path::new(configuration).exists());
    assert!(is_attached(Path::new(device), Path::new(file)));
    let pid: i32 = pid.parse().unwrap();
    assert!(process::is_alive(pid));

    kill(
        Pid::from_raw(child.id().try_into().unwrap()),
        Signal::SIGINT,
    )
    .unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.signal(), Some(Signal::SIGINT as i32), "{status}");
    assert!(!process::is_alive(pid));
    assert!(!is_attached(Path::new(device), Path::new(file)));
    assert!(!Path::new(base).exists() && !Path::new(configuration).exists());
}

fn create_resources_and_wait(report: &Path) -> ! {
    let dir = TestDir::new();
    let handler = Handler::new(&dir, Delegate::Runc, "");
    let device = LoopDevice::new(&dir, 1);
    let container = Container::running(&handler.runtime(), &Bundle::plain(&dir).write());
    let lines = [
        dir.path().to_owned(),
        handler.configuration(),
        device.path().to_owned(),
        device.file().to_owned(),
        PathBuf::from(container.pid().to_string()),
    ];
    let lines = lines.map(|line| line.display().to_string()).join("\n");
    let unfinished = report.with_extension("unfinished");
    fs::write(&unfinished, lines).unwrap();
    fs::rename(unfinished, report).unwrap();
    loop {
        std::thread::park();
    }
}

fn is_attached(device: &Path, file: &Path) -> bool {
    let name = device.file_name().unwrap().to_str().unwrap();
    let backing_file = fs::read_to_string(format!("/sys/block/{name}/loop/backing_file"));
    backing_file.is_ok_and(|backing_file| Path::new(backing_file.trim()) == file)
}

/// A script that runs a command with `tests/contained.sh`. The command starts two processes. On SIGTERM the
/// first one writes a file and exits, and the command waits for it. The second one keeps running.
const CONTAINED: &str = r#"
set -eu
. "$1/contained.sh"
trap end_contained EXIT
trap 'exit 1' HUP INT TERM
contained sh -c '
    "$1/sleep" 1000 &
    sh -c "
        trap \"echo asked >>\$1/asked; exit\" TERM
        touch \$1/ready
        while sleep 0.01; do :; done
    " sh "$1" &
    wait $!
' sh "$2"
"#;

#[test]
fn a_scripts_namespaces_end_with_the_script() {
    let tests = std::env::var_os("CARGO_MANIFEST_DIR").unwrap();
    for (signal, asked) in [
        (Signal::SIGHUP, "asked\n"),
        (Signal::SIGINT, "asked\n"),
        (Signal::SIGTERM, "asked\n"),
        (Signal::SIGKILL, ""),
    ] {
        let dir = TestDir::new();
        let path = dir.path().to_str().unwrap();
        symlink("/bin/sleep", dir.join("sleep")).unwrap();
        let mut script = Command::new("sh")
            .args(["-c", CONTAINED, "sh"])
            .arg(&tests)
            .arg(path)
            .spawn()
            .unwrap();
        let pid = Pid::from_raw(script.id().try_into().unwrap());
        wait_until("the command to run", TIMEOUT, || dir.join("ready").exists());
        kill(pid, signal).unwrap();
        wait_until("the script to end", TIMEOUT, || {
            script.try_wait().unwrap().is_some()
        });
        let left = || process::with_command_line(|line| line.contains(path));
        if signal == Signal::SIGKILL {
            wait_until("the kernel to end the other processes", TIMEOUT, || {
                left().is_empty()
            });
        }
        assert_eq!(left(), [0; 0], "{signal}");
        let written = fs::read_to_string(dir.join("asked")).unwrap_or_default();
        assert_eq!(written, asked, "{signal}");
    }
}
