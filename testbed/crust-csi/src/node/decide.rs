//! Decides whether a pod may have a volume that other pods have.

use crust_state::info::{AccessMode, PodAccess};

use crate::refusal::Refusal;
use crate::store::{Mounter, Publication};

/// The step for a publication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PublishStep<'p> {
    /// It is there, by this record: whatever of it isn't is made again.
    Existing(&'p Publication),
    /// It isn't there yet.
    New,
}

/// Decides whether a volume may be published once more. `live` has the publications that really exist, by their target
/// paths.
///
/// This is the table of CSI's `NodePublishVolume`. Kubelets before KEP-2485 say `SINGLE_NODE_WRITER` for
/// `ReadWriteOnce`, which several pods of a node may have: such a publication is refused only for newer modes of
/// others.
pub(super) fn decide<'p>(
    volume: &str,
    target: &str,
    wanted: &Publication,
    live: &[(&str, &'p Publication)],
) -> Result<PublishStep<'p>, Refusal> {
    // What is there stays, whoever else has the volume.
    if let Some((_, there)) = live.iter().find(|(path, _)| *path == target) {
        if is_same(there, wanted) {
            return Ok(PublishStep::Existing(there));
        }
        let what = format!("it is published at {target}, {}", difference(there, wanted));
        return Err(Refusal::exists(volume, what));
    }
    for &(path, publication) in live {
        let modes = [publication.usage.mode, wanted.usage.mode];
        if let Some(mode) = modes
            .into_iter()
            .find(|mode| mode.access() == PodAccess::Exclusive)
        {
            return Err(Refusal::state(volume, exclusive(mode, path)));
        }
        if publication.usage.mount.is_none() != wanted.usage.mount.is_none() {
            let what = format!(
                "it is published at {path} {}; hint: as both, each would destroy the other's data",
                kind(publication)
            );
            return Err(Refusal::state(volume, what));
        }
        if publication.usage.is_read_only() != wanted.usage.is_read_only() {
            let what = format!(
                "it is published at {path} with {}; hint: a file system is read-only for all pods of a node or for none; `readonly` is each pod's own",
                publication.usage.mode
            );
            return Err(Refusal::state(volume, what));
        }
        if publication.by != wanted.by {
            let what = format!(
                "it is published at {path}, where {} mounts it, and not {}; hint: all pods of a node have a volume in the same way",
                who(publication.by),
                who(wanted.by),
            );
            return Err(Refusal::state(volume, what));
        }
    }
    Ok(PublishStep::New)
}

/// Returns whether a request is that of an existing publication. A driver with other features may have read the same
/// request in another way, and kubelet repeats it after its own restart, with the pod running (KEP-2857, stories 4 and
/// 5).
fn is_same(there: &Publication, wanted: &Publication) -> bool {
    let is_understood = there.features != wanted.features
        || (there.by == wanted.by && there.usage.has_same_groups(&wanted.usage));
    is_understood
        && there.read_only == wanted.read_only
        && there.usage.has_same_usage(&wanted.usage)
}

fn exclusive(mode: AccessMode, path: &str) -> String {
    format!(
        "it is published at {path}, and {mode} (ReadWriteOncePod) allows one pod; hint: wait until that one has ended"
    )
}

const fn kind(publication: &Publication) -> &'static str {
    if publication.usage.mount.is_some() {
        "as a file system"
    } else {
        "as a block device"
    }
}

const fn who(by: Mounter) -> &'static str {
    match by {
        Mounter::Driver => "the driver",
        Mounter::Runtime => "the container runtime",
        Mounter::Kubelet => "the container runtime, on kubelet's behalf,",
    }
}

fn difference(there: &Publication, wanted: &Publication) -> &'static str {
    if there.by != wanted.by {
        "and mounted by another"
    } else if there.read_only != wanted.read_only {
        "and `readonly` was another"
    } else {
        "with another volume_capability"
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;
    use crate::capability::{Capability, MountCapability};
    use crate::format::fstype_named;

    fn publication(mode: AccessMode, by: Mounter) -> Publication {
        Publication {
            usage: Capability {
                mode,
                mount: Some(MountCapability {
                    fstype: fstype_named("ext4"),
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

    fn of<'p>(
        wanted: &Publication,
        live: &[(&str, &'p Publication)],
    ) -> Result<PublishStep<'p>, Code> {
        decide("v", "/here", wanted, live).map_err(|refusal| refusal.into_status().code())
    }

    #[test]
    fn a_second_target_is_the_access_modes_matter() {
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
        for (there, wanted, expected) in cases {
            let there = publication(there, Mounter::Driver);
            let wanted = publication(wanted, Mounter::Driver);
            assert_eq!(
                of(&wanted, &[("/there", &there)]),
                expected,
                "{there:?} {wanted:?}"
            );
        }
    }

    #[test]
    fn the_same_target_is_the_same_publication_or_another() {
        let mode = AccessMode::SingleNodeSingleWriter;
        let there = publication(mode, Mounter::Runtime);
        assert_eq!(
            of(&there, &[("/here", &there)]),
            Ok(PublishStep::Existing(&there))
        );
        assert_eq!(of(&there, &[]), Ok(PublishStep::New));
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
            let step = of(&newer, &[("/here", &older)]);
            assert_eq!(step, Ok(PublishStep::Existing(&older)), "a newer name");
        }
        let others = [
            read_only,
            publication(mode, Mounter::Driver),
            publication(AccessMode::SingleNodeMultiWriter, Mounter::Runtime),
        ];
        for other in others {
            assert_eq!(
                of(&other, &[("/here", &there)]),
                Err(Code::AlreadyExists),
                "{other:?}"
            );
        }
    }

    #[test]
    fn a_request_under_other_features_keeps_what_is_published() {
        let mode = AccessMode::SingleNodeWriter;
        let there = publication(mode, Mounter::Runtime);
        let mut wanted = publication(mode, Mounter::Driver);
        wanted.usage.mount.as_mut().unwrap().group = Some(7);
        assert_eq!(of(&wanted, &[("/here", &there)]), Err(Code::AlreadyExists));
        wanted.features = vec!["VOLUME_MOUNT_GROUP".to_owned()];
        let step = of(&wanted, &[("/here", &there)]);
        assert_eq!(
            step,
            Ok(PublishStep::Existing(&there)),
            "what is there stays"
        );
        let other = there.clone();
        let step = of(&wanted, &[("/here", &there), ("/there", &other)]);
        assert_eq!(
            step,
            Ok(PublishStep::Existing(&there)),
            "beside a second pod, too"
        );
        wanted.read_only = true;
        assert_eq!(of(&wanted, &[("/here", &there)]), Err(Code::AlreadyExists));
    }

    #[test]
    fn pods_of_a_node_have_a_volume_in_the_same_way() {
        let mode = AccessMode::SingleNodeMultiWriter;
        let there = publication(mode, Mounter::Driver);
        let mut block = there.clone();
        block.usage.mount = None;
        for wanted in [
            publication(mode, Mounter::Runtime),
            publication(mode, Mounter::Kubelet),
            block,
        ] {
            let refused = of(&wanted, &[("/there", &there)]);
            assert_eq!(refused, Err(Code::FailedPrecondition), "{wanted:?}");
        }
    }
}
