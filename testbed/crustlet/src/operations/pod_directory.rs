//! The directory of a pod. Its record contains the pod as it was when it was started, with its volumes and their
//! mounters. A restarted crustlet uses the record even if the manifest has changed.

use std::fs;

use crust_blockfs::mountinfo;
use crust_state::error_message;
use crust_state::files::{Directory, FileError};
use rustix::io::Errno;

use super::directories::{create_directory, ignore_missing, remove_unfinished};
use super::{OperationError, subpath, tree};
use crate::objects::Pod;
use crate::objects::manifest::{self, Object};
use crate::volumes::layout::RootDirLayout;

/// The file name of a pod's record.
pub(super) const POD_RECORD: &str = "pod.json";

/// Writes a pod's record. Has to be called before the sandbox is created.
pub(crate) fn write_pod_record(layout: &RootDirLayout, pod: &Pod) -> Result<(), OperationError> {
    let to_error = |error: FileError| OperationError::Other(error_message(&error));
    let path = layout.pod(&pod.uid);
    create_directory(&path)?;
    let directory = Directory::create(&path).map_err(to_error)?;
    let document = pod.document().to_string();
    directory
        .write(POD_RECORD, document.as_bytes())
        .map_err(to_error)
}

/// Reads a pod's record. Returns `None` if the record doesn't exist or can't be read.
pub(super) fn read_pod_record(layout: &RootDirLayout, uid: &str) -> Option<Pod> {
    let path = layout.pod(uid);
    let read = || -> Result<Option<Pod>, String> {
        let directory = Directory::open(&path).map_err(|error| error_message(&error))?;
        let bytes = directory
            .map(|directory| directory.read_record(POD_RECORD))
            .transpose();
        let Some(bytes) = bytes.map_err(|error| error_message(&error))?.flatten() else {
            return Ok(None);
        };
        let document = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
        let manifest = manifest::from_document(document).map_err(|error| error.to_string())?;
        match manifest.object {
            Object::Pod(pod) if pod.uid == uid => Ok(Some(*pod)),
            _ => Err("not the record of this pod".to_owned()),
        }
    };
    read().unwrap_or_else(|reason| {
        let path = path.join(POD_RECORD);
        tracing::warn!(
            "{}: {reason}; using the pod's manifest instead",
            path.display()
        );
        None
    })
}

/// Removes a pod's directory and the contents of its `emptyDir`s. Fails if the directory still contains a CSI volume or
/// a mount.
pub(crate) fn remove_pod(layout: &RootDirLayout, uid: &str) -> Result<(), OperationError> {
    let pod = layout.pod(uid);
    if !pod.try_exists().map_err(OperationError::io("stat", &pod))? {
        return Ok(());
    }
    // Only subPaths of emptyDir and hostPath volumes are left. Those of CSI volumes were unmounted with the volumes.
    subpath::unbind_all(&layout.subpaths(uid))?;
    // Data on a mount must not be removed with the directory.
    let mounts = mountinfo::read_own()?;
    if let Some(mount) = mounts
        .iter()
        .find(|mount| mount.mount_point.starts_with(&pod))
    {
        return Err(OperationError::system("rmdir", &mount.mount_point)(
            Errno::BUSY,
        ));
    }
    let csi = layout.csi_volumes(uid);
    ignore_missing("rmdir", &csi, fs::remove_dir(&csi))?;
    let empty_dirs = layout.empty_dirs(uid);
    tree::remove(&empty_dirs)?;
    remove_unfinished(&pod)?;
    let record = pod.join(POD_RECORD);
    ignore_missing("unlink", &record, fs::remove_file(&record))?;
    let volumes = layout.volumes(uid);
    for directory in [&volumes, &pod] {
        ignore_missing("rmdir", directory, fs::remove_dir(directory))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, uid: 1-2}
spec:
  runtimeClassName: crust
  securityContext: {fsGroup: 7}
  containers: [{name: app, image: app, volumeMounts: [{name: data, mountPath: /data, subPath: a}]}]
  volumes:
  - {name: data, persistentVolumeClaim: {claimName: data, deferFSMount: true}}
  - {name: own, ephemeral: {deferFSMount: true, volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce]}}}}
  - {name: inline, csi: {driver: csi.example, deferFSMount: true}}
  - {name: plain, persistentVolumeClaim: {claimName: plain}}
";

    #[test]
    fn a_record_contains_the_whole_pod() {
        let dir = tempfile::tempdir().unwrap();
        let layout = RootDirLayout::new(dir.path());
        let manifest = manifest::read(MANIFEST).unwrap().remove(0);
        let Object::Pod(pod) = manifest.object else {
            panic!("{manifest:?}");
        };
        assert_eq!(read_pod_record(&layout, &pod.uid), None);
        write_pod_record(&layout, &pod).unwrap();
        let recorded = read_pod_record(&layout, &pod.uid).unwrap();
        assert_eq!(recorded, *pod);
        assert_eq!(recorded.deferred.len(), 3);
        let file = layout.pod(&pod.uid).join(POD_RECORD);
        for text in [
            "",
            "{",
            "{}",
            &fs::read_to_string(&file).unwrap().replace("1-2", "1-3"),
        ] {
            fs::write(&file, text).unwrap();
            assert_eq!(read_pod_record(&layout, &pod.uid), None, "{text}");
        }
    }
}
