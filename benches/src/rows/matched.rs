//! A create with a staged volume among its mounts, in parts that are differences between creates: without a volume,
//! with a volume that a hook would mount (`mount_mode = "hook"`: everything but the mount), and with a volume that the
//! create mounts.

use std::fs;
use std::path::PathBuf;

use runcrust_tests::node::utf8;
use runcrust_tests::{Bundle, Delegate, Handler, LoopDevice, Node, Version};

use super::Row;
use crate::effort::Effort;
use crate::fixtures;
use crate::measure::{Measure, Target, Unit};
use crate::programs::{MOUNT, NOOP, REWRITE};
use crate::starts::{CommandLine, Round, Starter};
use crate::statistics::{differences, ratios};

pub(super) const ROW: Row = Row {
    name: "match",
    about: "a create with a volume among its mounts, against rewriting the config, and a raw mount",
    run,
};

const ROUNDS: usize = 20;
/// The volume is staged again after each start.
const ROUND: Round = Round {
    blocks: 20,
    starts: 1,
};

fn run(effort: &Effort) -> Vec<Measure> {
    let node = fixtures::node(Delegate::Runc);
    let delegate = NOOP.build(node.dir());
    let hook = "mount_mode = \"hook\"";
    let hooks = Handler::installed(node.dir(), Delegate::Runc, Version::New, hook);
    for handler in [node.handler(), &hooks] {
        handler.set_delegate(&delegate);
    }
    let volume = Volume::stage(&node);
    let plain = fixtures::bundle(&node).write();
    let matching = fixtures::bundle(&node)
        .bind(&volume.target, "/data", &[])
        .write();
    // A hook can't create the mount point in a read-only root file system.
    fs::create_dir(matching.rootfs().join("data")).expect("a mountpoint");
    let copied = plain.path().join("copy.json");
    fs::copy(plain.config_path(), &copied).expect("a config's bytes");

    let starter = Starter::new(node.dir());
    let device = utf8(volume.device.path());
    let commands = [
        fixtures::create(&delegate, &plain),
        fixtures::create(node.handler().path(), &plain),
        fixtures::create(hooks.path(), &matching),
        fixtures::create(node.handler().path(), &matching),
        CommandLine::new(&REWRITE.build(node.dir()), [utf8(&copied)]),
        CommandLine::new(&MOUNT.build(node.dir()), [device, "ext4"]),
    ];
    let written = matching.config_bytes();
    let put_back = || volume.stage_anew(&node, &matching, &written);
    let commands = commands.each_ref();
    let times = starter.rounds_with(effort.rounds(ROUNDS), ROUND, commands, put_back);
    let [bare, without, reserved, mounted, rewrite, mount] = times;

    let write = differences(&reserved, &without);
    let floor = differences(&rewrite, &bare);
    let mount_step = differences(&mounted, &reserved);
    let raw = differences(&mount, &bare);
    let over_raw = differences(&mount_step, &raw);
    let but_the_mount = differences(&differences(&mounted, &bare), &raw);
    vec![
        Measure::with_target(
            "everything but the mount itself",
            Unit::Added,
            but_the_mount,
            Target::AtMost(1.0),
        ),
        Measure::new(
            "of that, the match and the steps before the mount",
            Unit::Added,
            write.clone(),
        ),
        Measure::new(
            "the floor: rewriting the config",
            Unit::Added,
            floor.clone(),
        ),
        Measure::with_target(
            "the match's part over the floor",
            Unit::Ratio,
            ratios(&write, &floor),
            Target::AtMost(2.0),
        ),
        Measure::new(
            "raw mount: fsopen to fsmount, and unmount",
            Unit::Added,
            raw,
        ),
        Measure::with_target(
            "the mount step over the raw mount",
            Unit::Added,
            over_raw,
            Target::AtMost(0.3),
        ),
    ]
}

/// A staged volume.
struct Volume {
    target: PathBuf,
    device: LoopDevice,
}

impl Volume {
    fn stage(node: &Node) -> Self {
        let device = fixtures::device(node);
        let target = node.stage("a-pod", "pv-1", &device, &[]);
        Self { target, device }
    }

    /// Restores the state before a create. Unstaging is possible, because the pending user's process has ended.
    fn stage_anew(&self, node: &Node, bundle: &Bundle, config: &[u8]) {
        let _ = node.unstage(&self.target).success();
        fs::write(bundle.config_path(), config).expect("a config");
        let staged = node.try_stage(&self.target, self.device.path(), &[]);
        let _ = staged.success();
    }
}
