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

use runcrust_tests::{Containerd, Node, Runtime};

const OTHER_POD: &str = "bbbbbbbb-bbbb-cccc-dddd-eeeeeeeeeeee";

/// containerd with runcrust as its handler `crust`.
fn containerd(node: &Node) -> Containerd {
    Containerd::start(node.dir(), &[("crust", &node.handler().runtime())])
}

/// The same, with the delegate alone as the handler `bare`.
fn containerd_with_bare(node: &Node) -> Containerd {
    let (crust, bare) = (
        node.handler().runtime(),
        Runtime::bare(node.handler().delegate()),
    );
    Containerd::start(node.dir(), &[("crust", &crust), ("bare", &bare)])
}
