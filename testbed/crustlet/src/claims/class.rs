//! The storage class of a claim.

use k8s_openapi::api::core::v1::PersistentVolumeClaimSpec;

use crate::objects::{Objects, StorageClass};
use crate::volumes::spec::storage_class;

/// Of the class that claims have which don't say one.
const DEFAULT: &str = "storageclass.kubernetes.io/is-default-class";

/// What a claim says; else what its volume is of; else the default one. It may say that it has none: `""`.
pub(crate) fn of<'o>(
    objects: &'o Objects,
    claim: &'o PersistentVolumeClaimSpec,
) -> Option<&'o str> {
    let bound = claim.volume_name.as_deref().filter(|it| !it.is_empty());
    match (&claim.storage_class_name, bound) {
        (Some(class), _) => Some(class.as_str()).filter(|it| !it.is_empty()),
        (None, Some(bound)) => storage_class(objects.volumes.get(bound)?),
        (None, None) => default(objects),
    }
}

/// Of several the first by its name.
fn default(objects: &Objects) -> Option<&str> {
    let is_default = |class: &StorageClass| {
        let annotations = class.object.metadata.annotations.as_ref();
        annotations
            .and_then(|it| it.get(DEFAULT))
            .map(String::as_str)
            == Some("true")
    };
    let mut classes = objects.storage_classes.iter();
    let (name, _) = classes.find(|(_, class)| is_default(class))?;
    Some(name)
}
