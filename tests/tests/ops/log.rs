//! Its log: lines, or entries in systemd's journal.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::process::Command;

use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::ops::stage_request;
use runcrust_tests::{Delegate, Node, Ops, Run, wait_until};
use tonic::Code::{FailedPrecondition, InvalidArgument, NotFound};

use crate::refused;

/// Its command, after the lines of a shell's.
fn after(ops: &Ops, script: &str) -> Command {
    let command = ops.command();
    let mut shell = Command::new("unshare");
    shell
        .args(["--mount", "--propagation=private", "sh", "-ec"])
        .arg(format!("{script}\nexec \"$@\""))
        .arg("sh")
        .arg(command.get_program())
        .args(command.get_args());
    shell
}

/// Says that standard error is the journal's.
const JOURNAL: &str = "JOURNAL_STREAM=$(stat --dereference --format %d:%i /proc/self/fd/2)
    export JOURNAL_STREAM";

/// What it says when it has started.
fn first_line(ops: &Ops) -> String {
    let mut line = None;
    wait_until("its first line", WAIT_TIMEOUT, || {
        let log = ops.log();
        line = log
            .lines()
            .find(|it| it.contains(" serves "))
            .map(str::to_owned);
        line.is_some()
    });
    line.unwrap()
}

/// The fields of an entry: `NAME=value`, or a name, its value's length in eight bytes, and that.
fn fields(mut entry: &[u8]) -> BTreeMap<String, String> {
    let mut fields = BTreeMap::new();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    while !entry.is_empty() {
        let end = entry.iter().position(|byte| *byte == b'\n').unwrap();
        let (line, rest) = (&entry[..end], &entry[end + 1..]);
        if let Some(equals) = line.iter().position(|byte| *byte == b'=') {
            fields.insert(text(&line[..equals]), text(&line[equals + 1..]));
            entry = rest;
        } else {
            let (length, rest) = rest.split_first_chunk::<8>().unwrap();
            let length = usize::try_from(u64::from_le_bytes(*length)).unwrap();
            fields.insert(text(line), text(&rest[..length]));
            entry = &rest[length + 1..];
        }
    }
    fields
}

#[test]
fn in_the_journal_an_entry_has_a_priority_and_the_calls_fields() {
    let node = Node::trusted(Delegate::Runc, "");
    let ops = Ops::stopped(&node, "");
    let directory = node.dir().subdir("journal");
    let socket = UnixDatagram::bind(directory.join("socket")).unwrap();
    socket.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
    let mut entries = std::iter::from_fn(|| {
        let mut bytes = vec![0; 64 * 1024];
        let length = socket.recv(&mut bytes).expect("an entry");
        Some(fields(&bytes[..length]))
    });
    // Nobody but it sees another journal.
    ops.spawn(after(
        &ops,
        &format!(
            "{JOURNAL}
            mkdir -p /run/systemd
            mount -t tmpfs journal /run/systemd
            mkdir /run/systemd/journal
            mount --bind {} /run/systemd/journal",
            directory.display()
        ),
    ));
    let target = node.target("pod-a", "pv-1");
    let mut request = stage_request(&target, &node.ext4());
    request.fs_type = "vfat".to_owned();
    refused(ops.stage(request), InvalidArgument);

    let started = entries.find(|entry| entry.get("MESSAGE").is_some_and(|it| it == "serves"));
    let started = started.unwrap();
    assert_eq!(started["PRIORITY"], "6", "{started:?}");
    assert_eq!(started["SYSLOG_IDENTIFIER"], "crust_ops", "{started:?}");
    let failed = entries.find(|entry| entry.get("CRUST_CODE").is_some());
    let failed = failed.unwrap();
    assert_eq!(failed["PRIORITY"], "4", "{failed:?}");
    assert!(failed["MESSAGE"].contains("vfat"), "{failed:?}");
    let pid = std::process::id().to_string();
    for (field, expected) in [
        ("CRUST_ID", "0"),
        ("CRUST_UID", "0"),
        ("CRUST_PID", &pid),
        ("CRUST_METHOD", "crust.v1.Runtime/RuntimeStageVolume"),
        ("CRUST_VOLUME", &format!("{target:?}")),
        ("CRUST_CODE", "InvalidArgument"),
    ] {
        assert_eq!(failed[field], expected, "{field} of {failed:?}");
    }
    assert_eq!(ops.log(), "", "it is there once");
    ops.kill();

    // The last word of one that can't start is a line, with a priority.
    fs::write(ops.config(), "listn = 1").unwrap();
    let run = Run::of(&mut after(&ops, "export JOURNAL_STREAM=1:2")).failure();
    assert!(run.stderr.starts_with("crust_ops: "), "{run}");
    let run = Run::of(&mut after(&ops, JOURNAL)).failure();
    assert!(run.stderr.starts_with("<3>crust_ops: "), "{run}");
}

/// kubelet polls the statistics of every volume from its publish on.
#[test]
fn statistics_before_the_pod_has_started_are_no_warning() {
    let (node, ops) = Ops::with_node(Delegate::Runc);
    let target = node.target("pod-a", "pv-1");
    ops.stage(stage_request(&target, &node.ext4())).unwrap();
    refused(ops.stats(&target), FailedPrecondition);
    refused(ops.stats(&node.target("pod-a", "pv-2")), NotFound);
    let log = ops.log();
    let warnings: Vec<&str> = log.lines().filter(|it| it.contains(" WARN ")).collect();
    let [warning] = warnings[..] else {
        panic!("{log}");
    };
    assert!(warning.contains("code=NotFound"), "{warning}");
}

/// A shell in a unit hands `JOURNAL_STREAM` on, and sends standard error elsewhere.
#[test]
fn a_journal_that_is_not_its_own_gets_nothing() {
    let node = Node::trusted(Delegate::Runc, "");
    let ops = Ops::stopped(&node, "");
    let mut command = ops.command();
    command.env("JOURNAL_STREAM", "1:2");
    ops.spawn(command);
    let line = first_line(&ops);
    let time = line.split(' ').next().unwrap();
    assert!(time.contains('T') && time.ends_with('Z'), "{line}");
}

/// In a container, say, where its socket isn't.
#[test]
fn without_the_journals_socket_it_writes_lines() {
    let node = Node::trusted(Delegate::Runc, "");
    let ops = Ops::stopped(&node, "");
    let script = format!("{JOURNAL}\nmkdir -p /run/systemd\nmount -t tmpfs none /run/systemd");
    ops.spawn(after(&ops, &script));
    let line = first_line(&ops);
    assert!(
        line.trim_start().starts_with("INFO "),
        "the journal has the time: {line}"
    );
}
