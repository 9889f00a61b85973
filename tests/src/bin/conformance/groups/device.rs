//! The raw device, and who has it.

use runcrust_tests::Run;
use serde_json::json;

use super::sources::{INFO, OVERVIEW, SECOND, SHARED};
use crate::requirement::{Group, deferred};
use crate::scene::{Container, Scene, expect};

pub(super) const GROUP: Group = Group {
    name: "device",
    requirements: &[
        deferred(
            "device-out-of-reach",
            OVERVIEW,
            "A workload has its volume and not the raw device, also with CAP_MKNOD.",
            out_of_reach,
        ),
        deferred(
            "device-node",
            INFO,
            "metadata.deviceNode gives the container the raw device as well.",
            node,
        )
        .should(),
        deferred(
            "device-single-writer",
            SHARED,
            "A SINGLE_NODE_SINGLE_WRITER volume is refused to a second pod until the first has ended.",
            single_writer,
        ),
        deferred(
            "device-read-only-beside",
            SECOND,
            "Read-only beside read-write of one device is refused.",
            read_only_beside,
        )
        .should(),
    ],
};

/// Reads the device that the volume's file system is on, as the container sees its number.
fn read_raw(app: &Container) -> Run {
    let script = "d=$(stat -c %d /data); \
        mknod /raw b $((d >> 8 & 0xfff)) $((d & 0xff | d >> 12 & 0xfff00)) && \
        dd if=/raw of=/dev/null count=1";
    app.exec(&["/bin/sh", "-c", script])
}

fn out_of_reach(scene: &Scene<'_>) {
    let volume = scene.volume();
    let pod = scene.pod();
    let target = pod.stage(&volume.info());
    let app = scene.run(pod.bundle_with(&target).all_capabilities());
    volume.is_at(&app, "/data");
    let run = read_raw(&app);
    assert!(!run.status.success(), "its blocks were read: {run}");
    expect("block devices", &&*app.sh("find /dev -type b"), &"");
}

fn node(scene: &Scene<'_>) {
    let volume = scene.volume();
    let pod = scene.pod();
    let target = pod.stage(&volume.with(&json!({"deviceNode": true})));
    let app = pod.app_with(&volume, &target);
    let nodes = app.sh("find /dev -type b");
    expect("its block devices", &nodes.lines().count(), &1);
    // An ext4's magic number.
    let script =
        format!("dd if={nodes} bs=1 skip=1080 count=2 2>/dev/null | hexdump -e '1/2 \"%x\"'");
    expect("the magic number there", &&*app.sh(&script), &"ef53");
}

fn single_writer(scene: &Scene<'_>) {
    let volume = scene.volume();
    let info = volume.with(&json!({"accessMode": "SINGLE_NODE_SINGLE_WRITER"}));
    let (first, second) = (scene.pod(), scene.pod());
    let target = first.stage(&info);
    let app = first.app_with(&volume, &target);
    let second_target = second.stage(&info);
    let _ = second.refuses(&second_target);
    let _ = app.sh("echo first > /data/file");
    first.end([app]);
    // kubelet tries again, with a sandbox that it may have made anew.
    scene.wait("the device free", || volume.is_free());
    let app = second.app_with(&volume, &second_target);
    expect(
        "the first one's file",
        &&*app.sh("cat /data/file"),
        &"first",
    );
}

fn read_only_beside(scene: &Scene<'_>) {
    let volume = scene.volume();
    let (first, second) = (scene.pod(), scene.pod());
    let target = first.stage(&volume.info());
    let app = first.app_with(&volume, &target);
    let target = second.stage(&volume.with(&json!({"readOnly": true})));
    let _ = second.refuses(&target);
    first.end([app]);
    scene.wait("the device free", || volume.is_free());
    let _app = second.app_with(&volume, &target);
}
