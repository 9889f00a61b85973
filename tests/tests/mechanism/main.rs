//! Where a volume is mounted, and how a container comes to it.

mod device_node;
mod hook;
mod nesting;
mod own;
mod propagation;
mod restore;
mod rows;
mod user_namespace;

use runcrust_tests::container::end;
use runcrust_tests::process::kill_and_wait as kill;
