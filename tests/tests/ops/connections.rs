//! Clients that connect and say nothing, or too little, keep nobody else out.

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
use crate::refused;

/// How HTTP/2 begins (RFC 9113, section 3.4), and a SETTINGS frame without any.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const SETTINGS: &[u8] = b"\0\0\0\x04\0\0\0\0\0";

/// With so many descriptors.
fn limited(node: &Node, most: usize) -> Ops {
    let ops = Ops::stopped(node, "");
    let command = ops.command();
    let mut limited = Command::new("prlimit");
    limited
        .arg(format!("--nofile={most}"))
        .arg(command.get_program())
        .args(command.get_args());
    ops.spawn(limited);
    ops
}

fn connected(socket: &Path, first: &[u8]) -> UnixStream {
    let mut stream = UnixStream::connect(socket).unwrap();
    // One that is closed by then can't be written to.
    let _ = stream.write_all(first);
    stream.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
    stream
}

/// Whether the daemon closes it, whatever it has sent before.
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
    let ops = limited(&node, DESCRIPTORS);
    let target = node.target("pod-a", "pv-1");
    refused(ops.stats(&target), NotFound);
    let before = descriptors(ops.pid());
    let mut mute = Vec::new();
    for first in [&b""[..], b"PRI * HTTP/2.0\r\n"] {
        for _ in 0..200 {
            mute.push(connected(ops.socket(), first));
            mute.push(connected(ops.crust_socket(), first));
        }
        refused(ops.stats(&target), NotFound);
        assert_eq!(health(&ops, ops.crust_socket(), "").unwrap(), Serving);
        assert!(descriptors(ops.pid()) < DESCRIPTORS);
    }
    // They stay open here, and are closed there.
    wait_until("the connections to be closed", WAIT_TIMEOUT, || {
        descriptors(ops.pid()) <= before + 2
    });
    assert!(mute.iter_mut().all(is_closed));
    let log = ops.log();
    let told: Vec<&str> = log
        .lines()
        .filter(|it| it.contains("HTTP/2 preface"))
        .collect();
    // Once for each socket, with who it is.
    assert_eq!(told.len(), 2, "{log}");
    let pid = format!("uid 0, pid {}", std::process::id());
    assert!(told.iter().all(|line| line.contains(&pid)), "{log}");
    assert!(!log.contains("os error 24"), "{log}");
}

/// The newcomer that makes them one too many isn't the one that is told of.
#[test]
fn the_warning_names_the_client_whose_connection_was_closed() {
    const DESCRIPTORS: usize = 256;
    const SILENT: usize = DESCRIPTORS / 8;
    const OTHER: u32 = 1234;
    let node = Node::trusted(Delegate::Runc, "");
    let ops = limited(&node, DESCRIPTORS);
    chown(ops.socket(), Some(OTHER), None).unwrap();
    let silent = (0..SILENT).map(|_| connect_as(OTHER, ops.socket()).unwrap());
    let mut silent: Vec<UnixStream> = silent.collect();
    let _newcomer = connected(ops.socket(), b"");
    assert!(is_closed(&mut silent[0]));
    let log = ops.log();
    let told = log.lines().find(|it| it.contains("HTTP/2 preface"));
    let told = told.unwrap_or_else(|| panic!("{log}"));
    assert!(told.contains(&format!("uid {OTHER},")), "{told}");
}

