//! The daemon as a unit of systemd's: its sockets and callers, its start, its signals.

use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::thread;

use crust_proto::v1::runtime_client::RuntimeClient;
use crust_proto::v1::{RuntimeGetVolumeStatsRequest, RuntimeUnstageVolumeRequest};
use hyper_util::rt::TokioIo;
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use runcrust_tests::node::{PATIENCE, utf8};
use runcrust_tests::ops::stage_request;
use runcrust_tests::{Delegate, LoopDevice, Node, Ops, Run, process, until, wait_until};
use rustix::io::FdFlags;
use rustix::process::Uid;
use tonic::Code::{InvalidArgument, NotFound, PermissionDenied};
use tonic::Status;
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus::{self, NotServing, Serving};
use tonic_health::pb::health_client::HealthClient;

use crate::cli::{ANSWER, Scene};
use crate::{reason, refused};

const RUNTIME: &str = "crust.v1.Runtime";
const STORAGE: &str = "crust.runtime.v1alpha1.RuntimeAssistedStorageManagement";

#[test]
fn its_sockets_are_roots_alone() {
    let node = Node::trusted(Delegate::Runc, "");
    let metrics = node.dir().join("m");
    let ops = Ops::with(&node, &format!("metrics_listen = {metrics:?}"));
    for socket in [ops.socket(), ops.crust_socket(), &metrics] {
        // It answers before all of them are there.
        wait_until("the socket", PATIENCE, || socket.exists());
        let stat = fs::symlink_metadata(socket).unwrap();
        let found = (stat.mode(), stat.uid(), stat.gid());
        assert_eq!(found, (0o140_600, 0, 0), "{}", socket.display());
    }
}

/// A connection of another user's.
fn connect_as(uid: u32, socket: &Path) -> Result<UnixStream, std::io::Error> {
    let connect = || {
        // This thread's alone, which ends.
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
fn only_root_is_served_whatever_the_sockets_mode_is() {
    let node = Node::trusted(Delegate::Runc, "");
    let ops = Ops::start(&node);
    let error = connect_as(1000, ops.socket()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    chown(ops.socket(), Some(1000), None).unwrap();
    let stream = connect_as(1000, ops.socket()).unwrap();
    let call = unstage_over(&ops, stream);
    assert_eq!(reason(&call), "CALLER");
    let error = refused(call, PermissionDenied);
    assert!(error.contains("only root"), "{error}");
    let log = ops.log();
    assert!(
        log.contains("refused: only root") && log.contains("uid=1000"),
        "{log}"
    );
    unstage_over(&ops, connect_as(0, ops.socket()).unwrap()).unwrap();
    assert!(ops.log().contains("uid=0"));
}

fn health(ops: &Ops, socket: &Path, service: &str) -> Result<ServingStatus, Status> {
    let mut client = HealthClient::new(ops.channel(socket));
    let request = HealthCheckRequest {
        service: service.to_owned(),
    };
    let answer = ops.block_on(client.check(request))?;
    Ok(answer.into_inner().status())
}

#[test]
fn health_is_told_of_each_service() {
    let node = Node::trusted(Delegate::Runc, "");
    let ops = Ops::start(&node);
    for (socket, own, other) in [
        (ops.socket(), RUNTIME, STORAGE),
        (ops.crust_socket(), STORAGE, RUNTIME),
    ] {
        for service in [own, ""] {
            assert_eq!(health(&ops, socket, service).unwrap(), Serving);
        }
        refused(health(&ops, socket, other), NotFound);
    }
}

#[test]
fn a_call_under_way_is_finished_at_the_end() {
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
            until("the program to run", PATIENCE, || scene.told().exists()).await;
            ops.signal(signal);
            assert_eq!(
                health.message().await.unwrap().unwrap().status(),
                NotServing
            );
            assert!(
                health.message().await.unwrap().is_none(),
                "a watch isn't waited for"
            );
            assert!(!call.is_finished());
            fs::write(&fifo, "go\n").unwrap();
            call.await.unwrap().expect("it was under way");
        });
        assert!(ops.wait().success(), "{}", ops.log());
        let log = ops.log();
        assert!(
            log.contains(&format!("{signal}: finishes")) && !log.contains("cut off"),
            "{log}"
        );
    }
}

