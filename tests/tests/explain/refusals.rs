//! `explain` reports the error of a create that would be refused, word for word.

use std::fs;

use runcrust_tests::kubelet::SubPath;
use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::{
    Bundle, LoopDevice, Node, POD, Pod, StagedVolume, Version, mounts, on_each_delegate, process,
    wait_until,
};
use serde_json::{Value, json};

use crate::scene::{OTHER_POD, assert_refused, explain, mount};

/// Asserts that the create is refused as `explain` reports, with an error that contains `named`. Returns the
/// explanation.
#[track_caller]
fn assert_refused_with(node: &Node, bundle: Bundle, named: &str) -> Value {
    let (explained, sentence) = assert_refused(node, &bundle.write());
    assert!(
        sentence.contains(named),
        "{named:?} is missing in: {sentence}"
    );
    explained
}

on_each_delegate! {
    fn invalid_and_missing_entries_are_reported(delegate: Delegate) {
        let volume = StagedVolume::new(delegate);
        let other = volume.target(POD, "pv-2");
        let explained = assert_refused_with(&volume, volume.plain_bundle().bind(&other, "/lost", &[]), "nothing is staged for");
        // The other mounts are explained nevertheless.
        assert_eq!(mount(&explained, "/data")["match"]["volume"], "pv-1");
        assert_eq!(explained["refusals"][0], mount(&explained, "/lost")["error"]);
        assert_eq!((&explained["plan"], &explained["diff"]), (&Value::Null, &json!("")));
        let explained = assert_refused_with(&volume, volume.plain_bundle().bind(other.join("sub"), "/lost", &[]), "nothing is staged");
        assert_eq!(explained["role"]["kind"], "standalone");
        let info = volume.entry().join("mountInfo.json");
        fs::write(&info, "{").unwrap();
        let _ = assert_refused_with(&volume, volume.plain_bundle(), "isn't JSON");
        fs::remove_file(&info).unwrap();
        let _ = assert_refused_with(&volume, volume.plain_bundle(), "is missing");
    }

    fn volumes_that_cannot_be_mounted_are_reported(delegate: Delegate) {
        let volume = StagedVolume::new(delegate);
        volume.handler().reconfigure("fstypes = [\"xfs\"]");
        let explained = assert_refused_with(&volume, volume.plain_bundle(), "isn't one of those allowed (xfs)");
        assert_eq!(explained["volumes"][0]["problem"], explained["refusals"][0]);
        assert_eq!(explained["refusals"].as_array().unwrap().len(), 1, "not once: {explained:#}");
        // A sandbox with the volume is refused, too.
        let _ = assert_refused_with(&volume, volume.sandbox_bundle(POD), "isn't one of those allowed");
        volume.handler().reconfigure("");
        let at = volume.dir().subdir("mnt");
        mounts::mount(volume.device.path(), &at, "ext4");
        let explained = assert_refused_with(&volume, volume.plain_bundle(), "is in use by a user that runcrust has no record of");
        assert_ne!(explained["diff"], "", "the diff does not show what would be rewritten otherwise");
        mounts::unmount(&at);
    }

    fn configs_unsuitable_for_a_volume_are_reported(delegate: Delegate) {
        let volume = StagedVolume::new(delegate);
        let plain = || Bundle::plain(volume.dir());
        let target = utf8(&volume.target);
        let ext4 = json!({"destination": "/data", "type": "ext4", "source": target});
        let _ = assert_refused_with(&volume, plain().mount(ext4), "its mount isn't a bind mount");
        let shared = plain().bind(&volume.target, "/data", &["rbind", "rshared"]);
        let _ = assert_refused_with(&volume, shared, "mountPropagation Bidirectional");
        let below = plain()
            .bind(volume.dir().path(), "/host", &["rbind", "rshared"])
            .bind(&volume.target, "/host/data", &[]);
        let _ = assert_refused_with(&volume, below, "/host/data is below /host");
        let mut host_namespace = volume.plain_bundle();
        let namespaces = host_namespace.spec_mut()["linux"]["namespaces"].as_array_mut().unwrap();
        namespaces.retain(|namespace| namespace["type"] != "mount");
        let _ = assert_refused_with(&volume, host_namespace, "without a mount namespace of its own");
        let mut unmapped = volume.plain_bundle().user_namespace(100_000, None);
        unmapped.spec_mut()["linux"]["uidMappings"] = json!([]);
        unmapped.spec_mut()["linux"]["gidMappings"] = json!([]);
        let _ = assert_refused_with(&volume, unmapped, "a user namespace without id mappings");
        let missing = volume.plain_bundle().namespace("user", Some(i32::MAX));
        let _ = assert_refused_with(&volume, missing, "/ns/user): ENOENT");
        let two = volume
            .plain_bundle()
            .annotation("io.kubernetes.cri.container-type", "container")
            .annotation("io.kubernetes.cri-o.ContainerType", "container");
        let explained = assert_refused_with(&volume, two, "so one of them was set by the pod");
        assert_eq!(explained["role"]["kind"], "unknown");
        let mut nowhere = volume.plain_bundle();
        nowhere.spec_mut()["root"]["path"] = "no-such-root".into();
        let _ = assert_refused_with(&volume, nowhere, "realpath");
    }

    fn configs_that_cannot_be_parsed_are_reported(delegate: Delegate) {
        let volume = StagedVolume::new(delegate);
        let bytes = serde_json::to_string(volume.plain_bundle().spec()).unwrap();
        for (text, named) in [
            (bytes.replace("\"mounts\"", "\"Mounts\""), "spell it \"mounts\""),
            (bytes[..bytes.len() / 2].to_owned(), "isn't valid JSON"),
        ] {
            let bundle = volume.plain_bundle().write_bytes(text.as_bytes());
            let (explained, sentence) = assert_refused(&volume, &bundle);
            assert!(sentence.contains(named), "{sentence}");
            assert_eq!((&explained["role"], &explained["mounts"]), (&Value::Null, &json!([])));
        }
    }

    fn a_raw_device_in_a_user_namespace_is_reported(delegate: Delegate) {
        let volume = StagedVolume::with(delegate, &["--device-node"]);
        let bundle = volume.plain_bundle().user_namespace(100_000, None);
        let _ = assert_refused_with(&volume, bundle, "in a user namespace no device node can be created");
    }

    fn mounts_that_a_hook_cannot_make_are_reported(delegate: Delegate) {
        let volume = StagedVolume::on(Node::with(delegate, "mount_mode = \"hook\""), &[]);
        let hidden = volume.plain_bundle().bind("/etc", "/data/etc", &["rbind", "ro"]);
        let _ = assert_refused_with(&volume, hidden, "the volume would hide it");
        let userns = volume.plain_bundle().user_namespace(100_000, None);
        let _ = assert_refused_with(&volume, userns, "in a user namespace a hook can't mount");
        let bundle = Bundle::plain(volume.dir());
        let odd = bundle.bind(&volume.target, "/data", &["rbind", "odd=1"]);
        let _ = assert_refused_with(&volume, odd, "odd=1");
    }

    fn a_missing_hook_is_reported(delegate: Delegate) {
        let volume = StagedVolume::on(Node::installed(delegate, Version::New, ""), &[]);
        let hook = volume.handler().path().with_file_name("crust-mount-hook");
        fs::remove_file(&hook).unwrap();
        let explained = assert_refused_with(&volume, volume.plain_bundle(), "install crust-mount-hook beside runcrust");
        assert_eq!(explained["volumes"][0]["access"], "first", "the rest of the explanation is missing");
    }

    fn conflicts_with_the_pods_identity_are_reported(delegate: Delegate) {
        let volume = StagedVolume::on(Node::with(delegate, "sandbox = \"always\""), &[]);
        let node = &volume.node;
        let sandbox_of_its_own = node.sandbox_bundle(POD).bind(&volume.target, "/data", &[]);
        let _ = assert_refused_with(&volume, sandbox_of_its_own, "a sandbox only holds volumes for the pod's containers");
        let (mine, other) = (volume.sandbox(), node.sandbox(OTHER_POD));
        let app = |of| volume.app_bundle(of);
        let explained = assert_refused_with(&volume, app(&other), "hint: use a volume of this pod");
        assert_eq!(explained["role"]["sandbox"], other.id());
        let annotation = "io.kubernetes.cri.sandbox-id";
        let _ = assert_refused_with(&volume, app(&mine).namespace("ipc", Some(other.pid())), "the config joins namespace");
        let _ = assert_refused_with(&volume, app(&mine).annotation(annotation, "nobody"), "no record of the pod's sandbox");
        let dead = app(&mine);
        let pid = mine.pid();
        process::kill_now(pid);
        wait_until("the sandbox's end", WAIT_TIMEOUT, || !process::is_alive(pid));
        let _ = assert_refused_with(&volume, dead, "has ended; hint: wait until kubelet has recreated the sandbox");
    }

    fn conflicts_with_another_pods_use_are_reported(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        let exclusive = ["--access-mode", "SINGLE_NODE_SINGLE_WRITER"];
        let one = Pod::new(&node, POD, &device, &exclusive);
        let _app = one.app();
        let two = node.stage(OTHER_POD, "pv-1", &device, &exclusive);
        // Only the container's create is refused; the sandbox's hook just logs the conflict.
        let bundle = node.sandbox_bundle(OTHER_POD).write();
        let explained = explain(&node, &bundle);
        assert_eq!(explained["refusals"], json!([]));
        let problem = explained["volumes"][0]["problem"].clone();
        let sandbox = node.run(&bundle);
        let app = node.app_bundle(&sandbox).bind(&two, "/data", &[]).write();
        let (explained, sentence) = assert_refused(&node, &app);
        assert_eq!(problem, sentence, "{explained:#}");
        assert!(sentence.contains("(ReadWriteOncePod) allows one pod"), "{sentence}");

        let options = node.stage("pod-c", "pv-2", &device, &["--option", "errors=remount-ro"]);
        let bundle = Bundle::plain(node.dir()).bind(&options, "/data", &[]);
        let (_, sentence) = assert_refused(&node, &bundle.write());
        assert!(sentence.contains("(ReadWriteOncePod)") || sentence.contains("can't be changed to"), "{sentence}");
        let alias = LoopDevice::on(device.file());
        let aliased = node.stage("pod-d", "pv-3", &alias, &[]);
        let bundle = Bundle::plain(node.dir()).bind(&aliased, "/data", &[]);
        let (_, sentence) = assert_refused(&node, &bundle.write());
        assert!(sentence.contains("uses the same data through device"), "{sentence}");
    }

    fn a_bind_mount_of_a_removed_directory_is_reported(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        let subpath = SubPath {
            pod_uid: POD,
            volume: "pv-1",
            directory: &volume.target,
            path: "db",
            index: 0,
        };
        let bind = subpath.bind(&volume.handler().kubelet_dir());
        fs::remove_dir(volume.target.join("db")).unwrap();
        let bundle = volume.node.app_bundle(&sandbox).bind(&bind, "/data", &[]);
        let _ = assert_refused_with(&volume, bundle, "which has been removed since");
    }
}
