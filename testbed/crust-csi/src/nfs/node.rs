//! The calls of the node service. A share needs no staging: each publish mounts it, or defers that to the container
//! runtime.

use std::collections::HashMap;

use crust_blockfs::errno::Name;
use crust_blockfs::usage::{Usage, UsageError};
use crust_nfs::Share;
use crust_proto::csi::v1::volume_usage::Unit;
use crust_proto::csi::v1::{
    NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, NodePublishVolumeRequest,
    NodePublishVolumeResponse, NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse,
};
use crust_state::TargetPath;

use super::location::ShareParameters;
use super::mounts::ANSWER_TIMEOUT;
use super::share_calls::NoResult;
use super::{Capability, NfsDriver, Publication, mounts};
use crate::driver_context::{check_vacant, ensure_empty_directory, other_volume_staged};
use crate::features::Feature;
use crate::health::Health;
use crate::inline_volume::{is_inline, is_inline_id};
use crate::kubelet_paths;
use crate::ops::Backing;
use crate::publish_decision::{PublishStep, decide};
use crate::refusal::Refusal;
use crate::requests::{check_present, parse_path, parse_volume_path, path_key};
use crate::store::{Mounter, id_of};
use crate::usage::{UsageAndHealth, amounts, file_system_problem, from_runtime_stats};

impl NfsDriver {
    /// Handles `NodePublishVolume`. A volume gets a record with its first publication on the node.
    pub(super) fn publish(
        &self,
        request: &NodePublishVolumeRequest,
    ) -> Result<NodePublishVolumeResponse, Refusal> {
        let id = request.volume_id.as_str();
        check_present("volume_id", id)?;
        let target = parse_path("target_path", &request.target_path)?;
        check_not_inline(id, &request.volume_context)?;
        let parameters = ShareParameters::from_volume_context(&request.volume_context)?;
        let share = parameters.mounted_share()?;
        let requested = self.requested_publication(request, &parameters)?;
        let mut record = self.record_or_new(id, &share)?;
        let _guard = self.context.lock_target(id, &target)?;
        let existing = self.existing_publications(&record)?;
        if let Some((path, _)) = existing.first()
            && record.share != share
        {
            let message = format!(
                "it is published at {path} with the share {}, and {share} is requested; hint: end the volume's pods \
                 before its share changes",
                record.share
            );
            return Err(Refusal::exists(id, message));
        }
        if let PublishStep::Existing(there) = decide(id, &path_key(&target), &requested, &existing)?
        {
            self.ensure_published(id, &share, &target, there)?;
            return Ok(NodePublishVolumeResponse::default());
        }
        self.check_not_other_volumes(id, &target)?;
        if self.context.is_anything_staged(id, &target)? && !self.is_staged(id, &share, &target)? {
            return Err(other_volume_staged(id, &target));
        }
        check_vacant(id, &target, false)?;
        tracing::info!("volume {id}: {target:?}: {share}: {}", requested.describe());
        // The record is written first, so that whatever is mounted or staged is in a record.
        record.share = share;
        record
            .published
            .insert(path_key(&target), requested.clone());
        self.store.save(&id_of(id), &record)?;
        let published = self.ensure_published(id, &record.share, &target, &requested);
        if published.is_err() {
            // kubelet doesn't unpublish after a failed publish, and another volume may be published at the path.
            let exists = self
                .publication_exists(&record, &path_key(&target), &requested)
                .unwrap_or(true);
            if !exists {
                record.published.remove(&path_key(&target));
                self.save_removal(id, &record);
            }
        }
        published?;
        Ok(NodePublishVolumeResponse::default())
    }

    fn requested_publication(
        &self,
        request: &NodePublishVolumeRequest,
        parameters: &ShareParameters,
    ) -> Result<Publication, Refusal> {
        let field = "volume_capability";
        let features = &self.context.features;
        let capability = request.volume_capability.as_ref();
        let mut usage = Capability::from_request(field, capability, features)?;
        check_file_system(field, &usage)?;
        if let Some(mount) = &mut usage.mount {
            mount.change_policy = mount.change_policy.or(parameters.common.change_policy);
        }
        let is_deferred = request.defer_fs_ops || parameters.common.defer;
        Ok(Publication {
            usage,
            read_only: request.readonly,
            by: if is_deferred && features.has(Feature::DeferFsOps) {
                Mounter::Runtime
            } else {
                Mounter::Driver
            },
            features: features.publication_feature_names(),
        })
    }

