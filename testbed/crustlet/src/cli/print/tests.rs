//! Tests of the tables. The expected tables are kubectl's output, character for character.

use std::time::Duration;

use serde_json::json;

use super::*;
use crate::cli::table::Table;

const POD: Resource = Resource::Object(Kind::Pod);

/// Returns a time five minutes after the creation of the objects.
fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_mins(5)
}

fn metadata(name: &str) -> Value {
    json!({"name": name, "creationTimestamp": "1970-01-01T00:00:00Z"})
}

fn options(is_wide: bool) -> TableOptions {
    TableOptions {
        is_wide,
        has_namespaces: false,
        has_headers: true,
    }
}

fn table(resource: Resource, documents: &[Value], options: TableOptions) -> String {
    let rows = rows(resource, documents, options, now()).unwrap();
    Table::default().lines(&rows)
}

#[track_caller]
fn check(resource: Resource, document: &Value, is_wide: bool, expected: &[&str]) {
    let found = table(resource, std::slice::from_ref(document), options(is_wide));
    assert_eq!(found.lines().collect::<Vec<_>>(), expected, "{found}");
}

fn pod() -> Value {
    let status = |name: &str, state: &Value, restarts: i32| {
        json!({
            "name": name, "image": "app", "imageID": "sha256:1", "ready": restarts == 0,
            "restartCount": restarts, "state": state,
            "lastState": {"terminated": {"exitCode": 1, "finishedAt": "1970-01-01T00:04:00Z"}},
        })
    };
    let mut metadata = metadata("web");
    metadata["namespace"] = json!("shop");
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            "nodeName": "node-1",
            "runtimeClassName": "crust",
            "containers": [{"name": "app"}, {"name": "log"}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data", "deferFSMount": true}}],
        },
        "status": {
            "phase": "Running",
            "podIP": "10.88.0.7",
            "podIPs": [{"ip": "10.88.0.7"}, {"ip": "fd00::7"}],
            "containerStatuses": [
                status("app", &json!({"running": {"startedAt": "1970-01-01T00:04:10Z"}}), 0),
                status("log", &json!({"waiting": {"reason": "CrashLoopBackOff"}}), 3),
            ],
        },
    })
}

#[test]
fn pods_have_kubectls_columns() {
    check(
        POD,
        &pod(),
        false,
        &[
            "NAME   READY   STATUS             RESTARTS      AGE",
            "web    1/2     CrashLoopBackOff   3 (60s ago)   5m",
        ],
    );
    check(
        POD,
        &pod(),
        true,
        &[
            "NAME   READY   STATUS             RESTARTS      AGE   IP          NODE     RUNTIMECLASS",
            "web    1/2     CrashLoopBackOff   3 (60s ago)   5m    10.88.0.7   node-1   crust",
        ],
    );
    let bare = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "new"},
        "spec": {"containers": [{"name": "app"}]}, "status": {"phase": "Pending"},
    });
    check(
        POD,
        &bare,
        true,
        &[
            "NAME   READY   STATUS    RESTARTS   AGE         IP       NODE     RUNTIMECLASS",
            "new    0/1     Pending   0          <unknown>   <none>   <none>   <none>",
        ],
    );
}

#[test]
fn namespaces_come_first_and_headers_can_be_omitted() {
    let namespaces = TableOptions {
        has_namespaces: true,
        ..options(false)
    };
    let found = table(POD, &[pod()], namespaces);
    assert_eq!(
        found,
        "NAMESPACE   NAME   READY   STATUS             RESTARTS      AGE\n\
         shop        web    1/2     CrashLoopBackOff   3 (60s ago)   5m\n"
    );
    let without_headers = TableOptions {
        has_headers: false,
        ..options(false)
    };
    let found = table(POD, &[pod(), pod()], without_headers);
    assert_eq!(
        found,
        "web   1/2   CrashLoopBackOff   3 (60s ago)   5m\n".repeat(2)
    );
    let class = json!({
        "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": metadata("crust"), "handler": "crust",
    });
    let cluster_scoped = table(Resource::Object(Kind::RuntimeClass), &[class], namespaces);
    assert_eq!(
        cluster_scoped,
        "NAME    HANDLER   AGE\ncrust   crust     5m\n"
    );
}

