//! Volume names with characters that would change a terminal or forge a line of a log.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::ops::stage_request;
use runcrust_tests::{
    Bundle, Delegate, Node, Ops, POD, Run, on_each_delegate, process, wait_until,
};
use serde_json::Value;
use tonic::Code;

/// U+202E reverses the direction of text, U+2066 and U+061C also change it, U+200B has no width, some programs end a
/// line at U+2028, and the rest are a newline and terminal escapes.
const NAME: &str =
    "pv-\u{202e}1\u{2066}\u{61c}\u{200b}\u{2028}\u{9b}2J\u{1b}[31m\nTIME WARN all is well";

/// Returns the characters that a terminal would obey or hide. Newlines are left out.
fn hidden(text: &str) -> Vec<char> {
    let name = NAME
        .chars()
        .filter(|letter| !letter.is_ascii_graphic() && *letter != ' ');
    let name: Vec<char> = name.filter(|letter| *letter != '\n').collect();
    text.chars()
        .filter(|letter| name.contains(letter))
        .collect()
}

/// Asserts that a text shows the name with all of these characters escaped.
#[track_caller]
fn assert_plain(what: &str, text: &str) {
    assert_eq!(hidden(text), [], "{what}: {text:?}");
    let mut lines = text.lines();
    assert!(
        !lines.any(|line| line.starts_with("TIME ")),
        "{what}: {text:?}"
    );
    assert!(
        text.contains("202e") && text.contains("1b"),
        "{what} does not contain the name: {text:?}"
    );
}

/// Asserts that JSON shows the name with all of these characters escaped, and that the parsed name is unchanged.
#[track_caller]
fn assert_plain_json(what: &str, text: &str) {
    assert_plain(what, text);
    let value: Value =
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text:?}"));
    let target = value
        .pointer("/volumes/0/volume")
        .or(value.pointer("/volume"));
    assert!(target.is_none_or(|it| it == NAME), "{what}: {text:?}");
}

fn stage(node: &Node) -> (runcrust_tests::LoopDevice, PathBuf) {
    let device = node.ext4();
    let target = node.stage(POD, NAME, &device, &[]);
    assert!(target.as_os_str().as_bytes().contains(&0x1b));
    (device, target)
}

on_each_delegate! {
    fn a_volumes_name_sends_no_terminal_escapes(delegate: Delegate) {
        let node = Node::logging(delegate);
        let (_device, target) = stage(&node);
        let bundle = Bundle::plain(node.dir()).bind(&target, "/data", &[]).write();
        let crust = |arguments: &[&str]| node.handler().crust(arguments);
        let place = utf8(&target);
        for command in [&["list"][..], &["inspect", place], &["explain", utf8(bundle.path())]] {
            let what = command[0];
            assert_plain(what, &crust(command).success().stdout);
            let json = crust(&[command, &["--json"]].concat()).success().stdout;
            assert_plain_json(what, &json);
        }
        let refused = crust(&["stats", place]).failure();
        assert_plain_json("stats", &refused.stderr);

        let sandbox = node.sandbox(POD);
        process::kill_and_wait(sandbox.pid());
        wait_until("a stale user of the volume", WAIT_TIMEOUT, || {
            crust(&["gc", "--dry-run"]).success().stdout.contains("user of volume")
        });
        assert_plain("gc", &crust(&["gc", "--dry-run"]).success().stdout);
        assert_plain_json("gc", &crust(&["gc", "--dry-run", "--json"]).success().stdout);
        assert_plain("gc", &crust(&["gc"]).success().stdout);
        assert_plain("runcrust's log", &node.log());

        fs::write(node.entry(&target).join("mountInfo.json"), "{").unwrap();
        let log = node.dir().join("log.json");
        let mut create = node.handler().command();
        create.args(["--log", utf8(&log), "--log-format", "json", "create", "--bundle"]);
        let refused = Run::capture(create.arg(bundle.path()).arg("names")).failure();
        assert_plain("stderr", &refused.stderr);
        assert_eq!(refused.stderr.lines().count(), 1, "{refused}");
        let line = fs::read_to_string(&log).unwrap();
        assert_plain_json("--log", &line);
    }
}

#[test]
fn a_volumes_name_forges_no_line_in_crust_ops_log() {
    let node = Node::root_only(Delegate::Runc, "");
    let ops = Ops::start(&node);
    let device = node.ext4();
    let target = node.target(POD, NAME);
    let mut request = stage_request(&target, &device);
    NAME.clone_into(&mut request.fs_type);
    let refused = ops.stage(request).unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
    assert_plain("the status", refused.message());
    wait_until("the call in the log", WAIT_TIMEOUT, || {
        ops.log().contains("RuntimeStageVolume")
    });
    assert_plain("the log", &ops.log());
}
