//! `crustlet get`

use std::time::{Duration, SystemTime};

use runcrust_tests::csi::{DRIVER, NODE};
use runcrust_tests::kubernetes::yaml;
use runcrust_tests::manifests::CsiDriver;
use serde_json::Value;

use super::{failure_message, scene};
use crate::scene::{Scene, microvm, pod_with};

/// The creation time of all objects in these tests.
const CREATED: &str = "2001-01-01T00:00:00Z";

/// Returns the age of an object that was created at [`CREATED`].
fn age() -> String {
    const CREATED_AFTER_EPOCH: Duration = Duration::from_secs(978_307_200);
    let since = SystemTime::UNIX_EPOCH
        .elapsed()
        .unwrap()
        .checked_sub(CREATED_AFTER_EPOCH)
        .unwrap();
    format!("{}y", since.as_secs() / 3600 / 24 / 365)
}

fn with_creation_time(manifest: &str) -> String {
    manifest.replace(
        "metadata:\n",
        &format!("metadata:\n  creationTimestamp: {CREATED}\n"),
    )
}

/// Creates two pods, one of which cannot run, and the objects that they need. Returns the volume's handle.
fn scene_with_objects() -> (Scene, String) {
    let scene = scene();
    let data = scene.claim("data", "ext4");
    for name in ["classes", "pv-data"] {
        let text = std::fs::read_to_string(scene.crustlet.manifest(name)).unwrap();
        scene.crustlet.write(name, &with_creation_time(&text));
    }
    scene.crustlet.write(
        "driver",
        &with_creation_time(&CsiDriver::with("File").to_string()),
    );
    let secret = "apiVersion: v1\nkind: Secret\nmetadata:\n  name: key\nstringData: {a: b}\n";
    scene.crustlet.write("secret", &with_creation_time(secret));
    scene.crustlet.write(
        "web",
        &with_creation_time(&pod_with("web", "data", true).to_string()),
    );
    let waits = pod_with("waits", "missing", false).to_string();
    let waits = waits.replace("  name: waits", "  name: waits\n  namespace: shop");
    scene.crustlet.write("waits", &with_creation_time(&waits));
    scene.crustlet.wait_pod("web", "Running");
    scene.crustlet.wait_event("pod/web", "Started");
    (scene, data.volume.id)
}

/// Asserts the whole table that a command prints. `{}` in `expected` stands for the age.
#[track_caller]
fn assert_table(scene: &Scene, arguments: &[&str], expected: &[&str]) {
    let run = scene
        .crustlet
        .cli(&[&["get"], arguments].concat())
        .success();
    let lines: Vec<String> = expected.iter().map(|it| it.replace("{}", &age())).collect();
    assert_eq!(run.stdout.lines().collect::<Vec<_>>(), lines, "{run}");
    assert_eq!(run.stderr, "");
}

#[test]
fn tables_look_like_those_of_kubectl() {
    let (scene, handle) = scene_with_objects();
    assert_table(
        &scene,
        &["pods"],
        &[
            "NAME   READY   STATUS    RESTARTS   AGE",
            "web    1/1     Running   0          {}",
        ],
    );
    let wide = [
        "NAME   READY   STATUS    RESTARTS   AGE   IP       NODE             RUNTIMECLASS",
        &format!("web    1/1     Running   0          {{}}   <none>   {NODE}   microvm"),
    ];
    assert_table(&scene, &["po", "-o", "wide"], &wide);
    assert_table(
        &scene,
        &["pod", "web", "--no-headers"],
        &["web   1/1   Running   0     {}"],
    );
    assert_table(
        &scene,
        &["pods", "-A"],
        &[
            "NAMESPACE   NAME    READY   STATUS              RESTARTS   AGE",
            "default     web     1/1     Running             0          {}",
            "shop        waits   0/1     ContainerCreating   0          {}",
        ],
    );
    assert_table(
        &scene,
        &["pods", "-n", "shop"],
        &[
            "NAME    READY   STATUS              RESTARTS   AGE",
            "waits   0/1     ContainerCreating   0          {}",
        ],
    );
    assert_table(
        &scene,
        &["pvc"],
        &[
            "NAME   STATUS   VOLUME    CAPACITY   ACCESS MODES   STORAGECLASS   VOLUMEATTRIBUTESCLASS   AGE",
            "data   Bound    pv-data   32Mi       RWO            fast-storage   <unset>                 {}",
        ],
    );
    assert_table(
        &scene,
        &["persistentvolumes", "-o", "wide"],
        &[
            "NAME      CAPACITY   ACCESS MODES   RECLAIM POLICY   STATUS   CLAIM          STORAGECLASS   VOLUMEATTRIBUTESCLASS   REASON   AGE   VOLUMEMODE",
            "pv-data   32Mi       RWO            Retain           Bound    default/data   fast-storage   <unset>                          {}   Filesystem",
        ],
    );
    let class = [
        "NAME           PROVISIONER           RECLAIMPOLICY   VOLUMEBINDINGMODE      ALLOWVOLUMEEXPANSION   AGE",
        &format!(
            "fast-storage   {DRIVER}   Delete          WaitForFirstConsumer   true                   {{}}"
        ),
    ];
    assert_table(&scene, &["sc/fast-storage"], &class);
    assert_table(
        &scene,
        &["runtimeclasses.node.k8s.io"],
        &["NAME      HANDLER   AGE", "microvm   crust     {}"],
    );
    let driver = [
        "NAME                  ATTACHREQUIRED   PODINFOONMOUNT   STORAGECAPACITY   TOKENREQUESTS   REQUIRESREPUBLISH   MODES        AGE",
        &format!(
            "{DRIVER}   false            false            false             <unset>         false               Persistent   {{}}"
        ),
    ];
    assert_table(&scene, &["csidrivers"], &driver);
    assert_table(
        &scene,
        &["secrets"],
        &["NAME   TYPE     DATA   AGE", "key    Opaque   1      {}"],
    );
    assert_table(
        &scene,
        &["volumes"],
        &[
            "NAME      DRIVER                STAGED   POD           MOUNTED-BY   STATE     OPERATION",
            "pv-data   csi.tests.crust.dev   True     default/web   deferred     Mounted   <none>",
        ],
    );
    let run = scene
        .crustlet
        .cli(&["get", "volumes", "-o", "wide", "--no-headers"])
        .success();
    let target = scene.target(&pod_with("web", "data", true), "pv-data");
    let end = format!("   {handle}   {}   <none>\n", target.display());
    assert!(run.stdout.ends_with(&end), "{run}");
    let events = scene.crustlet.cli(&["get", "ev"]).success().stdout;
    let mut lines = events.lines();
    assert_eq!(
        lines.next(),
        Some("LAST SEEN   TYPE     REASON    OBJECT    MESSAGE")
    );
    let started =
        |line: &str| line.ends_with("   Normal   Started   pod/web   Started container app");
    assert!(lines.any(started), "{events}");
}

