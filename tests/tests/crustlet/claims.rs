//! Claims and their volumes: when they are bound, kept and deleted, and what a hung driver delays.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::Path;

use crust_proto::csi::v1::{
    DeleteVolumeRequest, NodeExpandVolumeRequest, NodeGetVolumeStatsRequest,
    NodeUnpublishVolumeRequest,
};
use runcrust_tests::csi::{CsiRelay, DRIVER, Moment, filesystem};
use runcrust_tests::manifests::{Claim, StorageClass, Volume};
use runcrust_tests::{Delegate, on_each_delegate};

use crate::scene::{CLASS, Scene, pod_with};

/// A storage class with immediate binding: its volumes are created as soon as a claim exists.
const IMMEDIATE: &str = "now";

/// The name of another driver. It is sorted before [`DRIVER`].
const OTHER: &str = "a.tests.crust.dev";

const MIB: i64 = 1 << 20;

fn scene() -> Scene {
    let scene = Scene::new(Delegate::Runc);
    scene.apply("now", &[&StorageClass::new(IMMEDIATE).immediate()]);
    scene
}

impl Scene {
    /// Creates a claim, waits until the driver has created its volume, and returns the name of the `PersistentVolume`.
    #[track_caller]
    fn provisioned(&self, name: &str) -> String {
        self.apply(name, &[&Claim::of_class(name, IMMEDIATE, 32 * MIB)]);
        self.wait_bound(name);
        let claim = self.crustlet.get("pvc", name);
        let volume = claim["spec"]["volumeName"].as_str();
        volume.expect("a volume").to_owned()
    }

    #[track_caller]
    fn wait_bound(&self, claim: &str) {
        self.crustlet.wait("the claim to be bound", || {
            let claims = self.crustlet.all("pvc");
            let mut claims = claims.iter().filter(|it| it["metadata"]["name"] == claim);
            claims.any(|it| it["status"]["phase"] == "Bound")
        });
    }

    #[track_caller]
    fn wait_deleted(&self) {
        self.crustlet.wait("the volume to be deleted", || {
            self.csi.leftovers().is_empty()
        });
        assert_eq!(self.delete_calls(), 1);
    }

    #[track_caller]
    fn wait_no_pv(&self, name: &str) {
        let what = format!("{name} to be gone");
        self.crustlet.wait(&what, || !self.crustlet.has("pv", name));
    }

    fn delete_calls(&self) -> usize {
        self.relay.requests::<DeleteVolumeRequest>().len()
    }

    #[track_caller]
    fn delete(&self, kind: &str, name: &str) {
        let arguments = ["delete", kind, name, "--wait=false"];
        let _ = self.crustlet.cli(&arguments).success();
    }

    /// Restarts the agent with [`OTHER`] as a second driver.
    #[track_caller]
    fn restart_with_other(&self, socket: &Path) {
        let drivers = [(DRIVER, self.relay.socket()), (OTHER, socket)];
        let drivers = drivers.map(|(name, at)| format!("--csi={name}=unix://{}", at.display()));
        self.crustlet
            .restart(&drivers.each_ref().map(String::as_str));
    }
}

/// A manifest for a provisioned volume.
fn pv_manifest(pv: &str, spec: &str) -> String {
    format!("apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: {pv}}}\nspec: {{{spec}}}\n")
}

/// Files that were readable keep their last state. A file that was never read may contain an object that must be kept.
#[test]
fn an_unreadable_manifest_delays_only_deletions() {
    let scene = scene();
    scene.crustlet.wait("the class to be known", || {
        scene.crustlet.has("sc", IMMEDIATE)
    });
    scene.crustlet.write("broken", "kind: [");
    let pv = scene.provisioned("data");
    scene.delete("pvc", "data");
    let claim = "persistentvolumeclaim/data";
    let message = scene.crustlet.wait_event(claim, "FailedDelete");
    assert!(message.contains("broken.yaml: "), "{message}");
    assert!(scene.crustlet.has("pv", &pv));
    assert_eq!(scene.delete_calls(), 0);
    // A file that was never read may contain the volume that belongs to the claim.
    scene.crustlet.restart(&[]);
    scene.apply("late", &[&Claim::of_class("late", IMMEDIATE, 32 * MIB)]);
    let message = scene
        .crustlet
        .wait_event("persistentvolumeclaim/late", "FailedBinding");
    assert!(message.contains("broken.yaml: "), "{message}");
    scene.crustlet.remove("late");
    scene.crustlet.remove("broken");
    scene.wait_deleted();
}

