//! The daemon as a systemd unit: its sockets and callers, its start, and its signals.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::chown;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::thread;

use crust_proto::v1::runtime_client::RuntimeClient;
use crust_proto::v1::{RuntimeGetVolumeStatsRequest, RuntimeUnstageVolumeRequest};
use hyper_util::rt::TokioIo;
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::ops::stage_request;
use runcrust_tests::{Delegate, LoopDevice, Node, Ops, process, wait_until, wait_until_async};
use rustix::process::Uid;
use tonic::Code::{InvalidArgument, NotFound, PermissionDenied};
use tonic::Status;
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus::{self, NotServing, Serving};
use tonic_health::pb::health_client::HealthClient;

use crate::cli::{ANSWER, Scene};
use crate::{expect_error, reason};

pub(crate) const RUNTIME: &str = "crust.v1.Runtime";
pub(crate) const STORAGE: &str = "crust.runtime.v1alpha1.RuntimeAssistedStorageManagement";

/// Connects as another user.
pub(crate) fn connect_as(uid: u32, socket: &Path) -> Result<UnixStream, std::io::Error> {
    let connect = || {
        // Applies only to this thread, which ends afterwards.
        rustix::thread::set_thread_res_uid(None, Uid::from_raw(uid), None).expect("setresuid");
        UnixStream::connect(socket)
    };
    thread::scope(|scope| scope.spawn(connect).join()).expect("a thread")
}

fn unstage_over(ops: &Ops, stream: UnixStream) -> Result<(), Status> {
    stream.set_nonblocking(true).unwrap();
    let mut stream = Some(stream);
    ops.block_on(async {
        let connect = tower::service_fn(move |_| {
            let stream = stream
                .take()
                .ok_or(std::io::Error::from(ErrorKind::NotConnected));
            async {
                stream
                    .and_then(tokio::net::UnixStream::from_std)
                    .map(TokioIo::new)
            }
        });
        let endpoint = Endpoint::from_static("http://crust_ops");
        let channel = endpoint
            .connect_with_connector(connect)
            .await
            .expect("a channel");
        let request = RuntimeUnstageVolumeRequest {
            volume_target_path: "/a".to_owned(),
        };
        RuntimeClient::new(channel)
            .runtime_unstage_volume(request)
            .await
    })?;
    Ok(())
}

#[test]
fn only_root_is_served_with_any_mode_of_the_socket() {
    let (_node, ops) = Ops::with_node(Delegate::Runc);
    let error = connect_as(1000, ops.socket()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    chown(ops.socket(), Some(1000), None).unwrap();
    let stream = connect_as(1000, ops.socket()).unwrap();
    let call = unstage_over(&ops, stream);
    assert_eq!(reason(&call), "CALLER");
    let error = expect_error(call, PermissionDenied);
    assert!(error.contains("only root"), "{error}");
    let log = ops.log();
    assert!(
        log.contains("refused: only root") && log.contains("uid=1000"),
        "{log}"
    );
    unstage_over(&ops, connect_as(0, ops.socket()).unwrap()).unwrap();
    assert!(ops.log().contains("uid=0"));
}

pub(crate) fn health(ops: &Ops, socket: &Path, service: &str) -> Result<ServingStatus, Status> {
    let mut client = HealthClient::new(ops.channel(socket));
    let request = HealthCheckRequest {
        service: service.to_owned(),
    };
    let answer = ops.block_on(client.check(request))?;
    Ok(answer.into_inner().status())
}

#[test]
fn health_is_reported_for_each_service() {
    let (_node, ops) = Ops::with_node(Delegate::Runc);
    for (socket, own, other) in [
        (ops.socket(), RUNTIME, STORAGE),
        (ops.crust_socket(), STORAGE, RUNTIME),
    ] {
        for service in [own, ""] {
            assert_eq!(health(&ops, socket, service).unwrap(), Serving);
        }
        expect_error(health(&ops, socket, other), NotFound);
    }
}

#[test]
fn a_call_in_progress_is_finished_before_the_end() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let scene = Scene::new("cli_timeout = 3600");
        let ops = &scene.ops;
        let fifo = scene.node.dir().join("fifo");
        mkfifo(&fifo, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
        scene.script(&format!("read line < {}\necho '{ANSWER}'", fifo.display()));
        ops.block_on(async {
            let request = HealthCheckRequest {
                service: RUNTIME.to_owned(),
            };
            let mut watcher = HealthClient::new(ops.channel(ops.socket()));
            let mut health = watcher.watch(request).await.unwrap().into_inner();
            assert_eq!(health.message().await.unwrap().unwrap().status(), Serving);

            let mut client = RuntimeClient::new(ops.channel(ops.socket()));

            let volume_target_path = utf8(&scene.target).to_owned();
            let request = RuntimeGetVolumeStatsRequest { volume_target_path };
            let call = tokio::spawn(async move { client.runtime_get_volume_stats(request).await });
            wait_until_async("the program to run", WAIT_TIMEOUT, || {
                scene.pid_file().exists()
            })
            .await;
            ops.signal(signal);
            assert_eq!(
                health.message().await.unwrap().unwrap().status(),
                NotServing
            );
            assert!(
                health.message().await.unwrap().is_none(),
                "the watch ends at once"
            );
            // New calls are refused, on old and on new connections.
            let mut client = RuntimeClient::new(ops.channel(ops.socket()));
            let refused_call = wait_for_refusal(&mut client, &scene).await;
            assert_eq!(reason(&refused_call), "ENDING");
            assert!(!call.is_finished());
            fs::write(&fifo, "go\n").unwrap();
            call.await.unwrap().expect("a call that was in progress");
        });
        assert!(ops.wait().success(), "{}", ops.log());
        let log = ops.log();
        assert!(
            log.contains(&format!(
                "{signal}: shutting down: waiting for calls in progress"
            )) && !log.contains("cut off"),
            "{log}"
        );
    }
}

