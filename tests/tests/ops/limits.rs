//! Requests are bounded, in size and in number.

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
use crate::{reason, refused};

#[test]
fn a_request_that_is_too_large_is_not_read() {
    let node = Node::trusted(Delegate::Runc, "");
    let ops = Ops::with(&node, "max_message = 4096");
    let device = node.ext4();
    let target = node.target("pod-a", "pv-1");
    let mut request = stage_request(&target, &device);
    request.mount_flags = vec!["x-long=".to_owned() + &"a".repeat(100); 40];
    let error = refused(ops.stage(request.clone()), OutOfRange);
    assert!(error.contains("4096 bytes"), "{error}");
    assert!(!node.entry(&target).exists());
    request.mount_flags.truncate(30);
    ops.stage(request).unwrap();
    let request = RuntimePublishVolumeRequest {
        sandbox_id: "s".repeat(4096),
        ..RuntimePublishVolumeRequest::default()
    };
    let call = ops.crust(|mut client| async move { client.runtime_publish_volume(request).await });
    let error = refused(call, OutOfRange);
    assert!(error.contains("4096 bytes"), "{error}");
}

/// One call is under way; the others are told to try again, but whoever asks for its health.
#[test]
fn more_calls_than_it_takes_are_told_to_try_again() {
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
        wait_until_async("the program to run", WAIT_TIMEOUT, || scene.told().exists()).await;

        let mut another = RuntimeClient::new(ops.channel(ops.socket()));
        for client in [&mut client.clone(), &mut another] {
            let answer = client.runtime_get_volume_stats(request(&unknown)).await;
            assert_eq!(reason(&answer), "BUSY");
            let error = refused(answer, ResourceExhausted);
            assert!(error.contains("try again later"), "{error}");
        }
        let mut health = HealthClient::new(ops.channel(ops.crust_socket()));
        health
            .check(HealthCheckRequest::default())
            .await
            .expect("it is well");
        call.abort();
        let _ = call.await;
        wait_until_async("its place to be free", WAIT_TIMEOUT, || {
            ops.log().contains("the caller cancelled the call")
        })
        .await;
    });
    refused(ops.stats(&unknown), NotFound);
    scene.script(&format!("echo '{ANSWER}'"));
    scene.stats().unwrap();
}

/// Its limits, as proc(5) has them: soft and hard.
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
fn it_has_as_many_descriptors_as_it_may() {
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
    refused(ops.stats(&node.target("pod-a", "pv-1")), NotFound);
    let limit_to = |soft: u64| {
        let limit = format!("--nofile={soft}:");
        let pid = ops.pid().to_string();
        Run::of(Command::new("prlimit").args(["--pid", &pid, &limit])).success()
    };
    let (before, _) = descriptors(&ops);
    // Those that it has already it keeps.
    let _ = limit_to(3);
    let told = |times| {
        let log = ops.log();
        let lines = log.lines().filter(|it| it.contains("os error 24"));
        let lines: Vec<&str> = lines.collect();
        let are_whole = lines.iter().all(|line| {
            line.contains("crust.v1.Runtime: accept: ") && line.contains("LimitNOFILE=")
        });
        assert!(lines.len() <= times && are_whole, "{log}");
        lines.len() == times
    };
    let waiting = UnixStream::connect(ops.socket()).unwrap();
    wait_until("the log to tell", WAIT_TIMEOUT, || told(1));
    let _ = limit_to(before);
    drop(waiting);
    refused(ops.stats(&node.target("pod-a", "pv-1")), NotFound);
    assert!(told(1));
}

/// It has a call's place as long as it comes.
#[test]
fn a_message_that_does_not_come_is_not_waited_for() {
    never_comes::<RuntimeUnstageVolumeRequest, RuntimeUnstageVolumeResponse>(
        "/crust.v1.Runtime/RuntimeUnstageVolume",
    );
}

#[test]
fn a_health_check_without_a_message_is_not_awaited() {
    never_comes::<HealthCheckRequest, HealthCheckResponse>("/grpc.health.v1.Health/Check");
}

fn never_comes<Request, Response>(method: &'static str)
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
        let error = refused(call, DeadlineExceeded);
        assert!(error.contains("message"), "{error}");
    });
    ops.unstage(&unknown).expect("the place is free");
}

/// Of one connection; another's calls don't wait for them.
#[test]
fn more_calls_than_a_connection_may_have_wait() {
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
        wait_until_async("the program to run", WAIT_TIMEOUT, || scene.told().exists()).await;
        let waiting = stats(&one, &unknown);
        for _ in 0..20 {
            let answer = stats(&another, &unknown).await.unwrap();
            refused(answer, NotFound);
        }
        assert!(!waiting.is_finished(), "there is no stream for it");
        hanging.abort();
        refused(waiting.await.unwrap(), NotFound);
    });
}