    fn ensure_published(
        &self,
        id: &str,
        share: &Share,
        target: &TargetPath,
        requested: &Publication,
    ) -> Result<(), Refusal> {
        let path = target.as_path();
        let Some(mount) = &requested.usage.mount else {
            return Ok(());
        };
        match requested.by {
            // The driver was downgraded since the volume was deferred. The volume is still staged.
            Mounter::Runtime if !self.context.features.has(Feature::DeferFsOps) => Ok(()),
            Mounter::Runtime => {
                ensure_empty_directory(id, path)?;
                let staged =
                    self.context
                        .ops
                        .stage(target, Backing::Share(share), mount, requested);
                staged.map_err(Refusal::ops(id))
            }
            Mounter::Driver | Mounter::Kubelet => {
                if mounts::is_mounted_at(share, path).map_err(Refusal::node(id))? {
                    return Ok(());
                }
                self.mount(id, share, requested, path)
            }
        }
    }

    /// Handles `NodeUnpublishVolume`. A volume without a record was unpublished before, or the record is lost. Then the
    /// path is cleaned up if it is one of kubelet's own and no other volume is there.
    pub(super) fn unpublish(
        &self,
        request: &NodeUnpublishVolumeRequest,
    ) -> Result<NodeUnpublishVolumeResponse, Refusal> {
        let id = request.volume_id.as_str();
        check_present("volume_id", id)?;
        let target = parse_path("target_path", &request.target_path)?;
        let mut record = self.record(id)?;
        let _guard = self.context.lock_target(id, &target)?;
        let published = record.as_ref();
        let published = published.and_then(|record| record.published.get(&path_key(&target)));
        let by = published.map(|publication| publication.by);
        if by.is_none() {
            if !kubelet_paths::is_target(&target) {
                return Ok(NodeUnpublishVolumeResponse {});
            }
            self.check_not_other_volumes(id, &target)?;
        }
        // The volume is unstaged first. Until then a pod may use it.
        if by != Some(Mounter::Driver) && self.context.features.has(Feature::DeferFsOps) {
            let is_deferred = request.defer_fs_ops || by == Some(Mounter::Runtime);
            self.context.unstage_deferred(id, &target, is_deferred)?;
        }
        let unmounts = &self.calls.unmounts;
        mounts::unmount(unmounts, target.as_path()).map_err(Refusal::node(id))?;
        self.context.clean_up_path(id, &target)?;
        if let Some(record) = &mut record
            && record.published.remove(&path_key(&target)).is_some()
        {
            self.save_removal(id, record);
        }
        Ok(NodeUnpublishVolumeResponse {})
    }

    /// Handles `NodeGetVolumeStats`. If the record is lost, the crust directory shows whether the volume is deferred.
    pub(super) fn stats(
        &self,
        request: &NodeGetVolumeStatsRequest,
    ) -> Result<NodeGetVolumeStatsResponse, Refusal> {
        self.context
            .check_feature(Feature::GetVolumeStats, "GET_VOLUME_STATS")?;
        let id = request.volume_id.as_str();
        check_present("volume_id", id)?;
        check_present("volume_path", &request.volume_path)?;
        let target = parse_volume_path(id, &request.volume_path)?;
        let record = self.record(id)?;
        let published = record.as_ref().and_then(|record| {
            let publication = record.published.get(&path_key(&target));
            publication.map(|publication| (&record.share, publication.by))
        });
        let inspection = match published {
            Some((share, Mounter::Driver)) => self.inspect_mount(id, share, &target)?,
            Some((share, _)) => {
                self.context.check_can_defer(id)?;
                if !self.is_staged(id, share, &target)? {
                    return Err(not_at_path(id, &target));
                }
                self.deferred_stats(id, &target)?
            }
            // The record is lost.
            None if self.context.features.has(Feature::DeferFsOps)
                && self.context.is_anything_staged(id, &target)? =>
            {
                self.deferred_stats(id, &target)?
            }
            None => return Err(not_at_path(id, &target)),
        };
        let has_condition = self.context.features.has(Feature::VolumeCondition);
        Ok(inspection.into_response(has_condition))
    }

