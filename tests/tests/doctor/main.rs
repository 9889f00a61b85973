//! `runcrust crust doctor`: each check that can be made to fail in a test.

mod directories;
mod engines;
mod programs;
mod rights;
mod scene;

use std::fs;

use runcrust_tests::tree::Snapshot;
use runcrust_tests::{host, on_each_delegate};
use serde_json::json;

use scene::{CHECKS, doctor, well_configured};

on_each_delegate! {
    /// Checks of the machine's own properties are excepted: the machine has no handler, and may lack capabilities.
    fn a_correct_node_passes_every_check(delegate: Delegate) {
        let node = well_configured(delegate);
        let report = doctor(&node);
        let checks: Vec<&str> = report.findings.iter().map(|it| it.check.as_str()).collect();
        assert_eq!(checks, CHECKS, "{report:?}");
        for finding in &report.findings {
            match finding.check.as_str() {
                "handler" | "crust_ops" | "capabilities" => assert_ne!(finding.verdict, "fail", "{finding:?}"),
                _ => assert_eq!((finding.verdict.as_str(), &finding.fix), ("pass", &None), "{finding:?}"),
            }
        }
        assert!(report.succeeded);
        report.assert("delegate", "pass", &format!("{}, {delegate} ", delegate.program().display()));
        report.assert("configuration", "pass", node.handler().configuration().to_str().unwrap());
        report.assert("file systems", "pass", "ext4, ext3, xfs, btrfs");
    }

    fn doctor_changes_nothing(delegate: Delegate) {
        let node = well_configured(delegate);
        for directory in [node.handler().crust_root(), node.handler().state_dir()] {
            nix::mount::umount(&directory).unwrap();
            fs::remove_dir(directory).unwrap();
        }
        let state = || (Snapshot::take(node.dir().path()), host::mounts_below(node.dir().path()));
        let before = state();
        let report = doctor(&node);
        assert_eq!(state(), before);
        report.assert("state directory", "warn", "isn't on a tmpfs");
    }
}

#[test]
fn the_text_output_has_one_line_for_each_check() {
    let node = well_configured(runcrust_tests::Delegate::Runc);
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
    let node = well_configured(runcrust_tests::Delegate::Runc);
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
    let report = doctor(&node);
    assert!(!report.succeeded);
    assert_eq!(report.whole["failed"], json!(1));
    let total = ["passed", "warned", "failed"].map(|key| report.whole[key].as_u64().unwrap());
    assert_eq!(total.iter().sum::<u64>(), report.findings.len() as u64);
}
