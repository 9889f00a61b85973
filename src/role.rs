//! Determines the role of a container in its pod from the annotations that CRI runtimes write.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::oci::DocumentError;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The pod's sandbox. It lives as long as the pod, and the volumes are mounted in it.
    Sandbox {
        /// The pod's UID, if the CRI runtime writes it.
        pod_uid: Option<String>,
    },
    /// A container of a pod that isn't the sandbox.
    AppContainer {
        /// The sandbox's id from the annotation. It is used to find the sandbox's record and isn't proof of anything.
        sandbox_id: String,
        /// The pod's UID, set for CRI-O only: a sandbox of CRI-O need not be a container, and then it has no record.
        pod_uid: Option<String>,
    },
    /// A container that wasn't created by a CRI runtime, but by podman, docker or a caller with a plain bundle. The
    /// caller is root.
    Standalone,
}

// containerd's annotations. containerd writes them after the pod's own annotations, so a pod can't override them.
const CONTAINERD_TYPE: &str = "io.kubernetes.cri.container-type";
const CONTAINERD_SANDBOX_ID: &str = "io.kubernetes.cri.sandbox-id";
const CONTAINERD_POD_UID: &str = "io.kubernetes.cri.sandbox-uid";

// CRI-O's annotations.
const CRIO_TYPE: &str = "io.kubernetes.cri-o.ContainerType";
const CRIO_SANDBOX_ID: &str = "io.kubernetes.cri-o.SandboxID";
/// kubelet's labels as a JSON object.
///
/// In an app container's config CRI-O writes them after the pod's annotations. In a sandbox's config a pod's annotation
/// can override them, but not [`POD_UID_LABEL`], because CRI-O writes the single labels last.
const CRIO_LABELS: &str = "io.kubernetes.cri-o.Labels";
const POD_UID_LABEL: &str = "io.kubernetes.pod.uid";

/// The program that created the container; `libpod` for podman.
const MANAGER: &str = "io.container.manager";

/// The role can't be determined from the config. This only matters if the container mounts a volume.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RoleError {
    #[error(
        "config.json: annotation {0} is {1:?}, neither \"sandbox\" nor \"container\"; hint: remove it from the pod if \
         it is set there"
    )]
    UnknownType(&'static str, String),
    #[error(
        "config.json: annotation {0} says that this is a container of a pod, but annotation {1}, which names the pod's \
         sandbox, is missing"
    )]
    NoSandbox(&'static str, &'static str),
    #[error(
        "config.json: annotation {CONTAINERD_TYPE} is containerd's and {CRIO_TYPE} is CRI-O's, so one of them was set \
         by the pod; hint: remove that annotation from the pod"
    )]
    TwoRuntimes,
    #[error(
        "config.json: annotation {CRIO_TYPE} says that CRI-O created this container, but {CRIO_LABELS} or \
         {POD_UID_LABEL} doesn't contain the pod's UID"
    )]
    NoUid,
    #[error(
        "config.json: annotation {POD_UID_LABEL} is {annotated:?}, but {CRIO_LABELS} contains {labelled:?}, so one of \
         them was not set by kubelet; hint: remove the annotation from the pod"
    )]
    TwoUids { annotated: String, labelled: String },
    #[error(transparent)]
    Document(#[from] DocumentError),
}

impl Role {
    /// Determines the role. `annotation` returns the value of an annotation's key.
    pub(crate) fn from_annotations<'a>(
        annotation: impl Fn(&str) -> Result<Option<Cow<'a, str>>, DocumentError>,
    ) -> Result<Self, RoleError> {
        let kind = match (annotation(CONTAINERD_TYPE)?, annotation(CRIO_TYPE)?) {
            (None, None) => return Ok(Self::Standalone),
            (None, Some(kind)) => return Self::from_crio_annotations(&kind, annotation),
            (Some(kind), None) => kind,
            // A runtime writes only its own keys and copies the pod's, so the other key was set by the pod.
            (Some(_), Some(_)) => return Err(RoleError::TwoRuntimes),
        };
        match &*kind {
            "sandbox" => {
                let pod_uid = annotation(CONTAINERD_POD_UID)?.map(Cow::into_owned);
                let pod_uid = pod_uid.filter(|uid| is_file_name(uid));
                Ok(Self::Sandbox { pod_uid })
            }
            "container" => match annotation(CONTAINERD_SANDBOX_ID)? {
                Some(id) => Ok(Self::AppContainer {
                    sandbox_id: id.into_owned(),
                    pod_uid: None,
                }),
                None => Err(RoleError::NoSandbox(CONTAINERD_TYPE, CONTAINERD_SANDBOX_ID)),
            },
            other => Err(RoleError::UnknownType(CONTAINERD_TYPE, other.to_owned())),
        }
    }

    fn from_crio_annotations<'a>(
        kind: &str,
        annotation: impl Fn(&str) -> Result<Option<Cow<'a, str>>, DocumentError>,
    ) -> Result<Self, RoleError> {
        let labels = annotation(CRIO_LABELS)?;
        if labels.is_none() && annotation(MANAGER)?.as_deref() == Some("libpod") {
            // podman writes CRI-O's annotations for containers of its own pods, because Kata expects them.
            return Ok(Self::Standalone);
        }
        let pod_uid = labelled_uid(labels.as_deref());
        if let Some(labelled) = &pod_uid {
            let annotated = annotation(POD_UID_LABEL)?.ok_or(RoleError::NoUid)?;
            if *annotated != **labelled {
                return Err(RoleError::TwoUids {
                    annotated: annotated.into_owned(),
                    labelled: labelled.clone(),
                });
            }
        }
        match kind {
            "sandbox" => Ok(Self::Sandbox { pod_uid }),
            "container" => match annotation(CRIO_SANDBOX_ID)? {
                Some(id) => Ok(Self::AppContainer {
                    sandbox_id: id.into_owned(),
                    pod_uid: Some(pod_uid.ok_or(RoleError::NoUid)?),
                }),
                None => Err(RoleError::NoSandbox(CRIO_TYPE, CRIO_SANDBOX_ID)),
            },
            other => Err(RoleError::UnknownType(CRIO_TYPE, other.to_owned())),
        }
    }
}

