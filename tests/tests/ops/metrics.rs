//! The metrics for Prometheus.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::UnixStream;

use runcrust_tests::http::get;
use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::ops::stage_request;
use runcrust_tests::{Delegate, Node, Ops, wait_until};
use tonic::Code::{DeadlineExceeded, FailedPrecondition, InvalidArgument};

use crate::cli::Scene;
use crate::expect_error;
use crate::reconcile::temporary;

/// Returns the value of a metric. The labels have to be in the order of the text.
#[track_caller]
fn value(text: &str, metric: &str) -> f64 {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(metric)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {metric} in {text}"))
        .parse()
        .unwrap()
}

#[test]
fn calls_volumes_and_timeouts_are_counted() {
    let scene =
        Scene::new("cli_timeout = 1\nreconcile_interval = 1\nmetrics_listen = \"/run/no-such\"");
    let (node, ops) = (&scene.node, &scene.ops);
    ops.kill();
    let socket = node.handler().path().with_file_name("m");
    let text = fs::read_to_string(ops.config()).unwrap();
    fs::write(
        ops.config(),
        text.replace("/run/no-such", socket.to_str().unwrap()),
    )
    .unwrap();
    ops.spawn(ops.command());
    wait_until("the metrics", WAIT_TIMEOUT, || {
        UnixStream::connect(&socket).is_ok()
    });
    let text = || {
        let (head, body) = get(UnixStream::connect(&socket).unwrap(), "/metrics");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(
            head.contains("content-type: application/openmetrics-text"),
            "{head}"
        );
        assert!(body.ends_with("# EOF\n"), "{body}");
        body
    };
    let _ = fs::remove_file(node.entry(&scene.target).join("runtime-cli"));
    let (second, device) = (node.target("pod-a", "pv-2"), node.ext4());
    for _ in 0..2 {
        ops.stage(stage_request(&second, &device)).unwrap();
    }
    let mut wrong = stage_request(&second, &device);
    wrong.fs_type.clear();
    expect_error(ops.stage(wrong), InvalidArgument);
    expect_error(ops.stats(&second), FailedPrecondition);
    let now = text();
    let calls = |method: &str, code: &str| {
        format!("crust_ops_calls_total{{method=\"crust.v1.Runtime/{method}\",code=\"{code}\"}}")
    };
    for (metric, expected) in [
        (calls("RuntimeStageVolume", "OK"), 2.0),
        (calls("RuntimeStageVolume", "INVALID_ARGUMENT"), 1.0),
        (calls("RuntimeGetVolumeStats", "FAILED_PRECONDITION"), 1.0),
        (
            "crust_ops_call_duration_seconds_count{method=\"crust.v1.Runtime/RuntimeStageVolume\"}"
                .to_owned(),
            3.0,
        ),
        ("crust_ops_runtime_cli_timeouts_total".to_owned(), 0.0),
        ("crust_ops_staged_volumes".to_owned(), 2.0),
        ("crust_ops_volumes_in_use".to_owned(), 0.0),
    ] {
        let found = value(&now, &metric);
        assert!((found - expected).abs() < 0.1, "{metric}: {found}");
    }

    scene.script("exec sleep 1000000");
    let program = format!("{}\n", scene.program().display());
    fs::write(node.entry(&scene.target).join("runtime-cli"), program).unwrap();
    expect_error(scene.stats(), DeadlineExceeded);
    ops.unstage(&second).unwrap();
    let now = text();
    for (metric, expected) in [
        (calls("RuntimeGetVolumeStats", "DEADLINE_EXCEEDED"), 1.0),
        ("crust_ops_runtime_cli_timeouts_total".to_owned(), 1.0),
        ("crust_ops_staged_volumes".to_owned(), 1.0),
        ("crust_ops_volumes_in_use".to_owned(), 1.0),
    ] {
        let found = value(&now, &metric);
        assert!((found - expected).abs() < 0.1, "{metric}: {found}");
    }
    wait_until("a reconciliation", WAIT_TIMEOUT, || {
        text().contains("crust_ops_reconciliations_total{result=\"ok\"}")
    });
    let damaged = node.entry(&second);
    fs::DirBuilder::new().mode(0o700).create(&damaged).unwrap();
    fs::write(node.handler().crust_root().join(temporary("entry")), "{").unwrap();
    let count =
        |what: &str, kind: &str| format!("crust_ops_reconciliation_{what}{{kind=\"{kind}\"}} 1");
    let expected = [count("removed_total", "leftover"), count("left", "entry")];
    wait_until("the results of the reconciliation", WAIT_TIMEOUT, || {
        let now = text();
        expected.iter().all(|line| now.lines().any(|it| it == line))
    });
    wait_until("the results in the log", WAIT_TIMEOUT, || {
        ops.log().contains("reconciliation: removed 1, left ")
    });
    fs::remove_dir(&damaged).unwrap();
    wait_until(
        "the damaged entry to be gone from the metrics",
        WAIT_TIMEOUT,
        || !text().contains(&expected[1]),
    );
    let (head, _) = get(UnixStream::connect(&socket).unwrap(), "/");
    assert!(head.starts_with("HTTP/1.1 404"), "{head}");
}

