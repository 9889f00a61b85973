//! Clients that connect and send nothing, or too little, do not keep other clients from being served.

use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::fs::chown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::process::descriptors;
use runcrust_tests::{Delegate, Node, Ops, wait_until};
use tonic::Code::NotFound;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus::Serving;
use tonic_health::pb::health_client::HealthClient;

use crate::cli::{ANSWER, Scene};
use crate::daemon::{RUNTIME, connect_as, health};
use crate::expect_error;

/// The connection preface of HTTP/2 (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// A SETTINGS frame without settings.
const SETTINGS: &[u8] = b"\0\0\0\x04\0\0\0\0\0";

/// Starts a daemon that can have `most` file descriptors.
fn start_limited(node: &Node, most: usize) -> Ops {
    let ops = Ops::stopped(node, "");
    let command = ops.command();
    let mut start_limited = Command::new("prlimit");
    start_limited
        .arg(format!("--nofile={most}"))
        .arg(command.get_program())
        .args(command.get_args());
    ops.spawn(start_limited);
    ops
}

fn connect(socket: &Path, first: &[u8]) -> UnixStream {
    let mut stream = UnixStream::connect(socket).unwrap();
    // The daemon may have closed the connection already.
    let _ = stream.write_all(first);
    stream.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
    stream
}