/// Returns the annotations that the role is determined from, without those that are missing.
pub(crate) fn role_annotations<'a>(
    annotation: impl Fn(&str) -> Result<Option<Cow<'a, str>>, DocumentError>,
) -> BTreeMap<&'static str, String> {
    let keys = [
        CONTAINERD_TYPE,
        CONTAINERD_SANDBOX_ID,
        CONTAINERD_POD_UID,
        CRIO_TYPE,
        CRIO_SANDBOX_ID,
        CRIO_LABELS,
        POD_UID_LABEL,
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
    let uid = labels.get(POD_UID_LABEL)?.as_str()?;
    is_file_name(uid).then(|| uid.to_owned())
}

/// Returns whether a UID can be the name of a directory. It becomes part of the path of a directory that is listed.
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
    fn containerds_annotations_are_recognized() {
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
    fn crios_annotations_are_recognized() {
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
    fn annotations_of_two_runtimes_are_refused() {
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
    fn contradicting_or_missing_uids_are_refused() {
        let pod = |labels: &str, annotated: &str| {
            role(&[
                ("io.kubernetes.cri-o.ContainerType", "container"),
                ("io.kubernetes.cri-o.SandboxID", "abc"),
                ("io.kubernetes.cri-o.Labels", labels),
                ("io.kubernetes.pod.uid", annotated),
            ])
        };
        let forged = pod(r#"{"io.kubernetes.pod.uid":"victim"}"#, "mine");
        assert!(
            matches!(forged, Err(RoleError::TwoUids { .. })),
            "{forged:?}"
        );
        let unannotated = role(&[
            ("io.kubernetes.cri-o.ContainerType", "sandbox"),
            (
                "io.kubernetes.cri-o.Labels",
                r#"{"io.kubernetes.pod.uid":"victim"}"#,
            ),
        ]);
        assert!(
            matches!(unannotated, Err(RoleError::NoUid)),
            "{unannotated:?}"
        );
        for labels in ["{}", "x", r#"{"io.kubernetes.pod.uid":"../x"}"#] {
            let none = pod(labels, "mine");
            assert!(matches!(none, Err(RoleError::NoUid)), "{none:?}");
        }
    }

    #[test]
    fn a_container_of_a_podman_pod_is_standalone() {
        let pod = [
            ("io.container.manager", "libpod"),
            ("io.kubernetes.cri-o.ContainerType", "container"),
            ("io.kubernetes.cri-o.SandboxID", "abc"),
        ];
        assert_eq!(role(&pod).unwrap(), Role::Standalone);
        // Without podman's annotation, a container without CRI-O's labels is refused.
        assert!(matches!(role(&pod[1..]), Err(RoleError::NoUid)));
    }

    #[test]
    fn a_container_without_cri_annotations_is_standalone() {
        assert_eq!(
            role(&[("org.example", "sandbox")]).unwrap(),
            Role::Standalone
        );
    }

    #[test]
    fn a_uid_that_is_no_directory_name_is_ignored() {
        for uid in ["", "..", ".", "a/../b"] {
            let sandbox = role(&[
                ("io.kubernetes.cri.container-type", "sandbox"),
                ("io.kubernetes.cri.sandbox-uid", uid),
            ]);
            assert_eq!(sandbox.unwrap(), Role::Sandbox { pod_uid: None }, "{uid:?}");
        }
    }

    #[test]
    fn an_unknown_type_or_a_missing_sandbox_is_refused() {
        assert!(role(&[("io.kubernetes.cri.container-type", "pod")]).is_err());
        assert!(role(&[("io.kubernetes.cri.container-type", "container")]).is_err());
    }
}