#[test]
fn a_provisioned_volume_is_kept_with_policy_retain() {
    let scene = scene();
    let pv = scene.provisioned("data");
    let retain = pv_manifest(&pv, "persistentVolumeReclaimPolicy: Retain");
    let _ = scene.crustlet.run(&retain).success();
    // The policy stays after its manifest has been removed.
    let policy = || scene.crustlet.get("pv", &pv)["spec"]["persistentVolumeReclaimPolicy"].take();
    scene
        .crustlet
        .wait("the policy to be known", || policy() == "Retain");
    scene.crustlet.remove(&format!("persistentvolume_{pv}"));
    let another = pv_manifest(
        &pv,
        &format!("csi: {{driver: {DRIVER}, volumeHandle: another}}"),
    );
    let _ = scene.crustlet.run(&another).success();
    let object = format!("persistentvolume/{pv}");
    let message = scene.crustlet.wait_event(&object, "FailedUpdate");
    assert!(message.starts_with("csi can't change"), "{message}");
    let handle = scene.crustlet.get("pv", &pv)["spec"]["csi"]["volumeHandle"].take();
    assert_ne!(handle, "another");
    scene.delete("pvc", "data");
    scene.crustlet.wait("the volume to be released", || {
        scene.crustlet.get("pv", &pv)["status"]["phase"] == "Released"
    });
    assert_eq!(policy(), "Retain");
    let _ = scene.crustlet.cli(&["delete", "pv", &pv]).success();
    let message = scene.crustlet.wait_event(&object, "VolumeKept");
    assert!(
        message.contains(handle.as_str().expect("a handle")),
        "{message}"
    );
    assert!(
        !scene
            .crustlet
            .manifest(&format!("persistentvolume_{pv}"))
            .exists()
    );
    assert_eq!(scene.delete_calls(), 0, "the driver must keep it");
    assert!(!scene.csi.leftovers().is_empty());
}

#[test]
fn a_deleted_volume_is_removed_after_its_claim() {
    let scene = scene();
    let pv = scene.provisioned("data");
    scene.delete("pv", &pv);
    let object = format!("persistentvolume/{pv}");
    let message = scene.crustlet.wait_event(&object, "VolumeInUse");
    assert!(message.contains("default/data"), "{message}");
    let shown = scene.crustlet.cli(&["get", "pv", &pv]).success().stdout;
    assert!(shown.contains("Terminating"), "{shown}");
    assert_eq!(
        scene.crustlet.get("pvc", "data")["status"]["phase"],
        "Bound"
    );
    // The deletion is on disk: a restarted agent continues it.
    scene.crustlet.restart(&[]);
    scene.delete("pvc", "data");
    scene.wait_no_pv(&pv);
    scene.wait_deleted();
    let none = scene.crustlet.cli(&["delete", "pv", &pv]).failure().stderr;
    assert!(none.contains("not found"), "{none}");
}

/// If a user moves the manifest of a claim away, an event names the volume that is kept.
#[test]
fn an_event_reports_a_claim_whose_manifest_is_gone() {
    let scene = scene();
    let pv = scene.provisioned("data");
    scene.crustlet.remove("data");
    let message = scene
        .crustlet
        .wait_event("persistentvolumeclaim/data", "ManifestMissing");
    assert!(message.contains(&pv), "{message}");
    assert_eq!(scene.provisioned("data"), pv);
    assert_eq!(scene.delete_calls(), 0);
}

#[test]
fn a_hung_driver_does_not_delay_claims_of_others() {
    let scene = scene();
    let socket = scene.node.dir().join("hung");
    // The hung driver accepts connections, and never answers.
    let _listener = UnixListener::bind(&socket).unwrap();
    scene.restart_with_other(&socket);
    let class = StorageClass::new("hung").immediate().to_string();
    let class = class.replace(DRIVER, OTHER);
    scene.apply(
        "hung",
        &[&class, &Claim::of_class("waiting", "hung", 32 * MIB)],
    );
    let _ = scene.provisioned("data");
    // An event reports what the claim waits for.
    let object = "persistentvolumeclaim/waiting";
    let message = scene.crustlet.wait_event(object, "ExternalProvisioning");
    assert!(message.contains(OTHER), "{message}");
}

