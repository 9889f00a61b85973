//! `crust_ops --check`

use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::Command;

use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::{Delegate, Node, Ops, Run, TestDir, binary, wait_until};

/// A node like one after `make install`: the hook is beside the runtime, and not configured.
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
    Run::capture(ops.command().arg("--check"))
}

/// Runs the check below another program.
fn check_below(ops: &Ops, program: &str, arguments: &[&str]) -> Run {
    let command = ops.command();
    let mut by = Command::new(program);
    by.args(arguments)
        .arg(command.get_program())
        .args(command.get_args());
    Run::capture(by.arg("--check"))
}

#[track_caller]
fn assert_fails(run: Run, what: &str, words: &str) {
    let run = run.failure();
    let mut lines = run.stdout.lines();
    let found =
        lines.any(|line| line.starts_with(&format!("FAIL  {what}: ")) && line.contains(words));
    assert!(found, "{what}: no failure with {words:?} in {run}");
}

#[test]
fn a_correct_node_passes_all_checks() {
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
        // On some test machines ext4 cannot grow, so this line may be a warning.
        let verdict = if word == "capabilities: " {
            &line[..4]
        } else {
            "pass"
        };
        assert!(line.starts_with(&format!("{verdict}  {word}")), "{line}");
        assert_ne!(verdict, "FAIL", "{line}");
    }
    assert!(!ops.socket().exists(), "the check creates nothing");
    assert_eq!(node.records(), <[PathBuf; 0]>::default());
}

/// The runtime is not run, because others could replace it.
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
    assert_fails(Run::capture(&mut check), "runtime-cli", utf8(&runtime));
}

#[test]
fn configuration_errors_are_reported_as_at_the_start() {
    let node = Node::well_configured(Delegate::Runc, "");
    let ops = Ops::stopped(&node, "");
    let check = || check(&ops);
    let file = std::env::temp_dir().join("cli");
    let missing = format!("allowed_clis = [\"/no/such/program\", {file:?}]");
    ops.reconfigure(&node, &missing);
    assert_fails(check(), "runtime-cli", "/no/such/program");
    let temporary = std::env::temp_dir();
    let why = format!("{} can be written by others", temporary.display());
    assert_fails(check(), "runtime-cli", &why);
    ops.reconfigure(&node, "cli_timeot = 5");
    assert_fails(check(), "configuration", "unknown field `cli_timeot`");
    ops.reconfigure(&node, "max_calls = 9223372036854775807");
    let range = "max_calls: 9223372036854775807 isn't in the range 1 to 10000";
    assert_fails(check(), "configuration", range);
    let error = Run::capture(&mut ops.command()).failure();
    assert!(error.stderr.contains(range), "{error}");
    fs::remove_file(ops.config()).unwrap();
    assert_fails(check(), "configuration", utf8(ops.config()));
    fs::write(
        ops.config(),
        format!(
            "listen = \"{0}/s\"\nruntime = \"{0}\"",
            node.handler().path().display()
        ),
    )
    .unwrap();
    assert_fails(check(), "socket", "isn't a directory");
    ops.reconfigure(&node, "");
    fs::set_permissions(node.handler().crust_root(), Permissions::from_mode(0o777)).unwrap();
    assert_fails(check(), "crust directory", "can be written by others");
    node.handler().reconfigure("fstypes = 5");
    assert_fails(
        check(),
        "runtime's configuration",
        utf8(&node.handler().configuration()),
    );
    assert_fails(
        check_below(&ops, "setpriv", &["--reuid=1000", "--clear-groups"]),
        "user",
        "uid 1000 isn't root",
    );
    let error = Run::capture(&mut ops.command()).failure();
    assert_eq!(error.stderr.lines().count(), 1, "{error}");
    assert!(
        error.stderr.contains("expected a sequence"),
        "the daemon does not start, either: {error}"
    );
}

