//! Limits on the size and the number of requests.

use std::fs;
use std::os::unix::net::UnixStream;
use std::process::Command;

use crust_proto::runtime::v1alpha1::RuntimePublishVolumeRequest;
use crust_proto::v1::runtime_client::RuntimeClient;
use crust_proto::v1::{
    RuntimeGetVolumeStatsRequest, RuntimeUnstageVolumeRequest, RuntimeUnstageVolumeResponse,
};
use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::ops::stage_request;
use runcrust_tests::{Delegate, Node, Ops, Run, wait_until, wait_until_async};
use tonic::Code::{DeadlineExceeded, NotFound, OutOfRange, ResourceExhausted};
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::cli::{ANSWER, Scene};
use crate::{expect_error, reason};

#[test]
fn a_request_that_is_too_large_is_not_read() {
    let node = Node::trusted(Delegate::Runc, "");
    let ops = Ops::with(&node, "max_message = 4096");
    let device = node.ext4();
    let target = node.target("pod-a", "pv-1");
    let mut request = stage_request(&target, &device);
    request.mount_flags = vec!["x-long=".to_owned() + &"a".repeat(100); 40];
    let error = expect_error(ops.stage(request.clone()), OutOfRange);
    assert!(error.contains("4096 bytes"), "{error}");
    assert!(!node.entry(&target).exists());
    request.mount_flags.truncate(30);
    ops.stage(request).unwrap();
    let request = RuntimePublishVolumeRequest {
        sandbox_id: "s".repeat(4096),
        ..RuntimePublishVolumeRequest::default()
    };
    let call = ops.crust(|mut client| async move { client.runtime_publish_volume(request).await });
    let error = expect_error(call, OutOfRange);
    assert!(error.contains("4096 bytes"), "{error}");
}

/// While one call is in progress, others are refused, except for health checks.
#[test]
fn more_calls_than_max_calls_are_refused() {
    let scene = Scene::new("cli_timeout = 3600\nmax_calls = 1");
    let ops = &scene.ops;
    scene.script("exec sleep 1000000");
    let unknown = scene.node.target("pod-a", "pv-2");
    let request = |target: &std::path::Path| RuntimeGetVolumeStatsRequest {
        volume_target_path: utf8(target).to_owned(),
    };
    ops.block_on(async {
        let client = RuntimeClient::new(ops.channel(ops.socket()));
        let (mut hanging, target) = (client.clone(), request(&scene.target));
        let call = tokio::spawn(async move { hanging.runtime_get_volume_stats(target).await });
        wait_until_async("the program to run", WAIT_TIMEOUT, || {
            scene.pid_file().exists()
        })
        .await;

        let mut another = RuntimeClient::new(ops.channel(ops.socket()));
        for client in [&mut client.clone(), &mut another] {
            let answer = client.runtime_get_volume_stats(request(&unknown)).await;
            assert_eq!(reason(&answer), "BUSY");
            let error = expect_error(answer, ResourceExhausted);
            assert!(error.contains("retry later"), "{error}");
        }
        let mut health = HealthClient::new(ops.channel(ops.crust_socket()));
        health
            .check(HealthCheckRequest::default())
            .await
            .expect("a health check");
        call.abort();
        let _ = call.await;
        wait_until_async("the call to be over", WAIT_TIMEOUT, || {
            ops.log().contains("the caller cancelled the call")
        })
        .await;
    });
    expect_error(ops.stats(&unknown), NotFound);
    scene.script(&format!("echo '{ANSWER}'"));
    scene.stats().unwrap();
}

/// Returns the daemon's soft and hard limits of open files, from proc(5).
fn descriptors(ops: &Ops) -> (u64, u64) {
    let limits = fs::read_to_string(format!("/proc/{}/limits", ops.pid())).unwrap();
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"));
    let mut numbers = line.unwrap().split_ascii_whitespace();
    let mut next = || numbers.next().unwrap().parse().unwrap();
    (next(), next())
}

#[test]
fn the_limit_of_descriptors_is_raised_to_the_hard_limit() {
    let node = Node::trusted(Delegate::Runc, "");
    let ops = Ops::stopped(&node, "");
    let command = ops.command();
    let mut limited = Command::new("prlimit");
    limited
        .arg("--nofile=256:1000")
        .arg(command.get_program())
        .args(command.get_args());
    ops.spawn(limited);
    assert_eq!(descriptors(&ops), (1000, 1000));
}

