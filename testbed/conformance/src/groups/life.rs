//! The end of a volume's use, however it comes, and its next one.

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
            "After the delete of a pod's containers the device is free, and its file system clean.",
            free_after_delete,
        ),
        deferred(
            "life-free-after-kill",
            USE,
            "After a SIGKILL of all of the pod's processes, before any delete, the device is free.",
            free_after_kill,
        ),
        deferred(
            "life-after-kill",
            USE,
            "A pod whose processes were killed can be deleted, and the next one has the volume and the data.",
            after_kill,
        ),
        deferred(
            "life-next-pod",
            OVERVIEW,
            "Another pod has the volume after the first, and what that one wrote.",
            next_pod,
        ),
        deferred(
            "life-after-failed-create",
            OVERVIEW,
            "What failed a create and was mended is no hindrance to the next.",
            after_failed_create,
        ),
        deferred(
            "life-created-not-started",
            USE,
            "A container that was created and never started holds the volume until it is deleted.",
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
    volume.is_clean();
    volume.has_file("file", "written\n");
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
    volume.is_clean();
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
        "the killed one's file",
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
        expect("what earlier pods wrote", &&*run.stdout, &seen);
        let _ = app.sh("echo $(( $(wc -l < /data/log) + 1 )) >> /data/log");
        pod.end([app]);
        scene.wait("the device free", || volume.is_free());
    }
    volume.is_clean();
}

fn after_failed_create(scene: &Scene<'_>) {
    let volume = scene.volume();
    let pod = scene.pod();
    let target = pod.stage(&volume.staged(&json!({"options": ["no_such_option"]})));
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
    volume.has_file("file", "written\n");
}
