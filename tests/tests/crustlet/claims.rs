//! Claims and the volumes that they have: what is bound, kept and destroyed, and what a driver that hangs holds up.

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

/// A class whose volumes are made as soon as a claim is there.
const NOW: &str = "now";

/// Another driver's name, which comes before [`DRIVER`].
const OTHER: &str = "a.tests.crust.dev";

const MI: i64 = 1 << 20;

fn scene() -> Scene {
    let scene = Scene::new(Delegate::Runc);
    scene.apply("now", &[&StorageClass::new(NOW).immediate()]);
    scene
}

impl Scene {
    /// A claim for which the driver has made a volume; its `PersistentVolume`.
    #[track_caller]
    fn provisioned(&self, name: &str) -> String {
        self.apply(name, &[&Claim::of_class(name, NOW, 32 * MI)]);
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
    fn wait_destroyed(&self) {
        self.crustlet.wait("the volume to be destroyed", || {
            self.csi.leftovers().is_empty()
        });
        assert_eq!(self.destroyed(), 1);
    }

    #[track_caller]
    fn wait_no_pv(&self, name: &str) {
        let what = format!("{name} to be gone");
        self.crustlet.wait(&what, || !self.crustlet.has("pv", name));
    }

    fn destroyed(&self) -> usize {
        self.relay.requests::<DeleteVolumeRequest>().len()
    }

    #[track_caller]
    fn delete(&self, kind: &str, name: &str) {
        let arguments = ["delete", kind, name, "--wait=false"];
        let _ = self.crustlet.cli(&arguments).success();
    }

    /// Restarts the agent with one more driver, at a socket.
    #[track_caller]
    fn restart_with_other(&self, socket: &Path) {
        let drivers = [(DRIVER, self.relay.socket()), (OTHER, socket)];
        let drivers = drivers.map(|(name, at)| format!("--csi={name}=unix://{}", at.display()));
        self.crustlet
            .restart(&drivers.each_ref().map(String::as_str));
    }
}

/// What somebody says of a volume that was made.
fn said(pv: &str, spec: &str) -> String {
    format!("apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: {pv}}}\nspec: {{{spec}}}\n")
}

/// Files keep their last good state; what isn't known may be what somebody wrote to keep something.
#[test]
fn an_unreadable_manifest_delays_only_deletions() {
    let scene = scene();
    scene
        .crustlet
        .wait("the class to be known", || scene.crustlet.has("sc", NOW));
    scene.crustlet.write("broken", "kind: [");
    let pv = scene.provisioned("data");
    scene.delete("pvc", "data");
    let claim = "persistentvolumeclaim/data";
    let told = scene.crustlet.wait_event(claim, "FailedDelete");
    assert!(told.contains("broken.yaml: "), "{told}");
    assert!(scene.crustlet.has("pv", &pv));
    assert_eq!(scene.destroyed(), 0);
    // One that was never read may have the very volume that a claim is to have.
    scene.crustlet.restart(&[]);
    scene.apply("late", &[&Claim::of_class("late", NOW, 32 * MI)]);
    let told = scene
        .crustlet
        .wait_event("persistentvolumeclaim/late", "FailedBinding");
    assert!(told.contains("broken.yaml: "), "{told}");
    scene.crustlet.remove("late");
    scene.crustlet.remove("broken");
    scene.wait_destroyed();
}

#[test]
fn a_volume_that_was_made_is_kept_when_somebody_says_so() {
    let scene = scene();
    let pv = scene.provisioned("data");
    let retain = said(&pv, "persistentVolumeReclaimPolicy: Retain");
    let _ = scene.crustlet.run(&retain).success();
    // The word stays where its manifest doesn't.
    let policy = || scene.crustlet.get("pv", &pv)["spec"]["persistentVolumeReclaimPolicy"].take();
    scene
        .crustlet
        .wait("it to be heard", || policy() == "Retain");
    scene.crustlet.remove(&format!("persistentvolume_{pv}"));
    let another = said(
        &pv,
        &format!("csi: {{driver: {DRIVER}, volumeHandle: another}}"),
    );
    let _ = scene.crustlet.run(&another).success();
    let object = format!("persistentvolume/{pv}");
    let told = scene.crustlet.wait_event(&object, "FailedUpdate");
    assert!(told.starts_with("csi can't change"), "{told}");
    let handle = scene.crustlet.get("pv", &pv)["spec"]["csi"]["volumeHandle"].take();
    assert_ne!(handle, "another");
    scene.delete("pvc", "data");
    scene.crustlet.wait("the volume to be released", || {
        scene.crustlet.get("pv", &pv)["status"]["phase"] == "Released"
    });
    assert_eq!(policy(), "Retain");
    let _ = scene.crustlet.cli(&["delete", "pv", &pv]).success();
    let told = scene.crustlet.wait_event(&object, "VolumeKept");
    assert!(told.contains(handle.as_str().expect("a handle")), "{told}");
    assert!(
        !scene
            .crustlet
            .manifest(&format!("persistentvolume_{pv}"))
            .exists()
    );
    assert_eq!(scene.destroyed(), 0, "it is the driver's to keep");
    assert!(!scene.csi.leftovers().is_empty());
}

#[test]
fn a_volume_that_is_deleted_goes_after_its_claim() {
    let scene = scene();
    let pv = scene.provisioned("data");
    scene.delete("pv", &pv);
    let object = format!("persistentvolume/{pv}");
    let told = scene.crustlet.wait_event(&object, "VolumeInUse");
    assert!(told.contains("default/data"), "{told}");
    let shown = scene.crustlet.cli(&["get", "pv", &pv]).success().stdout;
    assert!(shown.contains("Terminating"), "{shown}");
    assert_eq!(
        scene.crustlet.get("pvc", "data")["status"]["phase"],
        "Bound"
    );
    // It is on the disk.
    scene.crustlet.restart(&[]);
    scene.delete("pvc", "data");
    scene.wait_no_pv(&pv);
    scene.wait_destroyed();
    let none = scene.crustlet.cli(&["delete", "pv", &pv]).failure().stderr;
    assert!(none.contains("not found"), "{none}");
}

/// Whoever moves a file is told what is kept because of it.
#[test]
fn a_claim_whose_manifest_is_away_is_missed() {
    let scene = scene();
    let pv = scene.provisioned("data");
    scene.crustlet.remove("data");
    let told = scene
        .crustlet
        .wait_event("persistentvolumeclaim/data", "ManifestMissing");
    assert!(told.contains(&pv), "{told}");
    assert_eq!(scene.provisioned("data"), pv);
    assert_eq!(scene.destroyed(), 0);
}

#[test]
fn a_driver_that_hangs_holds_up_no_other_drivers_claims() {
    let scene = scene();
    let socket = scene.node.dir().join("hung");
    // It takes connections, and never answers.
    let _listener = UnixListener::bind(&socket).unwrap();
    scene.restart_with_other(&socket);
    let class = StorageClass::new("hung").immediate().to_string();
    let class = class.replace(DRIVER, OTHER);
    scene.apply(
        "hung",
        &[&class, &Claim::of_class("waiting", "hung", 32 * MI)],
    );
    let _ = scene.provisioned("data");
    // Nor is who waits for it left in the dark.
    let object = "persistentvolumeclaim/waiting";
    let told = scene.crustlet.wait_event(object, "ExternalProvisioning");
    assert!(told.contains(OTHER), "{told}");
}

on_each_delegate! {
    /// It names the volume, and the volume means it; but nobody has looked yet whether the two fit.
    fn a_pod_waits_until_its_claim_and_the_volume_have_each_other(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let volume = scene.volume("data", filesystem("ext4"));
        let object = Volume::new("pv-data", &volume).class(CLASS);
        let meant = format!("{object}  claimRef: {{namespace: default, name: data}}\n");
        let claim = object.claim("data");
        scene.apply("data", &[&meant, &claim.clone().request(2 * volume.capacity)]);
        let pod = pod_with("web", "data", false);
        scene.apply_pod(&pod);
        scene.crustlet.wait_event_containing("pod/web", "FailedMount", "default/data is not bound yet");
        scene.crustlet.wait_event("persistentvolumeclaim/data", "VolumeMismatch");
        assert_eq!(scene.relay.steps(), Vec::<&str>::new());
        scene.apply("data", &[&meant, &claim]);
        scene.crustlet.wait_pod("web", "Running");
        let bound = scene.crustlet.get("pv", "pv-data");
        let uid = scene.crustlet.get("pvc", "data")["metadata"]["uid"].take();
        assert_eq!(bound["spec"]["claimRef"]["uid"], uid);
        scene.end(&pod);
        scene.assert_nothing_left(&[]);
    }

    /// CSI: one call at a time for a volume.
    fn a_volume_is_not_unpublished_while_it_grows(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let (data, late) = (scene.claim("data", "ext4"), scene.claim("late", "ext4"));
        let (pod, other) = (pod_with("web", "data", false), pod_with("other", "late", false));
        scene.run(&pod);
        scene.run(&other);
        scene.relay.hold::<NodeExpandVolumeRequest>(Moment::Before);
        scene.ask_for(&data, 2 * data.volume.capacity);
        scene.relay.wait_held(Moment::Before);
        scene.crustlet.remove(pod.name());
        scene.crustlet.wait("the pod's sandbox to end", || scene.sandboxes(&pod).is_empty());
        // What ends later is unpublished.
        scene.end(&other);
        let unpublished = || {
            let heard = scene.relay.requests::<NodeUnpublishVolumeRequest>().into_iter();
            heard.map(|it| it.volume_id).collect::<Vec<_>>()
        };
        assert_eq!(unpublished(), [late.volume.id.as_str()]);
        let shown = scene.crustlet.volume(&data.volume.id).expect("a volume");
        assert_eq!(shown["status"]["operation"], "NodeExpandVolume");
        scene.relay.clear_faults();
        scene.crustlet.wait_gone(&pod.uid());
        assert_eq!(unpublished(), [&late, &data].map(|it| it.volume.id.as_str()));
        scene.assert_nothing_left(&[&data, &late]);
    }

    fn a_driver_that_hangs_holds_up_no_other_drivers_statistics(delegate: Delegate) {
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

    /// Its record is torn, so nobody knows that it is here; and something is in its directory that can't be cleaned.
    fn a_volume_is_not_deleted_while_the_node_may_hold_it(delegate: Delegate) {
        let scene = Scene::new(delegate);
        scene.apply("now", &[&StorageClass::new(NOW).immediate()]);
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
        fs::write(staged.join("somebodys"), "").unwrap();
        scene.crustlet.remove(pod.name());
        scene.crustlet.spawn(scene.crustlet.command(&[]));
        scene.crustlet.wait_gone(&pod.uid());
        scene.delete("pvc", "data");
        let object = format!("persistentvolume/{pv}");
        let told = scene.crustlet.wait_event(&object, "VolumeFailedDelete");
        assert!(told.starts_with(&staged.display().to_string()), "{told}");
        assert_eq!(scene.destroyed(), 0);
        // As the log says: look, save it, remove the directory.
        fs::remove_dir_all(staged).unwrap();
        scene.crustlet.wait("the driver to be asked", || scene.destroyed() > 0);
    }
}
