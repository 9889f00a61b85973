//! Containers with many mounts, measured in system calls and bytes read: four times as many mounts cost at most four
//! times as much.

use std::path::{Path, PathBuf};

use runcrust_tests::kubelet::SubPath;
use runcrust_tests::{Bundle, Container, Delegate, Node, StagedVolume};

use crate::traced_calls::{Trace, TracedCalls};

const FEW: usize = 40;
const MANY: usize = 4 * FEW;

/// The mounts of a container, besides one of the volume itself.
#[derive(Debug, Clone, Copy)]
enum Mounts {
    /// The whole volume each time.
    Whole,
    /// Different subPaths of the volume.
    Subpaths,
    /// Different subPaths, bound before the create, as by a kubelet without the KEP.
    StockSubpaths,
    /// Different subPaths, in a container without a sandbox.
    SubpathsWithoutSandbox,
    /// An ordinary directory each time.
    Ordinary,
}

fn bundle(node: &Node, sandbox: &Container, target: &Path, what: Mounts, count: usize) -> Bundle {
    let others = node.dir().subdir("others");
    let mut bundle = match what {
        Mounts::SubpathsWithoutSandbox => Bundle::plain(node.dir()),
        _ => node.app_bundle(sandbox),
    };
    for number in 0..count {
        let source = match what {
            Mounts::Whole => target.to_owned(),
            Mounts::Subpaths | Mounts::SubpathsWithoutSandbox => target.join(number.to_string()),
            Mounts::StockSubpaths => bound_subpath(node, target, number),
            Mounts::Ordinary => others.clone(),
        };
        bundle = bundle.bind(source, &format!("/data/{number}"), &[]);
    }
    bundle.bind(target, "/volume", &[]).write()
}

/// Returns kubelet's bind mount of a subPath, which both containers share. Makes it on the first call.
fn bound_subpath(node: &Node, target: &Path, number: usize) -> PathBuf {
    let (kubelet, path) = (node.handler().kubelet_dir(), number.to_string());
    let subpath = SubPath {
        pod_uid: "pod-a",
        volume: "pv-1",
        directory: target,
        path: &path,
        index: u32::try_from(number).expect("a small number"),
    };
    let place = subpath.place(&kubelet);
    if place.exists() {
        return place;
    }
    subpath.bind(&kubelet)
}

/// Returns the calls and the bytes read of a create, up to the delegate. Another container with the same mounts is
/// running.
fn cost(what: Mounts, count: usize) -> [usize; 2] {
    let (volume, sandbox) = StagedVolume::with_sandbox(Delegate::Crun);
    let _first = volume.run(&bundle(&volume, &sandbox, &volume.target, what, count));
    let second = volume.container(&bundle(&volume, &sandbox, &volume.target, what, count));
    let trace = Trace::in_directory(volume.dir().path());
    let create = trace.wrap(&second.create_command());
    let _ = second.create_with(create).success();
    let part: TracedCalls = trace.part().0;
    // The loop devices of other tests are probed, too.
    let devices = part.containing("/sys/").count() + part.containing("/dev/loop").count();
    [part.count() - devices, part.bytes_read()]
}

#[test]
fn a_create_is_linear_in_its_mounts() {
    for what in [
        Mounts::Whole,
        Mounts::Subpaths,
        Mounts::StockSubpaths,
        Mounts::SubpathsWithoutSandbox,
        Mounts::Ordinary,
    ] {
        let (few, many) = (cost(what, FEW), cost(what, MANY));
        let most = few.map(|few| 4 * few);
        assert!(
            many[0] <= most[0] && many[1] <= most[1],
            "{what:?}: [calls, bytes]: {FEW} cost {few:?}, {MANY} cost {many:?}"
        );
    }
}
