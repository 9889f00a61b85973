//! `kubectl delete --kustomize` deletes the objects of a kustomization, and everything in its namespaces.

use std::collections::BTreeMap;

use runcrust_tests::kubernetes::{document, manifests};

use crate::files::kustomization;

/// The kustomizations that are applied and deleted separately, or added to another kustomization.
const KUSTOMIZATIONS: [&str; 5] = [
    "base/",
    "csi/",
    "components/expansion/",
    "example/",
    "csi/example/",
];

/// The identity of an object in the API server.
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
fn deleting_a_kustomization_deletes_nothing_of_others() {
    let mut owners: BTreeMap<Object, &str> = BTreeMap::new();
    for directory in KUSTOMIZATIONS {
        for object in objects(directory) {
            let before = owners.insert(object.clone(), directory);
            assert_eq!(before, None, "{directory} contains {object:?} as well");
        }
    }
    let namespaces: BTreeMap<&str, &str> = owners
        .iter()
        .filter(|(object, _)| object.kind == "Namespace")
        .map(|(object, owner)| (object.name.as_str(), *owner))
        .collect();
    assert_eq!(namespaces.len(), 2, "{namespaces:?}");
    for (object, owner) in &owners {
        // Objects without a namespace are cluster-wide, or in the namespace of the user who applies them.
        let Some(namespace) = &object.namespace else {
            continue;
        };
        let namespace_owner = namespaces.get(namespace.as_str());
        assert_eq!(
            namespace_owner,
            Some(owner),
            "{object:?} is deleted with its namespace"
        );
    }
}
