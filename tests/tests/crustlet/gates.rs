//! The feature gate `RuntimeAssistedMount`, and the field `deferFSMount` that it enables.

use runcrust_tests::manifests::Pod;
use runcrust_tests::{Setup, on_each_delegate};

use crate::scene::{CLASS, Scene, Storage, WITHOUT_DEFERRAL, microvm, pod_with};

const GATE_OFF: &str = "--feature-gates=RuntimeAssistedMount=false";

/// Pods with `deferFSMount` true, false and unset.
fn pods(storages: &[Storage; 3]) -> [Pod; 3] {
    let fields = ["deferFSMount: true", "deferFSMount: false", ""];
    let mut storages = storages.iter();
    fields.map(|field| {
        let claim = storages.next().expect("a volume for each pod").claim();
        microvm(claim).claim_as(claim, field).mount(claim, "/data")
    })
}

on_each_delegate! {
    /// KEP-2857, "Are there any tests for feature enablement/disablement?".
    fn the_field_has_an_effect_while_the_gate_is_open(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let storages = ["deferred", "plain", "unset"].map(|name| scene.claim(name, "ext4"));
        let pods = pods(&storages);
        for (round, arguments) in [&[][..], &[GATE_OFF], &[]].into_iter().enumerate() {
            if round > 0 {
                scene.crustlet.restart(arguments);
            }
            let is_open = arguments.is_empty();
            for (pod, storage) in pods.iter().zip(&storages) {
                scene.run(pod);
                if is_open && pod.name() == "deferred" {
                    scene.assert_deferred(pod, storage);
                } else {
                    scene.assert_plain(pod, storage);
                }
                scene.sh(pod, "echo line >> /data/file");
                let lines = scene.sh(pod, "cat /data/file | wc -l");
                assert_eq!(lines, (round + 1).to_string(), "{}", pod.name());
            }
            for pod in &pods {
                scene.end(pod);
            }
            scene.assert_nothing_left(&storages.iter().collect::<Vec<_>>());
        }
    }

    /// The field is also ignored for a driver that cannot defer.
    fn the_field_is_ignored_while_the_gate_is_closed(delegate: Delegate) {
        let setup = Setup { driver: &WITHOUT_DEFERRAL, agent: &[GATE_OFF], ..Setup::default() };
        let scene = Scene::with(delegate, &setup);
        let storage = scene.claim("data", "ext4");
        let pod = microvm("web").fs_group(100).deferred("data").mount_as("data", "/data", "subPath: app");
        scene.run(&pod);
        scene.assert_plain(&pod, &storage);
        assert_eq!(scene.sh(&pod, "touch /data/file; stat -c %g /data/file"), "100");
        scene.end(&pod);
        scene.assert_nothing_left(&[&storage]);
    }

    /// KEP-2857, "`DeferFSMount` field in Pod Spec": it never returns to false, and does not change once the pod has
    /// started.
    fn the_field_of_a_running_pod_does_not_change(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let (data, logs) = (scene.claim("data", "ext4"), scene.claim("logs", "ext4"));
        let (one, two) = (pod_with("one", "data", true), pod_with("two", "logs", false));
        scene.run(&one);
        scene.run(&two);
        let containers = [&one, &two].map(|pod| scene.container(pod));
        scene.apply_pod(&pod_with("one", "data", false));
        scene.apply_pod(&pod_with("two", "logs", true));
        // Once this pod runs, the manifests that were written before it have been read.
        let last = microvm("last");
        scene.run(&last);
        assert_eq!([&one, &two].map(|pod| scene.container(pod)), containers);
        scene.assert_deferred(&one, &data);
        scene.assert_plain(&two, &logs);
        for pod in [&one, &two, &last] {
            scene.end(pod);
        }
        scene.assert_nothing_left(&[&data, &logs]);
    }

    /// The field of an `ephemeral` volume. Its claim and volume are created for the pod, and deleted with it.
    fn an_ephemeral_volume_is_deferred_too(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let size = "resources: {requests: {storage: 32Mi}}";
        let claim = format!("{{accessModes: [ReadWriteOncePod], storageClassName: {CLASS}, {size}}}");
        let source = format!("ephemeral: {{deferFSMount: true, volumeClaimTemplate: {{spec: {claim}}}}}");
        let pod = microvm("web").volume("scratch", &source).mount("scratch", "/data");
        scene.run(&pod);
        assert_eq!(scene.sh(&pod, "echo x > /data/file; cat /data/file"), "x");
        let claim = scene.crustlet.get("pvc", "web-scratch");
        let volume = claim["spec"]["volumeName"].as_str().expect("a bound claim").to_owned();
        let info = scene.mount_info(&pod, &volume).expect("a staged volume");
        let device = info["device"].as_str().expect("a device").to_owned();
        assert_eq!(runcrust_tests::host::mounts_of_device(device.as_ref()), Vec::<String>::new());
        assert_eq!(scene.crustlet.vol_data(&pod.uid(), &volume)["deferFSMount"], "true");
        scene.end(&pod);
        scene.assert_nothing_left(&[]);
        scene.crustlet.wait("the claim and its volume to be deleted", || {
            !scene.crustlet.has("pvc", "web-scratch") && scene.csi.leftovers().is_empty()
        });
    }
}
