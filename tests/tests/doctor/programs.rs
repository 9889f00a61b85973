//! The checks of the programs, and of the configuration that names them.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::{Delegate, Node, process, wait_until};

use crate::scene::{doctor, well_configured};

/// Returns a path in a directory that only root can change.
fn next_to_handler(node: &Node, name: &str) -> PathBuf {
    node.handler().path().with_file_name(name)
}

fn write_script(path: &Path, text: &str) {
    fs::write(path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
}

/// Contents of programs that cannot run, each with a part of the finding.
fn programs_that_cannot_run() -> [(Vec<u8>, &'static str); 5] {
    let mut foreign = fs::read(Delegate::Runc.program()).unwrap();
    // `e_machine` in the ELF header: IBM S/390.
    foreign[18..20].copy_from_slice(&22_u16.to_le_bytes());
    [
        (foreign, "Exec format error"),
        (Vec::new(), "Exec format error"),
        (b"\x7fELF".to_vec(), "Exec format error"),
        (b"#!/no/such/interpreter\n".to_vec(), "No such file"),
        (b"#!/bin/sh\nexit 127\n".to_vec(), "127"),
    ]
}

#[test]
fn an_invalid_configuration_is_a_failure() {
    let node = well_configured(Delegate::Runc);
    node.handler().reconfigure("no_such_key = 1");
    let report = doctor(&node);
    let found = report.assert("configuration", "fail", "no_such_key");
    assert!(
        found
            .fix
            .as_ref()
            .unwrap()
            .contains("containers can be stopped"),
        "{found:?}"
    );
    // Commands that create no container only need the delegate.
    report.assert("delegate", "pass", "runc");
    for check in ["hook", "state directory", "file systems"] {
        report.assert_none(check);
    }
    let file = node.handler().configuration();
    fs::set_permissions(&file, Permissions::from_mode(0o666)).unwrap();
    let report = doctor(&node);
    let found = report.assert(
        "configuration",
        "fail",
        "can be written by others than root",
    );
    assert!(
        found.fix.as_ref().unwrap().contains("chown root:root"),
        "{found:?}"
    );
}

#[test]
fn file_systems_without_a_kernel_driver_are_named() {
    let node = Node::well_configured(Delegate::Runc, "fstypes = [\"ext4\", \"no-such-fs\"]");
    doctor(&node).assert("file systems", "warn", "ext4; missing: no-such-fs");
    node.handler().reconfigure("fstypes = [\"no-such-fs\"]");
    doctor(&node).assert("file systems", "fail", "none of no-such-fs");
}

#[test]
fn a_delegate_that_differs_from_its_name_is_a_failure() {
    let node = well_configured(Delegate::Runc);
    let runc = next_to_handler(&node, "runc");
    node.handler().set_delegate(&runc);
    let found = doctor(&node);
    let found = found.assert("delegate", "fail", "No such file or directory");
    assert!(
        found.fix.as_ref().unwrap().contains("`delegate`"),
        "{found:?}"
    );
    fs::copy(Delegate::Crun.program(), &runc).unwrap();
    let words = "says that it is crun ";
    let line = "delegate_kind = \"crun\"";
    let report = doctor(&node);
    let found = report.assert("delegate", "fail", words);
    let file = utf8(&node.handler().configuration()).to_owned();
    let fix = found.fix.as_ref().unwrap();
    assert!(fix.contains(line) && fix.contains(&file), "{found:?}");
    node.handler().reconfigure(line);
    node.handler().set_delegate(&runc);
    doctor(&node).assert("delegate", "pass", "runc, crun ");
    node.handler().reconfigure("delegate_kind = \"youki\"");
    node.handler().set_delegate(&runc);
    let report = doctor(&node);
    let found = report.assert(
        "delegate",
        "fail",
        "by `delegate_kind` it is treated as youki",
    );
    assert!(found.fix.as_ref().unwrap().contains(line), "{found:?}");
    node.handler().reconfigure("");
    node.handler().set_delegate(&runc);
    write_script(&runc, "echo youki version: 1.0");
    let words = "says that it is youki 1.0";
    doctor(&node).assert("delegate", "fail", words);
    write_script(&runc, "echo another version 1.0");
    doctor(&node).assert("delegate", "warn", "is another 1.0");
    write_script(&runc, "echo hello");
    doctor(&node).assert("delegate", "warn", "prints \"hello\"");
    for (bytes, words) in programs_that_cannot_run() {
        fs::write(&runc, bytes).unwrap();
        let report = doctor(&node);
        report.assert("delegate", "fail", words);
        assert!(!report.succeeded, "{report:?}");
    }
    fs::set_permissions(&runc, Permissions::from_mode(0o644)).unwrap();
    doctor(&node).assert("delegate", "fail", "not an executable file");
    fs::set_permissions(&runc, Permissions::from_mode(0o775)).unwrap();
    doctor(&node).assert("delegate", "fail", "can be written by others");
    fs::remove_file(&runc).unwrap();
    symlink(node.handler().path(), &runc).unwrap();
    doctor(&node).assert("delegate", "fail", "is runcrust itself");
}

#[test]
fn a_hanging_delegate_is_a_warning_and_is_killed() {
    let node = well_configured(Delegate::Runc);
    let runc = next_to_handler(&node, "runc");
    node.handler().set_delegate(&runc);
    let seconds = format!("86{}", std::process::id());
    write_script(&runc, &format!("sleep {seconds} &\nsleep {seconds}"));
    doctor(&node).assert("delegate", "warn", "still running after 3 seconds");
    wait_until("the delegate's processes to end", WAIT_TIMEOUT, || {
        process::with_command_line(|line| line.contains(&seconds)).is_empty()
    });
}

#[test]
fn a_hook_that_cannot_be_run_is_a_failure() {
    let node = well_configured(Delegate::Runc);
    let hook = next_to_handler(&node, "crust-mount-hook");
    let works = fs::read(&hook).unwrap();
    for (bytes, words) in &programs_that_cannot_run()[..4] {
        fs::write(&hook, bytes).unwrap();
        doctor(&node).assert("hook", "fail", words);
    }
    fs::write(&hook, works).unwrap();
    doctor(&node).assert("hook", "pass", "");
    fs::set_permissions(&hook, Permissions::from_mode(0o777)).unwrap();
    doctor(&node).assert("hook", "fail", "can be written by others");
    fs::set_permissions(&hook, Permissions::from_mode(0o644)).unwrap();
    let found = doctor(&node);
    let found = found.assert("hook", "fail", "Permission denied");
    assert!(
        found.fix.as_ref().unwrap().contains("beside runcrust"),
        "{found:?}"
    );
    fs::remove_file(&hook).unwrap();
    doctor(&node).assert("hook", "fail", "No such file or directory");
    fs::create_dir(&hook).unwrap();
    doctor(&node).assert("hook", "fail", "isn't a program");
}
