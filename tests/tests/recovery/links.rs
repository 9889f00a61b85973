//! A volume was staged by a link in `/dev/disk`, which udev removes, or changes to lead to another disk. A pod that
//! uses the volume keeps it, and no pod gets the other disk.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use runcrust_tests::container::end;
use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::volume::with_mounted;
use runcrust_tests::{
    Bundle, Delegate, LoopDevice, Node, POD, Pod, Run, on_each_delegate, process, refusal,
    wait_until,
};

use crate::answer;

/// A volume that was staged by a link to its device.
struct Scene {
    node: Node,
    device: LoopDevice,
    other: LoopDevice,
    link: PathBuf,
    target: PathBuf,
}

impl Scene {
    fn new(delegate: Delegate) -> Self {
        let node = Node::new(delegate);
        let (device, other) = (node.ext4(), node.ext4());
        with_mounted(other.path(), |root| {
            fs::write(root.join("file"), "another's").expect("write");
        });
        let link = node.dir().join("by-id");
        symlink(device.path(), &link).expect("symlink");
        let target = node.target(POD, "pv-1");
        let _ = node.try_stage(&target, &link, &[]).success();
        Self {
            node,
            device,
            other,
            link,
            target,
        }
    }

    /// Changes or removes the link, as udev does.
    fn change_link(&self, to: Option<&Path>) {
        fs::remove_file(&self.link).expect("unlink");
        if let Some(to) = to {
            symlink(to, &self.link).expect("symlink");
        }
    }

    fn stage(&self, device: &Path, options: &[&str]) -> Run {
        self.node.try_stage(&self.target, device, options)
    }

    fn plain(&self) -> Bundle {
        Bundle::plain(self.node.dir())
            .bind(&self.target, "/data", &[])
            .write()
    }
}

fn assert_users_keep_the_volume(delegate: Delegate, is_repointed: bool) {
    let scene = Scene::new(delegate);
    let Scene {
        node,
        device,
        other,
        link,
        target,
    } = &scene;
    let untouched = fs::read(other.file()).expect("read");
    let pod = Pod::with_staged_volume(node, POD, target.clone());
    let first = pod.app();
    let _ = first.sh("echo mine > /data/file");
    scene.change_link(is_repointed.then_some(other.path()));

    // A restarted app, and a container that has the volume without the sandbox.
    let restarted = pod.app();
    assert_eq!(restarted.sh("cat /data/file"), "mine");
    let alone = node.run(&scene.plain());
    assert_eq!(alone.sh("cat /data/file"), "mine");
    end([alone]);
    let _ = node.stats(target).success();
    let _ = node.resize(target, 0, 0).success();
    let bundle = node
        .app_bundle(&pod.sandbox)
        .bind(target, "/data", &[])
        .write();
    let explained = answer(node, &["explain", utf8(bundle.path()), "--json"]);
    assert!(
        explained["volumes"][0]["problem"].is_null(),
        "{explained:#}"
    );

    // The volume is published again, as kubelet does after its restart; also by another path of the device.
    for same in [link.as_path(), device.path()] {
        let _ = scene.stage(same, &[]).success();
        let _ = scene.stage(same, &["--option", "rw,defaults"]).success();
    }
    let refused = scene.stage(other.path(), &[]).failure();
    let names = [
        device.number(),
        other.number(),
        pod.sandbox.id(),
        "FAILED_PRECONDITION",
    ];
    refused.assert_contains(&names);

    process::kill_now(pod.sandbox.pid());
    wait_until("the sandbox to end", WAIT_TIMEOUT, || {
        !pod.sandbox.is_alive()
    });
    let next = Pod::with_staged_volume(node, POD, target.clone());
    assert_eq!(next.app().sh("cat /data/file"), "mine");
    assert_eq!(first.sh("cat /data/file"), "mine");
    next.end([first, restarted]);
    device.wait_until_free(WAIT_TIMEOUT);

    // Without a user the volume has to be mounted by its link, which fails.
    let refused = refusal::create_refused(node, &scene.plain()).naming_volume("pv-1");
    let why = if is_repointed {
        " isn't the disk that was staged: "
    } else {
        "there is no such device"
    };
    let _ = refused.containing(&[utf8(link), why]).message();
    let _ = node.unstage(target).success();
    assert!(device.is_free() && other.is_free());
    assert!(fs::read(other.file()).expect("read") == untouched);
}

on_each_delegate! {
    fn users_keep_a_volume_whose_link_was_removed(delegate: Delegate) {
        assert_users_keep_the_volume(delegate, false);
    }

    fn users_keep_a_volume_whose_link_leads_elsewhere(delegate: Delegate) {
        assert_users_keep_the_volume(delegate, true);
    }

    /// Without a disk sequence number, the device number identifies the disk only while it is mounted.
    fn without_a_disk_sequence_nothing_is_mounted_by_number(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let Scene { node, device, other, target, .. } = &scene;
        let entry = node.entry(target).join("mountInfo.json");
        let mut info: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(&entry).expect("read")).expect("JSON");
        let metadata = info["metadata"].as_object_mut().expect("metadata");
        let _ = metadata.remove("diskSeq");
        fs::write(&entry, info.to_string()).expect("write");
        let pod = Pod::with_staged_volume(node, POD, target.clone());
        let first = pod.app();
        scene.change_link(Some(other.path()));
        // The sandbox still has the volume mounted.
        let second = pod.app();
        let refused = refusal::create_refused(node, &scene.plain()).naming_volume("pv-1");
        let _ = refused.containing(&[device.number(), other.number(), "in use"]).message();
        scene.change_link(Some(device.path()));
        end([node.run(&scene.plain())]);
        pod.end([first, second]);
    }

    /// The device is not opened, so it does not matter where its link leads.
    fn unstage_does_not_use_the_link(delegate: Delegate) {
        for is_repointed in [false, true] {
            let scene = Scene::new(delegate);
            let pod = Pod::with_staged_volume(&scene.node, POD, scene.target.clone());
            let app = pod.app();
            scene.change_link(is_repointed.then_some(scene.other.path()));
            let refused = scene.node.unstage(&scene.target).failure();
            assert!(refused.stderr.contains(pod.sandbox.id()), "{refused}");
            pod.end([app]);
            let _ = scene.node.unstage(&scene.target).success();
            assert!(scene.device.is_free());
        }
    }
}
