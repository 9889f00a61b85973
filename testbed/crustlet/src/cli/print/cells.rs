//! What stands in cells of several kinds.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::objects::quantity::{self, Bytes};

/// Where there is nothing.
pub(super) const NONE: &str = "<none>";

/// Where nothing was said.
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

/// What was asked for in the beta of storage classes counts before the field.
pub(super) fn storage_class(metadata: &ObjectMeta, field: Option<&str>) -> String {
    let annotations = metadata.annotations.as_ref();
    let beta = annotations.and_then(|it| it.get("volume.beta.kubernetes.io/storage-class"));
    or(beta.map(String::as_str).or(field), "")
}

/// An amount of storage.
pub(super) fn capacity(amounts: Option<&BTreeMap<String, Quantity>>) -> String {
    let amount = amounts.and_then(|it| it.get("storage"));
    amount.map_or_else(|| "0".to_owned(), |Quantity(text)| canonical(text))
}

/// An API server writes an amount by the largest suffix that leaves none over, of those that people count by.
fn canonical(text: &str) -> String {
    let Ok(bytes) = quantity::bytes(text) else {
        return text.to_owned();
    };
    if text.ends_with('i') {
        return Bytes(bytes).to_string();
    }
    let is_decimal = text.ends_with(|last: char| last.is_ascii_digit() || "kMGTPE".contains(last));
    if !is_decimal || text.contains(['e', '.']) {
        return text.to_owned();
    }
    let suffixes = ["", "k", "M", "G", "T", "P", "E"];
    let mut number = bytes;
    let mut suffix = 0;
    while number != 0 && number % 1000 == 0 && suffix + 1 < suffixes.len() {
        number /= 1000;
        suffix += 1;
    }
    format!("{number}{}", suffixes[suffix])
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
    fn amounts_are_as_an_api_server_writes_them() {
        for (written, told) in [
            ("1Gi", "1Gi"),
            ("1024Mi", "1Gi"),
            ("1.5Gi", "1536Mi"),
            ("1000M", "1G"),
            ("5000000000", "5G"),
            ("1234567", "1234567"),
            ("1e9", "1e9"),
            ("0", "0"),
            ("much", "much"),
        ] {
            assert_eq!(canonical(written), told, "{written}");
        }
        assert_eq!(capacity(None), "0");
    }
}
