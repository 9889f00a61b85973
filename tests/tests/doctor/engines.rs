//! The engine that runs the handler, and the daemon that CSI drivers call.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::Path;

use runcrust_tests::{Delegate, Node, Run, mounts};

use crate::scene::{Told, doctor, in_order};

/// With these of the machine's directories replaced by ones of the test's own, after `prepare`. They have
/// to be there: else what is prepared would be the machine's.
#[track_caller]
fn apart(node: &Node, directories: &[&str], prepare: impl Fn() + Send + Sync) -> Told {
    mounts::in_private_namespace(|| {
        for directory in directories {
            let own = node.dir().subdir(directory.trim_start_matches('/'));
            mounts::bind(&own, Path::new(directory));
        }
        prepare();
        doctor(node)
    })
}

/// Where containerd's and podman's handlers are.
const ENGINES: [&str; 2] = ["/etc/containerd", "/etc/containers"];

fn install(node: &Node, engine: &str, arguments: &[&str]) {
    let mut install = node.handler().command();
    install.args(["install", engine]).args(arguments);
    let _ = Run::of(&mut install).success();
}

#[test]
fn an_engine_that_runs_this_program_or_another() {
    let node = in_order(Delegate::Runc);
    let told = apart(&node, &ENGINES, || {});
    told.assert("handler", "warn", "");
    let told = apart(&node, &ENGINES, || install(&node, "containerd", &[]));
    let program = node.handler().path().display().to_string();
    let found = told.assert(
        "handler",
        "pass",
        "containerd (/etc/containerd/config.toml): crust runs ",
    );
    assert!(found.found.ends_with(&program), "{found:?}");
    let copy = node.handler().path().with_file_name("runcrust-copy");
    fs::copy(node.handler().path(), &copy).unwrap();
    let told = apart(&node, &ENGINES, || {
        let copy = copy.to_str().unwrap();
        install(&node, "containerd", &["--program", copy]);
    });
    told.assert("handler", "warn", "runcrust-copy, which isn't this program");
    let file = "/etc/containerd/config.toml";
    let told = apart(&node, &ENGINES, || fs::write(file, "version = ").unwrap());
    told.assert("handler", "warn", "/etc/containerd/config.toml:1: ");
    let runc = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\n\
                runtime_type = \"io.containerd.runc.v2\"\n";
    let told = apart(&node, &ENGINES, || fs::write(file, runc).unwrap());
    told.assert("handler", "warn", "containerd");
}

#[test]
fn podmans_handler_is_enough() {
    let node = in_order(Delegate::Runc);
    let told = apart(&node, &ENGINES, || install(&node, "podman", &[]));
    told.assert(
        "handler",
        "pass",
        "podman (/etc/containers/containers.conf.d/runcrust.conf): crust runs",
    );
}

#[test]
fn a_daemon_that_listens_or_does_not() {
    let node = in_order(Delegate::Runc);
    let socket = node.dir().join("ops.sock");
    let told = |text: &str| {
        let configuration = node.handler().configuration();
        let own = fs::read(&configuration).unwrap();
        apart(&node, &["/etc/runcrust"], || {
            fs::write(&configuration, &own).unwrap();
            fs::write("/etc/runcrust/crust_ops.toml", text).unwrap();
        })
    };
    let listen = format!("listen = {socket:?}\ncli_timeout = 5");
    told(&listen).assert("crust_ops", "warn", "there is no ");
    let listener = UnixListener::bind(&socket).unwrap();
    told(&listen).assert("crust_ops", "pass", "a daemon listens on ");
    drop(listener);
    told(&listen).assert("crust_ops", "warn", "nothing listens on ");
    told("listen = 5").assert("crust_ops", "warn", "/etc/runcrust/crust_ops.toml: line 1");
    fs::remove_file(&socket).unwrap();
    fs::write(&socket, "").unwrap();
    told(&listen).assert("crust_ops", "warn", "isn't a socket");
}
