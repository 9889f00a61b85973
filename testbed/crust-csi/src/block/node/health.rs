//! `NodeGetVolumeHealth` (CSI 1.13): reports the same problems as `NodeGetVolumeStats`, without usage. It can be called
//! for a volume that couldn't be staged or published.

use crust_proto::csi::v1::{
    NodeGetVolumeHealthRequest, NodeGetVolumeHealthResponse, VolumeHealthErrorType,
};
use crust_state::TargetPath;
use tonic::Code;

use crate::block::BlockDriver;
use crate::block::record::Record;
use crate::features::Feature;
use crate::health::{Health, Problem};
use crate::refusal::Refusal;
use crate::requests::{check_present, parse_volume_path, path_key};
use crate::store::Mounter;
use crate::usage::UsageAndHealth;

impl BlockDriver {
    /// Handles `NodeGetVolumeHealth`. Without a target path, all target paths of the volume are inspected.
    pub(crate) fn health(
        &self,
        request: &NodeGetVolumeHealthRequest,
    ) -> Result<NodeGetVolumeHealthResponse, Refusal> {
        self.context
            .check_feature(Feature::GetVolumeHealth, "GET_VOLUME_HEALTH")?;
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
        for path in places {
            health.extend(self.health_at(id, &record, &path)?);
        }
        Ok(NodeGetVolumeHealthResponse {
            volume_health: Some(health.into_volume_health(id)),
        })
    }

    fn health_at(&self, id: &str, record: &Record, path: &TargetPath) -> Result<Health, Refusal> {
        match self.inspect_at(id, record, path, false) {
            Err(Refusal::NotAtPath { .. }) => self.recheck_missing_mount(id, path),
            inspected => health_from_inspection(inspected),
        }
    }

    /// Inspects a target path again at which nothing is mounted, with the path locked. During a publish or unpublish
    /// the volume has a record and no mount. If such a call is in progress, there is no problem. If one comes during
    /// the inspection, it fails with `ABORTED` and is retried.
    fn recheck_missing_mount(&self, id: &str, path: &TargetPath) -> Result<Health, Refusal> {
        let Ok(_guard) = self.context.lock_target(id, path) else {
            return Ok(Health::default());
        };
        let record = self.record(id)?;
        let by = record.published.get(&path_key(path)).map(|it| it.by);
        match self.inspect_at(id, &record, path, false) {
            // A reboot has removed the mount, or it was unmounted by hand.
            Err(Refusal::NotAtPath { .. }) if by == Some(Mounter::Driver) => Ok(Problem {
                status: VolumeHealthErrorType::Inaccessible,
                reason: "NotMounted",
                message: format!(
                    "{}: the volume is published there, but is not mounted; hint: restart the pod",
                    path.as_path().display()
                ),
            }
            .into()),
            inspected => health_from_inspection(inspected),
        }
    }
}

/// Returns the problems that were found. There are none if the volume isn't in use yet.
fn health_from_inspection(inspected: Result<UsageAndHealth, Refusal>) -> Result<Health, Refusal> {
    match inspected {
        Ok(inspection) => Ok(inspection.health),
        Err(Refusal::NotAtPath { .. }) => Ok(Health::default()),
        // No container uses the volume yet.
        Err(Refusal::Ops { failure, .. }) if failure.code() == Code::FailedPrecondition => {
            Ok(Health::default())
        }
        Err(other) => Err(other),
    }
}
