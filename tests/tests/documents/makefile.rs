//! The Makefile refuses variables that would have no effect, or would select no test.

use std::process::Command;

use runcrust_tests::Run;

#[test]
fn variables_that_would_select_nothing_are_refused() {
    let workspace = std::env::var("CARGO_MANIFEST_DIR").unwrap() + "/..";
    for (arguments, is_accepted) in [
        ("engines DELEGATE=youki", true),
        ("engines DELEGATE=youki SUITE=pod", true),
        ("engines DELEGATE=crun RELEASE=sid SHORT=1", true),
        ("test DELEGATE=runc", true),
        ("test DELEGATE=youki", false),
        ("engines test DELEGATE=youki", false),
        ("test engines DELEGATE=youki", false),
        ("engines DELEGATE=youki RELEASE=sid", false),
        ("engines DELEGATE=youki SHORT=1", false),
        ("engines DELEGATE=kata", false),
        ("test DELEGATE='runc crun'", false),
        ("test SUITE=loops", true),
        ("test SUITE=crust_ops", false),
        ("test SUITE='pod ops'", false),
        ("test TEST=subpath", true),
        ("test test=subpath", false),
        ("install prefix=/usr", false),
        ("e2e E2E_BIN=/any RELEASE=sid DELEGATE=crun", true),
        ("e2e-cluster DELEGATE=runc", true),
        ("e2e DELEGATE=youki", false),
        ("e2e SUITE=pod", false),
    ] {
        let mut make = Command::new("sh");
        // With TARGET the Makefile does not call rustup to find one.
        let command = format!("exec make --dry-run --directory \"$0\" TARGET=any {arguments}");
        make.args(["-c", &command, &workspace]);
        let run = run(make);
        assert_eq!(run.status.success(), is_accepted, "{run}");
    }
}

/// Runs make without the variables that `make test` passes on.
fn run(mut make: Command) -> Run {
    for variable in ["MAKEFLAGS", "MAKELEVEL", "DELEGATE", "RELEASE", "SHORT"] {
        make.env_remove(variable);
    }
    Run::capture(&mut make)
}

#[test]
fn the_environment_does_not_select_tests() {
    let workspace = std::env::var("CARGO_MANIFEST_DIR").unwrap() + "/..";
    let filters = |arguments: &[&str]| {
        let mut make = Command::new("make");
        make.args(["--dry-run", "--directory", &workspace, "TARGET=any", "test"]);
        make.env("TEST", "some").env("SUITE", "pod").args(arguments);
        let run = run(make).success();
        [" test(some)", "binary(pod)", " test(other)"].map(|filter| run.stdout.contains(filter))
    };
    assert_eq!(filters(&[]), [false, false, false]);
    assert_eq!(filters(&["TEST=other"]), [false, false, true]);
    assert_eq!(filters(&["SUITE=pod"]), [false, true, false]);
}
