//! Cells that several tables share.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::objects::quantity::canonical;

/// kubectl's cell for a missing value.
pub(super) const NONE: &str = "<none>";

/// kubectl's cell for a value that isn't set.
pub(super) const UNSET: &str = "<unset>";

/// The default of `volumeMode`, which an API server would fill in.
pub(super) const DEFAULT_VOLUME_MODE: &str = "Filesystem";

/// Returns a text, or a default if it is missing or empty.
pub(super) fn text_or<'t>(text: Option<&'t str>, default: &'t str) -> String {
    let text = text.filter(|text| !text.is_empty());
    text.unwrap_or(default).to_owned()
}

pub(super) fn name(metadata: &ObjectMeta) -> String {
    metadata.name.clone().unwrap_or_default()
}

/// Abbreviates access modes: `RWO,ROX`. Each is listed once, in Kubernetes' order.
pub(super) fn access_modes(modes: Option<&[String]>) -> String {
    let known = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let modes = modes.unwrap_or_default();
    let listed = known
        .iter()
        .filter(|(known_mode, _)| modes.iter().any(|mode| mode == known_mode));
    listed
        .map(|(_, short)| *short)
        .collect::<Vec<_>>()
        .join(",")
}

/// Returns the storage class. The beta annotation takes precedence over the field.
pub(super) fn storage_class(metadata: &ObjectMeta, field: Option<&str>) -> String {
    let annotations = metadata.annotations.as_ref();
    let beta = annotations
        .and_then(|annotations| annotations.get("volume.beta.kubernetes.io/storage-class"));
    text_or(beta.map(String::as_str).or(field), "")
}

/// Returns the amount of `storage` in canonical form.
pub(super) fn capacity(amounts: Option<&BTreeMap<String, Quantity>>) -> String {
    let amount = amounts.and_then(|amounts| amounts.get("storage"));
    amount.map_or_else(|| "0".to_owned(), |Quantity(text)| canonical(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_modes_are_abbreviated_and_sorted() {
        let modes = |modes: &[&str]| {
            let modes: Vec<String> = modes.iter().map(|&mode| mode.to_owned()).collect();
            access_modes(Some(&modes))
        };
        assert_eq!(modes(&["ReadWriteMany", "ReadWriteOnce"]), "RWO,RWX");
        assert_eq!(modes(&["ReadWriteOncePod", "ReadWriteOncePod"]), "RWOP");
        assert_eq!(access_modes(None), "");
    }

    #[test]
    fn a_missing_capacity_is_zero() {
        assert_eq!(capacity(None), "0");
    }
}
