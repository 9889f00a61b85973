//! A container with many mounts, counted in system calls and bytes read: four times as many mounts cost
//! no more than four times as much.

use std::path::{Path, PathBuf};

use runcrust_tests::kubelet::SubPath;
use runcrust_tests::{Bundle, Container, Delegate, Node, StagedVolume};

use crate::strace::{Part, Trace};

const FEW: usize = 40;
const MANY: usize = 4 * FEW;

/// What a container mounts, beside the volume itself.
#[derive(Debug, Clone, Copy)]
enum Mounts {
    /// The volume, again and again.
    Whole,
    /// A subPath of it each.
    Subpaths,
    /// The same, as a kubelet without the KEP binds each before the create.
    StockSubpaths,
    /// Subpaths, without a sandbox.
    Own,
    /// A directory of the host's.
    Others,
}

fn bundle(node: &Node, sandbox: &Container, target: &Path, what: Mounts, count: usize) -> Bundle {
    let others = node.dir().subdir("others");
    let mut bundle = match what {
        Mounts::Own => Bundle::plain(node.dir()),
        _ => node.app_bundle(sandbox),
    };
    for number in 0..count {
        let source = match what {
            Mounts::Whole => target.to_owned(),
            Mounts::Subpaths | Mounts::Own => target.join(number.to_string()),
            Mounts::StockSubpaths => kubelets_bind(node, target, number),
            Mounts::Others => others.clone(),
        };
        bundle = bundle.bind(source, &format!("/data/{number}"), &[]);
    }
    bundle.bind(target, "/volume", &[]).write()
}

/// The bind of a subPath of the volume, which is made once for both containers.
fn kubelets_bind(node: &Node, target: &Path, number: usize) -> PathBuf {
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

/// Calls, and bytes read, up to the delegate of a create beside a container that is there with as many.
fn cost(what: Mounts, count: usize) -> [usize; 2] {
    let (volume, sandbox) = StagedVolume::with_sandbox(Delegate::Crun);
    let _first = volume.run(&bundle(&volume, &sandbox, &volume.target, what, count));
    let second = volume.container(&bundle(&volume, &sandbox, &volume.target, what, count));
    let trace = Trace::in_directory(volume.dir().path());
    let create = trace.of(&second.create_command());
    let _ = second.create_with(create).success();
    let part: Part = trace.part().0;
    // Other tests' loop devices are looked at, too.
    let devices = part.that_name("/sys/").count() + part.that_name("/dev/loop").count();
    [part.count() - devices, part.bytes_read()]
}

#[test]
fn a_create_is_linear_in_its_mounts() {
    for what in [
        Mounts::Whole,
        Mounts::Subpaths,
        Mounts::StockSubpaths,
        Mounts::Own,
        Mounts::Others,
    ] {
        let (few, many) = (cost(what, FEW), cost(what, MANY));
        let most = few.map(|few| 4 * few);
        assert!(
            many[0] <= most[0] && many[1] <= most[1],
            "{what:?}: [calls, bytes]: {FEW} cost {few:?}, {MANY} cost {many:?}"
        );
    }
}
