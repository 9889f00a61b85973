//! The packages are reinstalled or removed.

use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fs, thread};

use runcrust_tests::cleanup::Cleanup;
use runcrust_tests::installed::{CRUST, CRUST_OPS, property, systemctl};
use runcrust_tests::ops::Clients;
use runcrust_tests::{InstalledPod, Run, on_each_delegate, process};
use tonic::Code;

use crate::{SERVICE, SOCKET, daemon, stage_disk};

/// Returns the package files that the node was made with.
fn packages() -> Vec<PathBuf> {
    let directory = std::env::var_os("RUNCRUST_TEST_PACKAGES");
    let directory = directory.expect("RUNCRUST_TEST_PACKAGES; the guest has some: make vm-test");
    let entries = fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

#[track_caller]
fn dpkg(arguments: &[&str], files: &[PathBuf]) {
    let _ = Run::capture(Command::new("dpkg").args(arguments).args(files)).success();
}

/// Returns a guard that reinstalls both packages if one is missing.
fn reinstall_on_drop() -> Cleanup {
    Cleanup::register(|| {
        let programs = ["/usr/bin/crust_ops", "/usr/bin/runcrust"];
        if programs.iter().all(|program| Path::new(program).exists()) {
            return Vec::new();
        }
        let install = Run::capture(Command::new("dpkg").arg("--install").args(packages()));
        let failed = Some(install).filter(|run| !run.status.success());
        failed.iter().map(Run::to_string).collect()
    })
}

/// Calls the daemon until `end` is set, and returns the errors other than `Unavailable`, which a client has to retry.
fn call_until(target: &Path, end: &AtomicBool) -> Vec<tonic::Status> {
    let clients = Clients::new(Path::new(CRUST_OPS), Path::new(CRUST));
    let mut errors = Vec::new();
    while !end.load(Ordering::Relaxed) {
        errors.extend(clients.stats(target).err());
    }
    errors.retain(|status| status.code() != Code::Unavailable);
    errors
}

on_each_delegate! {
    #[ignore = "needs the e2e node; runs in the guest: make vm-test"]
    fn a_pod_and_callers_survive_an_upgrade(delegate: Delegate) {
        let pod = InstalledPod::new(delegate);
        let _disk = stage_disk(&pod);
        let sandbox = pod.run();
        let app = pod.app(&sandbox, "one");
        let _ = pod.cri().sh(&app, "echo kept > /data/file");
        let pid = pod.cri().pid(&app).unwrap();
        let (before, since) = (daemon(), property(SOCKET, "ActiveEnterTimestampMonotonic"));
        let program = fs::metadata("/usr/bin/runcrust").unwrap();

        let end = AtomicBool::new(false);
        let errors = thread::scope(|scope| {
            let calls = scope.spawn(|| call_until(pod.target(), &end));
            dpkg(&["--install"], &packages());
            end.store(true, Ordering::Relaxed);
            calls.join().unwrap()
        });
        assert!(errors.is_empty(), "{errors:?}");
        let replaced = fs::metadata("/usr/bin/runcrust").unwrap();
        assert_ne!(program.ino(), replaced.ino(), "the program was not replaced");
        assert_ne!(daemon(), before, "the daemon was not restarted");
        assert_eq!(property(SOCKET, "ActiveEnterTimestampMonotonic"), since, "the socket was closed");

        assert!(process::is_alive(pid));
        assert_eq!(pod.cri().sh(&app, "cat /data/file").trim(), "kept");
        let second = pod.app(&sandbox, "two");
        assert_eq!(pod.cri().sh(&second, "cat /data/file").trim(), "kept");
        pod.end(&sandbox);
        pod.ops().unstage(pod.target()).unwrap();
    }

    #[ignore = "needs the e2e node; runs in the guest: make vm-test"]
    fn a_removal_with_a_running_pod_is_refused(delegate: Delegate) {
        let pod = InstalledPod::new(delegate);
        let _disk = stage_disk(&pod);
        let sandbox = pod.run();
        let app = pod.app(&sandbox, "one");
        let _reinstall = reinstall_on_drop();
        let remove = ["--remove", "crust-ops", "runcrust"];
        let removal = Run::capture(Command::new("dpkg").args(remove)).failure();
        removal.assert_contains(&["pv-1", "hint: resolve this, then run runcrust uninstall all"]);
        for program in ["runcrust", "crust-mount-hook", "crust_ops"] {
            assert!(Path::new("/usr/bin").join(program).exists(), "{program}");
        }
        let second = pod.app(&sandbox, "two");
        let _ = pod.cri().sh(&app, "echo kept > /data/file");
        assert_eq!(pod.cri().sh(&second, "cat /data/file").trim(), "kept");
        pod.end(&sandbox);
        pod.ops().unstage(pod.target()).unwrap();
    }
}

/// Without its default runtime containerd could not create any pod.
#[test]
#[ignore = "needs the e2e node; runs in the guest: make vm-test"]
fn a_removal_of_the_default_runtime_is_refused() {
    let file = "/etc/containerd/config.toml";
    let before = fs::read_to_string(file).unwrap();
    let restored = before.clone();
    let _restored = Cleanup::register(move || {
        let written = fs::write(file, &restored);
        written
            .err()
            .map(|error| error.to_string())
            .into_iter()
            .collect()
    });
    let _reinstall = reinstall_on_drop();
    let table = "[plugins.\"io.containerd.grpc.v1.cri\".containerd]";
    assert!(!before.contains(table), "{before}");
    fs::write(
        file,
        format!("{before}\n{table}\ndefault_runtime_name = \"crust\"\n"),
    )
    .unwrap();
    let remove = ["--remove", "crust-ops", "runcrust"];
    let removal = Run::capture(Command::new("dpkg").args(remove)).failure();
    assert!(
        removal.stderr.contains("is the default runtime"),
        "{removal}"
    );
    assert!(Path::new("/usr/bin/runcrust").exists());
}

#[test]
#[ignore = "needs the e2e node; runs in the guest: make vm-test"]
fn a_removal_stops_the_daemon_and_an_installation_starts_it() {
    let changed = "/etc/runcrust/crust_ops.toml";
    let configuration = fs::read_to_string(changed).unwrap();
    let _reinstall = reinstall_on_drop();
    dpkg(&["--remove", "crust-ops"], &[]);
    for unit in [SERVICE, SOCKET] {
        assert_eq!(property(unit, "ActiveState"), "inactive", "{unit}");
    }
    assert!(
        UnixStream::connect(CRUST_OPS).is_err(),
        "a process listens on the socket"
    );
    dpkg(&["--install"], &packages());
    for unit in [SERVICE, SOCKET] {
        assert_eq!(systemctl(&["is-enabled", unit]), "enabled", "{unit}");
        assert_eq!(property(unit, "ActiveState"), "active", "{unit}");
    }
    assert_eq!(
        fs::read_to_string(changed).unwrap(),
        configuration,
        "the operator's configuration was changed"
    );
}
