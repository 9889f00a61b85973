//! Mount options and `readOnly`.

use runcrust_tests::Run;
use serde_json::{Value, json};

use super::sources::INFO;
use crate::requirement::{Group, deferred};
use crate::scene::{Container, Scene, Volume};

pub(super) const GROUP: Group = Group {
    name: "options",
    requirements: &[
        deferred(
            "option-none",
            INFO,
            "Without options the mount has none of `noatime`, `nosuid`, `nodev`, `noexec`.",
            |scene| in_force(scene, &[], &[]),
        ),
        deferred(
            "option-noatime",
            INFO,
            "The option `noatime` is in force.",
            |scene| in_force(scene, &["noatime"], &["noatime"]),
        ),
        deferred(
            "option-nosuid",
            INFO,
            "The options `nosuid`, `nodev` and `noexec` are in force.",
            |scene| {
                let wanted = ["nosuid", "nodev", "noexec"];
                in_force(scene, &wanted, &wanted);
            },
        )
        .should(),
        deferred(
            "option-file-system",
            INFO,
            "The file system's own options are in force.",
            |scene| in_force(scene, &["commit=9", "errors=remount-ro"], &["commit=9"]),
        ),
        deferred(
            "option-mount8",
            INFO,
            "What only mount(8) reads is dropped: `defaults`, `_netdev`, `nofail`, `x-*`.",
            |scene| {
                let given = [
                    "defaults",
                    "_netdev",
                    "nofail",
                    "x-systemd.automount",
                    "commit=9",
                ];
                in_force(scene, &given, &["rw", "commit=9"]);
            },
        ),
        deferred(
            "option-ro",
            INFO,
            "The option `ro` makes the volume read-only.",
            |scene| read_only(scene, |volume| volume.staged(&json!({"options": ["ro"]}))),
        ),
        deferred(
            "read-only",
            INFO,
            "metadata.readOnly makes the volume read-only, whatever the container's mount says.",
            |scene| read_only(scene, |volume| volume.with(&json!({"readOnly": true}))),
        ),
        deferred(
            "option-unknown",
            INFO,
            "An option that the file system doesn't know fails the create.",
            |scene| {
                let _ = refused(scene);
            },
        ),
        deferred(
            "option-unknown-named",
            INFO,
            "The error of that create names the option.",
            |scene| {
                let why = refused(scene);
                assert!(why.contains(UNKNOWN), "standard error is {why:?}");
            },
        )
        .should(),
    ],
};

const UNKNOWN: &str = "no_such_option";

/// Attributes that mount(8) sets only where they are asked for: a workload may run a program on its volume.
const ATTRIBUTES: [&str; 4] = ["noatime", "nosuid", "nodev", "noexec"];

/// The container's own mount table has these options for the volume, and no attribute beyond them.
#[track_caller]
fn in_force(scene: &Scene<'_>, given: &[&str], wanted: &[&str]) {
    let volume = scene.volume();
    let pod = scene.pod();
    let target = pod.stage(&volume.staged(&json!({"options": given})));
    let app = pod.app_with(&volume, &target);
    let line = app.sh("grep ' /data ' /proc/self/mountinfo");
    let words: Vec<&str> = line.split([' ', ',']).collect();
    for option in wanted {
        assert!(words.contains(option), "{option} isn't among: {line}");
    }
    let unasked = |option: &&str| words.contains(option) && !wanted.contains(option);
    if let Some(option) = ATTRIBUTES.into_iter().find(unasked) {
        panic!("nobody has asked for {option}: {line}");
    }
}

fn read_only(scene: &Scene<'_>, info: impl FnOnce(&Volume) -> Value) {
    let volume = scene.volume();
    let pod = scene.pod();
    let target = pod.stage(&info(&volume));
    let app = pod.app_with(&volume, &target);
    let run: Run = writes(&app);
    assert!(!run.status.success(), "it was written to");
    assert!(run.stderr.contains("Read-only"), "another error: {run}");
}

fn writes(app: &Container) -> Run {
    app.exec(&["/bin/touch", "/data/file"])
}

fn refused(scene: &Scene<'_>) -> String {
    let volume = scene.volume();
    let pod = scene.pod();
    let target = pod.stage(&volume.staged(&json!({"options": [UNKNOWN]})));
    let why = pod.refuses(&target);
    let _ = pod.stage(&volume.info());
    let _app = pod.app_with(&volume, &target);
    why
}