/// Unstages an unknown volume until that fails, at most a thousand times.
async fn wait_for_refusal(
    client: &mut RuntimeClient<tonic::transport::Channel>,
    scene: &Scene,
) -> Result<(), tonic::Status> {
    for _ in 0..1000 {
        let volume_target_path = utf8(&scene.node.target("pod-a", "pv-2")).to_owned();
        let request = RuntimeUnstageVolumeRequest { volume_target_path };
        match client.runtime_unstage_volume(request).await {
            Ok(_) => {}
            Err(status) => return Err(status),
        }
    }
    Ok(())
}

/// The processes that the program has left end with the daemon too.
#[test]
fn no_program_outlives_the_daemon() {
    let scene = Scene::new("cli_timeout = 3600\ndrain_timeout = 1");
    let ops = &scene.ops;
    let left = scene.node.dir().join("left");
    let started = scene.node.dir().join("began");
    scene.script(&format!(
        "echo $$ >> {1}; setsid sh -c 'echo $$ > {0}.new; mv {0}.new {0}; exec sleep 1000000' & sleep 1000000 & wait",
        left.display(),
        started.display()
    ));
    ops.block_on(async {
        let client = RuntimeClient::new(ops.channel(ops.socket()));
        let volume_target_path = utf8(&scene.target).to_owned();
        let request = RuntimeGetVolumeStatsRequest { volume_target_path };
        // The other calls wait until the first program is killed.
        let calls = (0..4).map(|_| {
            let (mut client, request) = (client.clone(), request.clone());
            tokio::spawn(async move { client.runtime_get_volume_stats(request).await })
        });
        let calls: Vec<_> = calls.collect();
        wait_until_async("the program to run", WAIT_TIMEOUT, || {
            scene.pid_file().exists() && left.exists()
        })
        .await;
        ops.signal(Signal::SIGTERM);
        for call in calls {
            let _ = call.await.unwrap().unwrap_err();
        }
    });
    assert!(ops.wait().success(), "{}", ops.log());
    assert!(ops.log().contains("cut off after 1 s"), "{}", ops.log());
    let left = fs::read_to_string(left).unwrap().trim().parse().unwrap();
    assert!(
        !process::is_alive(left),
        "the process ended before the daemon"
    );
    assert_eq!(process::in_group(scene.group()), <[i32; 0]>::default());
    assert_eq!(fs::read_to_string(started).unwrap().lines().count(), 1);
}

