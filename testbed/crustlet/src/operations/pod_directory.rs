//! The directory of a pod. Its record has the pod as it was when it began, with its volumes and their mounters. A
//! restarted crustlet goes by that, whatever the manifest says by then.

use std::fs;

use crust_blockfs::mountinfo;
use crust_state::files::{Directory, FileError};
use crust_state::sentence;
use rustix::io::Errno;

use super::directories::{directory, gone, remove_unfinished};
use super::{OperationError, subpath, tree};
use crate::objects::Pod;
use crate::objects::manifest::{self, Object};
use crate::volumes::layout::Layout;

/// In a pod's directory.
pub(super) const POD: &str = "pod.json";

/// Writes it down, before there is a sandbox.
pub(crate) fn record(layout: &Layout, pod: &Pod) -> Result<(), OperationError> {
    let failed = |error: FileError| OperationError::Task(sentence(&error));
    let place = layout.pod(&pod.uid);
    directory(&place)?;
    let place = Directory::create(&place).map_err(failed)?;
    let document = pod.document().to_string();
    place.write(POD, document.as_bytes()).map_err(failed)
}

/// Reads it; `None` of a pod that hasn't begun, or whose record can't be read.
pub(super) fn recorded(layout: &Layout, uid: &str) -> Option<Pod> {
    let path = layout.pod(uid);
    let read = || -> Result<Option<Pod>, String> {
        let place = Directory::open(&path).map_err(|error| sentence(&error))?;
        let bytes = place.map(|it| it.read_record(POD)).transpose();
        let Some(bytes) = bytes.map_err(|error| sentence(&error))?.flatten() else {
            return Ok(None);
        };
        let document = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
        let read = manifest::of(document).map_err(|error| error.to_string())?;
        match read.object {
            Object::Pod(pod) if pod.uid == uid => Ok(Some(*pod)),
            _ => Err("it is no record of this pod".to_owned()),
        }
    };
    read().unwrap_or_else(|reason| {
        let path = path.join(POD);
        tracing::warn!(
            "{}: {reason}; what the pod's manifest says counts",
            path.display()
        );
        None
    })
}

/// Removes a pod's directory, with what was in its `emptyDir`s. A CSI volume that is still there keeps it.
pub(crate) fn remove_pod(layout: &Layout, uid: &str) -> Result<(), OperationError> {
    let pod = layout.pod(uid);
    if !pod.try_exists().map_err(OperationError::io("stat", &pod))? {
        return Ok(());
    }
    // The subPaths of volumes without a driver. The others went with their volumes.
    subpath::unbind_all(&layout.subpaths(uid))?;
    // Data behind a mount must not be removed with the directory.
    let mounts = mountinfo::read_own()?;
    if let Some(mount) = mounts.iter().find(|it| it.mount_point.starts_with(&pod)) {
        return Err(OperationError::system("rmdir", &mount.mount_point)(
            Errno::BUSY,
        ));
    }
    let csi = layout.csi_volumes(uid);
    gone("rmdir", &csi, fs::remove_dir(&csi))?;
    let empty_dirs = layout.empty_dirs(uid);
    tree::remove(&empty_dirs)?;
    remove_unfinished(&pod)?;
    let record = pod.join(POD);
    gone("unlink", &record, fs::remove_file(&record))?;
    let volumes = layout.volumes(uid);
    for directory in [&volumes, &pod] {
        gone("rmdir", directory, fs::remove_dir(directory))?;
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
    fn what_was_written_down_is_the_pod_that_it_was() {
        let place = tempfile::tempdir().unwrap();
        let layout = Layout::new(place.path());
        let read = manifest::read(MANIFEST).unwrap().remove(0);
        let Object::Pod(pod) = read.object else {
            panic!("{read:?}");
        };
        assert_eq!(recorded(&layout, &pod.uid), None);
        record(&layout, &pod).unwrap();
        let again = recorded(&layout, &pod.uid).unwrap();
        assert_eq!(again, *pod);
        assert_eq!(again.deferred.len(), 3);
        let file = layout.pod(&pod.uid).join(POD);
        for text in [
            "",
            "{",
            "{}",
            &fs::read_to_string(&file).unwrap().replace("1-2", "1-3"),
        ] {
            fs::write(&file, text).unwrap();
            assert_eq!(recorded(&layout, &pod.uid), None, "{text}");
        }
    }
}
