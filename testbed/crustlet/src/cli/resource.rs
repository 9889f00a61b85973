//! Resource types, as they are written on the command line.

use std::str::FromStr;

use crate::objects::Kind;
use crate::volumes::view;

/// A resource type that commands accept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Resource {
    /// A kind of object that manifests can contain.
    Object(Kind),
    /// A volume on this node.
    Volume,
    Event,
}

/// The error of an unknown resource type.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("unknown resource type {name:?}; hint: use one of {}", names())]
pub(super) struct UnknownResource {
    name: String,
}

/// Returns the plural names of all resource types, with the short names in parentheses.
fn names() -> String {
    Resource::all()
        .map(|resource| match resource.short_name() {
            "" => resource.plural(),
            short => format!("{} ({short})", resource.plural()),
        })
        .collect::<Vec<_>>()
        .join(", ")
}

impl Resource {
    fn all() -> impl Iterator<Item = Self> {
        let objects = Kind::ALL.into_iter().map(Self::Object);
        objects.chain([Self::Volume, Self::Event])
    }

    /// Returns the `kind` of the objects.
    pub(super) const fn kind(self) -> &'static str {
        match self {
            Self::Object(kind) => kind.as_str(),
            Self::Volume => view::KIND,
            Self::Event => "Event",
        }
    }

    /// Returns whether the objects have a namespace.
    pub(super) const fn is_namespaced(self) -> bool {
        match self {
            Self::Object(kind) => kind.is_namespaced(),
            Self::Volume => false,
            Self::Event => true,
        }
    }

    fn api_version(self) -> &'static str {
        match self {
            Self::Object(kind) => kind.api_version(),
            Self::Volume => view::API_VERSION,
            Self::Event => "v1",
        }
    }

    /// Returns the API group. Empty for the core group.
    fn group(self) -> &'static str {
        let parts = self.api_version().split_once('/');
        parts.map_or("", |(group, _)| group)
    }

    fn singular(self) -> String {
        self.kind().to_ascii_lowercase()
    }

    fn plural(self) -> String {
        let singular = self.singular();
        let ending = if singular.ends_with('s') { "es" } else { "s" };
        singular + ending
    }

    const fn short_name(self) -> &'static str {
        match self {
            Self::Object(Kind::Pod) => "po",
            Self::Object(Kind::PersistentVolumeClaim) => "pvc",
            Self::Object(Kind::PersistentVolume) => "pv",
            Self::Object(Kind::StorageClass) => "sc",
            Self::Event => "ev",
            _ => "",
        }
    }

    fn in_group(self, name: String) -> String {
        match self.group() {
            "" => name,
            group => format!("{name}.{group}"),
        }
    }

    /// Returns the singular name, with the group if it isn't the core group: `pod`, `storageclass.storage.k8s.io`.
    pub(super) fn singular_name(self) -> String {
        self.in_group(self.singular())
    }

    /// Returns the plural name, with the group if it isn't the core group: `pods`, `storageclasses.storage.k8s.io`.
    pub(super) fn plural_name(self) -> String {
        self.in_group(self.plural())
    }
}

/// Parses a name as kubectl does: singular, plural or short, with or without the group.
impl FromStr for Resource {
    type Err = UnknownResource;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let lower = text.to_ascii_lowercase();
        let (name, group) = lower.split_once('.').unwrap_or((&lower, ""));
        let is_match = |resource: &Self| {
            let short_name = resource.short_name().to_owned();
            let names = [resource.singular(), resource.plural(), short_name];
            let is_group = group.is_empty() || group == resource.group();
            is_group && !name.is_empty() && names.iter().any(|other| other == name)
        };
        let unknown = || UnknownResource {
            name: text.to_owned(),
        };
        Self::all().find(is_match).ok_or_else(unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resource_types_have_kubectls_names() {
        for (words, kind) in [
            (&["po", "pod", "pods", "Pod"][..], Kind::Pod),
            (
                &["pvc", "persistentvolumeclaim", "persistentvolumeclaims"],
                Kind::PersistentVolumeClaim,
            ),
            (
                &["pv", "persistentvolume", "persistentvolumes"],
                Kind::PersistentVolume,
            ),
            (
                &["sc", "storageclasses", "storageclass.storage.k8s.io"],
                Kind::StorageClass,
            ),
            (
                &["runtimeclass", "runtimeclasses.node.k8s.io"],
                Kind::RuntimeClass,
            ),
            (&["csidriver", "csidrivers"], Kind::CSIDriver),
            (&["secret", "secrets"], Kind::Secret),
        ] {
            for word in words {
                assert_eq!(word.parse(), Ok(Resource::Object(kind)), "{word}");
            }
        }
        assert_eq!("volumes".parse(), Ok(Resource::Volume));
        assert_eq!("volume.crustlet.crust.dev".parse(), Ok(Resource::Volume));
        assert_eq!("ev".parse(), Ok(Resource::Event));
    }

    #[test]
    fn printed_names_can_be_parsed() {
        for resource in Resource::all() {
            assert_eq!(resource.singular_name().parse(), Ok(resource));
            assert_eq!(resource.plural_name().parse(), Ok(resource));
        }
    }

    #[test]
    fn an_unknown_type_lists_the_known_ones() {
        for word in ["", "node", ".storage.k8s.io", "sc.node.k8s.io"] {
            let error = word.parse::<Resource>().unwrap_err().to_string();
            assert!(error.contains("persistentvolumeclaims (pvc)"), "{error}");
        }
    }
}