on_each_delegate! {
    /// The claim and the volume name each other, but they are not bound until their sizes have been compared.
    fn a_pod_waits_until_its_claim_is_bound_both_ways(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let volume = scene.volume("data", filesystem("ext4"));
        let object = Volume::new("pv-data", &volume).class(CLASS);
        let with_claim_ref = format!("{object}  claimRef: {{namespace: default, name: data}}\n");
        let claim = object.claim("data");
        scene.apply("data", &[&with_claim_ref, &claim.clone().request(2 * volume.capacity)]);
        let pod = pod_with("web", "data", false);
        scene.apply_pod(&pod);
        scene.crustlet.wait_event_containing("pod/web", "FailedMount", "default/data is not bound yet");
        scene.crustlet.wait_event("persistentvolumeclaim/data", "VolumeMismatch");
        assert_eq!(scene.relay.steps(), Vec::<&str>::new());
        scene.apply("data", &[&with_claim_ref, &claim]);
        scene.crustlet.wait_pod("web", "Running");
        let bound = scene.crustlet.get("pv", "pv-data");
        let uid = scene.crustlet.get("pvc", "data")["metadata"]["uid"].take();
        assert_eq!(bound["spec"]["claimRef"]["uid"], uid);
        scene.end(&pod);
        scene.assert_nothing_left(&[]);
    }

    /// The CSI specification asks for at most one call at a time for a volume.
    fn a_volume_is_not_unpublished_while_it_grows(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let (data, second) = (scene.claim("data", "ext4"), scene.claim("late", "ext4"));
        let (pod, other) = (pod_with("web", "data", false), pod_with("other", "late", false));
        scene.run(&pod);
        scene.run(&other);
        scene.relay.hold::<NodeExpandVolumeRequest>(Moment::Before);
        scene.request_size(&data, 2 * data.volume.capacity);
        scene.relay.wait_held(Moment::Before);
        scene.crustlet.remove(pod.name());
        scene.crustlet.wait("the pod's sandbox to end", || scene.sandboxes(&pod).is_empty());
        // A pod that ends later is unpublished first.
        scene.end(&other);
        let unpublished = || {
            let heard = scene.relay.requests::<NodeUnpublishVolumeRequest>().into_iter();
            heard.map(|it| it.volume_id).collect::<Vec<_>>()
        };
        assert_eq!(unpublished(), [second.volume.id.as_str()]);
        let shown = scene.crustlet.volume(&data.volume.id).expect("a volume");
        assert_eq!(shown["status"]["operation"], "NodeExpandVolume");
        scene.relay.clear_faults();
        scene.crustlet.wait_gone(&pod.uid());
        assert_eq!(unpublished(), [&second, &data].map(|it| it.volume.id.as_str()));
        scene.assert_nothing_left(&[&data, &second]);
    }

    fn a_hung_driver_does_not_delay_statistics_of_others(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let relay = CsiRelay::start(&scene.node.dir().join("other"), scene.csi.socket());
        scene.restart_with_other(relay.socket());
        let volume = scene.volume("slow", filesystem("ext4"));
        let object = Volume::new("pv-slow", &volume).class(CLASS);
        let others = object.to_string().replace(DRIVER, OTHER);
        scene.apply("pv-slow", &[&others, &object.claim("slow")]);
        relay.hold::<NodeGetVolumeStatsRequest>(Moment::Before);
        let slow = pod_with("slow", "slow", false);
        scene.run(&slow);
        relay.wait_held(Moment::Before);
        let data = scene.claim("data", "ext4");
        let pod = pod_with("web", "data", false);
        scene.run(&pod);
        scene.wait_stats(&data, &pod, "/data");
        relay.clear_faults();
        scene.end(&slow);
        scene.end(&pod);
        scene.assert_nothing_left(&[&data]);
    }

    /// The volume's records are damaged, so the agent does not know that the volume is on the node. Its directory
    /// contains an unknown file, which the agent does not remove.
    fn a_volume_is_not_deleted_while_the_node_may_hold_it(delegate: Delegate) {
        let scene = Scene::new(delegate);
        scene.apply("now", &[&StorageClass::new(IMMEDIATE).immediate()]);
        let pv = scene.provisioned("data");
        let pod = pod_with("web", "data", false);
        scene.run(&pod);
        let handle = scene.crustlet.get("pv", &pv)["spec"]["csi"]["volumeHandle"].take();
        let staged = scene.crustlet.staging(handle.as_str().unwrap());
        let staged = staged.parent().unwrap();
        scene.crustlet.kill();
        let published = scene.target(&pod, &pv).with_file_name("vol_data.json");
        for record in [&published, &staged.join("vol_data.json")] {
            fs::write(record, "{").unwrap();
        }
        fs::write(staged.join("unknown-file"), "").unwrap();
        scene.crustlet.remove(pod.name());
        scene.crustlet.spawn(scene.crustlet.command(&[]));
        scene.crustlet.wait_gone(&pod.uid());
        scene.delete("pvc", "data");
        let object = format!("persistentvolume/{pv}");
        let message = scene.crustlet.wait_event(&object, "VolumeFailedDelete");
        assert!(message.starts_with(&staged.display().to_string()), "{message}");
        assert_eq!(scene.delete_calls(), 0);
        // The test does what the log says: inspect the directory, save its contents, remove it.
        fs::remove_dir_all(staged).unwrap();
        scene.crustlet.wait("the driver to be called", || scene.delete_calls() > 0);
    }
}
