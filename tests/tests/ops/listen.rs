//! The sockets that the daemon listens on: its own, and those passed by systemd.

use std::fs::{self, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::Signal;
use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::{Delegate, Node, Ops, Run, wait_until};
use rustix::io::FdFlags;
use tonic_health::pb::health_check_response::ServingStatus::Serving;

use crate::daemon::{RUNTIME, STORAGE, health};

#[test]
fn sockets_are_only_for_root() {
    let node = Node::trusted(Delegate::Runc, "");
    let metrics = node.handler().path().with_file_name("m");
    let ops = Ops::with(&node, &format!("metrics_listen = {metrics:?}"));
    for socket in [ops.socket(), ops.crust_socket(), &metrics] {
        // The daemon may answer before all sockets exist.
        wait_until("the socket", WAIT_TIMEOUT, || socket.exists());
        let stat = fs::symlink_metadata(socket).unwrap();
        let found = (stat.mode(), stat.uid(), stat.gid());
        assert_eq!(found, (0o140_600, 0, 0), "{}", socket.display());
    }
}

/// Returns a command that receives listening sockets in the way that systemd passes them.
fn socket_activated(ops: &Ops, sockets: &[(&UnixListener, &str)]) -> Command {
    let passed = sockets.iter().zip(20..).map(|((listener, _), aside)| {
        rustix::io::fcntl_setfd(listener, FdFlags::empty()).unwrap();
        // The copies are kept away from the descriptors that the sockets are passed as.
        format!("exec {aside}<&{}; ", listener.as_raw_fd())
    });
    let placed = (20..).zip(3..).take(sockets.len());
    let placed = placed.map(|(aside, fd)| format!("exec {fd}<&{aside} {aside}<&-; "));
    let mut script: String = passed.chain(placed).collect();
    let names: Vec<&str> = sockets.iter().map(|(_, name)| *name).collect();
    let names = names.join(":");
    script += "export LISTEN_PID=$$; exec \"$@\"";
    let command = ops.command();
    // dash supports no descriptors above 9.
    let mut shell = Command::new("/bin/bash");
    shell
        .args(["-ec", &script, "bash"])
        .arg(command.get_program())
        .args(command.get_args());
    shell.env("LISTEN_FDS", sockets.len().to_string());
    // Other programs than systemd may pass no names at all.
    if names.chars().any(|letter| letter != ':') {
        shell.env("LISTEN_FDNAMES", names);
    }
    shell
}

#[test]
fn sockets_of_systemd_are_used() {
    // Sockets are recognised by their names, or else by their paths.
    for (names, description) in [
        (["crust", "other", "crust_ops"], "with the name \"other\""),
        (
            ["crust.socket", "other", "crust_ops.socket"],
            "with the name \"other\"",
        ),
        (["a", "b", "c"], "with the name \"b\""),
        (["", "", ""], "without a name"),
    ] {
        let node = Node::trusted(Delegate::Runc, "");
        let ops = Ops::stopped(&node, "");
        let bind = |path: &Path| UnixListener::bind(path).unwrap();
        let (crust, own) = (bind(ops.crust_socket()), bind(ops.socket()));
        let (metrics, identity) = (bind(&node.dir().join("x")), |path: &Path| {
            fs::symlink_metadata(path).unwrap().ino()
        });
        let before = (identity(ops.socket()), identity(ops.crust_socket()));
        ops.spawn_activated(socket_activated(
            &ops,
            &[(&crust, names[0]), (&metrics, names[1]), (&own, names[2])],
        ));
        assert_eq!(health(&ops, ops.socket(), RUNTIME).unwrap(), Serving);
        assert_eq!(health(&ops, ops.crust_socket(), STORAGE).unwrap(), Serving);
        let log = ops.log();
        let warning = format!(
            "systemd passed a socket {description} ({}/x)",
            node.dir().path().display()
        );
        assert!(log.contains(&warning), "no {warning:?} in {log}");
        ops.signal(Signal::SIGTERM);
        assert!(ops.wait().success());
        assert_eq!(
            (identity(ops.socket()), identity(ops.crust_socket())),
            before,
            "sockets of systemd are kept"
        );
        UnixStream::connect(ops.socket()).expect("systemd still listens");
    }
}

#[test]
fn a_socket_in_use_is_not_replaced() {
    let (_node, ops) = Ops::with_node(Delegate::Runc);
    let second = Run::capture(&mut ops.command()).failure();
    let expected = format!(
        "crust_ops: bind {}: address in use; hint: stop the other crust_ops that is running\n",
        ops.socket().display()
    );
    assert_eq!(second.stderr, expected);
    assert_eq!(health(&ops, ops.socket(), "").unwrap(), Serving);
    ops.kill();
    // A socket of an ended daemon is replaced, other files are not.
    ops.spawn_activated(ops.command());
    ops.kill();
    fs::remove_file(ops.crust_socket()).unwrap();
    fs::write(ops.crust_socket(), "mine").unwrap();
    let third = Run::capture(&mut ops.command()).failure();
    assert!(third.stderr.contains("isn't a stream socket"), "{third}");
    assert_eq!(fs::read_to_string(ops.crust_socket()).unwrap(), "mine");
}

#[test]
fn an_unknown_socket_from_systemd_is_named_in_the_error() {
    let node = Node::trusted(Delegate::Runc, "");
    let ops = Ops::stopped(&node, "");
    let _elsewhere = UnixListener::bind(ops.socket()).unwrap();
    let passed = UnixListener::bind(node.dir().join("x")).unwrap();
    let run = Run::capture(&mut socket_activated(&ops, &[(&passed, "runtime")])).failure();
    for words in [
        &*format!("bind {}: address in use", ops.socket().display()),
        "with the name \"runtime\"",
        "crust_ops or crust (FileDescriptorName=",
    ] {
        assert!(run.stderr.contains(words), "no {words:?} in {run}");
    }
    assert!(!run.stderr.contains("the other crust_ops"), "{run}");
}

/// Changes the path of the socket for the CRUST interface.
fn listen_at(ops: &Ops, socket: &Path) {
    let text = fs::read_to_string(ops.config()).unwrap();
    let text = text.replace(utf8(ops.crust_socket()), utf8(socket));
    fs::write(ops.config(), text).unwrap();
}

#[test]
fn a_created_directory_is_only_for_root() {
    let node = Node::trusted(Delegate::Runc, "");
    let ops = Ops::stopped(&node, "");
    let top = node.handler().path().with_file_name("made");
    listen_at(&ops, &top.join("deep/c"));
    ops.spawn(ops.command());
    wait_until("the socket", WAIT_TIMEOUT, || top.join("deep/c").exists());
    for directory in [top.clone(), top.join("deep")] {
        let mode = fs::symlink_metadata(&directory).unwrap().mode();
        assert_eq!(mode, 0o040_700, "{}", directory.display());
    }
}

/// A user who can write to the directory of a socket could replace the socket.
#[test]
fn a_socket_that_others_could_replace_is_refused() {
    let node = Node::trusted(Delegate::Runc, "");
    let ops = Ops::stopped(&node, "");
    let others = node.handler().path().with_file_name("others");
    fs::create_dir(&others).unwrap();
    fs::set_permissions(&others, Permissions::from_mode(0o1777)).unwrap();
    let sockets: [PathBuf; 2] = [others.join("c"), others.join("missing/c")];
    for socket in sockets {
        ops.reconfigure(&node, "");
        listen_at(&ops, &socket);
        let expected = format!(
            "the directory of socket {}: {} can be written by others than root; hint: make root the \
             owner and only writer of it and of the directories above it (chown root:root, chmod go-w)",
            socket.display(),
            others.display()
        );
        let run = Run::capture(&mut ops.command()).failure();
        assert_eq!(run.stderr, format!("crust_ops: {expected}\n"));
        let run = Run::capture(ops.command().arg("--check")).failure();
        let line = format!("FAIL  socket: {expected}");
        assert!(run.stdout.lines().any(|it| it == line), "{run}");
        assert!(!socket.exists() && !others.join("missing").exists());
    }
}

/// Both daemons check for another one before they listen.
#[test]
fn one_of_two_daemons_that_start_at_once_ends() {
    struct DaemonPair([Child; 2]);
    impl Drop for DaemonPair {
        fn drop(&mut self) {
            for daemon in &mut self.0 {
                let _ = daemon.kill();
                let _ = daemon.wait();
            }
        }
    }
    let node = Node::trusted(Delegate::Runc, "");
    let ops = Ops::stopped(&node, "");
    for _ in 0..20 {
        let start = || ops.command().stderr(Stdio::null()).spawn().unwrap();
        let mut both = DaemonPair([start(), start()]);
        wait_until("one daemon to end", WAIT_TIMEOUT, || {
            let ended = both.0.iter_mut().filter_map(|it| it.try_wait().unwrap());
            ended.map(|status| assert!(!status.success())).count() == 1
        });
        wait_until("the other daemon to listen", WAIT_TIMEOUT, || {
            UnixStream::connect(ops.socket()).is_ok()
        });
    }
}
