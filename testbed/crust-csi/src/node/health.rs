//! `NodeGetVolumeHealth` (CSI 1.13): the same findings as `NodeGetVolumeStats`, without numbers. It may be asked about
//! a volume that couldn't be staged or published.

use crust_proto::csi::v1::{
    NodeGetVolumeHealthRequest, NodeGetVolumeHealthResponse, VolumeHealthErrorType,
};
use crust_state::TargetPath;
use tonic::Code;

use super::stats::UsageAndHealth;
use crate::driver::{Driver, check_present, parse_volume_path, path_key};
use crate::features::Feature;
use crate::health::{Health, Problem};
use crate::refusal::Refusal;
use crate::store::{Mounter, Record};

impl Driver {
    /// `NodeGetVolumeHealth`. Without a target path, all of the volume's are looked at.
    pub(crate) fn health(
        &self,
        request: &NodeGetVolumeHealthRequest,
    ) -> Result<NodeGetVolumeHealthResponse, Refusal> {
        self.check_feature(Feature::GetVolumeHealth, "GET_VOLUME_HEALTH")?;
        let id = request.volume_id.as_str();
        check_present("volume_id", id)?;
        let record = self.record(id)?;
        let mut health = self.image_health(id, &record)?;
        let places = if request.volume_publish_path.is_empty() {
            let published = record.published.keys();
            published
                .filter_map(|path| TargetPath::new(path).ok())
                .collect()
        } else {
            vec![parse_volume_path(id, &request.volume_publish_path)?]
        };
        for place in places {
            health.extend(self.health_at(id, &record, &place)?);
        }
        Ok(NodeGetVolumeHealthResponse {
            volume_health: Some(health.into_volume_health(id)),
        })
    }

    fn health_at(&self, id: &str, record: &Record, place: &TargetPath) -> Result<Health, Refusal> {
        match self.inspect_at(id, record, place, false) {
            Err(Refusal::NotAtPath { .. }) => self.recheck_missing_mount(id, place),
            looked => health_seen(looked),
        }
    }

    /// Looks again where nothing is mounted, while no call publishes or unpublishes there: both keep the
    /// record while nothing is mounted yet, or any more. If one is under way, nothing is wrong. Such a call
    /// is told to try again if it comes during the look.
    fn recheck_missing_mount(&self, id: &str, place: &TargetPath) -> Result<Health, Refusal> {
        let Ok(_turn) = self.lock_target(id, place) else {
            return Ok(Health::default());
        };
        let record = self.record(id)?;
        let by = record.published.get(&path_key(place)).map(|it| it.by);
        match self.inspect_at(id, &record, place, false) {
            // The mount is gone since a boot, or somebody has unmounted it.
            Err(Refusal::NotAtPath { .. }) if by == Some(Mounter::Driver) => Ok(Problem {
                status: VolumeHealthErrorType::Inaccessible,
                reason: "NotMounted",
                message: format!(
                    "{}: the volume is published there, and isn't mounted; hint: the pod has to be started anew",
                    place.as_path().display()
                ),
            }
            .into()),
            looked => health_seen(looked),
        }
    }
}

/// Returns the problems that a look has found; none where nothing is to be seen yet.
fn health_seen(looked: Result<UsageAndHealth, Refusal>) -> Result<Health, Refusal> {
    match looked {
        Ok(look) => Ok(look.health),
        Err(Refusal::NotAtPath { .. }) => Ok(Health::default()),
        // No container has it yet.
        Err(Refusal::Ops { failure, .. }) if failure.code() == Code::FailedPrecondition => {
            Ok(Health::default())
        }
        Err(other) => Err(other),
    }
}
