//! Descriptors and terminals that are passed into a container, and terminals that are sent back.

use std::fs;

use runcrust_tests::console::{ConsoleSocket, Terminal};
use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::{Bundle, on_each_delegate, wait_until};
use serde_json::json;

use crate::compared_container::{Call, masked};
use crate::container_pair::ContainerPair;

/// Opens three descriptors, of which the first two are passed as systemd does.
const ACTIVATED: &str = "exec 3<@WORK/three 4<@WORK/four 5<@WORK/five
                         export LISTEN_FDS=2 LISTEN_PID=$$ LISTEN_FDNAMES=a:b";

/// Opens the same descriptors as [`ACTIVATED`], but `LISTEN_PID` names another process than the caller.
const OTHER_PID: &str = "exec 3<@WORK/three 4<@WORK/four 5<@WORK/five
                         export LISTEN_FDS=2 LISTEN_PID=1";

/// Writes which descriptors the container has.
const SCRIPT: &str = "echo fds $LISTEN_FDS, pid $LISTEN_PID, names $LISTEN_FDNAMES >/seen.new; \
                      for fd in 3 4 5 6; do [ ! -e /proc/self/fd/$fd ] || cat <&$fd; done >>/seen.new; \
                      mv /seen.new /seen";

fn listing_descriptors(bundle: Bundle) -> Bundle {
    bundle.script(SCRIPT)
}

fn write_files(pair: &ContainerPair) {
    for member in pair.members() {
        for name in ["three", "four", "five"] {
            fs::write(member.work.join(name), format!("{name}\n")).unwrap();
        }
    }
}

/// Asserts that both containers have seen the same, and returns that.
#[track_caller]
fn same_seen(pair: &ContainerPair) -> String {
    let [bare, wrapped] = pair.members().map(|member| {
        let file = member.container.bundle().join("rootfs/seen");
        wait_until("the container's output", WAIT_TIMEOUT, || file.exists());
        let text = fs::read_to_string(&file).unwrap();
        fs::remove_file(&file).unwrap();
        text
    });
    assert_eq!(
        bare, wrapped,
        "left: in the bare delegate's container; right: in runcrust's"
    );
    wrapped
}

fn pass_descriptors(pair: &ContainerPair) {
    write_files(pair);
    let create = "create --bundle @BUNDLE --pid-file @PIDFILE @ID";
    let preserve = "create --bundle @BUNDLE --pid-file @PIDFILE --preserve-fds 1 @ID";
    for (line, shell, expected) in [
        (create, ACTIVATED, "three\nfour\n"),
        (preserve, ACTIVATED, "three\nfour\nfive\n"),
        (create, OTHER_PID, ""),
        (
            "run --detach --bundle @BUNDLE --pid-file @PIDFILE @ID",
            ACTIVATED,
            "three\nfour\n",
        ),
        (
            "run --bundle @BUNDLE --preserve-fds=3 --pid-file @PIDFILE @ID",
            OTHER_PID,
            "",
        ),
        ("run --bundle @BUNDLE @ID", ACTIVATED, "three\nfour\n"),
    ] {
        let line = format!("--root @ROOT --log @LOG --log-format json {line}");
        let call = Call {
            line: &line,
            shell: Some(shell),
            ..Call::default()
        };
        let _ = pair.assert_same_call(call).success().silent();
        if line.contains("create") {
            let _ = pair.assert_same("--root @ROOT start @ID").success();
        }
        let seen = same_seen(pair);
        if shell == ACTIVATED {
            let (first, rest) = seen.split_once('\n').unwrap();
            // crun 1.8.1 does not pass LISTEN_FDS.
            assert!(first.contains(", pid 1, "), "{line}: {first}");
            assert_eq!(rest, expected, "{line}");
        }
        pair.wait_until_ended();
        let _ = pair.assert_same("--root @ROOT delete --force @ID");
    }
}

fn terminal(bundle: Bundle) -> Bundle {
    let mut bundle = bundle.script("echo hello; read line; echo got $line; exec sleep 2147483647");
    bundle.spec_mut()["process"]["terminal"] = true.into();
    bundle
}

/// Receives the terminals, and asserts that they have the same name.
#[track_caller]
fn receive_terminals(sockets: &[ConsoleSocket; 2]) -> [Terminal; 2] {
    let terminals = sockets.each_ref().map(ConsoleSocket::receive);
    let [bare, wrapped] = terminals.each_ref().map(|terminal| masked(&terminal.name));
    assert_eq!(bare, wrapped);
    assert!(terminals.iter().all(Terminal::is_a_terminal));
    terminals
}

#[track_caller]
fn assert_same_dialog(mut terminals: [Terminal; 2]) {
    let texts = terminals.each_mut().map(|terminal| {
        terminal.wait_for("hello\r\n");
        terminal.type_line("you");
        terminal.wait_for("got you\r\n")
    });
    assert_eq!(texts[0], texts[1]);
}

fn use_consoles(pair: &ContainerPair) {
    let sockets = pair
        .members()
        .map(|member| ConsoleSocket::bind(member.work.join("tty")));
    let globals = "--root @ROOT --log @LOG --log-format json";
    // Without a console socket the terminal would have no recipient.
    let _ = pair
        .assert_same(&format!(
            "{globals} create --bundle @BUNDLE --pid-file @PIDFILE @ID"
        ))
        .failure();
    let _ = pair
        .assert_same(&format!(
            "{globals} create --bundle @BUNDLE --console-socket @WORK/no @ID"
        ))
        .failure();

    let create = "create --bundle @BUNDLE --pid-file @PIDFILE --console-socket @WORK/tty @ID";
    let _ = pair
        .assert_same(&format!("{globals} {create}"))
        .success()
        .silent();
    let container = receive_terminals(&sockets);
    let _ = pair.assert_same(&format!("{globals} start @ID")).success();
    assert_same_dialog(container);

    let process = json!({
        "terminal": true,
        "user": {"uid": 0, "gid": 0},
        "args": ["/bin/sh", "-c", "echo hello; read line; echo got $line"],
        "env": ["PATH=/bin"],
        "cwd": "/",
    });
    for member in pair.members() {
        fs::write(member.work.join("exec.json"), process.to_string()).unwrap();
    }
    for exec in [
        "exec --process @WORK/exec.json --console-socket @WORK/tty --detach --pid-file @WORK/pid @ID",
        "exec --pid-file @WORK/pid --console-socket @WORK/tty --process @WORK/exec.json --detach --tty @ID",
    ] {
        let _ = pair
            .assert_same(&format!("{globals} {exec}"))
            .success()
            .silent();
        assert_same_dialog(receive_terminals(&sockets));
    }
    pair.end();
}

on_each_delegate! {
    fn activated_sockets_reach_the_container(delegate: Delegate) {
        pass_descriptors(&ContainerPair::plain(delegate, listing_descriptors));
    }

    fn activated_sockets_reach_a_container_with_a_volume(delegate: Delegate) {
        let pair = ContainerPair::apps(delegate, listing_descriptors);
        pass_descriptors(&pair);
        assert!(pair.has_a_volume());
    }

    fn a_terminal_reaches_the_caller(delegate: Delegate) {
        use_consoles(&ContainerPair::plain(delegate, terminal));
    }

    fn a_terminal_of_an_app_with_a_volume_reaches_the_caller(delegate: Delegate) {
        let pair = ContainerPair::apps(delegate, terminal);
        use_consoles(&pair);
        assert!(pair.has_a_volume());
    }
}
