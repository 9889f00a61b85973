//! What a create would be refused with is told in its own words.

use std::fs;
use std::path::PathBuf;

use runcrust_tests::kubelet::SubPath;
use runcrust_tests::node::{PATIENCE, utf8};
use runcrust_tests::{
    Bundle, Delegate, LoopDevice, Node, Pod, Version, mounts, on_each_delegate, process, wait_until,
};
use serde_json::{Value, json};

use crate::scene::{OTHER_POD, POD, assert_refused, explain, mount};

/// A node with a staged volume.
struct Staged {
    device: LoopDevice,
    target: PathBuf,
    node: Node,
}

impl Staged {
    fn on(node: Node, options: &[&str]) -> Self {
        let device = node.ext4();
        Self {
            target: node.stage(POD, "pv-1", &device, options),
            device,
            node,
        }
    }

    fn new(delegate: Delegate) -> Self {
        Self::on(Node::new(delegate), &[])
    }

    /// With the volume at `/data`.
    fn plain(&self) -> Bundle {
        Bundle::plain(self.node.dir()).bind(&self.target, "/data", &[])
    }

    /// The create of a bundle is refused, and the sentence names this.
    #[track_caller]
    fn refuses(&self, bundle: Bundle, named: &str) -> Value {
        let (told, sentence) = assert_refused(&self.node, &bundle.write());
        assert!(sentence.contains(named), "{named:?} isn't in: {sentence}");
        told
    }
}

