//! Requirements on the raw device: access to it, and its use by a second pod.

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
            "A workload sees its volume but cannot read the raw device, even with CAP_MKNOD.",
            out_of_reach,
        ),
        deferred(
            "device-node",
            INFO,
            "metadata.deviceNode gives the container the raw device, too.",
            node,
        )
        .should(),
        deferred(
            "device-node-read-only",
            INFO,
            "A container with a read-only view of the volume can only read that device.",
            node_read_only,
        )
        .should(),
        deferred(
            "device-single-writer",
            SHARED,
            "A SINGLE_NODE_SINGLE_WRITER volume is refused for a second pod until the first has ended.",
            |scene| single_writer(scene, &[SINGLE_WRITER, SINGLE_WRITER]),
        ),
        deferred(
            "device-single-writer-first",
            SECOND,
            "It is refused, too, if only the first pod's access mode says so.",
            |scene| single_writer(scene, &[SINGLE_WRITER, "SINGLE_NODE_MULTI_WRITER"]),
        ),
        deferred(
            "device-single-writer-second",
            SECOND,
            "It is refused, too, if only the second pod's access mode says so.",
            |scene| single_writer(scene, &["SINGLE_NODE_MULTI_WRITER", SINGLE_WRITER]),
        ),
        deferred(
            "device-read-only-beside",
            SECOND,
            "A pod that mounts a device with the option `ro` while another has it mounted without is refused.",
            read_only_beside,
        )
        .should(),
        deferred(
            "device-reader-beside",
            "metadata.readOnly applies to one pod: that pod reads what another writes, and cannot write.",
            "metadata.readOnly is each pod's own: it reads what another pod writes, and can't write.",
            reader_beside,
        )
        .should(),
    ],
};

/// Reads the volume's device by the number that the container sees.
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
    volume.assert_shown_at(&app, "/data");
    let run = read_raw(&app);
    assert!(!run.status.success(), "the raw device was read: {run}");
    expect("block devices", &&*app.sh("find /dev -type b"), &"");
}

fn node(scene: &Scene<'_>) {
    let volume = scene.volume();
    let pod = scene.pod();
    let target = pod.stage(&volume.with_metadata(&json!({"deviceNode": true})));
    let app = pod.app_with(&volume, &target);
    let nodes = app.sh("find /dev -type b");
    expect("its block devices", &nodes.lines().count(), &1);
    // The magic number of ext4 is at byte 1080.
    let script =
        format!("dd if={nodes} bs=1 skip=1080 count=2 2>/dev/null | hexdump -e '1/2 \"%x\"'");
    expect("the magic number there", &&*app.sh(&script), &"ef53");
}

/// Returns whether the container's only block device can be opened for writing. Writes nothing.
#[track_caller]
fn writes_node(app: &Container) -> bool {
    let node = app.sh("find /dev -type b");
    let read = app.exec(&["/bin/dd", &format!("if={node}"), "of=/dev/null", "count=1"]);
    assert!(read.status.success(), "the device cannot be read: {read}");
    let of = format!("of={node}");
    let write = ["/bin/dd", "if=/dev/null", &of, "conv=notrunc"];
    app.exec(&write).status.success()
}

fn node_read_only(scene: &Scene<'_>) {
    let volume = scene.volume();
    let pod = scene.pod();
    let target = pod.stage(&volume.with_metadata(&json!({"deviceNode": true})));
    let ro = ["rbind", "rprivate", "ro"];
    let reader = scene.run(pod.bundle().bind(&target, "/data", &ro));
    volume.assert_shown_at(&reader, "/data");
    expect("reader can write the device", &writes_node(&reader), &false);
    let writer = pod.app_with(&volume, &target);
    expect("writer can write the device", &writes_node(&writer), &true);
}

const SINGLE_WRITER: &str = "SINGLE_NODE_SINGLE_WRITER";

/// Checks that the second pod is refused, with the access modes of the first and the second.
fn single_writer(scene: &Scene<'_>, modes: &[&str; 2]) {
    let volume = scene.volume();
    let infos = modes.map(|mode| volume.with_metadata(&json!({"accessMode": mode})));
    let (first, second) = (scene.pod(), scene.pod());
    let target = first.stage(&infos[0]);
    let app = first.app_with(&volume, &target);
    let second_target = second.stage(&infos[1]);
    let _ = second.refuses(&second_target);
    let _ = app.sh("echo first > /data/file");
    first.end([app]);
    // kubelet retries, possibly with a new sandbox.
    scene.wait("the device free", || volume.is_free());
    let app = second.app_with(&volume, &second_target);
    expect(
        "the first pod's file",
        &&*app.sh("cat /data/file"),
        &"first",
    );
}

fn read_only_beside(scene: &Scene<'_>) {
    let volume = scene.volume();
    let (first, second) = (scene.pod(), scene.pod());
    let target = first.stage(&volume.info());
    let app = first.app_with(&volume, &target);
    let target = second.stage(&volume.info_with(&json!({"options": ["ro"]})));
    let _ = second.refuses(&target);
    first.end([app]);
    scene.wait("the device free", || volume.is_free());
    let _app = second.app_with(&volume, &target);
}

fn reader_beside(scene: &Scene<'_>) {
    let volume = scene.volume();
    let (first, second) = (scene.pod(), scene.pod());
    let target = first.stage(&volume.info());
    let writer = first.app_with(&volume, &target);
    let target = second.stage(&volume.with_metadata(&json!({"readOnly": true})));
    let reader = second.app_with(&volume, &target);
    let _ = writer.sh("echo new > /data/file");
    expect("the writer's file", &&*reader.sh("cat /data/file"), &"new");
    let run = reader.exec(&["/bin/touch", "/data/other"]);
    assert!(!run.status.success(), "the reader wrote: {run}");
}