#[test]
fn sighup_reloads_what_can_change_and_a_mistake_changes_nothing() {
    let scene = Scene::new("");
    let (node, ops) = (&scene.node, &scene.ops);
    scene.script(&format!("echo '{ANSWER}'"));
    scene.stats().unwrap();
    let mut reloads = 0;
    let mut reload = |extra: &str, told: &str| {
        reloads += 1;
        ops.reconfigure(node, extra);
        ops.signal(Signal::SIGHUP);
        wait_until("the reload", PATIENCE, || {
            let log = ops.log();
            let reloaded = log
                .lines()
                .filter(|line| line.ends_with(" reloaded") || line.contains(" not reloaded: "));
            reloaded.count() == reloads
        });
        let log = ops.log();
        assert!(log.contains(told), "{told:?} isn't in {log}");
    };
    let allowed = format!("allowed_clis = [{:?}]\n", scene.program());
    reload("", " reloaded");
    assert_eq!(
        reason(&scene.stats()),
        "RUNTIME_CLI_UNTRUSTED",
        "it is on the list no more"
    );
    reload(&format!("{allowed}cli_timeout = 1"), " reloaded");
    scene.stats().unwrap();
    scene.script("exec sleep 1000000");
    let error = scene.stats().unwrap_err();
    assert!(error.message().contains("within 1 s"), "{error}");
    for (broken, told) in [
        ("cli_timeout = 0", "cli_timeout: 0 isn't one of 1 to 3600"),
        ("cli_timeot = 5", "unknown field `cli_timeot`"),
        ("= ", "crust_ops.toml: line 5"),
    ] {
        reload(&format!("{allowed}{broken}"), told);
        let error = scene.stats().unwrap_err();
        assert!(error.message().contains("within 1 s"), "{error}");
    }
    reload(
        &format!("{allowed}max_calls = 5"),
        "max_calls changes with a restart only",
    );

    // The runtime's own configuration is read again too.
    let device = LoopDevice::new(node.dir(), 1);
    let target = node.target("pod-a", "pv-2");
    let mut request = stage_request(&target, &device);
    request.fs_type = "vfat".to_owned();
    refused(ops.stage(request.clone()), InvalidArgument);
    node.handler().reconfigure("fstypes = [\"vfat\"]");
    reload(&allowed, " reloaded");
    ops.stage(request.clone()).unwrap();
    node.handler().reconfigure("fstypes = 5");
    reload(&allowed, utf8(&node.handler().configuration()));
    ops.stage(request).expect("as before");
}

#[test]
fn systemd_is_told_when_it_is_ready_and_when_it_ends() {
    let node = Node::trusted(Delegate::Runc, "");
    let ops = Ops::stopped(&node, "");
    let notify = node.dir().join("n");
    let socket = UnixDatagram::bind(&notify).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let told = || {
        let mut bytes = [0; 256];
        let length = socket.recv(&mut bytes).expect("a datagram");
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    };
    let mut command = ops.command();
    command.env("NOTIFY_SOCKET", &notify);
    ops.spawn(command);
    assert_eq!(told().trim_end(), "READY=1");
    ops.signal(Signal::SIGTERM);
    assert_eq!(told().trim_end(), "STOPPING=1");
    assert!(ops.wait().success());
}

/// A command that gets listening sockets as systemd passes them.
fn activated(ops: &Ops, sockets: &[(&UnixListener, &str)]) -> Command {
    let given = sockets.iter().zip(20..).map(|((listener, _), aside)| {
        rustix::io::fcntl_setfd(listener, FdFlags::empty()).unwrap();
        // Away from where they are to be.
        format!("exec {aside}<&{}; ", listener.as_raw_fd())
    });
    let placed = (20..).zip(3..).take(sockets.len());
    let placed = placed.map(|(aside, fd)| format!("exec {fd}<&{aside} {aside}<&-; "));
    let mut script: String = given.chain(placed).collect();
    let names: Vec<&str> = sockets.iter().map(|(_, name)| *name).collect();
    script += "export LISTEN_PID=$$; exec \"$@\"";
    let command = ops.command();
    // dash knows no descriptors above 9.
    let mut shell = Command::new("/bin/bash");
    shell
        .args(["-ec", &script, "bash"])
        .arg(command.get_program())
        .args(command.get_args());
    shell
        .env("LISTEN_FDS", sockets.len().to_string())
        .env("LISTEN_FDNAMES", names.join(":"));
    shell
}

#[test]
fn systemd_listens_for_it() {
    for names in [["crust", "crust_ops"], ["crust.socket", "crust_ops.socket"]] {
        let node = Node::trusted(Delegate::Runc, "");
        let ops = Ops::stopped(&node, "");
        let bind = |path: &Path| UnixListener::bind(path).unwrap();
        let (crust, own) = (bind(ops.crust_socket()), bind(ops.socket()));
        let (metrics, identity) = (bind(&node.dir().join("x")), |path: &Path| {
            fs::symlink_metadata(path).unwrap().ino()
        });
        let before = (identity(ops.socket()), identity(ops.crust_socket()));
        ops.spawn_activated(activated(
            &ops,
            &[(&crust, names[0]), (&metrics, "other"), (&own, names[1])],
        ));
        assert_eq!(health(&ops, ops.socket(), RUNTIME).unwrap(), Serving);
        assert_eq!(health(&ops, ops.crust_socket(), STORAGE).unwrap(), Serving);
        assert!(
            ops.log().contains("systemd listens on \"other\" for us"),
            "{}",
            ops.log()
        );
        ops.signal(Signal::SIGTERM);
        assert!(ops.wait().success());
        assert_eq!(
            (identity(ops.socket()), identity(ops.crust_socket())),
            before,
            "they are systemd's"
        );
        UnixStream::connect(ops.socket()).expect("systemd still listens");
    }
}

