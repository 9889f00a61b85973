//! The Makefile refuses variables that would have no effect, or would select no test.

use std::process::Command;

use runcrust_tests::Run;

#[test]
fn a_delegate_that_a_target_does_not_know_is_refused() {
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
    ] {
        let mut make = Command::new("sh");
        // With TARGET the Makefile doesn't ask rustup for one.
        let command = format!("exec make --dry-run --directory \"$0\" TARGET=any {arguments}");
        make.args(["-c", &command, &workspace]);
        // `make test` hands its own on.
        for variable in ["MAKEFLAGS", "MAKELEVEL", "DELEGATE", "RELEASE", "SHORT"] {
            make.env_remove(variable);
        }
        let run = Run::of(&mut make);
        assert_eq!(run.status.success(), is_accepted, "{run}");
    }
}
