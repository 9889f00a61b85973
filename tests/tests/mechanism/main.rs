//! Where a volume is mounted, and how a container comes to it.

mod device_node;
mod hook;
mod nesting;
mod own;
mod propagation;
mod restore;
mod rows;
mod user_namespace;

use std::fs;

use runcrust_tests::node::PATIENCE;
use runcrust_tests::{Container, process, wait_until};

/// Ends containers as containerd does: the bundle goes with them.
fn end(containers: impl IntoIterator<Item = Container>) {
    for container in containers {
        container.stop();
        let _ = container.delete().success();
        fs::remove_dir_all(container.bundle()).expect("the bundle goes");
    }
}

/// Kills a process and waits until it has ended.
fn kill(pid: i32) {
    process::kill_now(pid);
    wait_until("a killed process to end", PATIENCE, || {
        !process::is_alive(pid)
    });
}