#[test]
fn claims_have_kubectls_columns() {
    let claims = Resource::Object(Kind::PersistentVolumeClaim);
    let claim = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata("data"),
        "spec": {"volumeName": "pv-1", "storageClassName": "fast", "accessModes": ["ReadWriteOncePod"]},
        "status": {"phase": "Bound", "accessModes": ["ReadWriteOncePod"], "capacity": {"storage": "1024Mi"}},
    });
    check(
        claims,
        &claim,
        true,
        &[
            "NAME   STATUS   VOLUME   CAPACITY   ACCESS MODES   STORAGECLASS   VOLUMEATTRIBUTESCLASS   AGE   VOLUMEMODE",
            "data   Bound    pv-1     1Gi        RWOP           fast           <unset>                 5m    Filesystem",
        ],
    );
    let unbound = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata("data"),
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        "status": {"phase": "Pending"},
    });
    check(
        claims,
        &unbound,
        false,
        &[
            "NAME   STATUS    VOLUME   CAPACITY   ACCESS MODES   STORAGECLASS   VOLUMEATTRIBUTESCLASS   AGE",
            "data   Pending                                                     <unset>                 5m",
        ],
    );
}

#[test]
fn persistent_volumes_have_kubectls_columns() {
    let volume = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": metadata("pv-1"),
        "spec": {
            "accessModes": ["ReadWriteOnce", "ReadOnlyMany"],
            "capacity": {"storage": "10Gi"},
            "claimRef": {"namespace": "shop", "name": "data"},
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": "fast",
            "csi": {"driver": "csi.example", "volumeHandle": "handle-1"},
        },
        "status": {"phase": "Bound"},
    });
    check(
        Resource::Object(Kind::PersistentVolume),
        &volume,
        false,
        &[
            "NAME   CAPACITY   ACCESS MODES   RECLAIM POLICY   STATUS   CLAIM       STORAGECLASS   VOLUMEATTRIBUTESCLASS   REASON   AGE",
            "pv-1   10Gi       RWO,ROX        Delete           Bound    shop/data   fast           <unset>                          5m",
        ],
    );
}

#[test]
fn classes_drivers_and_secrets_have_kubectls_columns() {
    let class = json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {
            "name": "fast",
            "creationTimestamp": "1970-01-01T00:00:00Z",
            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
        },
        "provisioner": "csi.example",
        "allowVolumeExpansion": true,
        "allowRuntimeAssistedMount": true,
    });
    check(
        Resource::Object(Kind::StorageClass),
        &class,
        false,
        &[
            "NAME             PROVISIONER   RECLAIMPOLICY   VOLUMEBINDINGMODE   ALLOWVOLUMEEXPANSION   AGE",
            "fast (default)   csi.example   Delete          Immediate           true                   5m",
        ],
    );
    let driver = json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSIDriver",
        "metadata": metadata("csi.example"),
        "spec": {"attachRequired": false, "volumeLifecycleModes": ["Persistent", "Ephemeral"]},
    });
    check(
        Resource::Object(Kind::CSIDriver),
        &driver,
        false,
        &[
            "NAME          ATTACHREQUIRED   PODINFOONMOUNT   STORAGECAPACITY   TOKENREQUESTS   REQUIRESREPUBLISH   MODES                  AGE",
            "csi.example   false            false            false             <unset>         false               Persistent,Ephemeral   5m",
        ],
    );
    let secret = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata("key"),
        "data": {"a": "MQ=="},
        "stringData": {"a": "1", "b": "2"},
    });
    check(
        Resource::Object(Kind::Secret),
        &secret,
        false,
        &["NAME   TYPE     DATA   AGE", "key    Opaque   2      5m"],
    );
}

