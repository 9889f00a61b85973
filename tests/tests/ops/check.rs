//! `crust_ops --check`.

use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::Command;

use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::{Delegate, Node, Ops, Run, TestDir, binary, wait_until};

/// A node as `make install` leaves it: the hook stands beside the runtime.
fn installed() -> (Node, PathBuf) {
    let node = Node::well_configured(Delegate::Runc, "");
    let hook = node.handler().path().with_file_name("crust-mount-hook");
    let text = fs::read_to_string(node.handler().configuration()).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with("hook "));
    let text = lines.collect::<Vec<_>>().join("\n");
    fs::write(node.handler().configuration(), text).unwrap();
    (node, hook)
}

fn check(ops: &Ops) -> Run {
    Run::of(ops.command().arg("--check"))
}

/// Under another program, which runs it.
fn check_by(ops: &Ops, program: &str, arguments: &[&str]) -> Run {
    let command = ops.command();
    let mut by = Command::new(program);
    by.args(arguments)
        .arg(command.get_program())
        .args(command.get_args());
    Run::of(by.arg("--check"))
}

#[track_caller]
fn fails(run: Run, what: &str, words: &str) {
    let run = run.failure();
    let mut lines = run.stdout.lines();
    let found =
        lines.any(|line| line.starts_with(&format!("FAIL  {what}: ")) && line.contains(words));
    assert!(found, "{what}: {words:?} isn't among {run}");
}

#[test]
fn a_node_where_all_is_right_is_told_so() {
    let (node, hook) = installed();
    let ops = Ops::stopped(&node, "metrics_listen = \"127.0.0.1:0\"");
    let run = check(&ops).success();
    let words = [
        "configuration: ",
        "user: root",
        "capabilities: ",
        "runtime-cli: ",
        "runtime's configuration: ",
        "delegate: /",
        &format!("hook: {}", hook.display()),
        "crust directory: ",
        "state directory: ",
        "runtime: mounts ext4, ",
        "socket: ",
        "socket: ",
        "metrics: ",
    ];
    let lines: Vec<&str> = run.stdout.lines().collect();
    assert_eq!(lines.len(), words.len(), "{run}");
    for (line, word) in lines.iter().zip(words) {
        // Not every machine that tests run on lets ext4 grow.
        let verdict = if word == "capabilities: " {
            &line[..4]
        } else {
            "pass"
        };
        assert!(line.starts_with(&format!("{verdict}  {word}")), "{line}");
        assert_ne!(verdict, "FAIL", "{line}");
    }
    assert!(!ops.socket().exists(), "it makes nothing");
    assert_eq!(node.records(), <[PathBuf; 0]>::default());
}

/// It isn't run, as it is where others could replace it.
#[test]
fn the_runtime_is_the_one_beside_its_real_path() {
    let dir = TestDir::new();
    for program in ["crust_ops", "runcrust"] {
        fs::copy(binary(program), dir.subdir("bin").join(program)).unwrap();
    }
    let link = dir.subdir("elsewhere").join("crust_ops");
    symlink(dir.join("bin/crust_ops"), &link).unwrap();
    let config = dir.join("crust_ops.toml");
    fs::write(&config, "").unwrap();
    let mut check = Command::new(link);
    check.arg("--config").arg(config).arg("--check");
    let runtime = dir.join("bin/runcrust");
    fails(Run::of(&mut check), "runtime-cli", utf8(&runtime));
}

#[test]
fn a_mistake_in_a_configuration_is_told_as_at_the_start() {
    let node = Node::well_configured(Delegate::Runc, "");
    let ops = Ops::stopped(&node, "");
    let check = || check(&ops);
    let file = std::env::temp_dir().join("cli");
    let missing = format!("allowed_clis = [\"/no/such/program\", {file:?}]");
    ops.reconfigure(&node, &missing);
    fails(check(), "runtime-cli", "/no/such/program");
    let temporary = std::env::temp_dir();
    let why = format!("{} can be written by others", temporary.display());
    fails(check(), "runtime-cli", &why);
    ops.reconfigure(&node, "cli_timeot = 5");
    fails(check(), "configuration", "unknown field `cli_timeot`");
    ops.reconfigure(&node, "max_calls = 9223372036854775807");
    let range = "max_calls: 9223372036854775807 isn't in the range 1 to 10000";
    fails(check(), "configuration", range);
    let error = Run::of(&mut ops.command()).failure();
    assert!(error.stderr.contains(range), "{error}");
    fs::remove_file(ops.config()).unwrap();
    fails(check(), "configuration", utf8(ops.config()));
    fs::write(
        ops.config(),
        format!(
            "listen = \"{0}/s\"\nruntime = \"{0}\"",
            node.handler().path().display()
        ),
    )
    .unwrap();
    fails(check(), "socket", "isn't a directory");
    ops.reconfigure(&node, "");
    fs::set_permissions(node.handler().crust_root(), Permissions::from_mode(0o777)).unwrap();
    fails(check(), "crust directory", "can be written by others");
    node.handler().reconfigure("fstypes = 5");
    fails(
        check(),
        "runtime's configuration",
        utf8(&node.handler().configuration()),
    );
    fails(
        check_by(&ops, "setpriv", &["--reuid=1000", "--clear-groups"]),
        "user",
        "uid 1000 isn't root",
    );
    let error = Run::of(&mut ops.command()).failure();
    assert_eq!(error.stderr.lines().count(), 1, "{error}");
    assert!(
        error.stderr.contains("expected a sequence"),
        "it doesn't start either: {error}"
    );
}

