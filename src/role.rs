//! The role of a container in its pod, by the annotations that CRI runtimes write.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::oci::DocumentError;

/// The role of a container in its pod.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The pod's sandbox: it lives as long as the pod, and the volumes are mounted in it.
    Sandbox {
        /// The pod's uid, where the CRI runtime tells it.
        pod_uid: Option<String>,
    },
    /// A container of a pod.
    AppContainer {
        /// The sandbox's id as the annotation has it: it leads to a record and proves nothing.
        sandbox_id: String,
        /// CRI-O's word for the pod's uid. Its sandboxes need not be containers, and then there is
        /// no record of theirs.
        pod_uid: Option<String>,
    },
    /// Not of a CRI runtime: podman, docker, a plain bundle. Its caller is root.
    Standalone,
}

/// containerd's keys. It writes them last, so that a pod's own annotations never stand for them.
const KIND: &str = "io.kubernetes.cri.container-type";
const SANDBOX: &str = "io.kubernetes.cri.sandbox-id";
const UID: &str = "io.kubernetes.cri.sandbox-uid";
/// CRI-O's keys.
const CRIO_KIND: &str = "io.kubernetes.cri-o.ContainerType";
const CRIO_SANDBOX: &str = "io.kubernetes.cri-o.SandboxID";
/// kubelet's labels, as a JSON object. A container's are written after the pod's annotations; in a
/// sandbox's config annotations come later, but not later than the labels one by one.
const CRIO_LABELS: &str = "io.kubernetes.cri-o.Labels";
/// The program that made the container; podman's is `libpod`.
const MANAGER: &str = "io.container.manager";
const LABEL_UID: &str = "io.kubernetes.pod.uid";

/// A config that doesn't tell what its container is to its pod. Only a mount of a volume makes
/// that matter.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RoleError {
    #[error("config.json: annotation {0} is {1:?}, neither \"sandbox\" nor \"container\"")]
    UnknownType(&'static str, String),
    #[error(
        "config.json: annotation {0} says that this is a pod's container, {1} doesn't say whose"
    )]
    NoSandbox(&'static str, &'static str),
    #[error(
        "config.json: annotation {KIND} is containerd's and {CRIO_KIND} is CRI-O's: one of them is \
         the pod's own; hint: remove it from the pod"
    )]
    TwoRuntimes,
    #[error(
        "config.json: annotation {CRIO_KIND} says that this is CRI-O's, and {CRIO_LABELS} or \
         {LABEL_UID} doesn't say whose pod's"
    )]
    NoUid,
    #[error(
        "config.json: annotation {LABEL_UID} says {flat:?}, and {CRIO_LABELS} says {labelled:?}: \
         one of them isn't kubelet's word; hint: remove such an annotation from the pod"
    )]
    TwoUids { flat: String, labelled: String },
    #[error(transparent)]
    Document(#[from] DocumentError),
}