#[test]
fn each_mount_of_a_volume_has_a_row() {
    let volume = json!({
        "apiVersion": "crustlet.crust.dev/v1alpha1",
        "kind": "Volume",
        "metadata": {"name": "pv-1"},
        "spec": {"driver": "csi.example", "volumeHandle": "handle-1", "lifecycle": "Persistent"},
        "status": {
            "staged": "True",
            "operation": "NodePublishVolume",
            "message": "of the volume",
            "mounts": [
                {
                    "pod": "default/web", "podUID": "uid-1", "targetPath": "/r/1/mount",
                    "mounter": "deferred", "state": "Mounted",
                },
                {"podUID": "uid-2", "targetPath": "/r/2/mount", "state": "Pending", "message": "in use"},
            ],
        },
    });
    check(
        Resource::Volume,
        &volume,
        true,
        &[
            "NAME   DRIVER        STAGED   POD           MOUNTED-BY   STATE     OPERATION           HANDLE     TARGET PATH   MESSAGE",
            "pv-1   csi.example   True     default/web   deferred     Mounted   NodePublishVolume   handle-1   /r/1/mount    of the volume",
            "pv-1   csi.example   True     uid-2         <none>       Pending   NodePublishVolume   handle-1   /r/2/mount    in use",
        ],
    );
    let mut staged = volume;
    staged["status"] = json!({"staged": "Uncertain"});
    check(
        Resource::Volume,
        &staged,
        false,
        &[
            "NAME   DRIVER        STAGED      POD      MOUNTED-BY   STATE    OPERATION",
            "pv-1   csi.example   Uncertain   <none>   <none>       <none>   <none>",
        ],
    );
}

fn event() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "web.3e8", "namespace": "shop"},
        "involvedObject": {"kind": "Pod", "name": "web", "namespace": "shop"},
        "type": "Warning",
        "reason": "FailedMount",
        "message": "no driver\nat all",
        "firstTimestamp": "1970-01-01T00:00:00Z",
        "lastTimestamp": "1970-01-01T00:04:55Z",
        "count": 4,
        "reportingComponent": "crustlet",
    })
}

#[test]
fn get_shows_events_as_kubectl_get_does() {
    check(
        Resource::Event,
        &event(),
        false,
        &[
            "LAST SEEN   TYPE      REASON        OBJECT    MESSAGE",
            "5s          Warning   FailedMount   pod/web   no driver...",
        ],
    );
    check(
        Resource::Event,
        &event(),
        true,
        &[
            "LAST SEEN   TYPE      REASON        OBJECT    SUBOBJECT   SOURCE     MESSAGE        FIRST SEEN   COUNT   NAME",
            "5s          Warning   FailedMount   pod/web               crustlet   no driver...   5m           4       web.3e8",
        ],
    );
}

#[test]
fn events_are_shown_as_by_kubectl_events() {
    let mut once = event();
    once["count"] = json!(1);
    let rows = [
        events::headers(true),
        events::row(&event(), true, now()).unwrap(),
        events::row(&once, true, now()).unwrap(),
    ];
    assert_eq!(
        Table::default().lines(&rows),
        "NAMESPACE   LAST SEEN         TYPE      REASON        OBJECT    MESSAGE\n\
         shop        5s (x4 over 5m)   Warning   FailedMount   Pod/web   no driver...\n\
         shop        5m                Warning   FailedMount   Pod/web   no driver...\n"
    );
}

#[test]
fn an_invalid_document_is_an_error_with_its_kind() {
    let invalid = json!({"apiVersion": "v1", "kind": "Pod", "metadata": 7});
    let error = rows(POD, &[invalid], options(false), now()).unwrap_err();
    let error = error.to_string();
    assert!(
        error.starts_with("the agent sent a pod that cannot be decoded: "),
        "{error}"
    );
}
