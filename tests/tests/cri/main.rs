//! Pods through a real containerd's CRI, with the handler `crust`: the calls that kubelet makes, and
//! what can go wrong between them.

mod containers;
mod devices;
mod errors;
mod killed;
mod late;
mod namespaces;
mod pods;
mod restarts;
mod scene;
mod settings;
mod user_namespaces;
mod volumes;

use runcrust_tests::{Containerd, Node};

const POD: &str = "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee";
const OTHER_POD: &str = "bbbbbbbb-bbbb-cccc-dddd-eeeeeeeeeeee";

/// containerd with runcrust as its handler `crust`.
fn containerd(node: &Node) -> Containerd {
    Containerd::start(node.dir(), &[("crust", &node.handler().runtime())])
}