    fn deferred_stats(&self, id: &str, target: &TargetPath) -> Result<UsageAndHealth, Refusal> {
        let stats = self.context.ops.stats(target).map_err(Refusal::ops(id))?;
        Ok(from_runtime_stats(stats))
    }

    /// Returns usage and health of a share that is mounted on the host. Waits for the server for at most
    /// [`ANSWER_TIMEOUT`], and not at all if an earlier call still waits.
    fn inspect_mount(
        &self,
        id: &str,
        share: &Share,
        target: &TargetPath,
    ) -> Result<UsageAndHealth, Refusal> {
        let path = target.as_path().to_owned();
        if !mounts::is_mounted_at(share, &path).is_ok_and(|is_mounted| is_mounted) {
            return Err(not_at_path(id, target));
        }
        let asked = path.clone();
        let read = move || mounts::usage_at(&asked);
        let problem = match self.calls.usage.run(path, ANSWER_TIMEOUT, read) {
            Ok(read) => match read.map_err(Refusal::node(id))? {
                Ok(usage) => return Ok(healthy(usage)),
                Err(UsageError::Statfs(errno)) => format!(
                    "fstatfs on {share} fails with {}; hint: see the kernel's log (dmesg) on this node, and the server's \
                     log",
                    Name(errno)
                ),
            },
            Err(NoResult::TimedOut | NoResult::Outstanding) => format!(
                "the server of {share} hasn't answered within {} seconds; hint: check that the server runs and that no \
                 firewall is in between",
                ANSWER_TIMEOUT.as_secs()
            ),
            Err(error @ NoResult::NoThread(_)) => return Err(Refusal::node(id)(error)),
        };
        Ok(UsageAndHealth {
            usage: Vec::new(),
            health: file_system_problem(false, problem).into(),
            healthy_message: String::new(),
        })
    }
}

fn healthy(usage: Usage) -> UsageAndHealth {
    UsageAndHealth {
        usage: vec![
            amounts(usage.bytes, Unit::Bytes),
            amounts(usage.inodes, Unit::Inodes),
        ],
        health: Health::default(),
        healthy_message: "the volume is mounted".to_owned(),
    }
}

/// Fails if a capability is that of a block volume.
pub(super) fn check_file_system(field: &'static str, usage: &Capability) -> Result<(), Refusal> {
    if usage.mount.is_some() {
        return Ok(());
    }
    let reason = "block: a share has no block device; hint: use the volumeMode Filesystem";
    Err(Refusal::field(field, reason))
}

/// Fails if the volume is in the spec of a pod. Its author could mount any directory that a server exports to the node,
/// such as the volumes of others.
fn check_not_inline(id: &str, context: &HashMap<String, String>) -> Result<(), Refusal> {
    // kubelet only sets the key in the context for drivers with podInfoOnMount. It generates the id in both cases.
    if !is_inline(context) && !is_inline_id(id) {
        return Ok(());
    }
    let reason = "the volume is in the spec of a pod, whose author must not choose a server; hint: use a \
                  PersistentVolumeClaim";
    Err(Refusal::field("volume_context", reason))
}

fn not_at_path(id: &str, path: &TargetPath) -> Refusal {
    Refusal::NotAtPath {
        volume: id.to_owned(),
        path: path.as_path().to_owned(),
        hint: "set volume_path to the target path of NodePublishVolume",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_in_the_spec_of_a_pod_is_refused() {
        let context = |value: &str| {
            HashMap::from([("csi.storage.k8s.io/ephemeral".to_owned(), value.to_owned())])
        };
        let generated = format!("csi-{}", "0a".repeat(32));
        assert!(check_not_inline("pv-1", &context("false")).is_ok());
        assert!(check_not_inline("csi-0a", &HashMap::new()).is_ok());
        for refused in [
            check_not_inline("pv-1", &context("true")),
            check_not_inline(&generated, &HashMap::new()),
        ] {
            let error = refused.unwrap_err().to_string();
            assert!(
                error.ends_with("hint: use a PersistentVolumeClaim"),
                "{error}"
            );
        }
    }
}
