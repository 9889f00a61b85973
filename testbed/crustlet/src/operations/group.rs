//! The fsGroup of a file system that the driver has mounted. kubelet applies it if the driver lacks
//! `VOLUME_MOUNT_GROUP` (KEP-2317).

use std::path::PathBuf;
use std::time::Duration;

use crust_blockfs::Deadline;
use crust_blockfs::fsgroup::FsGroupChangePolicy;
use crust_blockfs::fsgroup::{self, FsGroupRequest};
use rustix::fs::{CWD, Mode, OFlags, openat};

use super::{Context, OperationError, blocking};
use crate::csi::PublishOptions;
use crate::events::Regarding;
use crate::objects::{Objects, Pod};
use crate::volumes::spec::MountSpec;

/// The timeout of one attempt. The next attempt goes on with the remaining files.
const APPLY_TIMEOUT: Duration = Duration::from_secs(600);

/// Returns the group that crustlet has to apply, if any. The `fsGroupPolicy` of the driver's `CSIDriver` decides, as in
/// kubelet.
pub(super) fn group_to_apply(
    objects: &Objects,
    mount: &MountSpec,
    publish: &PublishOptions,
) -> Result<Option<u32>, OperationError> {
    let Some(group) = mount.fs_group else {
        return Ok(None);
    };
    if publish.mount_group.is_some() || mount.read_only || mount.volume.read_only {
        return Ok(None);
    }
    let driver = objects.drivers.get(&mount.volume.id.driver);
    let policy = driver.and_then(|driver| driver.spec.fs_group_policy.as_deref());
    let applies = match policy {
        Some("None") => false,
        Some("File") => true,
        // The default is ReadWriteOnceWithFSType.
        _ => {
            let mut modes = mount.volume.access_modes.iter();
            let is_once = modes.any(|mode| mode == "ReadWriteOnce" || mode == "ReadWriteOncePod");
            is_once && !mount.volume.fs_type.is_empty()
        }
    };
    if !applies {
        return Ok(None);
    }
    let gid = u32::try_from(group).map_err(|_| OperationError::InvalidFsGroup(group))?;
    Ok(Some(gid))
}

/// Applies the group to the file system at the target path. Reports the progress as events.
pub(super) async fn apply(
    context: &Context,
    pod: &Pod,
    mount: &MountSpec,
    gid: u32,
    target: PathBuf,
) -> Result<(), OperationError> {
    let policy = match mount.change_policy.as_deref() {
        Some("OnRootMismatch") => FsGroupChangePolicy::OnRootMismatch,
        _ => FsGroupChangePolicy::Always,
    };
    let events = context.events.clone();
    let (regarding, volume) = (Regarding::from(pod), mount.volume.directory.clone());
    blocking(move || {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = openat(CWD, &target, flags, Mode::empty())
            .map_err(OperationError::system("open", &target))?;
        let mut report = |progress: &fsgroup::WalkProgress| {
            let message = format!("volume {volume:?}: fsGroup {gid}: {progress}");
            events.normal(
                regarding.clone(),
                "VolumePermissionChangeInProgress",
                message,
            );
        };
        let request = FsGroupRequest {
            group: gid,
            policy,
            device: None,
            // Other pods may use the volume.
            in_use: true,
        };
        fsgroup::apply(&root, &request, Deadline::after(APPLY_TIMEOUT), &mut report)?;
        Ok(())
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::manifest::read;
    use crate::volumes::spec::{ResolvedVolume, resolve};

    const POD: &str = "apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  securityContext: {fsGroup: 7}
  containers: [{name: app, image: app}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, uid: data-uid, annotations: {pv.kubernetes.io/bind-completed: 'yes'}}
spec: {volumeName: pv-1}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: pv-1}
spec:
  accessModes: [ReadWriteOnce]
  claimRef: {name: data, namespace: default, uid: data-uid}
  csi: {driver: csi.example, volumeHandle: handle-1, fsType: ext4}
---
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: csi.example}
spec: {fsGroupPolicy: ReadWriteOnceWithFSType}
";

    fn is_applied(text: &str, publish: &PublishOptions) -> bool {
        let mut objects = Objects::default();
        for manifest in read(text).unwrap() {
            objects.insert(manifest);
        }
        let pod = objects.pods.values().next().unwrap();
        let volume = &pod.spec.volumes.as_ref().unwrap()[0];
        let Ok(ResolvedVolume::Csi(mount)) = resolve(&objects, pod, volume) else {
            panic!("{volume:?}");
        };
        group_to_apply(&objects, &mount, publish).unwrap() == Some(7)
    }

    /// kubelet's rules for `fsGroupPolicy`, and KEP-2317.
    #[test]
    fn the_policy_and_the_capability_of_the_driver_decide() {
        let policy = "ReadWriteOnceWithFSType";
        let cases = [
            ("", "", true),
            (policy, "File", true),
            (policy, "None", false),
            ("ReadWriteOnce]", "ReadWriteOncePod]", true),
            ("ReadWriteOnce]", "ReadWriteMany]", false),
            (", fsType: ext4", "", false),
            ("fsType: ext4", "fsType: ext4, readOnly: true", false),
            ("claimName: data", "claimName: data, readOnly: true", false),
            ("fsGroup: 7", "runAsUser: 7", false),
        ];
        let without_mount_group = PublishOptions::default();
        for (before, after, expected) in cases {
            let text = POD.replace(before, after);
            let text = if before.is_empty() { POD } else { &text };
            assert_eq!(
                is_applied(text, &without_mount_group),
                expected,
                "{before} → {after}"
            );
        }
        let with_mount_group = PublishOptions {
            mount_group: Some(7),
            ..PublishOptions::default()
        };
        assert!(!is_applied(&POD.replace(policy, "File"), &with_mount_group));
    }
}
