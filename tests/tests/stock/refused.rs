//! A bind that should be one of a staged volume, and is not, is refused, because the pod would write to the node's
//! disk.

use std::fs;
use std::path::Path;

use nix::mount::{MntFlags, umount2};
use runcrust_tests::refusal::{self, Refusal, unexpected_mounts};
use runcrust_tests::{Bundle, POD, on_each_delegate};

use super::*;

fn bundle(pod: &Pod, source: &Path) -> Bundle {
    pod.volume
        .node
        .app_bundle(&pod.sandbox)
        .bind(source, "/data", &[])
        .write()
}

fn assert_create_refused(pod: &Pod, source: &Path) -> Refusal {
    refusal::create_refused(&pod.volume, &bundle(pod, source))
}

on_each_delegate! {
    fn a_bind_whose_source_was_removed_is_refused(delegate: Delegate) {
        let pod = Pod::new(delegate);
        let source = pod.bind("db", 0);
        fs::remove_dir(pod.volume.target.join("db")).unwrap();
        let removed = assert_create_refused(&pod, &source).naming_volume("pv-1");
        let _ = removed.containing(&[source.to_str().unwrap(), "which has been removed"]).message();
        // A new directory with the same name is not the bound one.
        fs::create_dir(pod.volume.target.join("db")).unwrap();
        let _ = assert_create_refused(&pod, &source).naming_volume("pv-1").containing(&["which has been removed"]).message();
        // kubelet notices this, and binds the new directory.
        umount2(&source, MntFlags::empty()).unwrap();
        let new_bind = pod.bind("db", 0);
        let app = pod.app(&new_bind);
        let _ = app.sh("echo x > /data/file");
        assert_eq!(fs::read_dir(pod.volume.target.join("db")).unwrap().count(), 0);
    }

    fn a_path_where_nothing_is_mounted_is_refused(delegate: Delegate) {
        let pod = Pod::new(delegate);
        let source = pod.bind("db", 0);
        umount2(&source, MntFlags::empty()).unwrap();
        let gone = assert_create_refused(&pod, &source).naming_volume("pv-1").containing(&["isn't in the volume's directory"]).message();
        assert!(gone.contains("hint: recreate the pod"), "{gone}");
        fs::remove_dir(&source).unwrap();
        let _ = assert_create_refused(&pod, &source).naming_volume("pv-1").containing(&["doesn't exist, or is on"]).message();
    }

    fn a_bind_of_another_directory_is_refused(delegate: Delegate) {
        let pod = Pod::new(delegate);
        let elsewhere = pod.volume.dir().subdir("elsewhere");
        let source = subpath("pv-1", &elsewhere, "db", 0).bind(&pod.volume.handler().kubelet_dir());
        let _ = assert_create_refused(&pod, &source).naming_volume("pv-1").containing(&["/elsewhere/db", "isn't in the volume's directory"]).message();
        assert!(!elsewhere.join("db/file").exists());
    }

    fn a_bind_under_another_volumes_name_is_refused(delegate: Delegate) {
        let pod = Pod::new(delegate);
        let other = subpath("pv-2", &pod.volume.target, "db", 0).bind(&pod.volume.handler().kubelet_dir());
        let staged_alone = assert_create_refused(&pod, &other).naming_volume("pv-1");
        let _ = staged_alone.containing(&["named after another", other.to_str().unwrap()]).message();
        let device = pod.volume.ext4();
        let second = pod.volume.node.stage(POD, "pv-2", &device, &[]);
        let _ = assert_create_refused(&pod, &other).naming_volume("pv-1").containing(&["named after another"]).message();
        let _ = pod.volume.node.unstage(&second).success();
    }

    fn another_pods_volume_is_refused(delegate: Delegate) {
        let pod = Pod::new(delegate);
        let device = pod.volume.ext4();
        let other_target = pod.volume.node.stage("pod-b", "pv-2", &device, &[]);
        let source = SubPath { pod_uid: "pod-b", ..subpath("pv-2", &other_target, "db", 0) }.bind(&pod.volume.handler().kubelet_dir());
        let _ = assert_create_refused(&pod, &source).naming_volume("pv-2").containing(&["belongs to pod pod-b"]).message();
        assert_eq!(unexpected_mounts(&device, Some(pod.sandbox.pid())), <[String; 0]>::default());
    }

    fn a_bind_with_a_removed_target_path_is_refused(delegate: Delegate) {
        let pod = Pod::new(delegate);
        let source = pod.bind("db", 0);
        fs::remove_dir_all(pod.volume.target.parent().unwrap()).unwrap();
        let _ = assert_create_refused(&pod, &source).naming_volume("pv-1").containing(&["doesn't exist"]).message();
    }

    fn a_bind_of_a_volume_with_lost_metadata_is_refused(delegate: Delegate) {
        let pod = Pod::new(delegate);
        let source = pod.bind("db", 0);
        let running = pod.app(&source);
        fs::remove_dir_all(pod.volume.entry()).unwrap();
        let lost = assert_create_refused(&pod, &source).naming_volume("pv-1");
        let _ = lost.containing(&["nothing is staged", pod.volume.target.to_str().unwrap(), "unstaged"]).message();
        assert_eq!(running.sh("echo still > /data/file; cat /data/file"), "still");
        pod.volume.handler().reconfigure("unstaged = \"pass\"");
        let app = pod.app(&source);
        let _ = app.sh("echo host > /data/file");
        assert_eq!(fs::read_to_string(pod.volume.target.join("db/file")).unwrap(), "host\n");
    }
}
