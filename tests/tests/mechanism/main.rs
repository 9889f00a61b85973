//! The mount of a volume, and the ways to pass it to a container.

mod attributes;
mod concurrent_creates;
mod device_node;
mod hook;
mod nesting;
mod ordinary_mounts;
mod propagation;
mod restore;
mod rows;
mod standalone;
mod user_namespace;

use std::process::Command;

use runcrust_tests::container::end;
use runcrust_tests::process::kill_and_wait as kill;
use runcrust_tests::{Bundle, Container, Node};

/// Creates containers of written bundles at the same time, and starts them. `wrap` changes the command of each create.
fn create_at_once<const N: usize>(
    node: &Node,
    bundles: [Bundle; N],
    wrap: impl Fn(Command) -> Command,
) -> [Container; N] {
    let containers = bundles.map(|bundle| node.container(&bundle));
    let creates = containers
        .each_ref()
        .map(|it| it.spawn(wrap(it.create_command())));
    for (container, mut create) in containers.iter().zip(creates) {
        let status = create.wait().expect("waitpid");
        assert!(status.success(), "{:?}", container.last_log_error());
        let _ = container.start().success();
    }
    containers
}
