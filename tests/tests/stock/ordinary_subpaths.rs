//! A bind of a volume that is not deferred is passed through to the delegate.

use std::fs;
use std::path::Path;

use runcrust_tests::{POD, mounts, on_each_delegate};

use super::*;

/// Runs an app with the bind, and asserts that its config is unchanged, byte for byte.
#[track_caller]
fn assert_passed_through(node: &Node, sandbox: &Container, source: &Path) -> Container {
    let bundle = node.app_bundle(sandbox).bind(source, "/data", &[]).write();
    let before = bundle.config_bytes();
    let app = node.run(&bundle);
    assert_eq!(bundle.config_bytes(), before);
    app
}

fn empty_dir(node: &Node, name: &str) -> PathBuf {
    let pod = node.handler().kubelet_dir().join("pods").join(POD);
    let directory = pod.join("volumes/kubernetes.io~empty-dir").join(name);
    fs::create_dir_all(&directory).unwrap();
    directory
}

on_each_delegate! {
    fn an_ordinary_subpath_beside_a_volume_is_passed_through(delegate: Delegate) {
        let pod = Pod::new(delegate);
        let cache = empty_dir(&pod.volume, "cache");
        let source = subpath("cache", &cache, "db", 0).bind(&pod.volume.handler().kubelet_dir());
        let app = assert_passed_through(&pod.volume, &pod.sandbox, &source);
        let _ = app.sh("echo host > /data/file");
        assert_eq!(fs::read_to_string(cache.join("db/file")).unwrap(), "host\n");
    }

    fn an_ordinary_subpath_without_a_volume_is_passed_through(delegate: Delegate) {
        let node = Node::new(delegate);
        let sandbox = node.sandbox(POD);
        let config = empty_dir(&node, "config");
        fs::write(config.join("app.ini"), "host\n").unwrap();
        let source = subpath("config", &config, "app.ini", 0).bind(&node.handler().kubelet_dir());
        assert_eq!(assert_passed_through(&node, &sandbox, &source).sh("cat /data"), "host");
    }

    fn a_mounted_csi_volumes_subpath_is_passed_through(delegate: Delegate) {
        let pod = Pod::new(delegate);
        let ordinary = pod.volume.node.target(POD, "pv-2");
        mounts::tmpfs(&ordinary);
        let source = subpath("pv-2", &ordinary, "db", 0).bind(&pod.volume.handler().kubelet_dir());
        let app = assert_passed_through(&pod.volume, &pod.sandbox, &source);
        let _ = app.sh("echo host > /data/file");
        assert_eq!(fs::read_to_string(ordinary.join("db/file")).unwrap(), "host\n");
    }

    /// An emptyDir may have the name of the pod's persistent volume, whose metadata was lost.
    fn a_volume_named_like_a_bare_directory_is_passed_through(delegate: Delegate) {
        let node = Node::new(delegate);
        let _ = node.target(POD, "pv-1");
        let sandbox = node.sandbox(POD);
        let cache = empty_dir(&node, "pv-1");
        let source = subpath("pv-1", &cache, "db", 0).bind(&node.handler().kubelet_dir());
        let _ = assert_passed_through(&node, &sandbox, &source).sh("echo host > /data/file");
        assert!(cache.join("db/file").exists());
    }
}