#[test]
fn missing_parts_of_the_runtime_are_reported() {
    let (node, hook) = installed();
    let ops = Ops::stopped(&node, "");
    fs::set_permissions(&hook, Permissions::from_mode(0o644)).unwrap();
    assert_fails(check(&ops), "hook", "can't be executed; hint: install");
    fs::set_permissions(&hook, Permissions::from_mode(0o777)).unwrap();
    assert_fails(check(&ops), "hook", "can be written by others");
    fs::remove_file(&hook).unwrap();
    assert_fails(
        check(&ops),
        "hook",
        "No such file or directory (os error 2); hint: install crust-mount-hook beside the runtime",
    );
    node.handler().set_delegate(&hook);
    assert_fails(check(&ops), "delegate", "hint: set `delegate`");
    fs::set_permissions(node.handler().state_dir(), Permissions::from_mode(0o777)).unwrap();
    assert_fails(check(&ops), "state directory", "can be written by others");
    fs::set_permissions(node.handler().state_dir(), Permissions::from_mode(0o700)).unwrap();
    node.handler().reconfigure("fstypes = [\"no-such-fs\"]");
    assert_fails(
        check(&ops),
        "runtime",
        "this kernel has none of its `fstypes`",
    );
}

#[test]
fn missing_capabilities_are_reported() {
    let (node, _) = installed();
    let ops = Ops::stopped(&node, "");
    let check_without = |capability: &str| {
        let bounding = format!("--bounding-set=-{capability}");
        check_below(&ops, "setpriv", &[&bounding])
    };
    assert_fails(
        check_without("sys_admin"),
        "capabilities",
        "without CAP_SYS_ADMIN no volume can be mounted; ",
    );
    assert_fails(
        check_without("sys_chroot"),
        "capabilities",
        "without CAP_SYS_CHROOT no volume can be mounted; ",
    );
    let run = check_without("sys_resource").success();
    let warned = "warn  capabilities: without CAP_SYS_RESOURCE ext4 and ext3 can't grow; hint: ";
    assert!(run.stdout.contains(warned), "{run}");
}

#[test]
fn an_address_in_use_is_reported() {
    let (node, _) = installed();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other.local_addr().unwrap();
    let ops = Ops::stopped(&node, &format!("metrics_listen = \"{port}\""));
    assert_fails(
        check(&ops),
        "metrics",
        // The text after this prefix is the C library's.
        &format!("bind {port}: "),
    );
    let datagram = UnixDatagram::bind(ops.crust_socket()).unwrap();
    assert_fails(check(&ops), "socket", "isn't a stream socket");
    drop((other, datagram));
    fs::remove_file(ops.crust_socket()).unwrap();

    // A check beside a running daemon passes.
    ops.spawn(ops.command());
    wait_until("the metrics", WAIT_TIMEOUT, || {
        std::net::TcpStream::connect(port).is_ok()
    });
    let run = check(&ops).success();
    for line in [
        format!("pass  metrics: {port}, where a crust_ops already answers"),
        format!(
            "pass  socket: {}, on which systemd or a crust_ops already listens",
            ops.socket().display()
        ),
    ] {
        assert!(
            run.stdout.lines().any(|it| it == line),
            "no line {line:?} in {run}"
        );
    }
}

/// A match root is missing, for example, in a pod whose container has no volumeMount for it.
#[test]
fn a_missing_match_root_is_reported() {
    let (node, _) = installed();
    let existing = node.dir().subdir("roots");
    let missing = node.dir().join("no-such-root");
    node.handler()
        .reconfigure(&format!("match_roots = [{existing:?}, {missing:?}]"));
    let run = check(&Ops::stopped(&node, ""));
    let has = |start: &str| run.stdout.lines().any(|line| line.starts_with(start));
    assert!(
        has(&format!("pass  match root: {}", existing.display())),
        "{run}"
    );
    let warning = format!("warn  match root: {} isn't a directory", missing.display());
    assert!(has(&warning) && run.stdout.contains("volumeMount"), "{run}");
}
