//! `runcrust crust doctor` on an operator's node.

use std::process::Command;

use runcrust_tests::Run;

#[test]
#[ignore = "needs the e2e node; runs in the guest: make vm-test"]
fn doctor_passes_on_this_node() {
    let run = Run::capture(Command::new("runcrust").args(["crust", "doctor"])).success();
    for expected in [
        "pass  mount API: ",
        "pass  capabilities: sufficient",
        "pass  delegate: /usr/sbin/runc, runc ",
        "pass  cgroups: v2",
        "pass  hook: /usr/bin/crust-mount-hook",
        "pass  state directory: /run/runcrust",
        "pass  crust_ops: a daemon listens on /run/crust_ops/crust_ops.sock",
    ] {
        let is_printed = run.stdout.lines().any(|line| line.starts_with(expected));
        assert!(is_printed, "{expected:?} is missing in {run}");
    }
    let handlers = run
        .stdout
        .lines()
        .find_map(|line| line.strip_prefix("pass  handler: "));
    let crust = "containerd (/etc/containerd/config.toml): crust runs /usr/bin/runcrust";
    let is_printed = handlers.is_some_and(|line| line.split(", ").any(|handler| handler == crust));
    assert!(is_printed, "{run}");
}
