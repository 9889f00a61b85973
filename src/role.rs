//! What a container is to its pod, by the annotations that CRI runtimes write.

use std::borrow::Cow;

use crate::oci::DocumentError;

/// What a container is to its pod.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The pod's sandbox: it lives as long as the pod, and the volumes are mounted in it.
    Sandbox {
        /// The pod's uid, where the CRI runtime tells it.
        pod_uid: Option<String>,
    },
    /// A container of a pod.
    Member {
        /// The sandbox's id as the annotation has it: it leads to a record and proves nothing.
        sandbox_id: String,
    },
    /// Not of a CRI runtime: podman, docker, a plain bundle. Its caller is root.
    Standalone,
}

/// containerd's keys. It writes them last, so that a pod's own annotations never stand for them.
const KIND: &str = "io.kubernetes.cri.container-type";
const SANDBOX: &str = "io.kubernetes.cri.sandbox-id";
const UID: &str = "io.kubernetes.cri.sandbox-uid";
/// CRI-O's key. Where it stands, containerd's are the user's words.
const CRIO_KIND: &str = "io.kubernetes.cri-o.ContainerType";

/// A config that doesn't tell what its container is to its pod. Only a mount of a volume makes
/// that matter.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RoleError {
    #[error("config.json: annotation {KIND} is {0:?}, neither \"sandbox\" nor \"container\"")]
    UnknownType(String),
    #[error(
        "config.json: annotation {KIND} says that this is a pod's container, {SANDBOX} doesn't say whose"
    )]
    NoSandbox,
    #[error(
        "config.json: annotation {CRIO_KIND} says that this is CRI-O's; hint: this version works with containerd"
    )]
    Crio,
    #[error(transparent)]
    Document(#[from] DocumentError),
}

impl Role {
    /// `annotation` gives the value of a key.
    pub(crate) fn of<'a>(
        annotation: impl Fn(&str) -> Result<Option<Cow<'a, str>>, DocumentError>,
    ) -> Result<Self, RoleError> {
        if annotation(CRIO_KIND)?.is_some() {
            return Err(RoleError::Crio);
        }
        let Some(kind) = annotation(KIND)? else {
            return Ok(Self::Standalone);
        };
        match &*kind {
            "sandbox" => {
                let pod_uid = annotation(UID)?.map(Cow::into_owned);
                let pod_uid = pod_uid.filter(|uid| is_file_name(uid));
                Ok(Self::Sandbox { pod_uid })
            }
            "container" => match annotation(SANDBOX)? {
                Some(id) => Ok(Self::Member {
                    sandbox_id: id.into_owned(),
                }),
                None => Err(RoleError::NoSandbox),
            },
            other => Err(RoleError::UnknownType(other.to_owned())),
        }
    }
}

/// Whether a uid can be a directory's name: it becomes part of a path that is listed.
fn is_file_name(uid: &str) -> bool {
    !uid.is_empty() && uid != "." && uid != ".." && !uid.contains(['/', '\0'])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role(annotations: &[(&str, &str)]) -> Result<Role, RoleError> {
        Role::of(|key| {
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
            Role::Member {
                sandbox_id: "abc".into()
            }
        );
    }

    #[test]
    fn beside_crios_annotations_containerds_are_the_users_words() {
        for kind in ["sandbox", "container"] {
            let mixed = role(&[
                ("io.kubernetes.cri-o.ContainerType", "container"),
                ("io.kubernetes.cri.container-type", kind),
                ("io.kubernetes.cri.sandbox-id", "abc"),
                ("io.kubernetes.cri.sandbox-uid", "victim"),
            ]);
            assert!(matches!(mixed, Err(RoleError::Crio)), "{mixed:?}");
        }
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