/// Waits until the daemon closes a connection, and reports whether it did.
fn is_closed(stream: &mut UnixStream) -> bool {
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Ok(_) => true,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

#[test]
fn hundreds_of_silent_connections_block_no_client() {
    const DESCRIPTORS: usize = 256;
    let node = Node::trusted(Delegate::Runc, "");
    let ops = start_limited(&node, DESCRIPTORS);
    let target = node.target("pod-a", "pv-1");
    expect_error(ops.stats(&target), NotFound);
    let before = descriptors(ops.pid());
    let mut mute = Vec::new();
    for first in [&b""[..], b"PRI * HTTP/2.0\r\n"] {
        for _ in 0..200 {
            mute.push(connect(ops.socket(), first));
            mute.push(connect(ops.crust_socket(), first));
        }
        expect_error(ops.stats(&target), NotFound);
        assert_eq!(health(&ops, ops.crust_socket(), "").unwrap(), Serving);
        assert!(descriptors(ops.pid()) < DESCRIPTORS);
    }
    // The test keeps the connections open, and the daemon closes them.
    wait_until("the connections to be closed", WAIT_TIMEOUT, || {
        descriptors(ops.pid()) <= before + 2
    });
    assert!(mute.iter_mut().all(is_closed));
    let log = ops.log();
    let warnings: Vec<&str> = log
        .lines()
        .filter(|it| it.contains("HTTP/2 preface"))
        .collect();
    // The warning is logged once for each socket, with the client.
    assert_eq!(warnings.len(), 2, "{log}");
    let pid = format!("uid 0, pid {}", std::process::id());
    assert!(warnings.iter().all(|line| line.contains(&pid)), "{log}");
    assert!(!log.contains("os error 24"), "{log}");
}

/// The warning does not name the new client, whose connection exceeded the limit.
#[test]
fn the_warning_names_the_client_that_was_disconnected() {
    const DESCRIPTORS: usize = 256;
    const SILENT: usize = DESCRIPTORS / 8;
    const OTHER: u32 = 1234;
    let node = Node::trusted(Delegate::Runc, "");
    let ops = start_limited(&node, DESCRIPTORS);
    chown(ops.socket(), Some(OTHER), None).unwrap();
    let silent = (0..SILENT).map(|_| connect_as(OTHER, ops.socket()).unwrap());
    let mut silent: Vec<UnixStream> = silent.collect();
    let _newcomer = connect(ops.socket(), b"");
    assert!(is_closed(&mut silent[0]));
    let log = ops.log();
    let warnings = log.lines().find(|it| it.contains("HTTP/2 preface"));
    let warnings = warnings.unwrap_or_else(|| panic!("{log}"));
    assert!(warnings.contains(&format!("uid {OTHER},")), "{warnings}");
}

/// All connections are root's and their number is at the limit. The one without a call for the longest time is closed.
#[test]
fn idle_connections_block_no_client() {
    const CONNECTIONS: usize = 4;
    let scene = Scene::new(&format!("max_connections = {CONNECTIONS}"));
    let ops = &scene.ops;
    let fifo = scene.node.dir().join("fifo");
    mkfifo(&fifo, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    scene.script(&format!("read line < {}\necho '{ANSWER}'", utf8(&fifo)));
    let unknown = scene.node.target("pod-a", "pv-2");
    let begin = |socket| connect(socket, &[PREFACE, SETTINGS].concat());
    std::thread::scope(|scope| {
        let called = scope.spawn(|| scene.stats());
        wait_until("the program to run", WAIT_TIMEOUT, || {
            scene.pid_file().exists()
        });
        let mut idle = Vec::new();
        for _ in 0..2 * CONNECTIONS {
            idle.push(begin(ops.socket()));
            idle.push(begin(ops.crust_socket()));
            expect_error(ops.stats(&unknown), NotFound);
            assert_eq!(health(ops, ops.crust_socket(), "").unwrap(), Serving);
        }
        // The oldest connections are closed, after each has been served.
        for stream in &mut idle[..2 * CONNECTIONS] {
            assert!(is_closed(stream));
        }
        // The connection with a call in progress is the oldest one, and stays.
        fs::write(&fifo, "\n").unwrap();
        called.join().unwrap().expect("the call is answered");
    });
    let log = ops.log();
    let warnings = log.lines().filter(|it| it.contains("4 connections"));
    let warnings: Vec<&str> = warnings.collect();
    let pid = format!("uid 0, pid {}", std::process::id());
    assert!(!warnings.is_empty(), "{log}");
    assert!(warnings.iter().all(|line| line.contains(&pid)), "{log}");
}

/// An endless stream does not count as a call in progress.
#[test]
fn health_watches_block_no_client() {
    const CONNECTIONS: usize = 4;
    let node = Node::trusted(Delegate::Runc, "");
    let ops = Ops::with(&node, &format!("max_connections = {CONNECTIONS}"));
    let target = node.target("pod-a", "pv-1");
    let mut watches = Vec::new();
    for _ in 0..2 * CONNECTIONS {
        let mut client = HealthClient::new(ops.channel(ops.socket()));
        let watch = ops.block_on(client.watch(HealthCheckRequest::default()));
        watches.push((client, watch.expect("a watch")));
        expect_error(ops.stats(&target), NotFound);
    }
}

#[test]
fn a_client_that_sends_no_preface_is_disconnected() {
    let (_node, ops) = Ops::with_node(Delegate::Runc);
    let begun = [
        &b""[..],
        b"P",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r",
        b"GET / HTTP/1.1\r\n",
    ];
    let mut streams = begun.map(|first| connect(ops.socket(), first));
    for (stream, first) in streams.iter_mut().zip(begun) {
        assert!(is_closed(stream), "{first:?}");
    }
}

/// A killed client closes its connection after any part of the preface.
#[test]
fn a_client_that_ends_in_the_preface_blocks_no_other() {
    let (_node, ops) = Ops::with_node(Delegate::Runc);
    let sockets = [ops.socket(), ops.crust_socket()];
    let mut half_closed = Vec::new();
    for socket in sockets {
        for length in 1..PREFACE.len() {
            let first = &PREFACE[..length];
            drop(connect(socket, first));
            let stream = connect(socket, first);
            stream.shutdown(Shutdown::Write).unwrap();
            half_closed.push(stream);
        }
    }
    for socket in sockets {
        assert_eq!(health(&ops, socket, "").unwrap(), Serving);
    }
    assert!(half_closed.iter_mut().all(is_closed));
    ops.signal(Signal::SIGTERM);
    assert!(ops.wait().success(), "{}", ops.log());
}

#[test]
fn a_preface_may_come_in_pieces() {
    let (_node, ops) = Ops::with_node(Delegate::Runc);
    let (one, two) = PREFACE.split_at(10);
    let mut stream = connect(ops.socket(), one);
    // Another client makes a call in between.
    assert_eq!(health(&ops, ops.socket(), RUNTIME).unwrap(), Serving);
    stream.write_all(two).unwrap();
    stream.write_all(SETTINGS).unwrap();
    let mut answer = [0; 9];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer[3], 4, "the answer is a SETTINGS frame: {answer:?}");
}

/// If the mode of a socket lets other users connect, their calls are refused, and they may only have few connections.
#[test]
fn another_user_has_few_connections_and_root_is_served() {
    const DESCRIPTORS: usize = 256;
    // A sixteenth of half of the descriptors.
    const EACH: usize = 8;
    let node = Node::trusted(Delegate::Runc, "");
    let ops = start_limited(&node, DESCRIPTORS);
    chown(ops.socket(), Some(1000), None).unwrap();
    let begin = || {
        let mut stream = connect_as(1000, ops.socket()).unwrap();
        let _ = stream.write_all(PREFACE);
        let _ = stream.write_all(SETTINGS);
        stream.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
        stream
    };
    let mut first: Vec<UnixStream> = (0..EACH).map(|_| begin()).collect();
    for stream in &mut first {
        stream.read_exact(&mut [0; 9]).expect("a served connection");
    }
    for _ in 0..2 * EACH {
        assert!(is_closed(&mut begin()));
    }
    assert_eq!(health(&ops, ops.socket(), RUNTIME).unwrap(), Serving);
    let log = ops.log();
    let warnings = log.lines().find(|line| line.contains("uid 1000"));
    assert!(
        warnings.is_some_and(|line| line.contains("this user has 8 connections")),
        "{log}"
    );
    // A closed connection can be replaced.
    drop(first.pop());
    wait_until("a connection to be accepted", WAIT_TIMEOUT, || {
        begin().read_exact(&mut [0; 9]).is_ok()
    });
}
