//! `metadata.deviceNode` and `device_node`: the workload has the raw device if it was requested.

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Stdio;

use runcrust_tests::{Bundle, Container, LoopDevice, Node, POD, StagedVolume, on_each_delegate};
use serde_json::json;

fn device_path(node: &Node, target: &Path) -> String {
    let digest = node
        .entry(target)
        .file_name()
        .unwrap()
        .to_str()
        .unwrap()
        .to_owned();
    format!("/dev/crust/{}", &digest[..12])
}

/// Returns what the container can do with the device: `read`, `write`, `readwrite` or an empty string. If the device
/// has no node at `path`, the container tries to create one with mknod.
fn access(container: &Container, device: &LoopDevice, path: &str) -> String {
    let (major, minor) = device.number().split_once(':').unwrap();
    container.sh(&format!(
        "node={path}; [ -e $node ] || {{ node=/raw; [ -e /raw ] || mknod /raw b {major} {minor}; }}
         dd if=$node of=/dev/null count=1 2>/dev/null && echo -n read
         (: >>$node) 2>/dev/null && echo -n write; true"
    ))
}

/// Updates the container's resources as containerd's shim does: all of them, by standard input.
fn update(container: &Container, resources: &serde_json::Value) {
    let mut command = container.command(&["update", "--resources=-", container.id()]);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(resources.to_string().as_bytes())
        .unwrap();
    assert!(child.wait().unwrap().success());
}

