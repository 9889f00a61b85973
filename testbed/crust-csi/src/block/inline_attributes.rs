//! The `volumeAttributes` of an inline volume. The author of a pod writes them, and is not trusted: they have no path,
//! and unknown keys are refused.

use std::collections::HashMap;

use crate::capability::{CHANGE_POLICY_KEY, DEFER_KEY, Parameters, SIDECAR_PREFIX};
use crate::capacity_range::SizeRange;
use crate::field_error::FieldError;
use crate::quantity::parse_bytes;

/// The key of the size.
const SIZE_KEY: &str = "crust.dev/size";

/// The key of the file system in a `StorageClass`. An inline volume has a field for it.
const FSTYPE_KEY: &str = "csi.storage.k8s.io/fstype";

const FIELD: &str = "volume_context";

/// The attributes of an inline volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InlineAttributes {
    /// The size in bytes, if one is requested.
    size: Option<u64>,
    /// The keys that other volumes have, too.
    pub(crate) parameters: Parameters,
}

impl InlineAttributes {
    /// Reads the attributes from a volume's context, to which kubelet has added its own keys.
    pub(crate) fn from_volume_context(
        context: &HashMap<String, String>,
    ) -> Result<Self, FieldError> {
        let invalid = |reason: String| FieldError::new(FIELD, reason);
        let mut size = None;
        let mut common = HashMap::new();
        for (key, value) in context {
            match key.as_str() {
                SIZE_KEY => {
                    let bytes = parse_bytes(value);
                    size = Some(bytes.map_err(|error| invalid(format!("{key}: {error}")))?);
                }
                FSTYPE_KEY => {
                    return Err(invalid(format!(
                        "{key}: an inline volume has no such attribute; hint: set fsType beside volumeAttributes"
                    )));
                }
                DEFER_KEY | CHANGE_POLICY_KEY => {
                    common.insert(key.clone(), value.clone());
                }
                added if added.starts_with(SIDECAR_PREFIX) => {}
                unknown => {
                    return Err(invalid(format!(
                        "unknown key {unknown:?}; hint: use {SIZE_KEY}, {DEFER_KEY} or {CHANGE_POLICY_KEY} in \
                         volumeAttributes"
                    )));
                }
            }
        }
        Ok(Self {
            size,
            parameters: Parameters::read(FIELD, &common)?,
        })
    }

    /// Returns the limits of the volume's size.
    pub(crate) fn size_range(&self) -> SizeRange {
        SizeRange {
            min: self.size.unwrap_or_default(),
            max: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The keys that kubelet adds with `podInfoOnMount`.
    const OF_KUBELET: [(&str, &str); 5] = [
        ("csi.storage.k8s.io/pod.name", "web"),
        ("csi.storage.k8s.io/pod.namespace", "default"),
        ("csi.storage.k8s.io/pod.uid", "uid"),
        ("csi.storage.k8s.io/serviceAccount.name", "default"),
        ("csi.storage.k8s.io/ephemeral", "true"),
    ];

    fn read(attributes: &[(&str, &str)]) -> Result<InlineAttributes, String> {
        let pairs = OF_KUBELET.iter().chain(attributes);
        let context = pairs.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        InlineAttributes::from_volume_context(&context.collect()).map_err(|error| error.to_string())
    }

    #[test]
    fn attributes_are_the_size_and_the_common_keys() {
        let none = read(&[]).unwrap();
        assert_eq!((none.size, none.size_range().min), (None, 0));
        assert_eq!(none.parameters, Parameters::default());
        let all = read(&[
            (SIZE_KEY, "64Mi"),
            (DEFER_KEY, "true"),
            (CHANGE_POLICY_KEY, "OnRootMismatch"),
        ]);
        let all = all.unwrap();
        assert_eq!(all.size_range().min, 64 << 20);
        assert!(all.parameters.defer && all.parameters.change_policy.is_some());
    }

    #[test]
    fn invalid_attributes_are_named() {
        for (key, value, words) in [
            (SIZE_KEY, "", "crust.dev/size: \"\" is not"),
            (SIZE_KEY, "much", "crust.dev/size: \"much\" is not"),
            (SIZE_KEY, "0", "crust.dev/size: \"0\" is not"),
            (DEFER_KEY, "yes", "crust.dev/defer: "),
            (
                CHANGE_POLICY_KEY,
                "always",
                "crust.dev/fsgroup-change-policy: ",
            ),
            (FSTYPE_KEY, "xfs", "hint: set fsType"),
            (
                "crust.dev/sizes",
                "1Gi",
                "unknown key \"crust.dev/sizes\"; hint: use crust.dev/size, ",
            ),
            (
                "size",
                "1Gi",
                "unknown key \"size\"; hint: use crust.dev/size, ",
            ),
            ("path", "/etc", "unknown key \"path\""),
        ] {
            let error = read(&[(key, value)]).unwrap_err();
            assert!(error.starts_with("volume_context: "), "{error}");
            assert!(error.contains(words), "{error}");
        }
    }
}
