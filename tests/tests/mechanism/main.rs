//! Where a volume is mounted, and how a container comes to it.

mod attributes;
mod device_node;
mod hook;
mod nesting;
mod ordinary_mounts;
mod own;
mod propagation;
mod restore;
mod rows;
mod together;
mod user_namespace;

use std::process::Command;

use runcrust_tests::container::end;
use runcrust_tests::process::kill_and_wait as kill;
use runcrust_tests::{Bundle, Container, Node};

/// Containers of these written bundles, created at the same time by the commands that `by` makes of
/// their own, and started.
fn create_at_once<const N: usize>(
    node: &Node,
    bundles: [Bundle; N],
    by: impl Fn(Command) -> Command,
) -> [Container; N] {
    let containers = bundles.map(|bundle| node.container(&bundle));
    let creates = containers
        .each_ref()
        .map(|it| it.spawn(by(it.create_command())));
    for (container, mut create) in containers.iter().zip(creates) {
        let status = create.wait().expect("waitpid");
        assert!(status.success(), "{:?}", container.last_log_error());
        let _ = container.start().success();
    }
    containers
}
