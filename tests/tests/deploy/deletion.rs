//! `kubectl delete --kustomize` deletes what the kustomization has, and with a namespace all that is in it.

use std::collections::BTreeMap;

use runcrust_tests::kubernetes::{document, manifests};

use crate::files::kustomization;

/// Those that are applied and deleted each for itself, or added to another one.
const KUSTOMIZATIONS: [&str; 5] = [
    "base/",
    "csi/",
    "components/expansion/",
    "example/",
    "csi/example/",
];

/// An object, as the API server tells it from others.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Object {
    kind: String,
    namespace: Option<String>,
    name: String,
}

fn objects(directory: &str) -> Vec<Object> {
    let kustomization = kustomization(directory);
    let manifests = kustomization.resources.iter().map(|resource| {
        let document = document(&manifests().join(directory).join(resource));
        let word = |word: &serde_json::Value| word.as_str().map(str::to_owned);
        Object {
            kind: word(&document["kind"]).unwrap(),
            namespace: word(&document["metadata"]["namespace"]),
            name: word(&document["metadata"]["name"]).unwrap(),
        }
    });
    let generated = kustomization.config_map_generator.iter().map(|map| Object {
        kind: "ConfigMap".to_owned(),
        namespace: Some(map.namespace.clone()),
        name: map.name.clone(),
    });
    manifests.chain(generated).collect()
}

#[test]
fn a_kustomization_is_deleted_without_anything_of_another() {
    let mut owners: BTreeMap<Object, &str> = BTreeMap::new();
    for directory in KUSTOMIZATIONS {
        for object in objects(directory) {
            let before = owners.insert(object.clone(), directory);
            assert_eq!(before, None, "{directory} has {object:?} too");
        }
    }
    let namespaces: BTreeMap<&str, &str> = owners
        .iter()
        .filter(|(object, _)| object.kind == "Namespace")
        .map(|(object, owner)| (object.name.as_str(), *owner))
        .collect();
    assert_eq!(namespaces.len(), 2, "{namespaces:?}");
    for (object, owner) in &owners {
        // Without a namespace they are no namespace's, or in that of whoever applies them.
        let Some(namespace) = &object.namespace else {
            continue;
        };
        let with = namespaces.get(namespace.as_str());
        assert_eq!(with, Some(owner), "{object:?} goes with its namespace");
    }
}