impl Role {
    /// `annotation` gives the value of a key.
    pub(crate) fn from_annotations<'a>(
        annotation: impl Fn(&str) -> Result<Option<Cow<'a, str>>, DocumentError>,
    ) -> Result<Self, RoleError> {
        let kind = match (annotation(KIND)?, annotation(CRIO_KIND)?) {
            (None, None) => return Ok(Self::Standalone),
            (None, Some(kind)) => return Self::from_crio_annotations(&kind, annotation),
            (Some(kind), None) => kind,
            // Each runtime writes its own keys, and passes a pod's on: the others are the user's.
            (Some(_), Some(_)) => return Err(RoleError::TwoRuntimes),
        };
        match &*kind {
            "sandbox" => {
                let pod_uid = annotation(UID)?.map(Cow::into_owned);
                let pod_uid = pod_uid.filter(|uid| is_file_name(uid));
                Ok(Self::Sandbox { pod_uid })
            }
            "container" => match annotation(SANDBOX)? {
                Some(id) => Ok(Self::AppContainer {
                    sandbox_id: id.into_owned(),
                    pod_uid: None,
                }),
                None => Err(RoleError::NoSandbox(KIND, SANDBOX)),
            },
            other => Err(RoleError::UnknownType(KIND, other.to_owned())),
        }
    }

    fn from_crio_annotations<'a>(
        kind: &str,
        annotation: impl Fn(&str) -> Result<Option<Cow<'a, str>>, DocumentError>,
    ) -> Result<Self, RoleError> {
        let labels = annotation(CRIO_LABELS)?;
        if labels.is_none() && annotation(MANAGER)?.as_deref() == Some("libpod") {
            // podman's: it says so of a pod's containers, for Kata's sake.
            return Ok(Self::Standalone);
        }
        let pod_uid = labelled_uid(labels.as_deref());
        if let Some(labelled) = &pod_uid {
            let flat = annotation(LABEL_UID)?.ok_or(RoleError::NoUid)?;
            if *flat != **labelled {
                return Err(RoleError::TwoUids {
                    flat: flat.into_owned(),
                    labelled: labelled.clone(),
                });
            }
        }
        match kind {
            "sandbox" => Ok(Self::Sandbox { pod_uid }),
            "container" => match annotation(CRIO_SANDBOX)? {
                Some(id) => Ok(Self::AppContainer {
                    sandbox_id: id.into_owned(),
                    pod_uid: Some(pod_uid.ok_or(RoleError::NoUid)?),
                }),
                None => Err(RoleError::NoSandbox(CRIO_KIND, CRIO_SANDBOX)),
            },
            other => Err(RoleError::UnknownType(CRIO_KIND, other.to_owned())),
        }
    }
}

/// The annotations that a role can be told by, as far as they are there.
pub(crate) fn role_annotations<'a>(
    annotation: impl Fn(&str) -> Result<Option<Cow<'a, str>>, DocumentError>,
) -> BTreeMap<&'static str, String> {
    let keys = [
        KIND,
        SANDBOX,
        UID,
        CRIO_KIND,
        CRIO_SANDBOX,
        CRIO_LABELS,
        LABEL_UID,
        MANAGER,
    ];
    let found = keys.into_iter().filter_map(|key| {
        let value = annotation(key).ok().flatten()?;
        Some((key, value.into_owned()))
    });
    found.collect()
}

fn labelled_uid(labels: Option<&str>) -> Option<String> {
    let labels: BTreeMap<String, serde_json::Value> = serde_json::from_str(labels?).ok()?;
    let uid = labels.get(LABEL_UID)?.as_str()?;
    is_file_name(uid).then(|| uid.to_owned())
}

