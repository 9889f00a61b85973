//! Requirements on mount options and `readOnly`.

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
            |scene| assert_in_force(scene, &[], &[]),
        ),
        deferred(
            "option-noatime",
            INFO,
            "The option `noatime` is in force.",
            |scene| assert_in_force(scene, &["noatime"], &["noatime"]),
        ),
        deferred(
            "option-nosuid",
            INFO,
            "The options `nosuid`, `nodev` and `noexec` are in force.",
            |scene| {
                let expected = ["nosuid", "nodev", "noexec"];
                assert_in_force(scene, &expected, &expected);
            },
        )
        .should(),
        deferred(
            "option-file-system",
            INFO,
            "Options of the file system are in force.",
            |scene| assert_in_force(scene, &["commit=9", "errors=remount-ro"], &["commit=9"]),
        ),
        deferred(
            "option-mount8",
            INFO,
            "Options that only mount(8) interprets are dropped: `defaults`, `_netdev`, `nofail`, `x-*`.",
            |scene| {
                let given = [
                    "defaults",
                    "_netdev",
                    "nofail",
                    "x-systemd.automount",
                    "commit=9",
                ];
                assert_in_force(scene, &given, &["rw", "commit=9"]);
            },
        ),
        deferred(
            "option-ro",
            INFO,
            "The option `ro` makes the volume read-only.",
            |scene| {
                assert_read_only(scene, |volume| {
                    volume.info_with(&json!({"options": ["ro"]}))
                });
            },
        ),
        deferred(
            "read-only",
            INFO,
            "metadata.readOnly makes the volume read-only, regardless of the container's mount options.",
            |scene| {
                assert_read_only(scene, |volume| {
                    volume.with_metadata(&json!({"readOnly": true}))
                });
            },
        ),
        deferred(
            "option-unknown",
            INFO,
            "An option that the file system does not know fails the create.",
            |scene| {
                let _ = assert_refuses_unknown_option(scene);
            },
        ),
        deferred(
            "option-unknown-named",
            INFO,
            "The error of that create names the option.",
            |scene| {
                let reason = assert_refuses_unknown_option(scene);
                assert!(reason.contains(UNKNOWN), "standard error is {reason:?}");
            },
        )
        .should(),
    ],
};

const UNKNOWN: &str = "no_such_option";

/// Mount attributes that are set only on request: a workload may, for example, run a program on its volume.
const ATTRIBUTES: [&str; 4] = ["noatime", "nosuid", "nodev", "noexec"];

/// Asserts that the container's mount table shows the expected options for the volume, and no other of [`ATTRIBUTES`].
#[track_caller]
fn assert_in_force(scene: &Scene<'_>, given: &[&str], expected: &[&str]) {
    let volume = scene.volume();
    let pod = scene.pod();
    let target = pod.stage(&volume.info_with(&json!({"options": given})));
    let app = pod.app_with(&volume, &target);
    let line = app.sh("grep ' /data ' /proc/self/mountinfo");
    let words: Vec<&str> = line.split([' ', ',']).collect();
    for option in expected {
        assert!(words.contains(option), "{option} is missing: {line}");
    }
    let unrequested = |option: &&str| words.contains(option) && !expected.contains(option);
    if let Some(option) = ATTRIBUTES.into_iter().find(unrequested) {
        panic!("{option} is set although it was not requested: {line}");
    }
}

fn assert_read_only(scene: &Scene<'_>, info: impl FnOnce(&Volume) -> Value) {
    let volume = scene.volume();
    let pod = scene.pod();
    let target = pod.stage(&info(&volume));
    let app = pod.app_with(&volume, &target);
    let run: Run = write_file(&app);
    assert!(!run.status.success(), "the volume was written to");
    assert!(run.stderr.contains("Read-only"), "another error: {run}");
}

fn write_file(app: &Container) -> Run {
    app.exec(&["/bin/touch", "/data/file"])
}

fn assert_refuses_unknown_option(scene: &Scene<'_>) -> String {
    let volume = scene.volume();
    let pod = scene.pod();
    let target = pod.stage(&volume.info_with(&json!({"options": [UNKNOWN]})));
    let reason = pod.refuses(&target);
    let _ = pod.stage(&volume.info());
    let _app = pod.app_with(&volume, &target);
    reason
}
