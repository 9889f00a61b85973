//! The checks of the engine that runs the handler, and of the daemon that CSI drivers call.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::Path;

use runcrust_tests::{Delegate, Node, Run, mounts};

use crate::scene::{Report, doctor, well_configured};

/// Runs `doctor` after `prepare`. Directories of the test's own are mounted over `directories`, which have to exist on
/// the machine; otherwise `prepare` would change the machine.
#[track_caller]
fn doctor_with_own(node: &Node, directories: &[&str], prepare: impl Fn() + Send + Sync) -> Report {
    mounts::in_private_namespace(|| {
        for directory in directories {
            let own = node.dir().subdir(directory.trim_start_matches('/'));
            mounts::bind(&own, Path::new(directory));
        }
        prepare();
        doctor(node)
    })
}

/// The directories of containerd's and podman's configuration.
const ENGINES: [&str; 2] = ["/etc/containerd", "/etc/containers"];

fn install(node: &Node, engine: &str, arguments: &[&str]) {
    let mut install = node.handler().command();
    install.args(["install", engine]).args(arguments);
    let _ = Run::capture(&mut install).success();
}

#[test]
fn the_handlers_program_is_compared_with_this_one() {
    let node = well_configured(Delegate::Runc);
    let report = doctor_with_own(&node, &ENGINES, || {});
    report.assert("handler", "warn", "");
    let report = doctor_with_own(&node, &ENGINES, || install(&node, "containerd", &[]));
    let program = node.handler().path().display().to_string();
    let found = report.assert(
        "handler",
        "pass",
        "containerd (/etc/containerd/config.toml): crust runs ",
    );
    assert!(found.found.ends_with(&program), "{found:?}");
    let copy = node.handler().path().with_file_name("runcrust-copy");
    fs::copy(node.handler().path(), &copy).unwrap();
    let report = doctor_with_own(&node, &ENGINES, || {
        let copy = copy.to_str().unwrap();
        install(&node, "containerd", &["--program", copy]);
    });
    report.assert("handler", "warn", "runcrust-copy, which isn't this program");
    let file = "/etc/containerd/config.toml";
    let report = doctor_with_own(&node, &ENGINES, || fs::write(file, "version = ").unwrap());
    report.assert("handler", "warn", "/etc/containerd/config.toml:1: ");
    let runc = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\n\
                runtime_type = \"io.containerd.runc.v2\"\n";
    let report = doctor_with_own(&node, &ENGINES, || fs::write(file, runc).unwrap());
    report.assert("handler", "warn", "containerd");
}

#[test]
fn a_handler_of_podman_suffices() {
    let node = well_configured(Delegate::Runc);
    let report = doctor_with_own(&node, &ENGINES, || install(&node, "podman", &[]));
    report.assert(
        "handler",
        "pass",
        "podman (/etc/containers/containers.conf.d/runcrust.conf): crust runs",
    );
}

#[test]
fn crust_ops_is_checked_by_its_socket() {
    let node = well_configured(Delegate::Runc);
    let socket = node.dir().join("ops.sock");
    let report = |text: &str| {
        let configuration = node.handler().configuration();
        let own = fs::read(&configuration).unwrap();
        doctor_with_own(&node, &["/etc/runcrust"], || {
            fs::write(&configuration, &own).unwrap();
            fs::write("/etc/runcrust/crust_ops.toml", text).unwrap();
        })
    };
    let listen = format!("listen = {socket:?}\ncli_timeout = 5");
    report(&listen).assert("crust_ops", "warn", "there is no ");
    let listener = UnixListener::bind(&socket).unwrap();
    report(&listen).assert("crust_ops", "pass", "a daemon listens on ");
    drop(listener);
    report(&listen).assert("crust_ops", "warn", "nothing listens on ");
    report("listen = 5").assert("crust_ops", "warn", "/etc/runcrust/crust_ops.toml: line 1");
    fs::remove_file(&socket).unwrap();
    fs::write(&socket, "").unwrap();
    report(&listen).assert("crust_ops", "warn", "isn't a socket");
}