/// Whether a uid can be a directory's name: it becomes part of a path that is listed.
fn is_file_name(uid: &str) -> bool {
    !uid.is_empty() && uid != "." && uid != ".." && !uid.contains(['/', '\0'])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role(annotations: &[(&str, &str)]) -> Result<Role, RoleError> {
        Role::from_annotations(|key| {
            let found = annotations.iter().find(|(name, _)| *name == key);
            Ok(found.map(|(_, value)| Cow::Borrowed(*value)))
        })
    }

    #[test]
    fn containerds_annotations_are_understood() {
        let sandbox = role(&[
            ("io.kubernetes.cri.container-type", "sandbox"),
            ("io.kubernetes.cri.sandbox-uid", "uid-1"),
        ]);
        assert_eq!(
            sandbox.unwrap(),
            Role::Sandbox {
                pod_uid: Some("uid-1".into())
            }
        );
        let app = role(&[
            ("io.kubernetes.cri.container-type", "container"),
            ("io.kubernetes.cri.sandbox-id", "abc"),
        ]);
        assert_eq!(
            app.unwrap(),
            Role::AppContainer {
                sandbox_id: "abc".into(),
                pod_uid: None
            }
        );
    }

    #[test]
    fn crios_annotations_are_understood() {
        let labels = r#"{"io.kubernetes.pod.uid":"uid-1","app":"x"}"#;
        let sandbox = role(&[
            ("io.kubernetes.cri-o.ContainerType", "sandbox"),
            ("io.kubernetes.cri-o.Labels", labels),
            ("io.kubernetes.pod.uid", "uid-1"),
        ]);
        let pod_uid = Some("uid-1".to_owned());
        assert_eq!(
            sandbox.unwrap(),
            Role::Sandbox {
                pod_uid: pod_uid.clone()
            }
        );
        let app = role(&[
            ("io.kubernetes.cri-o.ContainerType", "container"),
            ("io.kubernetes.cri-o.SandboxID", "abc"),
            ("io.kubernetes.cri-o.Labels", labels),
            ("io.kubernetes.pod.uid", "uid-1"),
        ]);
        let sandbox_id = "abc".to_owned();
        assert_eq!(
            app.unwrap(),
            Role::AppContainer {
                sandbox_id,
                pod_uid
            }
        );
    }

    #[test]
    fn two_runtimes_words_for_one_container_are_nobodys() {
        for kind in ["sandbox", "container"] {
            let mixed = role(&[
                ("io.kubernetes.cri-o.ContainerType", kind),
                ("io.kubernetes.cri-o.SandboxID", "own"),
                (
                    "io.kubernetes.cri-o.Labels",
                    r#"{"io.kubernetes.pod.uid":"one"}"#,
                ),
                ("io.kubernetes.pod.uid", "one"),
                ("io.kubernetes.cri.container-type", kind),
                ("io.kubernetes.cri.sandbox-id", "abc"),
                ("io.kubernetes.cri.sandbox-uid", "other"),
            ]);
            assert!(matches!(mixed, Err(RoleError::TwoRuntimes)), "{mixed:?}");
        }
    }

    #[test]
    fn two_uids_are_no_uid() {
        let pod = |labels: &str, flat: &str| {
            role(&[
                ("io.kubernetes.cri-o.ContainerType", "container"),
                ("io.kubernetes.cri-o.SandboxID", "abc"),
                ("io.kubernetes.cri-o.Labels", labels),
                ("io.kubernetes.pod.uid", flat),
            ])
        };
        let forged = pod(r#"{"io.kubernetes.pod.uid":"victim"}"#, "mine");
        assert!(
            matches!(forged, Err(RoleError::TwoUids { .. })),
            "{forged:?}"
        );
        let unflattened = role(&[
            ("io.kubernetes.cri-o.ContainerType", "sandbox"),
            (
                "io.kubernetes.cri-o.Labels",
                r#"{"io.kubernetes.pod.uid":"victim"}"#,
            ),
        ]);
        assert!(
            matches!(unflattened, Err(RoleError::NoUid)),
            "{unflattened:?}"
        );
        for labels in ["{}", "x", r#"{"io.kubernetes.pod.uid":"../x"}"#] {
            let none = pod(labels, "mine");
            assert!(matches!(none, Err(RoleError::NoUid)), "{none:?}");
        }
    }

    #[test]
    fn a_container_of_podmans_pod_is_no_crios() {
        let pod = [
            ("io.container.manager", "libpod"),
            ("io.kubernetes.cri-o.ContainerType", "container"),
            ("io.kubernetes.cri-o.SandboxID", "abc"),
        ];
        assert_eq!(role(&pod).unwrap(), Role::Standalone);
        // A CRI-O that labels otherwise isn't one that needs no pod.
        assert!(matches!(role(&pod[1..]), Err(RoleError::NoUid)));
    }

    #[test]
    fn without_cri_the_caller_is_root() {
        assert_eq!(
            role(&[("org.example", "sandbox")]).unwrap(),
            Role::Standalone
        );
    }

    #[test]
    fn a_uid_that_would_leave_the_pods_directory_is_no_uid() {
        for uid in ["", "..", ".", "a/../b"] {
            let sandbox = role(&[
                ("io.kubernetes.cri.container-type", "sandbox"),
                ("io.kubernetes.cri.sandbox-uid", uid),
            ]);
            assert_eq!(sandbox.unwrap(), Role::Sandbox { pod_uid: None }, "{uid:?}");
        }
    }

    #[test]
    fn contradictions_are_refused() {
        assert!(role(&[("io.kubernetes.cri.container-type", "pod")]).is_err());
        assert!(role(&[("io.kubernetes.cri.container-type", "container")]).is_err());
    }
}