/// They are root's, and as many as there may be: the one that has made no call for longest makes room.
#[test]
fn idle_connections_keep_nobody_out() {
    const CONNECTIONS: usize = 4;
    let scene = Scene::new(&format!("max_connections = {CONNECTIONS}"));
    let ops = &scene.ops;
    let fifo = scene.node.dir().join("fifo");
    mkfifo(&fifo, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    scene.script(&format!("read line < {}\necho '{ANSWER}'", utf8(&fifo)));
    let unknown = scene.node.target("pod-a", "pv-2");
    let begin = |socket| connected(socket, &[PREFACE, SETTINGS].concat());
    std::thread::scope(|scope| {
        let called = scope.spawn(|| scene.stats());
        wait_until("the program to run", WAIT_TIMEOUT, || scene.told().exists());
        let mut idle = Vec::new();
        for _ in 0..2 * CONNECTIONS {
            idle.push(begin(ops.socket()));
            idle.push(begin(ops.crust_socket()));
            refused(ops.stats(&unknown), NotFound);
            assert_eq!(health(ops, ops.crust_socket(), "").unwrap(), Serving);
        }
        // The oldest are closed; each had been served.
        for stream in &mut idle[..2 * CONNECTIONS] {
            assert!(is_closed(stream));
        }
        // The connection with a call under way has been there for longest of all.
        fs::write(&fifo, "\n").unwrap();
        called.join().unwrap().expect("its call is answered");
    });
    let log = ops.log();
    let told = log.lines().filter(|it| it.contains("4 connections"));
    let told: Vec<&str> = told.collect();
    let pid = format!("uid 0, pid {}", std::process::id());
    assert!(!told.is_empty(), "{log}");
    assert!(told.iter().all(|line| line.contains(&pid)), "{log}");
}

/// A stream without end is no call for which a connection stays.
#[test]
fn watches_keep_nobody_out() {
    const CONNECTIONS: usize = 4;
    let node = Node::trusted(Delegate::Runc, "");
    let ops = Ops::with(&node, &format!("max_connections = {CONNECTIONS}"));
    let target = node.target("pod-a", "pv-1");
    let mut watches = Vec::new();
    for _ in 0..2 * CONNECTIONS {
        let mut client = HealthClient::new(ops.channel(ops.socket()));
        let watch = ops.block_on(client.watch(HealthCheckRequest::default()));
        watches.push((client, watch.expect("it is served")));
        refused(ops.stats(&target), NotFound);
    }
}

#[test]
fn a_client_that_never_begins_is_closed() {
    let (_node, ops) = Ops::with_node(Delegate::Runc);
    let begun = [
        &b""[..],
        b"P",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r",
        b"GET / HTTP/1.1\r\n",
    ];
    let mut streams = begun.map(|first| connected(ops.socket(), first));
    for (stream, first) in streams.iter_mut().zip(begun) {
        assert!(is_closed(stream), "{first:?}");
    }
}

/// A client that is killed closes its connection, whatever it has sent of the preface.
#[test]
fn a_client_that_ends_within_the_preface_holds_up_nobody() {
    let (_node, ops) = Ops::with_node(Delegate::Runc);
    let sockets = [ops.socket(), ops.crust_socket()];
    let mut half_closed = Vec::new();
    for socket in sockets {
        for length in 1..PREFACE.len() {
            let first = &PREFACE[..length];
            drop(connected(socket, first));
            let stream = connected(socket, first);
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
    let mut stream = connected(ops.socket(), one);
    // A call comes between.
    assert_eq!(health(&ops, ops.socket(), RUNTIME).unwrap(), Serving);
    stream.write_all(two).unwrap();
    stream.write_all(SETTINGS).unwrap();
    let mut answer = [0; 9];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer[3], 4, "it answers with SETTINGS: {answer:?}");
}

/// Where a socket's mode lets others connect: they are refused all the same, and may not even keep connections.
#[test]
fn another_users_connections_are_few_and_root_is_served() {
    const DESCRIPTORS: usize = 256;
    // A sixteenth of half of them.
    const EACH: usize = 8;
    let node = Node::trusted(Delegate::Runc, "");
    let ops = limited(&node, DESCRIPTORS);
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
        stream.read_exact(&mut [0; 9]).expect("it is served");
    }
    for _ in 0..2 * EACH {
        assert!(is_closed(&mut begin()));
    }
    assert_eq!(health(&ops, ops.socket(), RUNTIME).unwrap(), Serving);
    let log = ops.log();
    let told = log.lines().find(|line| line.contains("uid 1000"));
    assert!(
        told.is_some_and(|line| line.contains("this user has 8 connections")),
        "{log}"
    );
    // One that is closed makes room.
    drop(first.pop());
    wait_until("a place to be free", WAIT_TIMEOUT, || {
        begin().read_exact(&mut [0; 9]).is_ok()
    });
}