#[test]
fn what_the_runtime_lacks_is_told() {
    let (node, hook) = installed();
    let ops = Ops::stopped(&node, "");
    fs::set_permissions(&hook, Permissions::from_mode(0o644)).unwrap();
    fails(check(&ops), "hook", "can't be executed; hint: install");
    fs::set_permissions(&hook, Permissions::from_mode(0o777)).unwrap();
    fails(check(&ops), "hook", "can be written by others");
    fs::remove_file(&hook).unwrap();
    fails(
        check(&ops),
        "hook",
        "No such file or directory (os error 2); hint: install crust-mount-hook beside the runtime",
    );
    node.handler().set_delegate(&hook);
    fails(check(&ops), "delegate", "hint: set `delegate`");
    fs::set_permissions(node.handler().state_dir(), Permissions::from_mode(0o777)).unwrap();
    fails(check(&ops), "state directory", "can be written by others");
    fs::set_permissions(node.handler().state_dir(), Permissions::from_mode(0o700)).unwrap();
    node.handler().reconfigure("fstypes = [\"no-such-fs\"]");
    fails(
        check(&ops),
        "runtime",
        "this kernel has none of its `fstypes`",
    );
}

#[test]
fn a_root_that_cannot_mount_is_told() {
    let (node, _) = installed();
    let ops = Ops::stopped(&node, "");
    let lesser = |capability: &str| {
        let bounding = format!("--bounding-set=-{capability}");
        check_by(&ops, "setpriv", &[&bounding])
    };
    fails(
        lesser("sys_admin"),
        "capabilities",
        "without CAP_SYS_ADMIN no volume can be mounted; ",
    );
    fails(
        lesser("sys_chroot"),
        "capabilities",
        "without CAP_SYS_CHROOT no volume can be mounted; ",
    );
    let run = lesser("sys_resource").success();
    let warned = "warn  capabilities: without CAP_SYS_RESOURCE ext4 and ext3 can't grow; hint: ";
    assert!(run.stdout.contains(warned), "{run}");
}

#[test]
fn a_place_that_another_has_is_told() {
    let (node, _) = installed();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other.local_addr().unwrap();
    let ops = Ops::stopped(&node, &format!("metrics_listen = \"{port}\""));
    fails(
        check(&ops),
        "metrics",
        // The words before that are the C library's.
        &format!("bind {port}: "),
    );
    let datagram = UnixDatagram::bind(ops.crust_socket()).unwrap();
    fails(check(&ops), "socket", "isn't a stream socket");
    drop((other, datagram));
    fs::remove_file(ops.crust_socket()).unwrap();

    // A check beside a daemon that runs finds it there, and that is as it should be.
    ops.spawn(ops.command());
    wait_until("the metrics", WAIT_TIMEOUT, || {
        std::net::TcpStream::connect(port).is_ok()
    });
    let run = check(&ops).success();
    for line in [
        format!("pass  metrics: {port}, where a crust_ops answers already"),
        format!(
            "pass  socket: {}, on which systemd or a crust_ops already listens",
            ops.socket().display()
        ),
    ] {
        assert!(
            run.stdout.lines().any(|it| it == line),
            "{line:?} isn't in {run}"
        );
    }
}

/// As in a pod whose container has no volumeMount of it.
#[test]
fn a_match_root_that_is_not_there_is_told() {
    let (node, _) = installed();
    let there = node.dir().subdir("roots");
    let missing = node.dir().join("no-such-root");
    node.handler()
        .reconfigure(&format!("match_roots = [{there:?}, {missing:?}]"));
    let run = check(&Ops::stopped(&node, ""));
    let has = |wanted: &str| run.stdout.lines().any(|line| line.starts_with(wanted));
    assert!(
        has(&format!("pass  match root: {}", there.display())),
        "{run}"
    );
    let told = format!("warn  match root: {} isn't a directory", missing.display());
    assert!(has(&told) && run.stdout.contains("volumeMount"), "{run}");
}
