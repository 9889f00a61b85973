//! A create with a staged volume among its mounts, taken apart by what differs: without a volume, with one that a
//! hook would mount (`mount_mode = "hook"`: everything but the mount), with one that the create mounts.

use std::fs;
use std::path::PathBuf;

use runcrust_tests::node::utf8;
use runcrust_tests::{Bundle, Delegate, Handler, LoopDevice, Node, Version};

use super::Row;
use crate::effort::Effort;
use crate::measure::{Measure, Reach, Unit};
use crate::programs::{MOUNT, NOOP, REWRITE};
use crate::scene;
use crate::starts::{Line, Round, Starter};
use crate::statistics::{differences, ratios};

pub(super) const ROW: Row = Row {
    name: "match",
    about: "a create with a volume among its mounts, against writing the config anew, and a raw mount",
    run,
};

const ROUNDS: usize = 20;
/// The volume is staged anew after each.
const ROUND: Round = Round {
    blocks: 20,
    starts: 1,
};

fn run(effort: &Effort) -> Vec<Measure> {
    let node = scene::node(Delegate::Runc);
    let delegate = NOOP.build(node.dir());
    let hook = "mount_mode = \"hook\"";
    let hooks = Handler::installed(node.dir(), Delegate::Runc, Version::New, hook);
    for handler in [node.handler(), &hooks] {
        handler.set_delegate(&delegate);
    }
    let volume = Volume::stage(&node);
    let plain = scene::bundle(&node).write();
    let matching = scene::bundle(&node)
        .bind(&volume.target, "/data", &[])
        .write();
    // A hook can't make it once the rootfs is read-only, and wants it there.
    fs::create_dir(matching.rootfs().join("data")).expect("a mountpoint");
    let copied = plain.path().join("copy.json");
    fs::copy(plain.config_path(), &copied).expect("a config's bytes");

    let starter = Starter::new(node.dir());
    let device = utf8(volume.device.path());
    let commands = [
        scene::create(&delegate, &plain),
        scene::create(node.handler().path(), &plain),
        scene::create(hooks.path(), &matching),
        scene::create(node.handler().path(), &matching),
        Line::new(&REWRITE.build(node.dir()), [utf8(&copied)]),
        Line::new(&MOUNT.build(node.dir()), [device, "ext4"]),
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
        Measure::to_reach(
            "everything but the mount itself",
            Unit::Added,
            but_the_mount,
            Reach::AtMost(1.0),
        ),
        Measure::told(
            "of it for the match, and before the mount",
            Unit::Added,
            write.clone(),
        ),
        Measure::told(
            "the floor: the config's bytes anew",
            Unit::Added,
            floor.clone(),
        ),
        Measure::to_reach(
            "the match's part over the floor",
            Unit::Ratio,
            ratios(&write, &floor),
            Reach::AtMost(2.0),
        ),
        Measure::told("raw fsopen to fsmount, and its unmount", Unit::Added, raw),
        Measure::to_reach(
            "the mount step over that",
            Unit::Added,
            over_raw,
            Reach::AtMost(0.3),
        ),
    ]
}

/// A staged one.
struct Volume {
    target: PathBuf,
    device: LoopDevice,
}

impl Volume {
    fn stage(node: &Node) -> Self {
        let device = scene::device(node);
        let target = node.stage("a-pod", "pv-1", &device, &[]);
        Self { target, device }
    }

    /// As if no create had been: who was announced has ended.
    fn stage_anew(&self, node: &Node, bundle: &Bundle, config: &[u8]) {
        let _ = node.unstage(&self.target).success();
        fs::write(bundle.config_path(), config).expect("a config");
        let staged = node.try_stage(&self.target, self.device.path(), &[]);
        let _ = staged.success();
    }
}
