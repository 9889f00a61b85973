//! Volumes in containers of docker daemons with other settings: `userns-remap`, and the containerd image store.

use std::fs;
use std::os::unix::fs::MetadataExt;

use runcrust_tests::volume::with_mounted;
use runcrust_tests::{Engine as _, on_each_delegate};
use serde_json::json;

use crate::scene::Scene;

on_each_delegate! {
    /// `tests/engines/run.sh` gives the user `daemon` subordinate ids.
    #[ignore = "needs docker; runs in another Debian: make engines"]
    fn with_userns_remap_containers_see_the_devices_ids(delegate: Delegate) {
        let scene = Scene::with(delegate, json!({"userns-remap": "daemon"}));
        let Scene { docker, device, .. } = &scene;
        let volume = scene.volume();
        let _ = docker.start_container("one", &[&volume]).success();
        let map = docker.sh("one", "cat /proc/self/uid_map");
        assert_ne!(map.split_whitespace().nth(1), Some("0"), "{map}");
        let stat = "stat -c %u:%g /data /data/file";
        let owners = docker.sh("one", &format!("echo x > /data/file; chown 5:6 /data/file; {stat}"));
        assert_eq!(owners, "0:4242\n5:6");
        let _ = docker.start_container("two", &["--userns=host", &volume]).success();
        assert_eq!(docker.sh("two", stat), owners);
        let _ = docker.run(&["restart", "-t0", "one"]).success();
        assert_eq!(docker.sh("one", stat), owners);
        scene.assert_nothing_on_the_host();
        scene.end(&["one", "two"]);
        let owner = with_mounted(device.path(), |root| {
            let metadata = fs::metadata(root.join("file")).unwrap();
            (metadata.uid(), metadata.gid())
        });
        assert_eq!(owner, (5, 6));
    }

    #[ignore = "needs docker; runs in another Debian: make engines"]
    fn a_volume_works_with_the_containerd_image_store(delegate: Delegate) {
        let store = json!({"features": {"containerd-snapshotter": true}, "storage-driver": "native"});
        let scene = Scene::with(delegate, store);
        let docker = &scene.docker;
        let status = docker.run(&["info", "--format", "{{json .DriverStatus}}"]).success().stdout;
        assert!(status.contains("io.containerd.snapshotter"), "{status}");
        let _ = docker.start_container("one", &[&scene.volume()]).success();
        assert_eq!(docker.sh("one", "echo hello > /data/file; cat /data/file; stat -c %g /data"), "hello\n4242");
        let _ = docker.run(&["commit", "one", "committed"]).success();
        assert_eq!(docker.output_of_image("committed", &[], "ls -R /data"), "/data:\n");
        assert_eq!(docker.output_of(&["--volumes-from=one"], "cat /data/file"), "hello\n");
        let _ = docker.run(&["restart", "-t0", "one"]).success();
        assert_eq!(docker.sh("one", "cat /data/file"), "hello");
        scene.assert_nothing_on_the_host();
        scene.end(&["one"]);
    }
}