#[test]
fn sighup_reloads_and_a_mistake_changes_nothing() {
    let scene = Scene::new("");
    let (node, ops) = (&scene.node, &scene.ops);
    scene.script(&format!("echo '{ANSWER}'"));
    scene.stats().unwrap();
    let mut reloads = 0;
    let mut reload = |extra: &str, part: &str| {
        reloads += 1;
        ops.reconfigure(node, extra);
        ops.signal(Signal::SIGHUP);
        wait_until("the reload", WAIT_TIMEOUT, || {
            let log = ops.log();
            let reloaded = log
                .lines()
                .filter(|line| line.ends_with(" reloaded") || line.contains(" not reloaded: "));
            reloaded.count() == reloads
        });
        let log = ops.log();
        assert!(log.contains(part), "no {part:?} in {log}");
    };
    let allowed = format!("allowed_clis = [{:?}]\n", scene.program());
    reload("", " reloaded");
    assert_eq!(
        reason(&scene.stats()),
        "RUNTIME_CLI_UNTRUSTED",
        "the program is no longer allowed"
    );
    reload(&format!("{allowed}cli_timeout = 1"), " reloaded");
    scene.stats().unwrap();
    scene.script("exec sleep 1000000");
    let error = scene.stats().unwrap_err();
    assert!(error.message().contains("within 1 s"), "{error}");
    for (broken, part) in [
        (
            "cli_timeout = 0",
            "cli_timeout: 0 isn't in the range 1 to 3600",
        ),
        ("cli_timeot = 5", "unknown field `cli_timeot`"),
        ("= ", "crust_ops.toml: line 5"),
    ] {
        reload(&format!("{allowed}{broken}"), part);
        let error = scene.stats().unwrap_err();
        assert!(error.message().contains("within 1 s"), "{error}");
    }
    reload(
        &format!("{allowed}max_calls = 5"),
        "max_calls only changes with a restart",
    );

    // The configuration of the runtime is read again as well.
    let device = LoopDevice::new(node.dir(), 1);
    let target = node.target("pod-a", "pv-2");
    let mut request = stage_request(&target, &device);
    request.fs_type = "vfat".to_owned();
    expect_error(ops.stage(request.clone()), InvalidArgument);
    node.handler().reconfigure("fstypes = [\"vfat\"]");
    reload(&allowed, " reloaded");
    ops.stage(request.clone()).unwrap();
    node.handler().reconfigure("fstypes = 5");
    reload(&allowed, utf8(&node.handler().configuration()));
    ops.stage(request).expect("the old configuration");
}

#[test]
fn systemd_is_notified_of_start_and_end() {
    let node = Node::trusted(Delegate::Runc, "");
    let ops = Ops::stopped(&node, "");
    let notify = node.dir().join("n");
    let socket = UnixDatagram::bind(&notify).unwrap();
    socket.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
    let notification = || {
        let mut bytes = [0; 256];
        let length = socket.recv(&mut bytes).expect("a datagram");
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    };
    let mut command = ops.command();
    command.env("NOTIFY_SOCKET", &notify);
    ops.spawn(command);
    assert_eq!(notification().trim_end(), "READY=1");
    ops.signal(Signal::SIGTERM);
    assert_eq!(notification().trim_end(), "STOPPING=1");
    assert!(ops.wait().success());
}

#[test]
fn the_second_socket_can_be_disabled() {
    let node = Node::trusted(Delegate::Runc, "");
    let ops = Ops::stopped(&node, "");
    let text = fs::read_to_string(ops.config()).unwrap();
    let lines = text
        .lines()
        .filter(|line| !line.starts_with("crust_listen"))
        .chain(["crust_listen = \"\""]);
    fs::write(ops.config(), lines.collect::<Vec<_>>().join("\n")).unwrap();
    ops.spawn(ops.command());
    assert_eq!(health(&ops, ops.socket(), "").unwrap(), Serving);
    assert!(!ops.crust_socket().exists());
}

/// The stopped client keeps its connection open until the daemon has ended.
#[test]
fn a_stopped_client_does_not_delay_the_end() {
    let (_node, ops) = Ops::with_node(Delegate::Runc);
    let mut client = HealthClient::new(ops.channel(ops.socket()));
    let request = HealthCheckRequest::default();
    ops.block_on(client.check(request)).unwrap();
    ops.signal(Signal::SIGTERM);
    wait_until("crust_ops to end", WAIT_TIMEOUT, || {
        !process::is_alive(ops.pid())
    });
    assert!(ops.wait().success());
    assert!(!ops.log().contains("cut off"), "{}", ops.log());
}
