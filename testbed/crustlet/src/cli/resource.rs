//! The names of kinds, as people type and read them.

use std::str::FromStr;

use crate::objects::Kind;
use crate::volumes::view;

/// A kind of the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Resource {
    /// A kind of manifests.
    Object(Kind),
    /// A volume on this node.
    Volume,
    /// Events.
    Event,
}

/// A word that is no kind's name.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{word:?} is nothing that crustlet knows; hint: it knows {}", known())]
pub(super) struct UnknownResource {
    word: String,
}

fn known() -> String {
    Resource::all()
        .map(|it| match it.short() {
            "" => it.plural(),
            short => format!("{} ({short})", it.plural()),
        })
        .collect::<Vec<_>>()
        .join(", ")
}

impl Resource {
    fn all() -> impl Iterator<Item = Self> {
        let objects = Kind::ALL.into_iter().map(Self::Object);
        objects.chain([Self::Volume, Self::Event])
    }

    /// `kind` of its objects.
    pub(super) const fn kind(self) -> &'static str {
        match self {
            Self::Object(kind) => kind.as_str(),
            Self::Volume => view::KIND,
            Self::Event => "Event",
        }
    }

    /// Whether its objects are in namespaces.
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

    /// Empty for those of Kubernetes' core.
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

    const fn short(self) -> &'static str {
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

    /// Returns the name of one: `pod`, `storageclass.storage.k8s.io`.
    pub(super) fn one(self) -> String {
        self.in_group(self.singular())
    }

    /// Returns the name of several: `pods`, `storageclasses.storage.k8s.io`.
    pub(super) fn many(self) -> String {
        self.in_group(self.plural())
    }
}

/// Parses a name as kubectl does: singular, plural or short, with or without the group.
impl FromStr for Resource {
    type Err = UnknownResource;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        let lower = word.to_ascii_lowercase();
        let (name, group) = lower.split_once('.').unwrap_or((&lower, ""));
        let is = |it: &Self| {
            let names = [it.singular(), it.plural(), it.short().to_owned()];
            let is_group = group.is_empty() || group == it.group();
            is_group && !name.is_empty() && names.iter().any(|it| it == name)
        };
        let unknown = || UnknownResource {
            word: word.to_owned(),
        };
        Self::all().find(is).ok_or_else(unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_kubectls_names() {
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
    fn what_a_command_prints_of_an_object_another_one_takes() {
        for resource in Resource::all() {
            assert_eq!(resource.one().parse(), Ok(resource));
            assert_eq!(resource.many().parse(), Ok(resource));
        }
    }

    #[test]
    fn what_is_none_is_told_with_those_that_there_are() {
        for word in ["", "node", ".storage.k8s.io", "sc.node.k8s.io"] {
            let error = word.parse::<Resource>().unwrap_err().to_string();
            assert!(error.contains("persistentvolumeclaims (pvc)"), "{error}");
        }
    }
}