#[test]
fn running_out_of_descriptors_is_logged_and_survived() {
    let (node, ops) = Ops::with_node(Delegate::Runc);
    expect_error(ops.stats(&node.target("pod-a", "pv-1")), NotFound);
    let limit_to = |soft: u64| {
        let limit = format!("--nofile={soft}:");
        let pid = ops.pid().to_string();
        Run::capture(Command::new("prlimit").args(["--pid", &pid, &limit])).success()
    };
    let (before, _) = descriptors(&ops);
    // Open descriptors stay open.
    let _ = limit_to(3);
    let is_logged = |times| {
        let log = ops.log();
        let lines = log.lines().filter(|it| it.contains("os error 24"));
        let lines: Vec<&str> = lines.collect();
        let are_whole = lines.iter().all(|line| {
            line.contains("crust.v1.Runtime: accept: ") && line.contains("LimitNOFILE=")
        });
        assert!(lines.len() <= times && are_whole, "{log}");
        lines.len() == times
    };
    let waiting = UnixStream::connect(ops.socket());
    let waiting = waiting.unwrap_or_else(|error| panic!("{error}; crust_ops: {}", ops.log()));
    wait_until("the failure to be logged", WAIT_TIMEOUT, || is_logged(1));
    let _ = limit_to(before);
    drop(waiting);
    expect_error(ops.stats(&node.target("pod-a", "pv-1")), NotFound);
    assert!(is_logged(1));
}

/// A call without its message counts as one in progress, so it must end.
#[test]
fn a_call_without_a_message_is_not_awaited() {
    assert_not_awaited::<RuntimeUnstageVolumeRequest, RuntimeUnstageVolumeResponse>(
        "/crust.v1.Runtime/RuntimeUnstageVolume",
    );
}

#[test]
fn a_health_check_without_a_message_is_not_awaited() {
    assert_not_awaited::<HealthCheckRequest, HealthCheckResponse>("/grpc.health.v1.Health/Check");
}

fn assert_not_awaited<Request, Response>(method: &'static str)
where
    Request: prost::Message + Default + Send + Sync + 'static,
    Response: prost::Message + Default + std::fmt::Debug + Send + Sync + 'static,
{
    let node = Node::trusted(Delegate::Runc, "");
    let ops = Ops::with(&node, "max_calls = 1");
    let unknown = node.target("pod-a", "pv-1");
    ops.block_on(async {
        let mut client = tonic::client::Grpc::new(ops.channel(ops.socket()));
        client.ready().await.unwrap();
        let never = tokio_stream::pending::<Request>();
        let path = method.parse().unwrap();
        let codec = tonic_prost::ProstCodec::default();
        let call = client.client_streaming(tonic::Request::new(never), path, codec);
        let call: Result<tonic::Response<Response>, _> = call.await;
        assert_eq!(reason(&call), "DEADLINE");
        let error = expect_error(call, DeadlineExceeded);
        assert!(error.contains("message"), "{error}");
    });
    ops.unstage(&unknown).expect("another call is accepted");
}

/// Only calls of the same connection wait.
#[test]
fn more_calls_than_max_streams_wait() {
    let scene = Scene::new("cli_timeout = 3600\nmax_streams = 1");
    let ops = &scene.ops;
    scene.script("exec sleep 1000000");
    let unknown = scene.node.target("pod-a", "pv-2");
    let stats = |channel: &tonic::transport::Channel, target: &std::path::Path| {
        let mut client = RuntimeClient::new(channel.clone());
        let volume_target_path = utf8(target).to_owned();
        let request = RuntimeGetVolumeStatsRequest { volume_target_path };
        tokio::spawn(async move { client.runtime_get_volume_stats(request).await })
    };
    ops.block_on(async {
        let (one, another) = (ops.channel(ops.socket()), ops.channel(ops.socket()));
        let hanging = stats(&one, &scene.target);
        wait_until_async("the program to run", WAIT_TIMEOUT, || {
            scene.pid_file().exists()
        })
        .await;
        let waiting = stats(&one, &unknown);
        for _ in 0..20 {
            let answer = stats(&another, &unknown).await.unwrap();
            expect_error(answer, NotFound);
        }
        assert!(!waiting.is_finished(), "the connection has no free stream");
        hanging.abort();
        expect_error(waiting.await.unwrap(), NotFound);
    });
}
