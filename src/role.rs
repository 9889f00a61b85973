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

/// containerd's and CRI-O's keys: type, sandbox id, pod uid.
const DIALECTS: [[&str; 3]; 2] = [
    [
        "io.kubernetes.cri.container-type",
        "io.kubernetes.cri.sandbox-id",
        "io.kubernetes.cri.sandbox-uid",
    ],
    [
        "io.kubernetes.cri-o.ContainerType",
        "io.kubernetes.cri-o.SandboxID",
        "io.kubernetes.pod.uid",
    ],
];

/// A config whose annotations contradict themselves.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RoleError {
    #[error("config.json: annotation {0} is {1:?}, neither \"sandbox\" nor \"container\"")]
    UnknownType(&'static str, String),
    #[error(
        "config.json: annotation {0} says that this is a pod's container, {1} doesn't say whose"
    )]
    NoSandbox(&'static str, &'static str),
    #[error(transparent)]
    Document(#[from] DocumentError),
}

impl Role {
    /// `annotation` gives the value of a key.
    pub(crate) fn of<'a>(
        annotation: impl Fn(&str) -> Result<Option<Cow<'a, str>>, DocumentError>,
    ) -> Result<Self, RoleError> {
        for [kind_key, sandbox_key, uid_key] in DIALECTS {
            let Some(kind) = annotation(kind_key)? else {
                continue;
            };
            return match &*kind {
                "sandbox" => {
                    let pod_uid = annotation(uid_key)?.map(Cow::into_owned);
                    Ok(Self::Sandbox {
                        pod_uid: pod_uid.filter(|uid| is_file_name(uid)),
                    })
                }
                "container" => match annotation(sandbox_key)? {
                    Some(id) => Ok(Self::Member {
                        sandbox_id: id.into_owned(),
                    }),
                    None => Err(RoleError::NoSandbox(kind_key, sandbox_key)),
                },
                other => Err(RoleError::UnknownType(kind_key, other.to_owned())),
            };
        }
        Ok(Self::Standalone)
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
    fn crios_annotations_are_understood() {
        let app = role(&[
            ("io.kubernetes.cri-o.ContainerType", "container"),
            ("io.kubernetes.cri-o.SandboxID", "abc"),
        ]);
        assert_eq!(
            app.unwrap(),
            Role::Member {
                sandbox_id: "abc".into()
            }
        );
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