on_each_delegate! {
    fn a_workload_has_the_raw_device_only_on_request(delegate: Delegate) {
        for (setting, staged, expected) in [
            ("metadata", "", ""),
            ("metadata", "--device-node", "readwrite"),
            ("always", "", "readwrite"),
            ("never", "--device-node", ""),
        ] {
            let node = Node::with(delegate, &format!("device_node = {setting:?}"));
            let device = node.ext4();
            let options: Vec<&str> = [staged].into_iter().filter(|option| !option.is_empty()).collect();
            let target = node.stage(POD, "pv-1", &device, &options);
            let sandbox = node.sandbox(POD);
            let path = device_path(&node, &target);
            let in_pod = node.app_bundle(&sandbox).bind(&target, "/data", &[]).all_capabilities();
            let plain = Bundle::plain(node.dir()).bind(&target, "/data", &[]).all_capabilities();
            for bundle in [in_pod, plain] {
                let container = node.run(&bundle.write());
                let _ = container.sh("echo x > /data/file");
                let found = access(&container, &device, &path);
                assert_eq!(found, expected, "{setting} {staged}: {}", container.id());
                assert_eq!(container.sh(&format!("[ -b {path} ] && echo yes || true")) == "yes", !expected.is_empty());
            }
        }
    }

    fn the_device_of_a_read_only_volume_can_only_be_read(delegate: Delegate) {
        let volume = StagedVolume::with(delegate, &["--device-node", "--read-only"]);
        let sandbox = volume.sandbox();
        let bundle = volume.app_bundle(&sandbox).all_capabilities();
        let app = volume.run(&bundle.write());
        assert_eq!(access(&app, &volume.device, &device_path(&volume, &volume.target)), "read");
    }

    fn a_read_only_mount_gives_a_read_only_device(delegate: Delegate) {
        let volume = StagedVolume::with(delegate, &["--device-node"]);
        let sandbox = volume.sandbox();
        let path = device_path(&volume, &volume.target);
        let read_only = ["rbind", "ro"];
        let bundle = volume.node.app_bundle(&sandbox).bind(&volume.target, "/data", &read_only).all_capabilities();
        assert_eq!(access(&volume.run(&bundle.write()), &volume.device, &path), "read");
        let bundle = volume.node.app_bundle(&sandbox).bind(&volume.target, "/ro", &read_only).bind(&volume.target, "/rw", &[]);
        let app = volume.run(&bundle.all_capabilities().write());
        assert_eq!(access(&app, &volume.device, &path), "readwrite");
    }

    fn updating_resources_keeps_access_to_the_device(delegate: Delegate) {
        let node = Node::new(delegate);
        let (device, other) = (node.ext4(), node.ext4());
        let target = node.stage(POD, "pv-1", &device, &["--device-node"]);
        let _unrequested = node.stage(POD, "pv-2", &other, &[]);
        let sandbox = node.sandbox(POD);
        let bundle = node.app_bundle(&sandbox).bind(&target, "/data", &[]).all_capabilities();
        let resources = bundle.spec()["linux"]["resources"].clone();
        let app = node.run(&bundle.write());
        let path = device_path(&node, &target);
        assert_eq!(access(&app, &device, &path), "readwrite");
        update(&app, &resources);
        assert_eq!(access(&app, &device, &path), "readwrite");
        let file = app.bundle().join("resources.json");
        std::fs::write(&file, resources.to_string()).unwrap();
        let file = file.to_str().unwrap();
        for spelling in [vec!["-r", file], vec!["--resources", file, "--"]] {
            let mut command = app.command(&["update"]);
            command.args(spelling).arg(app.id());
            assert!(command.status().unwrap().success(), "{command:?}");
        }
        assert_eq!(access(&app, &device, &path), "readwrite");
        assert_eq!(access(&app, &other, "/dev/none"), "", "the update must not grant another device");
    }

    fn a_create_refused_for_its_id_keeps_access_to_the_device(delegate: Delegate) {
        let node = Node::new(delegate);
        let (device, other) = (node.ext4(), node.ext4());
        let target = node.stage(POD, "pv-1", &device, &["--device-node"]);
        let second = node.stage(POD, "pv-2", &other, &["--device-node"]);
        let bundle = Bundle::plain(node.dir()).bind(&target, "/data", &[]).all_capabilities();
        let resources = bundle.spec()["linux"]["resources"].clone();
        let container = node.run(&bundle.write());
        let refused = Bundle::plain(node.dir()).bind(&second, "/data", &[]).write();
        let bundle = refused.path().to_str().unwrap();
        let create = container.command(&["create", "--bundle", bundle, container.id()]);
        let _ = container.create_with(create).failure();
        update(&container, &resources);
        assert_eq!(access(&container, &device, &device_path(&node, &target)), "readwrite");
        assert_eq!(access(&container, &other, "/dev/none"), "");
    }

    fn a_second_container_keeps_the_firsts_access_to_the_device(delegate: Delegate) {
        let volume = StagedVolume::with(delegate, &["--device-node"]);
        let bundle = volume.plain_bundle().all_capabilities();
        let resources = bundle.spec()["linux"]["resources"].clone();
        let bundle = bundle.write();
        let first = volume.run(&bundle);
        let mut other = bundle.clone().with_id(&format!("{}-2", bundle.id()));
        symlink(bundle.path(), other.path()).unwrap();
        // runc 1.3 creates no container in a cgroup that has processes.
        other.spec_mut()["linux"]["cgroupsPath"] = format!("/{}", other.id()).into();
        let key = |cgroup: &str| format!("\"cgroupsPath\":\"{cgroup}\"");
        let config = fs::read_to_string(other.path().join("config.json")).unwrap();
        assert!(config.contains(&key(bundle.cgroup())), "{config}");
        let config = config.replace(&key(bundle.cgroup()), &key(other.cgroup()));
        fs::write(other.path().join("config.json"), config).unwrap();
        let second = volume.container(&other);
        let _ = second.create().success();
        update(&first, &resources);
        assert_eq!(access(&first, &volume.device, &device_path(&volume, &volume.target)), "readwrite");
    }

    fn an_update_grants_no_device_of_an_earlier_same_id(delegate: Delegate) {
        let volume = StagedVolume::with(delegate, &["--device-node"]);
        let bundle = |name: &str| Bundle::plain(volume.dir()).with_id(name).all_capabilities();
        let first = bundle("same-id").bind(&volume.target, "/data", &[]).write();
        let container = volume.run(&first);
        container.stop();
        let _ = container.delete().success();
        // A container of another bundle with the same id must not get the devices recorded for the first.
        let mut second = bundle("other-bundle");
        second.spec_mut()["linux"]["resources"]["devices"] = json!([{"allow": false, "access": "rwm"}]);
        let second = second.write();
        let mut create = container.command(&["create", "--bundle", second.path().to_str().unwrap(), "--pid-file"]);
        create.arg(first.path().join("init.pid")).arg("same-id");
        let _ = container.create_with(create).success();
        let _ = container.start().success();
        update(&container, &second.spec()["linux"]["resources"]);
        assert_eq!(access(&container, &volume.device, "/dev/none"), "");
    }

    fn a_device_in_a_user_namespace_is_refused(delegate: Delegate) {
        let volume = StagedVolume::with(delegate, &["--device-node"]);
        let bundle = volume.plain_bundle().user_namespace(400_000, None);
        let container = volume.container(&bundle.write());
        let error = container.expect_refusal();
        assert!(error.starts_with("volume pv-1: ") && error.contains("in a user namespace no device"), "{error}");
    }
}
