//! Tests of valid and invalid manifests.

use super::manifest::{Object, read};
use super::{Kind, Name, Objects, Pod};

fn pod(rest: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec:\n  containers: [{{name: app, image: app}}]\n{rest}"
    )
}

fn read_one(text: &str) -> Object {
    let mut manifests = read(text).expect("a manifest");
    assert_eq!(manifests.len(), 1);
    manifests.remove(0).object
}

fn read_pod(text: &str) -> Pod {
    match read_one(text) {
        Object::Pod(pod) => *pod,
        other => panic!("{other:?}"),
    }
}

fn read_error(text: &str) -> String {
    read(text).expect_err(text).to_string()
}

#[test]
fn a_manifest_can_have_several_documents_and_empty_ones() {
    let text = "
---
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: fast}
provisioner: csi.example
allowRuntimeAssistedMount: true
---
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: crust}
handler: crust
fsMgmtSocket: /run/runcrust/crust.sock
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: shop}
spec: {}
";
    let mut objects = Objects::default();
    for manifest in read(text).expect("manifests") {
        objects.insert(manifest);
    }
    assert!(objects.storage_classes["fast"].allow_runtime_assisted_mount);
    let socket = objects.runtime_classes["crust"].fs_mgmt_socket.as_deref();
    assert_eq!(socket, Some("/run/runcrust/crust.sock".as_ref()));
    let claim = Name::new("shop", "data");
    assert!(objects.claims.contains_key(&claim));
    let document = &objects.documents[&(Kind::StorageClass, Name::new("", "fast"))];
    assert_eq!(
        document["allowRuntimeAssistedMount"], true,
        "the document is unchanged"
    );
}

#[test]
fn any_volume_source_can_be_deferred() {
    let pod = read_pod(&pod("
  volumes:
  - {name: a, persistentVolumeClaim: {claimName: a, deferFSMount: true}}
  - {name: b, ephemeral: {deferFSMount: true, volumeClaimTemplate: {spec: {}}}}
  - {name: c, csi: {driver: csi.example, deferFSMount: true}}
  - {name: d, persistentVolumeClaim: {claimName: d, deferFSMount: false}}
  - {name: e, persistentVolumeClaim: {claimName: e}}
  - {name: f, emptyDir: {}}
"));
    assert_eq!(pod.deferred.iter().collect::<Vec<_>>(), ["a", "b", "c"]);
}

#[test]
fn a_pod_without_a_uid_gets_one_from_its_name() {
    let uid = read_pod(&pod("")).uid;
    assert_eq!(uid, read_pod(&pod("  hostNetwork: true\n")).uid);
    assert_eq!(uid.len(), 36);
    let other = pod("").replace("name: web", "name: web, namespace: shop");
    assert_ne!(uid, read_pod(&other).uid);
    let given = pod("").replace("name: web", "name: web, uid: given");
    assert_eq!(read_pod(&given).uid, "given");
}

#[test]
fn the_grace_period_of_the_deletion_takes_precedence() {
    assert_eq!(read_pod(&pod("")).grace(), 30);
    let with_grace_period = pod("  terminationGracePeriodSeconds: 5\n");
    assert_eq!(read_pod(&with_grace_period).grace(), 5);
    let deletion =
        "name: web, deletionTimestamp: \"2026-01-01T00:00:00Z\", deletionGracePeriodSeconds: 0";
    let deleted = read_pod(&with_grace_period.replace("name: web", deletion));
    assert!(deleted.is_deleted());
    assert_eq!(deleted.grace(), 0);
}

#[test]
fn an_invalid_manifest_is_refused_with_a_hint() {
    let cases = [
        ("a: [", "line"),
        (
            "kind: Pod",
            "set apiVersion, kind and metadata.name of each object",
        ),
        (
            "---\napiVersion: v1\nkind: Node\nmetadata: {name: x}",
            "use one of v1 Pod, v1 PersistentVolumeClaim",
        ),
        ("apiVersion: v2\nkind: Pod\nmetadata: {name: x}", "v2 Pod"),
        (
            "apiVersion: v1\nkind: Pod\nmetadata: {name: x}",
            "the pod has no spec",
        ),
        (
            "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {containers: 7}",
            "Pod default/x",
        ),
    ];
    for (text, expected) in cases {
        let error = read_error(text);
        assert!(error.contains(expected), "{text}: {error}");
    }
}

/// Errors are logged, so they must not contain secret values.
#[test]
fn an_error_in_a_secret_does_not_contain_its_values() {
    let secret =
        "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {password: 73219988}";
    let error = read_error(secret);
    assert!(error.contains("put numbers in quotes"), "{error}");
    for secret in [
        secret.to_owned(),
        secret.replace("{password: ", "{\n  password: \""),
    ] {
        let error = read_error(&secret);
        assert!(!error.contains("73219988"), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

/// Names become parts of paths, so they must not lead out of a directory.
#[test]
fn invalid_names_are_refused() {
    let claim = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: \"NAME\"}\nspec: {}";
    for name in ["..", "a/b", "A", "-a", "a.", "a\\n", &"a".repeat(254)] {
        let error = read_error(&claim.replace("NAME", name));
        assert!(error.contains("is not a valid name"), "{name}: {error}");
    }
    for wrong in ["name: web, uid: ../x", "name: web, namespace: ../x"] {
        let error = read_error(&pod("").replace("name: web", wrong));
        assert!(error.contains("../x"), "{error}");
    }
    for (volumes, expected) in [
        ("[{name: a.b, emptyDir: {}}]", "spec.volumes: \"a.b\""),
        (
            "[{name: a, emptyDir: {}}, {name: a, emptyDir: {}}]",
            "two volumes have the name \"a\"",
        ),
    ] {
        let error = read_error(&pod(&format!("  volumes: {volumes}\n")));
        assert!(error.contains(expected), "{error}");
    }
    let mounts = pod("").replace(
        "image: app",
        "image: app, volumeMounts: [{name: v, mountPath: /v}]",
    );
    assert!(read_error(&mounts).contains("there is no volume \"v\""));
    let class = "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: c}\nhandler: c\nfsMgmtSocket: run/x";
    assert!(read_error(class).contains("run/x is not an absolute path"));
}
