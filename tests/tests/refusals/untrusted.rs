//! Containers that request another pod's volume, by annotations, paths or namespaces, which are not trusted.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::refusal::assert_contains;
use runcrust_tests::{Container, Node, POD, StagedVolume, on_each_delegate, process, wait_until};
use serde_json::{Value, json};

use crate::refusal::{self, unexpected_entries, unexpected_mounts};

const SANDBOX_ID: &str = "io.kubernetes.cri.sandbox-id";
const SANDBOX_UID: &str = "io.kubernetes.cri.sandbox-uid";

on_each_delegate! {
    fn another_pods_volume_is_refused(delegate: Delegate) {
        let volume = StagedVolume::on(Node::with(delegate, "sandbox = \"always\""), &[]);
        let sandbox = volume.node.sandbox("pod-b");
        let bundle = || volume.app_bundle(&sandbox);
        // The pod's UID in the annotation is no proof.
        for bundle in [bundle(), bundle().annotation(SANDBOX_UID, POD)] {
            let refused = refusal::create_refused(&volume, &bundle.write());
            let _ = refused
                .naming_volume("pv-1")
                .containing(&[POD, "pod-b", sandbox.id()])
                .message();
        }
        assert_eq!(unexpected_mounts(&volume.device, Some(sandbox.pid())), <[String; 0]>::default());
        assert!(volume.device.is_free());
        assert_eq!(unexpected_entries(&volume.target), <[String; 0]>::default());
    }

    fn another_sandboxs_namespaces_are_refused(delegate: Delegate) {
        let volume = StagedVolume::on(Node::with(delegate, "sandbox = \"always\""), &[]);
        let (mine, other) = (volume.sandbox(), volume.node.sandbox("pod-b"));
        // A container in pod-b with the sandbox id of pod-a.
        let forged = volume.node.app_bundle(&other).annotation(SANDBOX_ID, mine.id());
        let refused = refusal::create_refused(&volume, &forged.bind(&volume.target, "/data", &[]).write());
        let namespace = format!("/proc/{}/ns/", other.pid());
        let _ = refused.naming_volume("pv-1").containing(&[&namespace, mine.id()]).message();
        for kind in ["network", "ipc", "uts"] {
            let bundle = volume.app_bundle(&mine);
            let refused =
                refusal::create_refused(&volume, &bundle.namespace(kind, Some(other.pid())).write());
            let _ = refused.naming_volume("pv-1").containing(&[&namespace, mine.id()]).message();
        }
        // An ephemeral container joins the pid namespace of its target.
        let app = volume.app(&mine);
        let bundle = volume.app_bundle(&mine);
        let _ = volume.run(&bundle.namespace("pid", Some(app.pid())).write());
    }

    fn a_record_with_another_sandboxs_process_is_refused(delegate: Delegate) {
        let volume = StagedVolume::new(delegate);
        let other_device = volume.ext4();
        let _ = volume.node.stage("pod-b", "pv-2", &other_device, &[]);
        let (mine, other) = (volume.sandbox(), volume.node.sandbox("pod-b"));
        // This simulates a pid that was reused within one tick of the clock. Only the namespace shows the reuse.
        let record = |of: &Container| {
            volume.handler().state_dir().join(format!("sandboxes/{}.json", of.id()))
        };
        let read = |of| -> Value { serde_json::from_slice(&fs::read(record(of)).unwrap()).unwrap() };
        let mut mixed = read(&mine);
        mixed["process"] = read(&other)["process"].clone();
        fs::write(record(&mine), mixed.to_string()).unwrap();
        let bundle = volume.node.app_bundle(&other).annotation(SANDBOX_ID, mine.id());
        let refused = refusal::create_refused(&volume, &bundle.bind(&volume.target, "/data", &[]).write());
        let belongs = format!("belongs to sandbox {:?}", other.id());
        let _ = refused.naming_volume("pv-1").containing(&[mine.id(), &belongs]).message();
        assert_eq!(unexpected_mounts(&volume.device, Some(other.pid())), <[String; 0]>::default());
    }

    fn a_container_that_is_not_pending_is_not_confirmed(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        let bundle = volume.app_bundle(&sandbox).write();
        let app = volume.run(&bundle);
        let record = || fs::read_to_string(volume.entry().join("runcrust.json")).unwrap();
        let before = record();
        // The same hook is called again, for a container that the volume's record does not name.
        let hook = &bundle.config()["hooks"]["createRuntime"][0];
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let arguments = hook["args"].as_array().unwrap().iter().skip(1).map(text);
        let state = volume.dir().join("state.json");
        fs::write(&state, json!({"id": "nobodys", "pid": app.pid()}).to_string()).unwrap();
        let mut publish = Command::new(text(&hook["path"]));
        let publish = publish.args(arguments).stdin(File::open(state).unwrap());
        let output = publish.output().unwrap();
        let sentence = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success());
        assert_contains(&sentence, &["volume pv-1: ", "container nobodys isn't among its users"]);
        assert_eq!(record(), before);
    }

    fn a_sandbox_id_that_is_a_path_is_refused(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        let records = volume.handler().state_dir().join("sandboxes");
        let record = records.join(format!("{}.json", sandbox.id()));
        fs::copy(&record, records.parent().unwrap().join("evil.json")).unwrap();
        for id in ["../evil", "..", ".", "", "a/b", "/etc/passwd", "a\0b"] {
            let bundle = volume.app_bundle(&sandbox);
            let refused = refusal::create_refused(&volume, &bundle.annotation(SANDBOX_ID, id).write());
            let _ = refused.containing(&[&format!("{id:?}"), "id"]).message();
        }
    }

    fn an_ordinary_sandbox_started_before_stage_is_refused(delegate: Delegate) {
        let node = Node::new(delegate);
        let sandbox = node.sandbox("pod-a");
        let device = node.ext4();
        let target = node.stage("pod-a", "pv-1", &device, &[]);
        let bundle = node.app_bundle(&sandbox).bind(&target, "/data", &[]).write();
        let refused = refusal::create_refused(&node, &bundle);
        let _ = refused
            .naming_volume("pv-1")
            .containing(&[sandbox.id(), "sandbox = \"always\""])
            .message();
        assert!(device.is_free());
        assert_eq!(unexpected_entries(&target), <[String; 0]>::default());
    }

    fn an_ended_sandbox_is_refused(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        // The bundle was written before the sandbox's end was known.
        let bundle = volume.app_bundle(&sandbox).write();
        process::kill_now(sandbox.pid());
        wait_until("the sandbox to end", WAIT_TIMEOUT, || !sandbox.is_alive());
        let refused = refusal::create_refused(&volume, &bundle);
        let _ = refused.naming_volume("pv-1").containing(&[sandbox.id(), "ended"]).message();
        volume.device.wait_until_free(WAIT_TIMEOUT);
        assert_eq!(unexpected_entries(&volume.target), <[String; 0]>::default());
    }

    fn a_sandbox_that_mounts_a_volume_itself_is_refused(delegate: Delegate) {
        let volume = StagedVolume::new(delegate);
        let bundle = volume.sandbox_bundle(POD).bind(&volume.target, "/data", &[]).write();
        let _ = refusal::create_refused(&volume, &bundle).naming_volume("pv-1").containing(&["sandbox"]).message();
        assert!(volume.device.is_free());
        assert_eq!(unexpected_entries(&volume.target), <[String; 0]>::default());
    }

    fn contradictory_annotations_are_refused(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        let bundle = || volume.app_bundle(&sandbox);
        let mut without_id = bundle();
        let annotations = without_id.spec_mut()["annotations"].as_object_mut().unwrap();
        let _ = annotations.remove(SANDBOX_ID);
        let kind = "io.kubernetes.cri.container-type";
        for (bundle, named) in [
            (without_id, SANDBOX_ID),
            (bundle().annotation(kind, "pod"), kind),
        ] {
            let refused = refusal::create_refused(&volume, &bundle.write());
            let _ = refused.containing(&["config.json", named]).message();
        }
    }

    fn a_user_namespace_without_mappings_is_refused(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        let bundle = volume.app_bundle(&sandbox);
        let refused = refusal::create_refused(&volume, &bundle.namespace("user", None).write());
        let _ = refused.naming_volume("pv-1").containing(&["user namespace", "uidMappings"]).message();
    }

    fn a_mount_of_a_volume_that_is_not_a_bind_is_refused(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        let mount = json!({"destination": "/data", "type": "overlay", "source": volume.target});
        let bundle = volume.node.app_bundle(&sandbox).mount(mount).write();
        let _ = refusal::create_refused(&volume, &bundle).naming_volume("pv-1").containing(&["bind"]).message();
        let on_host = Path::new(&volume.target);
        assert_eq!(unexpected_entries(on_host), <[String; 0]>::default());
    }
}
