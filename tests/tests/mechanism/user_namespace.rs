//! Containers in user namespaces: they see the volume's files with the ids that the files have on the device.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::volume::with_mounted;
use runcrust_tests::{
    Bundle, Container, Delegate, LoopDevice, Node, POD, StagedVolume, on_each_delegate,
};
use serde_json::json;

use super::end;

const FIRST: u32 = 200_000;

fn plain_bundle(node: &Node, source: &Path) -> Bundle {
    let bundle = Bundle::plain(node.dir()).bind(source, "/data", &[]);
    bundle.user_namespace(FIRST, None)
}

/// Creates a file as the container's root, gives it to 7:8, and returns the id mapping and the owners that the
/// container sees.
fn owners(container: &Container) -> String {
    let _ = container.sh("echo x > /data/own; chown 7:8 /data/own");
    container.sh("cat /proc/self/uid_map | tr -s ' '; stat -c '%u:%g' /data /data/own")
}

/// Returns the owner and group that the file created by [`owners`] has on the device.
fn owners_on(device: &LoopDevice) -> (u32, u32) {
    with_mounted(device.path(), |root| {
        let file = fs::metadata(root.join("own")).unwrap();
        (file.uid(), file.gid())
    })
}

on_each_delegate! {
    fn root_in_a_user_namespace_sees_the_devices_ids(delegate: Delegate) {
        let volume = StagedVolume::with(delegate, &["--fs-group", "4242"]);
        let container = volume.run(&plain_bundle(&volume, &volume.target).write());
        let owners = owners(&container);
        let expected = format!("0 {FIRST} 65536\n0:4242\n7:8");
        assert_eq!(owners, expected);
        end([container]);
        volume.device.wait_until_free(WAIT_TIMEOUT);
        assert_eq!(owners_on(&volume.device), (7, 8), "the device has the host's ids");
    }

    fn users_and_groups_have_separate_mappings(delegate: Delegate) {
        let volume = StagedVolume::with(delegate, &["--fs-group", "4242"]);
        let mut bundle = plain_bundle(&volume, &volume.target);
        bundle.spec_mut()["linux"]["gidMappings"][0]["hostID"] = json!(2 * FIRST);
        let container = volume.run(&bundle.write());
        assert_eq!(owners(&container), format!("0 {FIRST} 65536\n0:4242\n7:8"));
        end([container]);
        volume.device.wait_until_free(WAIT_TIMEOUT);
        assert_eq!(owners_on(&volume.device), (7, 8));
    }

    fn the_delegate_maps_a_mount_that_has_its_own_mappings(delegate: Delegate) {
        let volume = StagedVolume::with(delegate, &["--fs-group", "4242"]);
        let shifted = json!([{"containerID": 0, "hostID": FIRST + 10, "size": 5000}]);
        let mut bundle = plain_bundle(&volume, &volume.target);
        let mounts = bundle.spec_mut()["mounts"].as_array_mut().unwrap();
        let mount = mounts.last_mut().unwrap();
        mount["uidMappings"] = shifted.clone();
        mount["gidMappings"] = shifted;
        let container = volume.run(&bundle.write());
        let owners = container.sh("stat -c %u:%g /data");
        // runc maps no mounts before 1.2: the host's ids are then unmapped in the container.
        let unmapped = delegate == Delegate::Runc && owners == "65534:65534";
        assert!(owners == "10:4252" || unmapped, "{owners}");
        end([container]);
    }

    fn a_pod_in_a_user_namespace_shares_its_volume(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        let target = node.stage(POD, "pv-1", &device, &["--fs-group", "4242"]);
        // The pod's network namespace belongs to its user namespace, as CRI runtimes make it.
        let bundle = node.sandbox_bundle(POD).namespace("network", None).user_namespace(FIRST, None);
        let sandbox = node.run(&bundle.write());
        let app = |mounts: fn(Bundle, &Path) -> Bundle| {
            let bundle = node.app_bundle(&sandbox).user_namespace(FIRST, Some(sandbox.pid()));
            node.run(&mounts(bundle, &target).write())
        };
        let one = app(|bundle, target| bundle.bind(target, "/data", &[]));
        assert_eq!(owners(&one), format!("0 {FIRST} 65536\n0:4242\n7:8"));
        let two = app(|bundle, target| {
            bundle.bind(target.join("sub"), "/data", &[]).bind(target, "/ro", &["rbind", "ro"])
        });
        let _ = two.sh("echo sub > /data/file");
        let _ = two.exec(&["/bin/touch", "/ro/x"]).failure();
        assert_eq!(one.sh("cat /data/sub/file"), "sub");
        assert_eq!(two.sh("stat -c %u:%g /ro/own"), "7:8");
        // Root in the user namespace cannot look into the sandbox's directory of volumes.
        assert_eq!(fs::read_dir(&target).unwrap().count(), 0, "files are left on the host");
        end([one, two, sandbox]);
        device.wait_until_free(WAIT_TIMEOUT);
        let _ = node.unstage(&target).success();
    }

    fn the_hosts_user_namespace_fails_in_the_delegate(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        let mut bundle = volume.app_bundle(&sandbox);
        let own = json!({"type": "user", "path": format!("/proc/{}/ns/user", sandbox.pid())});
        bundle.spec_mut()["linux"]["namespaces"].as_array_mut().unwrap().push(own);
        // The delegates cannot join the namespace that they are in. runcrust does not refuse such a config.
        let app = volume.container(&bundle.write());
        let error = app.expect_refusal();
        assert!(!error.contains("volume pv-1"), "{error}");
    }

    fn invalid_mappings_are_named_in_the_error(delegate: Delegate) {
        let volume = StagedVolume::new(delegate);
        let mut bundle = plain_bundle(&volume, &volume.target);
        let range = json!({"containerID": 0, "hostID": 5, "size": 10});
        bundle.spec_mut()["linux"]["uidMappings"] = json!([range, range]);
        let container = volume.container(&bundle.write());
        let error = container.expect_refusal();
        assert!(error.starts_with("volume pv-1: write(uid_map, ") && error.contains("EINVAL"), "{error}");
        assert!(!volume.entry().join("runcrust.json").exists());
    }
}
