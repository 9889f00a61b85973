//! Volumes that pods use, measured now and then.

use tokio::sync::mpsc;

use super::Done;
use super::pods::Pods;
use super::volumes::Volumes;
use crate::metrics::VolumeStats;
use crate::objects::Name;
use crate::operations::{Context, Publication, Telling, stats};
use crate::volumes::actual::Certainty;

/// What is measured.
#[derive(Debug)]
struct Measured {
    publication: Publication,
    claim: Name,
    runtime: Option<Telling>,
}

/// Measures one after another, and tells how they fare.
pub(super) fn measure(
    context: &Context,
    pods: &Pods,
    volumes: &Volumes,
    done: mpsc::UnboundedSender<Done>,
) {
    let measured = measured(pods, volumes);
    let context = context.clone();
    tokio::spawn(async move {
        let mut told = Vec::new();
        for Measured {
            publication,
            claim,
            runtime,
        } in measured
        {
            match stats(&context, &publication, runtime.as_ref()).await {
                Ok(Some(stats)) => told.push(VolumeStats { claim, stats }),
                Ok(None) => {}
                // As kubelet, that logs it alone.
                Err(error) => {
                    let error = crust_state::sentence(&error);
                    let (pod, id) = (&publication.pod, &publication.id);
                    tracing::warn!("statistics of {id} in pod {pod}: {error}");
                }
            }
        }
        context.metrics.set_volume_stats(told);
        let _ = done.send(Done::Measured);
    });
}

/// Volumes of claims in pods that run. A deferred one can't be measured before its pod's sandbox is there.
fn measured(pods: &Pods, volumes: &Volumes) -> Vec<Measured> {
    let mut measured = Vec::new();
    for (id, volume) in &volumes.desired().volumes {
        for (uid, spec) in &volume.mounts {
            let mount = volumes.actual().mount(id, uid);
            let mount = mount.filter(|it| it.certainty == Certainty::Certain);
            let (Some(mount), Some(claim)) = (mount, &spec.volume.claim) else {
                continue;
            };
            let observed = pods.known().get(uid).and_then(|it| it.observed.as_ref());
            if observed.is_none_or(|it| it.alive().next().is_none()) {
                continue;
            }
            measured.push(Measured {
                publication: Publication {
                    id: id.clone(),
                    pod: uid.clone(),
                    directory: mount.directory.clone(),
                    mounter: mount.mounter,
                },
                claim: claim.clone(),
                runtime: pods.telling(uid, spec, mount.mounter),
            });
        }
    }
    measured
}