fn start_on_loopback(node: &Node) -> (Ops, SocketAddr) {
    // A free port, which the kernel does not assign again soon.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap();
    drop(listener);
    let extra =
        format!("metrics_listen = \"{port}\"\nmetrics_hosts = [\"crust-ops.monitoring.svc\"]");
    let ops = Ops::with(node, &extra);
    wait_until("the metrics", WAIT_TIMEOUT, || {
        TcpStream::connect(port).is_ok()
    });
    (ops, port)
}

#[test]
fn metrics_are_served_on_the_loopback_address() {
    let node = Node::trusted(Delegate::Runc, "");
    let (ops, port) = start_on_loopback(&node);
    let (head, body) = get(TcpStream::connect(port).unwrap(), "/metrics");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(
        (value(&body, "crust_ops_staged_volumes")).abs() < 0.1,
        "{body}"
    );
    drop(ops);
}

/// Any user of the node can open connections to the loopback address.
#[test]
fn silent_clients_do_not_block_other_clients() {
    let node = Node::trusted(Delegate::Runc, "");
    let (ops, port) = start_on_loopback(&node);
    let connect = || {
        let stream = TcpStream::connect(port).unwrap();
        stream.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
        stream
    };
    let requests = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(10_000);
    let unread = (0..100).map(|_| {
        let mut stream = connect();
        stream.set_nonblocking(true).unwrap();
        // Writes as many requests as the daemon reads.
        let _ = stream.write(requests.as_bytes());
        stream
    });
    let silent = (0..100).map(|_| connect());
    let others: [Vec<TcpStream>; 2] = [unread.collect(), silent.collect()];
    for _ in 0..3 {
        let (head, body) = get(connect(), "/metrics");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(body.ends_with("# EOF\n"), "{body}");
    }
    // A silent connection is closed after a while.
    let [_, silent] = others;
    for mut stream in silent {
        assert_eq!(
            stream.read(&mut [0; 1]).unwrap_or(0),
            0,
            "the connection is closed"
        );
    }
    drop(ops);
}

#[test]
fn a_connection_is_for_one_request() {
    let node = Node::trusted(Delegate::Runc, "");
    let socket = node.handler().path().with_file_name("m");
    let ops = Ops::with(&node, &format!("metrics_listen = {socket:?}"));
    wait_until("the metrics", WAIT_TIMEOUT, || {
        UnixStream::connect(&socket).is_ok()
    });
    let mut stream = UnixStream::connect(&socket).unwrap();
    stream.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
    stream
        .write_all(
            "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
                .repeat(2)
                .as_bytes(),
        )
        .unwrap();
    let mut answer = String::new();
    stream
        .read_to_string(&mut answer)
        .expect("the connection's end");
    assert!(answer.ends_with("# EOF\n"), "{answer}");
    assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 1, "{answer}");
    drop(ops);
}

#[test]
fn a_public_metrics_address_is_refused() {
    let node = Node::trusted(Delegate::Runc, "");
    let ops = Ops::stopped(&node, "metrics_listen = \"0.0.0.0:9\"");
    let run = runcrust_tests::Run::capture(&mut ops.command()).failure();
    assert!(
        run.stderr
            .contains("metrics_listen: 0.0.0.0:9 isn't a loopback address"),
        "{run}"
    );
}

/// A web page in a browser on the node can point its own name to the loopback address (DNS rebinding).
#[test]
fn only_loopback_and_configured_host_names_are_answered() {
    let node = Node::trusted(Delegate::Runc, "");
    let (_ops, address) = start_on_loopback(&node);
    for (hosts, expected) in [
        (&["localhost"][..], "200"),
        (&[&*address.to_string()], "200"),
        (&["crust-ops.monitoring.svc:9742"], "200"),
        (&["attacker.example"], "421"),
        (&["attacker.example:9742"], "421"),
        (&[], "400"),
        (&["localhost", "attacker.example"], "400"),
    ] {
        let hosts: Vec<String> = hosts
            .iter()
            .map(|host| format!("Host: {host}\r\n"))
            .collect();
        let hosts = hosts.concat();
        let mut stream = TcpStream::connect(address).unwrap();
        let request = format!("GET /metrics HTTP/1.1\r\n{hosts}Connection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {expected} ")),
            "{hosts}: {answer}"
        );
        assert_eq!(answer.contains("# EOF"), expected == "200", "{hosts}");
    }
}
