//! The record of a pod in its directory: the pod as it was when it began, with its volumes and who has mounted them. A
//! restarted crustlet goes by that, whatever the manifest says by then.

use crust_state::files::{Directory, FileError};
use crust_state::sentence;

use super::OperationError;
use super::directories::directory;
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

#[cfg(test)]
mod tests {
    use std::fs;

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
