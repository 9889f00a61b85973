//! Requirements on the mount: the containers have the volume, and the host does not.

use std::fs;

use serde_json::json;

use super::sources::{INFO, OVERVIEW, SECOND};
use crate::requirement::{Group, Prerequisite, deferred};
use crate::scene::{Scene, expect, files_below};

pub(super) const GROUP: Group = Group {
    name: "mount",
    requirements: &[
        deferred("mount-ext4", INFO, "An ext4 is mounted.", |scene| {
            file_system(scene, "ext4");
        }),
        deferred("mount-xfs", INFO, "An xfs is mounted.", |scene| {
            file_system(scene, "xfs");
        })
        .needs(Prerequisite::FileSystem("xfs")),
        deferred("mount-btrfs", INFO, "A btrfs is mounted.", |scene| {
            file_system(scene, "btrfs");
        })
        .should()
        .needs(Prerequisite::FileSystem("btrfs")),
        deferred(
            "mount-never-on-host",
            OVERVIEW,
            "From staging to the pod's end the volume never appears in the host's mount table.",
            never_on_the_host,
        )
        .alone(),
        deferred(
            "mount-nothing-on-host",
            OVERVIEW,
            "What a workload writes is on the device, and not in the host's directory.",
            nothing_on_the_host,
        ),
        deferred(
            "mount-one-superblock",
            SECOND,
            "Containers of a pod share one file system, and see each other's writes.",
            one_superblock,
        ),
        deferred(
            "mount-restart",
            OVERVIEW,
            "A container that is recreated in its pod has the volume and its data.",
            restart,
        ),
        deferred(
            "mount-nested-below",
            OVERVIEW,
            "A mount below the volume's, later in the config, is visible.",
            nested_below,
        ),
        deferred(
            "mount-nested-above",
            OVERVIEW,
            "The volume is visible below a mount that is earlier in the config.",
            nested_above,
        ),
        deferred(
            "mount-covered",
            OVERVIEW,
            "A mount at the volume's destination, later in the config, covers the volume.",
            covered,
        ),
        deferred(
            "mount-missing-mountpoint",
            OVERVIEW,
            "A missing mountpoint of the volume is created as for any bind mount, also in a read-only rootfs.",
            missing_mountpoint,
        ),
        deferred(
            "mount-read-only-view",
            OVERVIEW,
            "A container's mount with `ro` is read-only, and another container's mount of the same volume is not.",
            read_only_view,
        ),
        deferred(
            "mount-as-user",
            OVERVIEW,
            "A workload that is not root has the permissions that the volume's files grant.",
            as_user,
        ),
    ],
};

/// Asserts that the container's mount table shows a file system of this type, and that what is written there is on the
/// device.
#[track_caller]
fn file_system(scene: &Scene<'_>, fstype: &'static str) {
    let volume = scene.volume_with_fstype(fstype);
    let pod = scene.pod();
    let target = pod.stage(&volume.info());
    let app = pod.app_with(&volume, &target);
    let line = app.sh("grep ' /data ' /proc/mounts");
    expect("its type", &line.split(' ').nth(2), &Some(fstype));
    let _ = app.sh("echo written > /data/file");
    pod.end([app]);
    scene.wait("the device free", || volume.is_free());
    volume.assert_file("file", "written\n");
}

/// The number of pods during which the mount table is watched. A short mount may be missed once, but not ten times.
const WATCHED_PODS: usize = 10;

fn never_on_the_host(scene: &Scene<'_>) {
    let volume = scene.volume();
    let watcher = volume.watch();
    for _ in 0..WATCHED_PODS {
        let pod = scene.pod();
        let target = pod.stage(&volume.with_metadata(&json!({"fsGroup": "2000"})));
        let app = pod.app_with(&volume, &target);
        let second = pod.app_with(&volume, &target);
        let _ = app.sh("echo written > /data/file");
        pod.end([app, second]);
        scene.wait("the device free", || volume.is_free());
    }
    let seen = watcher.finish();
    assert!(
        seen.is_empty(),
        "the volume was mounted on the host: {seen:?}"
    );
}

fn nothing_on_the_host(scene: &Scene<'_>) {
    let volume = scene.volume();
    let pod = scene.pod();
    let target = pod.stage(&volume.info());
    let app = pod.app(&target);
    let _ = app.sh("mkdir /data/directory; echo written > /data/directory/file; sync");
    expect("on the host", &files_below(&target), &Vec::new());
    pod.end([app]);
    expect("on the host", &files_below(&target), &Vec::new());
    scene.wait("the device free", || volume.is_free());
    volume.assert_file("directory/file", "written\n");
}