#[test]
fn documents_contain_spec_and_status() {
    let (scene, _) = scene_with_objects();
    let get = |arguments: &[&str]| {
        scene
            .crustlet
            .cli(&[&["get"], arguments].concat())
            .success()
            .stdout
    };
    let json: Value = serde_json::from_str(&get(&["pod", "web", "-o", "json"])).unwrap();
    assert_eq!(json, yaml(&get(&["pod/web", "-o", "yaml"])));
    assert_eq!(json["apiVersion"], "v1");
    assert_eq!(json["metadata"]["creationTimestamp"], CREATED);
    assert_eq!(json["metadata"]["namespace"], "default");
    assert_eq!(json["spec"]["nodeName"], NODE);
    assert_eq!(
        json["spec"]["volumes"][0]["persistentVolumeClaim"]["deferFSMount"],
        true
    );
    assert_eq!(json["status"]["phase"], "Running");
    let conditions = json["status"]["conditions"].as_array().unwrap();
    assert!(
        conditions
            .iter()
            .any(|it| it["type"] == "Ready" && it["status"] == "True"),
        "{json}"
    );
    let list: Value = serde_json::from_str(&get(&["pods", "-A", "-o", "json"])).unwrap();
    assert_eq!(
        (&list["apiVersion"], &list["kind"]),
        (&"v1".into(), &"List".into())
    );
    assert_eq!(list["items"].as_array().unwrap().len(), 2);
    assert_eq!(list["items"][0], json);
    assert_eq!(list, yaml(&get(&["pods", "-A", "-o", "yaml"])));

    assert_eq!(get(&["pods", "-A", "-o", "name"]), "pod/web\npod/waits\n");
    assert_eq!(
        get(&["sc", "-o", "name"]),
        "storageclass.storage.k8s.io/fast-storage\n"
    );
    let volume = get(&["volumes", "-o", "name"]);
    assert_eq!(volume, "volume.crustlet.crust.dev/pv-data\n");
    assert_eq!(
        get(&[volume.trim(), "-o", "name"]),
        volume,
        "one command's output is another's input"
    );
    let event: Value = serde_json::from_str(&get(&["events", "-o", "json"])).unwrap();
    let name = event["items"][0]["metadata"]["name"].as_str().unwrap();
    assert_eq!(
        get(&["event", name, "-o", "name"]),
        format!("event/{name}\n")
    );
}

#[test]
fn it_reports_missing_objects_and_unknown_kinds() {
    let scene = scene();
    let none = |arguments: &[&str]| {
        let run = scene
            .crustlet
            .cli(&[&["get"], arguments].concat())
            .success();
        assert_eq!(run.stdout, "", "{run}");
        run.stderr
    };
    assert_eq!(
        none(&["pods"]),
        "No resources found in default namespace.\n"
    );
    assert_eq!(
        none(&["pods", "-n", "shop"]),
        "No resources found in shop namespace.\n"
    );
    assert_eq!(none(&["pods", "-A"]), "No resources found\n");
    assert_eq!(none(&["volumes"]), "No resources found\n");
    assert_eq!(none(&["pods", "-o", "name"]), "");
    let empty = scene.crustlet.cli(&["get", "pods", "-o", "yaml"]).success();
    assert_eq!(yaml(&empty.stdout)["items"], Value::Array(Vec::new()));

    scene.run(&microvm("web"));
    let refused = |arguments: &[&str]| failure_message(&scene, &[&["get"], arguments].concat());
    assert_eq!(refused(&["pod", "nope"]), "pods \"nope\" not found");
    assert_eq!(
        refused(&["sc/nope"]),
        "storageclasses.storage.k8s.io \"nope\" not found"
    );
    let unknown = "unknown resource type \"nodes\"; hint: use one of pods (po), persistentvolumeclaims (pvc), ";
    assert!(refused(&["nodes"]).starts_with(unknown));
    assert_eq!(
        refused(&["pod/web", "pvc/data"]),
        "cannot get persistentvolumeclaims and pods together; hint: get one kind at a time"
    );
    assert_eq!(
        refused(&["pod", "web", "-A"]),
        "cannot get objects by name in all namespaces; hint: use --namespace instead of --all-namespaces"
    );
    // Objects that exist are printed anyway.
    let some = scene
        .crustlet
        .cli(&["get", "pod", "web", "nope", "-o", "name"])
        .failure();
    assert_eq!(
        (some.stdout.as_str(), some.stderr.as_str()),
        ("pod/web\n", "crustlet: pods \"nope\" not found\n")
    );
}
