//! Builders for volumes and claims.

use std::collections::BTreeMap;
use std::fmt::{self, Display};

use crust_proto::csi::v1::volume_capability::AccessType;

use super::{YamlFlow, quantity};
use crate::csi::{CsiVolume, DRIVER};

/// A `PersistentVolume` for a created volume.
#[derive(Debug, Clone)]
pub struct Volume {
    name: String,
    handle: String,
    attributes: BTreeMap<String, String>,
    fs_type: String,
    mount_options: Vec<String>,
    modes: Vec<String>,
    class: String,
    capacity: i64,
}

#[derive(Debug, Clone)]
pub struct Claim {
    name: String,
    request: i64,
    modes: Vec<String>,
    class: String,
    volume: Option<String>,
}

impl Volume {
    /// Makes a `ReadWriteOnce` volume without a class. Panics if the volume was created as a block device.
    pub fn new(name: &str, volume: &CsiVolume) -> Self {
        let Some(AccessType::Mount(mount)) = &volume.capability.access_type else {
            panic!("a block volume");
        };
        Self {
            name: name.to_owned(),
            handle: volume.id.clone(),
            attributes: volume.context.clone().into_iter().collect(),
            fs_type: mount.fs_type.clone(),
            mount_options: mount.mount_flags.clone(),
            modes: vec!["ReadWriteOnce".to_owned()],
            class: String::new(),
            capacity: volume.capacity,
        }
    }

    /// Sets the class.
    #[must_use]
    pub fn class(mut self, name: &str) -> Self {
        name.clone_into(&mut self.class);
        self
    }

    /// Sets the only access mode.
    #[must_use]
    pub fn mode(mut self, mode: &str) -> Self {
        self.modes = vec![mode.to_owned()];
        self
    }

    /// Makes a claim that is bound to this volume and requests its capacity.
    pub fn claim(&self, name: &str) -> Claim {
        Claim {
            name: name.to_owned(),
            request: self.capacity,
            modes: self.modes.clone(),
            class: self.class.clone(),
            volume: Some(self.name.clone()),
        }
    }
}

impl Claim {
    /// Makes a `ReadWriteOnce` claim of a class for this many bytes, for which a volume is found or created.
    pub fn of_class(name: &str, class: &str, bytes: i64) -> Self {
        Self {
            name: name.to_owned(),
            request: bytes,
            modes: vec!["ReadWriteOnce".to_owned()],
            class: class.to_owned(),
            volume: None,
        }
    }

    /// Sets the only access mode.
    #[must_use]
    pub fn mode(mut self, mode: &str) -> Self {
        self.modes = vec![mode.to_owned()];
        self
    }

    /// Sets the requested size in bytes. A smaller volume is expanded.
    #[must_use]
    pub fn request(mut self, bytes: i64) -> Self {
        self.request = bytes;
        self
    }
}

impl Display for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, handle, .. } = self;
        let capacity = quantity(self.capacity);
        let [modes, options] = [&self.modes, &self.mount_options].map(YamlFlow);
        let [class, fs_type] = [&self.class, &self.fs_type].map(YamlFlow);
        let attributes = YamlFlow(&self.attributes);
        write!(
            f,
            "\
apiVersion: v1
kind: PersistentVolume
metadata:
  name: {name}
spec:
  accessModes: {modes}
  capacity: {{storage: {capacity}}}
  storageClassName: {class}
  mountOptions: {options}
  csi:
    driver: {DRIVER}
    volumeHandle: {handle}
    fsType: {fs_type}
    volumeAttributes: {attributes}
"
        )
    }
}

impl Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        let request = quantity(self.request);
        let (modes, class) = (YamlFlow(&self.modes), YamlFlow(&self.class));
        write!(
            f,
            "\
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: {name}
spec:
  accessModes: {modes}
  storageClassName: {class}
  resources: {{requests: {{storage: {request}}}}}
"
        )?;
        if let Some(volume) = &self.volume {
            writeln!(f, "  volumeName: {volume}")?;
        }
        Ok(())
    }
}
