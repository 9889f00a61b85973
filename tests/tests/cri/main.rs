//! Pods through the CRI of containerd itself, with the handler `crust`: the calls that kubelet makes, and failures
//! between them.

mod containers;
mod devices;
mod errors;
mod killed;
mod namespaces;
mod pods;
mod restarts;
mod scene;
mod settings;
mod staged_later;
mod user_namespaces;
mod volumes;

use runcrust_tests::{Containerd, Node, Runtime};

const OTHER_POD: &str = "bbbbbbbb-bbbb-cccc-dddd-eeeeeeeeeeee";

/// Starts containerd with runcrust as the handler `crust`.
fn containerd(node: &Node) -> Containerd {
    Containerd::start(node.dir(), &[("crust", &node.handler().runtime())])
}

/// Starts containerd with runcrust as the handler `crust`, and the delegate alone as the handler `bare`.
fn containerd_with_bare(node: &Node) -> Containerd {
    let (crust, bare) = (
        node.handler().runtime(),
        Runtime::bare(node.handler().delegate()),
    );
    Containerd::start(node.dir(), &[("crust", &crust), ("bare", &bare)])
}