#[test]
fn it_takes_no_others_place() {
    let node = Node::trusted(Delegate::Runc, "");
    let ops = Ops::start(&node);
    let second = Run::of(&mut ops.command()).failure();
    assert!(
        second.stderr.contains("does another crust_ops run?"),
        "{second}"
    );
    assert_eq!(health(&ops, ops.socket(), "").unwrap(), Serving);
    ops.kill();
    // What it left is replaced, and nothing else is.
    ops.spawn_activated(ops.command());
    ops.kill();
    fs::remove_file(ops.crust_socket()).unwrap();
    fs::write(ops.crust_socket(), "mine").unwrap();
    let third = Run::of(&mut ops.command()).failure();
    assert!(third.stderr.contains("isn't a socket"), "{third}");
    assert_eq!(fs::read_to_string(ops.crust_socket()).unwrap(), "mine");
}

#[test]
fn without_a_second_socket_there_is_one() {
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

#[test]
fn check_says_what_is_right_and_what_is_not() {
    let node = Node::trusted(Delegate::Runc, "");
    let ops = Ops::stopped(&node, "");
    let check = || Run::of(ops.command().arg("--check"));
    let run = check().success();
    let words = [
        "configuration",
        "user",
        "runtime-cli",
        "runtime's configuration",
        "crust directory",
        "socket",
        "socket",
    ];
    let lines: Vec<&str> = run.stdout.lines().collect();
    assert_eq!(lines.len(), words.len(), "{run}");
    for (line, word) in lines.iter().zip(words) {
        assert!(line.starts_with(&format!("ok    {word}: ")), "{line}");
    }
    assert!(
        !ops.socket().exists() && !node.handler().crust_root().exists(),
        "it makes nothing"
    );

    let fails = |run: Run, what: &str, words: &str| {
        let run = run.failure();
        let failed: Vec<&str> = run
            .stdout
            .lines()
            .filter(|line| line.starts_with("FAIL  "))
            .collect();
        let found = failed
            .iter()
            .any(|line| line.starts_with(&format!("FAIL  {what}: ")) && line.contains(words));
        assert!(found, "{what}: {words:?} isn't among {run}");
    };
    let file = node.dir().join("file");
    fs::write(&file, "").unwrap();
    let missing = format!("allowed_clis = [\"/no/such/program\", {file:?}]");
    ops.reconfigure(&node, &missing);
    fails(check(), "runtime-cli", "/no/such/program");
    fails(check(), "runtime-cli", "/tmp can be written by others");
    ops.reconfigure(&node, "cli_timeot = 5");
    fails(check(), "configuration", "unknown field `cli_timeot`");
    fs::remove_file(ops.config()).unwrap();
    fails(check(), "configuration", utf8(ops.config()));
    fs::write(
        ops.config(),
        format!(
            "listen = \"{0}/s\"\nruntime = {1:?}",
            file.display(),
            node.handler().path()
        ),
    )
    .unwrap();
    fails(check(), "socket", "isn't a directory");
    ops.reconfigure(&node, "");
    fs::create_dir(node.handler().crust_root()).unwrap();
    fs::set_permissions(node.handler().crust_root(), Permissions::from_mode(0o777)).unwrap();
    fails(check(), "crust directory", "can be written by others");
    node.handler().reconfigure("fstypes = 5");
    fails(
        check(),
        "runtime's configuration",
        utf8(&node.handler().configuration()),
    );
    let command = ops.command();
    let mut other = Command::new("setpriv");
    other
        .args(["--reuid=1000", "--clear-groups"])
        .arg(command.get_program())
        .args(command.get_args());
    fails(Run::of(other.arg("--check")), "user", "uid 1000 isn't root");
    let error = Run::of(&mut ops.command()).failure();
    assert_eq!(error.stderr.lines().count(), 1, "{error}");
    assert!(
        error.stderr.contains("expected a sequence"),
        "it doesn't start either: {error}"
    );
}

/// Its connection stays open: nothing moves it until the daemon has ended.
#[test]
fn a_client_that_is_stopped_does_not_hold_up_the_end() {
    let node = Node::trusted(Delegate::Runc, "");
    let ops = Ops::start(&node);
    let mut client = HealthClient::new(ops.channel(ops.socket()));
    let request = HealthCheckRequest::default();
    ops.block_on(client.check(request)).unwrap();
    ops.signal(Signal::SIGTERM);
    wait_until("crust_ops to end", PATIENCE, || {
        !process::is_alive(ops.pid())
    });
    assert!(ops.wait().success());
    assert!(!ops.log().contains("cut off"), "{}", ops.log());
}