fn one_superblock(scene: &Scene<'_>) {
    let volume = scene.volume();
    let pod = scene.pod();
    let target = pod.stage(&volume.info());
    let one = pod.app_with(&volume, &target);
    let two = pod.app_with(&volume, &target);
    let _ = one.sh("echo one > /data/file");
    expect(
        "the other container's view",
        &&*two.sh("cat /data/file"),
        &"one",
    );
    let device = "stat -c %d /data";
    expect("st_dev", &one.sh(device), &two.sh(device));
    one.end();
    volume.assert_shown_at(&two, "/data");
    let _ = two.sh("echo two > /data/file");
}

fn restart(scene: &Scene<'_>) {
    let volume = scene.volume();
    let pod = scene.pod();
    let target = pod.stage(&volume.info());
    let first = pod.app_with(&volume, &target);
    let _ = first.sh("echo first > /data/file");
    first.end();
    let second = pod.app_with(&volume, &target);
    expect(
        "the first container's file",
        &&*second.sh("cat /data/file"),
        &"first",
    );
}

fn nested_below(scene: &Scene<'_>) {
    let volume = scene.volume();
    let pod = scene.pod();
    let target = pod.stage(&volume.info());
    let below = scene.dir().subdir("below");
    fs::write(below.join("host"), "below").expect("write");
    let app = scene.run(pod.bundle_with(&target).bind(&below, "/data/inner", &[]));
    volume.assert_shown_at(&app, "/data");
    expect(
        "the mount below",
        &&*app.sh("cat /data/inner/host"),
        &"below",
    );
}

fn nested_above(scene: &Scene<'_>) {
    let volume = scene.volume();
    let pod = scene.pod();
    let target = pod.stage(&volume.info());
    let above = scene.dir().subdir("above");
    fs::write(above.join("host"), "above").expect("write");
    let app = scene.run(pod.bundle_with(&above).bind(&target, "/data/inner", &[]));
    volume.assert_shown_at(&app, "/data/inner");
    expect("the mount above", &&*app.sh("cat /data/host"), &"above");
}

fn covered(scene: &Scene<'_>) {
    let volume = scene.volume();
    let pod = scene.pod();
    let target = pod.stage(&volume.info());
    let cover = scene.dir().subdir("cover");
    fs::write(cover.join("host"), "cover").expect("write");
    let bundle = pod.bundle_with(&target).bind(&target, "/seen", &[]);
    let app = scene.run(bundle.bind(&cover, "/data", &[]));
    volume.assert_shown_at(&app, "/seen");
    expect("the covering mount", &&*app.sh("ls /data"), &"host");
}

fn missing_mountpoint(scene: &Scene<'_>) {
    let volume = scene.volume();
    let pod = scene.pod();
    let target = pod.stage(&volume.info());
    let bundle = pod.bundle().bind(&target, "/missing/here", &[]);
    let app = scene.run(bundle.readonly_rootfs());
    volume.assert_shown_at(&app, "/missing/here");
    let _ = app.sh("echo x > /missing/here/file");
    let rootfs = app.exec(&["/bin/touch", "/x"]);
    assert!(!rootfs.status.success(), "the rootfs can be written to");
}

fn read_only_view(scene: &Scene<'_>) {
    let volume = scene.volume();
    let pod = scene.pod();
    let target = pod.stage(&volume.info());
    let ro = ["rbind", "rprivate", "ro"];
    let reader = scene.run(pod.bundle().bind(&target, "/data", &ro));
    volume.assert_shown_at(&reader, "/data");
    let run = reader.exec(&["/bin/touch", "/data/file"]);
    assert!(!run.status.success(), "the read-only mount was written to");
    let writer = pod.app_with(&volume, &target);
    let _ = writer.sh("echo written > /data/file");
    expect(
        "the writer's file",
        &&*reader.sh("cat /data/file"),
        &"written",
    );
}

fn as_user(scene: &Scene<'_>) {
    let volume = scene.volume();
    let pod = scene.pod();
    let target = pod.stage(&volume.with_metadata(&json!({"fsGroup": "2000"})));
    // The workload itself tries to write: the exec of some runtimes runs as root.
    let script = "if echo x > /data/$(id -u); then echo yes; else echo no; fi > /tmp/wrote; \
        mv /tmp/wrote /tmp/answer; exec sleep 2147483647";
    for (user, groups, expected) in [(1000, &[2000][..], "yes\n"), (1001, &[], "no\n")] {
        let bundle = pod.bundle_with(&target).user(user, user, groups);
        let app = scene.run(bundle.script(script));
        volume.assert_shown_at(&app, "/data");
        let mut answer = String::new();
        scene.wait("the workload's answer", || {
            answer = app.exec(&["/bin/cat", "/tmp/answer"]).stdout;
            !answer.is_empty()
        });
        let what = format!("write by uid {user} with the groups {groups:?}");
        expect(&what, &&*answer, &expected);
    }
}
