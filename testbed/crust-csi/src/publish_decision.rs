//! Decides whether a pod may use a volume that other pods use.

use crust_state::info::{AccessMode, PodAccess};

use crate::capability::FileSystem;
use crate::refusal::Refusal;
use crate::store::{Mounter, Publication};

/// The decision about a publish request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PublishStep<'p, F> {
    /// The publication exists, with this record. Missing parts of it are restored.
    Existing(&'p Publication<F>),
    /// The publication doesn't exist yet.
    New,
}

/// Decides whether a volume may be published at `target`. `existing` has the publications that really exist, by their
/// target paths.
///
/// This is the table in CSI's `NodePublishVolume`. A kubelet before KEP-2485 uses `SINGLE_NODE_WRITER` for
/// `ReadWriteOnce`, which permits several pods on a node. So a publication with this mode is refused only because of
/// another publication's newer mode. A file system that nodes can share is mounted by several programs without harm.
pub(crate) fn decide<'p, F: FileSystem>(
    volume: &str,
    target: &str,
    requested: &Publication<F>,
    existing: &[(&str, &'p Publication<F>)],
) -> Result<PublishStep<'p, F>, Refusal> {
    // An existing publication is kept, regardless of other publications.
    if let Some((_, published)) = existing.iter().find(|(path, _)| *path == target) {
        if is_same(published, requested) {
            return Ok(PublishStep::Existing(published));
        }
        let message = format!(
            "it is published at {target}, {}",
            difference(published, requested)
        );
        return Err(Refusal::exists(volume, message));
    }
    for &(path, publication) in existing {
        let modes = [publication.usage.mode, requested.usage.mode];
        if let Some(mode) = modes
            .into_iter()
            .find(|mode| mode.access() == PodAccess::Exclusive)
        {
            return Err(Refusal::state(volume, describe_exclusive_use(mode, path)));
        }
        if publication.usage.mount.is_none() != requested.usage.mount.is_none() {
            let message = format!(
                "it is published at {path} {}; hint: use it only as a file system or only as a block device, because each \
                 would destroy the other's data",
                access_type(publication)
            );
            return Err(Refusal::state(volume, message));
        }
        if publication.usage.is_read_only() != requested.usage.is_read_only() {
            let message = format!(
                "it is published at {path} with {}; hint: use the same access mode, because it makes the file system \
                 read-only for all pods on the node; use `readonly` for a single pod",
                publication.usage.mode
            );
            return Err(Refusal::state(volume, message));
        }
        if publication.by != requested.by && !F::IS_SHARED_BY_NODES {
            let message = format!(
                "it is published at {path}, where {} mounts it, and not {}; hint: let the same program mount the volume for all pods on the node",
                describe_mounter(publication.by),
                describe_mounter(requested.by),
            );
            return Err(Refusal::state(volume, message));
        }
    }
    Ok(PublishStep::New)
}

/// Returns whether a request is the same as the request of an existing publication. kubelet repeats the request after
/// its own restart, while the pod runs. A driver with other features may have read the same request differently, so the
/// mounter and the groups are only compared if the features are the same (KEP-2857, stories 4 and 5).
fn is_same<F: FileSystem>(published: &Publication<F>, requested: &Publication<F>) -> bool {
    let is_read_alike = published.features != requested.features
        || (published.by == requested.by && published.usage.has_same_groups(&requested.usage));
    is_read_alike
        && published.read_only == requested.read_only
        && published.usage.has_same_usage(&requested.usage)
}

fn describe_exclusive_use(mode: AccessMode, path: &str) -> String {
    format!(
        "it is published at {path}, and {mode} (ReadWriteOncePod) allows one pod; hint: wait until that pod has ended"
    )
}

const fn access_type<F>(publication: &Publication<F>) -> &'static str {
    if publication.usage.mount.is_some() {
        "as a file system"
    } else {
        "as a block device"
    }
}

const fn describe_mounter(by: Mounter) -> &'static str {
    match by {
        Mounter::Driver => "the driver",
        Mounter::Runtime => "the container runtime",
        Mounter::Kubelet => "the container runtime, on kubelet's behalf,",
    }
}

