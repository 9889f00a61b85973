//! Descriptors and terminals on their way into a container, and out of it.

use std::fs;

use runcrust_tests::console::{ConsoleSocket, Terminal};
use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::{Bundle, on_each_delegate, wait_until};
use serde_json::json;

use crate::twin::{Call, masked};
use crate::twins::Twins;

/// Three descriptors, of which systemd would pass the first two.
const ACTIVATED: &str = "exec 3<@WORK/three 4<@WORK/four 5<@WORK/five
                         export LISTEN_FDS=2 LISTEN_PID=$$ LISTEN_FDNAMES=a:b";

/// The same, meant for another process.
const NOT_MEANT: &str = "exec 3<@WORK/three 4<@WORK/four 5<@WORK/five
                         export LISTEN_FDS=2 LISTEN_PID=1";

/// Tells what descriptors it has.
const SCRIPT: &str = "echo fds $LISTEN_FDS, pid $LISTEN_PID, names $LISTEN_FDNAMES >/seen.new; \
                      for fd in 3 4 5 6; do [ ! -e /proc/self/fd/$fd ] || cat <&$fd; done >>/seen.new; \
                      mv /seen.new /seen";

fn telling(bundle: Bundle) -> Bundle {
    bundle.script(SCRIPT)
}

fn with_files(twins: &Twins) {
    for twin in twins.both() {
        for name in ["three", "four", "five"] {
            fs::write(twin.work.join(name), format!("{name}\n")).unwrap();
        }
    }
}

/// What both containers have seen, which is the same.
#[track_caller]
fn seen(twins: &Twins) -> String {
    let [theirs, ours] = twins.both().map(|twin| {
        let file = twin.container.bundle().join("rootfs/seen");
        wait_until("the container's words", WAIT_TIMEOUT, || file.exists());
        let text = fs::read_to_string(&file).unwrap();
        fs::remove_file(&file).unwrap();
        text
    });
    assert_eq!(
        theirs, ours,
        "in the bare delegate's container, and in runcrust's"
    );
    ours
}

fn activate(twins: &Twins) {
    with_files(twins);
    let create = "create --bundle @BUNDLE --pid-file @PIDFILE @ID";
    let preserve = "create --bundle @BUNDLE --pid-file @PIDFILE --preserve-fds 1 @ID";
    for (line, shell, expected) in [
        (create, ACTIVATED, "three\nfour\n"),
        (preserve, ACTIVATED, "three\nfour\nfive\n"),
        (create, NOT_MEANT, ""),
        (
            "run --detach --bundle @BUNDLE --pid-file @PIDFILE @ID",
            ACTIVATED,
            "three\nfour\n",
        ),
        (
            "run --bundle @BUNDLE --preserve-fds=3 --pid-file @PIDFILE @ID",
            NOT_MEANT,
            "",
        ),
        ("run --bundle @BUNDLE @ID", ACTIVATED, "three\nfour\n"),
    ] {
        let line = format!("--root @ROOT --log @LOG --log-format json {line}");
        let how = Call {
            line: &line,
            shell: Some(shell),
            ..Call::default()
        };
        let _ = twins.same_call(how).success().silent();
        if line.contains("create") {
            let _ = twins.same("--root @ROOT start @ID").success();
        }
        let seen = seen(twins);
        if shell == ACTIVATED {
            let (first, rest) = seen.split_once('\n').unwrap();
            // crun 1.8.1 doesn't tell the container how many there are.
            assert!(first.contains(", pid 1, "), "{line}: {first}");
            assert_eq!(rest, expected, "{line}");
        }
        twins.wait_for_the_end();
        let _ = twins.same("--root @ROOT delete --force @ID");
    }
}

fn terminal(bundle: Bundle) -> Bundle {
    let mut bundle = bundle.script("echo hello; read line; echo got $line; exec sleep 2147483647");
    bundle.spec_mut()["process"]["terminal"] = true.into();
    bundle
}

/// Both receive a terminal, in the same way.
#[track_caller]
fn terminals(sockets: &[ConsoleSocket; 2]) -> [Terminal; 2] {
    let terminals = sockets.each_ref().map(ConsoleSocket::receive);
    let [theirs, ours] = terminals.each_ref().map(|terminal| masked(&terminal.name));
    assert_eq!(theirs, ours);
    assert!(terminals.iter().all(Terminal::is_a_terminal));
    terminals
}

#[track_caller]
fn talk(mut terminals: [Terminal; 2]) {
    let texts = terminals.each_mut().map(|terminal| {
        terminal.wait_for("hello\r\n");
        terminal.type_line("you");
        terminal.wait_for("got you\r\n")
    });
    assert_eq!(texts[0], texts[1]);
}

fn consoles(twins: &Twins) {
    let sockets = twins
        .both()
        .map(|twin| ConsoleSocket::bind(twin.work.join("tty")));
    let globals = "--root @ROOT --log @LOG --log-format json";
    // Nobody would have the terminal.
    let _ = twins
        .same(&format!(
            "{globals} create --bundle @BUNDLE --pid-file @PIDFILE @ID"
        ))
        .failure();
    let _ = twins
        .same(&format!(
            "{globals} create --bundle @BUNDLE --console-socket @WORK/no @ID"
        ))
        .failure();

    let create = "create --bundle @BUNDLE --pid-file @PIDFILE --console-socket @WORK/tty @ID";
    let _ = twins
        .same(&format!("{globals} {create}"))
        .success()
        .silent();
    let container = terminals(&sockets);
    let _ = twins.same(&format!("{globals} start @ID")).success();
    talk(container);

    let process = json!({
        "terminal": true,
        "user": {"uid": 0, "gid": 0},
        "args": ["/bin/sh", "-c", "echo hello; read line; echo got $line"],
        "env": ["PATH=/bin"],
        "cwd": "/",
    });
    for twin in twins.both() {
        fs::write(twin.work.join("exec.json"), process.to_string()).unwrap();
    }
    for exec in [
        "exec --process @WORK/exec.json --console-socket @WORK/tty --detach --pid-file @WORK/pid @ID",
        "exec --pid-file @WORK/pid --console-socket @WORK/tty --process @WORK/exec.json --detach --tty @ID",
    ] {
        let _ = twins.same(&format!("{globals} {exec}")).success().silent();
        talk(terminals(&sockets));
    }
    twins.end();
}

on_each_delegate! {
    fn activated_sockets_reach_the_container(delegate: Delegate) {
        activate(&Twins::plain(delegate, telling));
    }

    fn activated_sockets_reach_a_container_with_a_volume(delegate: Delegate) {
        let twins = Twins::apps(delegate, telling);
        activate(&twins);
        assert!(twins.has_a_volume());
    }

    fn a_terminal_reaches_the_caller(delegate: Delegate) {
        consoles(&Twins::plain(delegate, terminal));
    }

    fn a_terminal_of_an_app_with_a_volume_reaches_the_caller(delegate: Delegate) {
        let twins = Twins::apps(delegate, terminal);
        consoles(&twins);
        assert!(twins.has_a_volume());
    }
}