on_each_delegate! {
    fn entries_that_cannot_be_believed(delegate: Delegate) {
        let staged = Staged::new(delegate);
        let other = staged.node.target(POD, "pv-2");
        let told = staged.refuses(staged.plain().bind(&other, "/lost", &[]), "nothing is staged for");
        // The other mounts are told all the same.
        assert_eq!(mount(&told, "/data")["match"]["volume"], "pv-1");
        assert_eq!(told["refusals"][0], mount(&told, "/lost")["error"]);
        assert_eq!((&told["plan"], &told["diff"]), (&Value::Null, &json!("")));
        let told = staged.refuses(staged.plain().bind(other.join("sub"), "/lost", &[]), "nothing is staged");
        assert_eq!(told["role"]["kind"], "standalone");
        let info = staged.node.entry(&staged.target).join("mountInfo.json");
        fs::write(&info, "{").unwrap();
        let _ = staged.refuses(staged.plain(), "isn't JSON");
        fs::remove_file(&info).unwrap();
        let _ = staged.refuses(staged.plain(), "is missing");
    }

    fn volumes_that_cannot_be_mounted(delegate: Delegate) {
        let staged = Staged::new(delegate);
        staged.node.handler().reconfigure("fstypes = [\"xfs\"]");
        let told = staged.refuses(staged.plain(), "isn't one of those allowed (xfs)");
        assert_eq!(told["volumes"][0]["problem"], told["refusals"][0]);
        assert_eq!(told["refusals"].as_array().unwrap().len(), 1, "once: {told:#}");
        // A sandbox's create is refused as well.
        let _ = staged.refuses(staged.node.sandbox_bundle(POD), "isn't one of those allowed");
        staged.node.handler().reconfigure("");
        let at = staged.node.dir().subdir("mnt");
        mounts::mount(staged.device.path(), &at, "ext4");
        let told = staged.refuses(staged.plain(), "is in use by somebody that runcrust has no record of");
        assert_ne!(told["diff"], "", "what would become of the config otherwise");
        mounts::take_off(&at);
    }

    fn configs_that_no_volume_goes_into(delegate: Delegate) {
        let staged = Staged::new(delegate);
        let plain = || Bundle::plain(staged.node.dir());
        let target = utf8(&staged.target);
        let ext4 = json!({"destination": "/data", "type": "ext4", "source": target});
        let _ = staged.refuses(plain().mount(ext4), "its mount isn't a bind mount");
        let shared = plain().bind(&staged.target, "/data", &["rbind", "rshared"]);
        let _ = staged.refuses(shared, "mountPropagation Bidirectional");
        let below = plain()
            .bind(staged.node.dir().path(), "/host", &["rbind", "rshared"])
            .bind(&staged.target, "/host/data", &[]);
        let _ = staged.refuses(below, "/host/data is below /host");
        let mut hosts = staged.plain();
        let namespaces = hosts.spec_mut()["linux"]["namespaces"].as_array_mut().unwrap();
        namespaces.retain(|namespace| namespace["type"] != "mount");
        let _ = staged.refuses(hosts, "without a mount namespace of its own");
        let mut unmapped = staged.plain().user_namespace(100_000, None);
        unmapped.spec_mut()["linux"]["uidMappings"] = json!([]);
        unmapped.spec_mut()["linux"]["gidMappings"] = json!([]);
        let _ = staged.refuses(unmapped, "a user namespace without id mappings");
        let missing = staged.plain().namespace("user", Some(i32::MAX));
        let _ = staged.refuses(missing, "/ns/user): ENOENT");
        let two = staged
            .plain()
            .annotation("io.kubernetes.cri.container-type", "container")
            .annotation("io.kubernetes.cri-o.ContainerType", "container");
        let told = staged.refuses(two, "one of them is the pod's own");
        assert_eq!(told["role"]["kind"], "unknown");
        let mut nowhere = staged.plain();
        nowhere.spec_mut()["root"]["path"] = "no-such-root".into();
        let _ = staged.refuses(nowhere, "realpath");
    }

    fn configs_that_cannot_be_read(delegate: Delegate) {
        let staged = Staged::new(delegate);
        let bytes = serde_json::to_string(staged.plain().spec()).unwrap();
        for (text, named) in [
            (bytes.replace("\"mounts\"", "\"Mounts\""), "spell it \"mounts\""),
            (bytes[..bytes.len() / 2].to_owned(), "isn't valid JSON"),
        ] {
            let bundle = staged.plain().write_bytes(text.as_bytes());
            let (told, sentence) = assert_refused(&staged.node, &bundle);
            assert!(sentence.contains(named), "{sentence}");
            assert_eq!((&told["role"], &told["mounts"]), (&Value::Null, &json!([])));
        }
    }

    fn a_raw_device_in_a_user_namespace(delegate: Delegate) {
        let staged = Staged::on(Node::new(delegate), &["--device-node"]);
        let bundle = staged.plain().user_namespace(100_000, None);
        let _ = staged.refuses(bundle, "in a user namespace no device can be made");
    }

    fn what_a_hook_cannot_do(delegate: Delegate) {
        let staged = Staged::on(Node::with(delegate, "mount_mode = \"hook\""), &[]);
        let hidden = staged.plain().bind("/etc", "/data/etc", &["rbind", "ro"]);
        let _ = staged.refuses(hidden, "the volume would hide it");
        let userns = staged.plain().user_namespace(100_000, None);
        let _ = staged.refuses(userns, "in a user namespace a hook can't mount");
        let bundle = Bundle::plain(staged.node.dir());
        let odd = bundle.bind(&staged.target, "/data", &["rbind", "odd=1"]);
        let _ = staged.refuses(odd, "odd=1");
    }

    fn a_hook_that_is_not_there(delegate: Delegate) {
        let staged = Staged::on(Node::installed(delegate, Version::New, ""), &[]);
        let hook = staged.node.handler().path().with_file_name("crust-mount-hook");
        fs::remove_file(&hook).unwrap();
        let told = staged.refuses(staged.plain(), "install crust-mount-hook beside runcrust");
        assert_eq!(told["volumes"][0]["access"], "first", "what else is known is told");
    }

    fn pods_that_are_not_the_containers(delegate: Delegate) {
        let node = Node::with(delegate, "sandbox = \"always\"");
        let staged = Staged::on(node, &[]);
        let node = &staged.node;
        let sandbox_of_its_own = node.sandbox_bundle(POD).bind(&staged.target, "/data", &[]);
        let _ = staged.refuses(sandbox_of_its_own, "sandboxes only hold volumes for containers");
        let (mine, other) = (node.sandbox(POD), node.sandbox(OTHER_POD));
        let app = |of| node.app_bundle(of).bind(&staged.target, "/data", &[]);
        let told = staged.refuses(app(&other), "a pod can only have its own volumes");
        assert_eq!(told["role"]["sandbox"], other.id());
        let annotation = "io.kubernetes.cri.sandbox-id";
        let _ = staged.refuses(app(&mine).namespace("ipc", Some(other.pid())), "the config joins namespace");
        let _ = staged.refuses(app(&mine).annotation(annotation, "nobody"), "no record of the pod's sandbox");
        let dead = app(&mine);
        let pid = mine.pid();
        process::kill_now(pid);
        wait_until("its end", PATIENCE, || !process::is_alive(pid));
        let _ = staged.refuses(dead, "has ended; hint: kubelet makes a new sandbox");
    }

    fn volumes_that_another_pod_has(delegate: Delegate) {
        let node = Node::new(delegate);
        let device = node.ext4();
        let exclusive = ["--access-mode", "SINGLE_NODE_SINGLE_WRITER"];
        let one = Pod::new(&node, POD, &device, &exclusive);
        let _app = one.app();
        let two = node.stage(OTHER_POD, "pv-1", &device, &exclusive);
        // It is the container's create that is refused: a sandbox's hook only notes it.
        let bundle = node.sandbox_bundle(OTHER_POD).write();
        let told = explain(&node, &bundle);
        assert_eq!(told["refusals"], json!([]));
        let problem = told["volumes"][0]["problem"].clone();
        let sandbox = node.run(&bundle);
        let app = node.app_bundle(&sandbox).bind(&two, "/data", &[]).write();
        let (told, sentence) = assert_refused(&node, &app);
        assert_eq!(problem, sentence, "{told:#}");
        assert!(sentence.contains("(ReadWriteOncePod) allows one pod"), "{sentence}");

        let options = node.stage("pod-c", "pv-2", &device, &["--option", "errors=remount-ro"]);
        let bundle = Bundle::plain(node.dir()).bind(&options, "/data", &[]);
        let (_, sentence) = assert_refused(&node, &bundle.write());
        assert!(sentence.contains("(ReadWriteOncePod)") || sentence.contains("can't be changed to"), "{sentence}");
        let alias = LoopDevice::on(device.file());
        let aliased = node.stage("pod-d", "pv-3", &alias, &[]);
        let bundle = Bundle::plain(node.dir()).bind(&aliased, "/data", &[]);
        let (_, sentence) = assert_refused(&node, &bundle.write());
        assert!(sentence.contains("has the same data through device"), "{sentence}");
    }

    fn a_kubelets_bind_of_nothing(delegate: Delegate) {
        let staged = Staged::new(delegate);
        let sandbox = staged.node.sandbox(POD);
        let subpath = SubPath {
            pod_uid: POD,
            volume: "pv-1",
            directory: &staged.target,
            path: "db",
            index: 0,
        };
        let bind = subpath.bind(&staged.node.handler().kubelet_dir());
        fs::remove_dir(staged.target.join("db")).unwrap();
        let bundle = staged.node.app_bundle(&sandbox).bind(&bind, "/data", &[]);
        let _ = staged.refuses(bundle, "which has been removed since");
    }
}
