//! Requirements on the end of a volume's use, by `delete` and by SIGKILL, and on its next use.

use runcrust_tests::process;
use serde_json::json;

use super::sources::{OVERVIEW, SECOND, USE};
use crate::requirement::{Group, deferred};
use crate::scene::{Scene, expect};

pub(super) const GROUP: Group = Group {
    name: "life",
    requirements: &[
        deferred(
            "life-free-after-delete",
            USE,
            "After a pod's containers are deleted the device is free, and its file system clean.",
            free_after_delete,
        ),
        deferred(
            "life-free-after-kill",
            USE,
            "After a SIGKILL of all of a pod's processes, before any delete, the device is free.",
            free_after_kill,
        ),
        deferred(
            "life-after-kill",
            USE,
            "A pod whose processes were killed can be deleted, and the next pod has the volume and its data.",
            after_kill,
        ),
        deferred(
            "life-next-pod",
            OVERVIEW,
            "The next pod has the volume, and the data that the previous pod wrote.",
            next_pod,
        ),
        deferred(
            "life-after-failed-create",
            OVERVIEW,
            "After the cause of a failed create is removed, the next create succeeds.",
            after_failed_create,
        ),
        deferred(
            "life-created-not-started",
            USE,
            "A container that was created but never started keeps the volume in use until it is deleted.",
            created_not_started,
        ),
        deferred(
            "life-sandbox-first",
            SECOND,
            "A container whose sandbox was killed has its volume until it ends.",
            sandbox_first,
        )
        .should(),
    ],
};

fn free_after_delete(scene: &Scene<'_>) {
    let volume = scene.volume();
    let pod = scene.pod();
    let target = pod.stage(&volume.info());
    let app = pod.app_with(&volume, &target);
    let _ = app.sh("echo written > /data/file");
    pod.end([app]);
    scene.wait("the device free", || volume.is_free());
    volume.assert_clean();
    volume.assert_file("file", "written\n");
}

fn free_after_kill(scene: &Scene<'_>) {
    let volume = scene.volume();
    let pod = scene.pod();
    let target = pod.stage(&volume.info());
    let app = pod.app_with(&volume, &target);
    for pid in [app.pid(), pod.sandbox().pid()] {
        process::kill_now(pid);
    }
    scene.wait("the device free", || volume.is_free());
    volume.assert_clean();
}

fn after_kill(scene: &Scene<'_>) {
    let volume = scene.volume();
    let pod = scene.pod();
    let target = pod.stage(&volume.info());
    let app = pod.app_with(&volume, &target);
    let _ = app.sh("echo written > /data/file; sync");
    for pid in [app.pid(), pod.sandbox().pid()] {
        process::kill_now(pid);
    }
    for container in [&app, pod.sandbox()] {
        container.wait_for(&["stopped"]);
        let deleted = container.delete();
        assert!(deleted.status.success(), "{deleted}");
    }
    scene.wait("the device free", || volume.is_free());
    let next = scene.pod();
    let target = next.stage(&volume.info());
    let app = next.app_with(&volume, &target);
    expect(
        "the killed pod's file",
        &&*app.sh("cat /data/file"),
        &"written",
    );
}

fn next_pod(scene: &Scene<'_>) {
    let volume = scene.volume();
    for seen in ["", "1\n", "1\n2\n"] {
        let pod = scene.pod();
        let target = pod.stage(&volume.info());
        let app = pod.app_with(&volume, &target);
        let _ = app.sh("touch /data/log");
        let run = app.exec(&["/bin/cat", "/data/log"]);
        expect("what the previous pods wrote", &&*run.stdout, &seen);
        let _ = app.sh("echo $(( $(wc -l < /data/log) + 1 )) >> /data/log");
        pod.end([app]);
        scene.wait("the device free", || volume.is_free());
    }
    volume.assert_clean();
}

fn after_failed_create(scene: &Scene<'_>) {
    let volume = scene.volume();
    let pod = scene.pod();
    let target = pod.stage(&volume.info_with(&json!({"options": ["no_such_option"]})));
    let _ = pod.refuses(&target);
    let target = pod.stage(&volume.info());
    let _app = pod.app_with(&volume, &target);
}

fn created_not_started(scene: &Scene<'_>) {
    let volume = scene.volume();
    let pod = scene.pod();
    let target = pod.stage(&volume.info());
    let app = crate::scene::Container::new(scene.suite(), &pod.bundle_with(&target).write());
    let created = app.create();
    assert!(created.status.success(), "{created}");
    let _ = pod.cli(&target);
    assert!(!volume.is_free(), "the device is free");
    pod.end([app]);
    scene.wait("the device free", || volume.is_free());
}

fn sandbox_first(scene: &Scene<'_>) {
    let volume = scene.volume();
    let pod = scene.pod();
    let target = pod.stage(&volume.info());
    let app = pod.app_with(&volume, &target);
    process::kill_now(pod.sandbox().pid());
    pod.sandbox().wait_for(&["stopped"]);
    let _ = app.sh("echo written > /data/file; sync");
    app.end();
    scene.wait("the device free", || volume.is_free());
    volume.assert_file("file", "written\n");
}
