//! The daemon's log: lines on standard error, or entries in systemd's journal.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::process::Command;

use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::ops::stage_request;
use runcrust_tests::{Delegate, Node, Ops, Run, wait_until};
use tonic::Code::{FailedPrecondition, InvalidArgument, NotFound};

use crate::expect_error;

/// Returns a command that runs `script` in a mount namespace of its own, and then the daemon.
fn after_script(ops: &Ops, script: &str) -> Command {
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

/// Lines of a script that declare standard error to be the journal's.
const JOURNAL: &str = "JOURNAL_STREAM=$(stat --dereference --format %d:%i /proc/self/fd/2)
    export JOURNAL_STREAM";

/// Returns the line that the daemon logs after its start.
fn first_line(ops: &Ops) -> String {
    let mut line = None;
    wait_until("the first line", WAIT_TIMEOUT, || {
        let log = ops.log();
        line = log
            .lines()
            .find(|it| it.contains(" serving "))
            .map(str::to_owned);
        line.is_some()
    });
    line.unwrap()
}

/// Returns the fields of a journal entry. A field is `NAME=value`, or the name, the length of the value in eight bytes,
/// and the value.
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
fn journal_entries_have_a_priority_and_fields() {
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
    // Only the daemon sees this journal.
    ops.spawn(after_script(
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
    expect_error(ops.stage(request), InvalidArgument);

    let started = entries.find(|entry| entry.get("MESSAGE").is_some_and(|it| it == "serving"));
    let started = started.unwrap();
    assert_eq!(started["PRIORITY"], "6", "{started:?}");
    assert_eq!(started["SYSLOG_IDENTIFIER"], "crust_ops", "{started:?}");
    let failure = entries.find(|entry| entry.get("CRUST_CODE").is_some());
    let failure = failure.unwrap();
    assert_eq!(failure["PRIORITY"], "4", "{failure:?}");
    assert!(failure["MESSAGE"].contains("vfat"), "{failure:?}");
    let pid = std::process::id().to_string();
    for (field, expected) in [
        ("CRUST_ID", "0"),
        ("CRUST_UID", "0"),
        ("CRUST_PID", &pid),
        ("CRUST_METHOD", "crust.v1.Runtime/RuntimeStageVolume"),
        ("CRUST_VOLUME", &format!("{target:?}")),
        ("CRUST_CODE", "InvalidArgument"),
    ] {
        assert_eq!(failure[field], expected, "{field} of {failure:?}");
    }
    assert_eq!(ops.log(), "", "only in the journal");
    ops.kill();

    // A daemon that cannot start writes its error as a line, with a priority.
    fs::write(ops.config(), "listn = 1").unwrap();
    let run = Run::capture(&mut after_script(&ops, "export JOURNAL_STREAM=1:2")).failure();
    assert!(run.stderr.starts_with("crust_ops: "), "{run}");
    let run = Run::capture(&mut after_script(&ops, JOURNAL)).failure();
    assert!(run.stderr.starts_with("<3>crust_ops: "), "{run}");
}

/// kubelet polls the statistics of each volume from its publish on.
#[test]
fn statistics_before_the_pod_starts_are_no_warning() {
    let (node, ops) = Ops::with_node(Delegate::Runc);
    let target = node.target("pod-a", "pv-1");
    ops.stage(stage_request(&target, &node.ext4())).unwrap();
    expect_error(ops.stats(&target), FailedPrecondition);
    expect_error(ops.stats(&node.target("pod-a", "pv-2")), NotFound);
    let log = ops.log();
    let warnings: Vec<&str> = log.lines().filter(|it| it.contains(" WARN ")).collect();
    let [warning] = warnings[..] else {
        panic!("{log}");
    };
    assert!(warning.contains("code=NotFound"), "{warning}");
}

/// A shell in a unit passes `JOURNAL_STREAM` on even if it redirects standard error.
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

/// A container may lack the journal's socket, for example.
#[test]
fn without_the_journals_socket_lines_are_written() {
    let node = Node::trusted(Delegate::Runc, "");
    let ops = Ops::stopped(&node, "");
    let script = format!("{JOURNAL}\nmkdir -p /run/systemd\nmount -t tmpfs none /run/systemd");
    ops.spawn(after_script(&ops, &script));
    let line = first_line(&ops);
    assert!(
        line.trim_start().starts_with("INFO "),
        "no time, which the journal adds: {line}"
    );
}
