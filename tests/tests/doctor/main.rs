//! `runcrust crust doctor`: each check, where it can be made to fail here.

mod engines;
mod places;
mod programs;
mod rights;
mod scene;

use std::fs;

use runcrust_tests::tree::Snapshot;
use runcrust_tests::{host, on_each_delegate};
use serde_json::json;

use scene::{CHECKS, doctor, in_order};

on_each_delegate! {
    /// But for what the machine is: it has no handler, and perhaps not all capabilities.
    fn a_node_where_all_is_right_is_told_so(delegate: Delegate) {
        let node = in_order(delegate);
        let told = doctor(&node);
        let checks: Vec<&str> = told.findings.iter().map(|it| it.check.as_str()).collect();
        assert_eq!(checks, CHECKS, "{told:?}");
        for finding in &told.findings {
            match finding.check.as_str() {
                "handler" | "crust_ops" | "capabilities" => assert_ne!(finding.verdict, "fail", "{finding:?}"),
                _ => assert_eq!((finding.verdict.as_str(), &finding.fix), ("pass", &None), "{finding:?}"),
            }
        }
        assert!(told.succeeded);
        told.assert("delegate", "pass", &format!("{}, {delegate} ", delegate.program().display()));
        told.assert("configuration", "pass", node.handler().configuration().to_str().unwrap());
        told.assert("file systems", "pass", "ext4, ext3, xfs, btrfs");
    }

    fn it_changes_nothing(delegate: Delegate) {
        let node = in_order(delegate);
        for directory in [node.handler().crust_root(), node.handler().state_dir()] {
            nix::mount::umount(&directory).unwrap();
            fs::remove_dir(directory).unwrap();
        }
        let all = || (Snapshot::take(node.dir().path()), host::mounts_below(node.dir().path()));
        let before = all();
        let told = doctor(&node);
        assert_eq!(all(), before);
        told.assert("state directory", "warn", "isn't on a tmpfs");
    }
}

#[test]
fn people_read_a_line_for_each() {
    let node = in_order(runcrust_tests::Delegate::Runc);
    let run = node.handler().crust(&["doctor"]).success();
    let lines: Vec<&str> = run.stdout.lines().collect();
    assert_eq!(lines.len(), CHECKS.len(), "{run}");
    for (line, check) in lines.iter().zip(CHECKS) {
        let (verdict, rest) = line.split_once("  ").expect("two blanks");
        assert!(["pass", "warn"].contains(&verdict), "{line}");
        assert!(rest.starts_with(&format!("{check}: ")), "{line}");
        assert_eq!(verdict == "warn", rest.contains("; hint: "), "{line}");
    }
}

#[test]
fn a_failure_sets_the_exit_code_and_prints_the_report() {
    let node = in_order(runcrust_tests::Delegate::Runc);
    fs::remove_file(node.handler().path().with_file_name("crust-mount-hook")).unwrap();
    let run = node.handler().crust(&["doctor"]).failure();
    assert_eq!(run.status.code(), Some(1), "{run}");
    assert_eq!(run.stderr, "", "{run}");
    let failed: Vec<&str> = run
        .stdout
        .lines()
        .filter(|it| it.starts_with("FAIL  "))
        .collect();
    assert!(
        matches!(failed[..], [line] if line.starts_with("FAIL  hook: ")),
        "{run}"
    );
    let told = doctor(&node);
    assert!(!told.succeeded);
    assert_eq!(told.whole["failed"], json!(1));
    let total = ["passed", "warned", "failed"].map(|key| told.whole[key].as_u64().unwrap());
    assert_eq!(total.iter().sum::<u64>(), told.findings.len() as u64);
}
