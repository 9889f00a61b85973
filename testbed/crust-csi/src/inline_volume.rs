//! Recognizes inline volumes, which are CSI volumes in the spec of a pod. kubelet calls only `NodePublishVolume` and
//! `NodeUnpublishVolume` for them.

use std::collections::HashMap;

/// The key in a volume's context that says whether the volume is inline. kubelet sets it if `podInfoOnMount` of the
/// `CSIDriver` is true. The author of a pod can't: kubelet overwrites the value in `volumeAttributes`.
const EPHEMERAL_KEY: &str = "csi.storage.k8s.io/ephemeral";

/// The keys with the names of a pod's namespace and of the pod, which kubelet sets as well.
const POD_KEYS: [&str; 2] = [
    "csi.storage.k8s.io/pod.namespace",
    "csi.storage.k8s.io/pod.name",
];

/// The number of hex digits in an id, which are a SHA-256 digest.
const DIGITS: usize = 64;

/// Returns whether a volume's context is that of an inline volume.
pub(crate) fn is_inline(context: &HashMap<String, String>) -> bool {
    context
        .get(EPHEMERAL_KEY)
        .is_some_and(|value| value == "true")
}

/// Returns `namespace/name` of the pod that has an inline volume.
pub(crate) fn pod(context: &HashMap<String, String>) -> String {
    POD_KEYS
        .map(|key| context.get(key).map(String::as_str).unwrap_or_default())
        .join("/")
}

/// Returns whether a volume id has the form of those that kubelet generates for inline volumes: `csi-` with the digest
/// of the pod's uid and the volume's name. No id of a volume that the driver creates for a claim has this form.
pub(crate) fn is_inline_id(id: &str) -> bool {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    id.strip_prefix("csi-")
        .is_some_and(|digits| digits.len() == DIGITS && digits.bytes().all(is_digit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::id_of;

    #[test]
    fn only_kubelets_ids_are_those_of_inline_volumes() {
        let digits = "0a".repeat(32);
        assert!(is_inline_id(&format!("csi-{digits}")));
        for other in [
            "",
            "csi-",
            "csi-0a",
            &digits,
            &format!("csi-{digits}0"),
            &format!("csi-{}", digits.to_uppercase()),
            &format!("csi-../{}", &digits[3..]),
            &format!("crust-{digits}"),
            &id_of(&format!("csi-{digits}")),
        ] {
            assert!(!is_inline_id(other), "{other}");
        }
    }

    #[test]
    fn only_true_marks_an_inline_volume() {
        let context = |value: &str| HashMap::from([(EPHEMERAL_KEY.to_owned(), value.to_owned())]);
        assert!(is_inline(&context("true")));
        for other in ["false", "True", "1", ""] {
            assert!(!is_inline(&context(other)), "{other:?}");
        }
        assert!(!is_inline(&HashMap::new()));
    }
}
