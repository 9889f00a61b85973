//! The cells that several tables have.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::objects::quantity::canonical;

/// The cell of a value that doesn't exist.
pub(super) const NONE: &str = "<none>";

/// The cell of a value that isn't set.
pub(super) const UNSET: &str = "<unset>";

/// `volumeMode`, which an API server fills in.
pub(super) const MODE: &str = "Filesystem";

/// A text, or what stands where it is empty.
pub(super) fn or<'t>(text: Option<&'t str>, otherwise: &'t str) -> String {
    let text = text.filter(|it| !it.is_empty());
    text.unwrap_or(otherwise).to_owned()
}

/// Its name.
pub(super) fn name(metadata: &ObjectMeta) -> String {
    metadata.name.clone().unwrap_or_default()
}

/// `RWO,ROX`, each once and in Kubernetes' order.
pub(super) fn access_modes(modes: Option<&[String]>) -> String {
    let known = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let modes = modes.unwrap_or_default();
    let there = known
        .iter()
        .filter(|(it, _)| modes.iter().any(|mode| mode == it));
    there.map(|(_, short)| *short).collect::<Vec<_>>().join(",")
}

/// Returns the storage class. The annotation of the beta of storage classes counts before the field.
pub(super) fn storage_class(metadata: &ObjectMeta, field: Option<&str>) -> String {
    let annotations = metadata.annotations.as_ref();
    let beta = annotations.and_then(|it| it.get("volume.beta.kubernetes.io/storage-class"));
    or(beta.map(String::as_str).or(field), "")
}

/// Returns the amount of storage among `amounts`.
pub(super) fn capacity(amounts: Option<&BTreeMap<String, Quantity>>) -> String {
    let amount = amounts.and_then(|it| it.get("storage"));
    amount.map_or_else(|| "0".to_owned(), |Quantity(text)| canonical(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_short_and_in_their_order() {
        let modes = |modes: &[&str]| {
            let modes: Vec<String> = modes.iter().map(|&it| it.to_owned()).collect();
            access_modes(Some(&modes))
        };
        assert_eq!(modes(&["ReadWriteMany", "ReadWriteOnce"]), "RWO,RWX");
        assert_eq!(modes(&["ReadWriteOncePod", "ReadWriteOncePod"]), "RWOP");
        assert_eq!(access_modes(None), "");
    }

    #[test]
    fn no_capacity_is_shown_as_zero() {
        assert_eq!(capacity(None), "0");
    }
}