fn difference<F>(published: &Publication<F>, requested: &Publication<F>) -> &'static str {
    if published.by != requested.by {
        "and mounted by another"
    } else if published.read_only != requested.read_only {
        "with another `readonly`"
    } else {
        "with another volume_capability"
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;
    use crate::block::{Fstype, Publication};
    use crate::capability::{Capability, MountCapability};

    fn publication(mode: AccessMode, by: Mounter) -> Publication {
        Publication {
            usage: Capability {
                mode,
                mount: Some(MountCapability {
                    fstype: "ext4".parse().unwrap(),
                    options: Vec::new(),
                    group: None,
                    change_policy: None,
                }),
            },
            read_only: false,
            by,
            features: Vec::new(),
        }
    }

    fn step_or_code<'p>(
        requested: &Publication,
        existing: &[(&str, &'p Publication)],
    ) -> Result<PublishStep<'p, Fstype>, Code> {
        decide("v", "/here", requested, existing).map_err(|refusal| refusal.into_status().code())
    }

    #[test]
    fn the_access_mode_decides_about_a_second_target() {
        use AccessMode::{SingleNodeMultiWriter, SingleNodeSingleWriter, SingleNodeWriter};
        let cases = [
            (
                SingleNodeMultiWriter,
                SingleNodeMultiWriter,
                Ok(PublishStep::New),
            ),
            (SingleNodeWriter, SingleNodeWriter, Ok(PublishStep::New)),
            (
                SingleNodeSingleWriter,
                SingleNodeSingleWriter,
                Err(Code::FailedPrecondition),
            ),
            (
                SingleNodeSingleWriter,
                SingleNodeMultiWriter,
                Err(Code::FailedPrecondition),
            ),
            (
                SingleNodeMultiWriter,
                SingleNodeSingleWriter,
                Err(Code::FailedPrecondition),
            ),
        ];
        for (there, requested, expected) in cases {
            let there = publication(there, Mounter::Driver);
            let requested = publication(requested, Mounter::Driver);
            assert_eq!(
                step_or_code(&requested, &[("/there", &there)]),
                expected,
                "{there:?} {requested:?}"
            );
        }
    }

    #[test]
    fn a_publication_at_the_same_target_is_the_same_or_a_conflict() {
        let mode = AccessMode::SingleNodeSingleWriter;
        let there = publication(mode, Mounter::Runtime);
        assert_eq!(
            step_or_code(&there, &[("/here", &there)]),
            Ok(PublishStep::Existing(&there))
        );
        assert_eq!(step_or_code(&there, &[]), Ok(PublishStep::New));
        let read_only = Publication {
            read_only: true,
            ..there.clone()
        };
        let older = publication(AccessMode::SingleNodeWriter, Mounter::Runtime);
        for newer in [
            AccessMode::SingleNodeMultiWriter,
            AccessMode::SingleNodeSingleWriter,
        ] {
            let newer = publication(newer, Mounter::Runtime);
            let step = step_or_code(&newer, &[("/here", &older)]);
            assert_eq!(step, Ok(PublishStep::Existing(&older)), "a newer name");
        }
        let others = [
            read_only,
            publication(mode, Mounter::Driver),
            publication(AccessMode::SingleNodeMultiWriter, Mounter::Runtime),
        ];
        for other in others {
            assert_eq!(
                step_or_code(&other, &[("/here", &there)]),
                Err(Code::AlreadyExists),
                "{other:?}"
            );
        }
    }

    #[test]
    fn an_existing_publication_is_kept_under_other_features() {
        let mode = AccessMode::SingleNodeWriter;
        let there = publication(mode, Mounter::Runtime);
        let mut requested = publication(mode, Mounter::Driver);
        requested.usage.mount.as_mut().unwrap().group = Some(7);
        assert_eq!(
            step_or_code(&requested, &[("/here", &there)]),
            Err(Code::AlreadyExists)
        );
        requested.features = vec!["VOLUME_MOUNT_GROUP".to_owned()];
        let step = step_or_code(&requested, &[("/here", &there)]);
        assert_eq!(
            step,
            Ok(PublishStep::Existing(&there)),
            "the existing publication is kept"
        );
        let other = there.clone();
        let step = step_or_code(&requested, &[("/here", &there), ("/there", &other)]);
        assert_eq!(
            step,
            Ok(PublishStep::Existing(&there)),
            "beside a second pod, too"
        );
        requested.read_only = true;
        assert_eq!(
            step_or_code(&requested, &[("/here", &there)]),
            Err(Code::AlreadyExists)
        );
    }

    #[test]
    fn all_pods_on_a_node_get_a_volume_in_the_same_way() {
        let mode = AccessMode::SingleNodeMultiWriter;
        let there = publication(mode, Mounter::Driver);
        let mut block = there.clone();
        block.usage.mount = None;
        for requested in [
            publication(mode, Mounter::Runtime),
            publication(mode, Mounter::Kubelet),
            block,
        ] {
            let refused = step_or_code(&requested, &[("/there", &there)]);
            assert_eq!(refused, Err(Code::FailedPrecondition), "{requested:?}");
        }
    }
}
