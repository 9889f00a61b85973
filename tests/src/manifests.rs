//! Builders for manifests as users write them, with the fields of the KEPs. There is one builder for each kind, and
//! only for fields that the suites need.

mod classes;
mod pod;
mod storage;

use std::fmt::{self, Display};

use serde::Serialize;

pub use self::classes::{CsiDriver, RuntimeClass, StorageClass};
pub use self::pod::Pod;
pub use self::storage::{Claim, Volume};

/// Joins several objects as the documents of one file.
pub fn documents(objects: &[&dyn Display]) -> String {
    let texts: Vec<String> = objects.iter().map(ToString::to_string).collect();
    texts.join("---\n")
}

/// Formats a size as Kubernetes writes it, such as `32Mi`. The sizes of crust-csi's volumes are whole mebibytes;
/// gibibytes are not supported.
#[track_caller]
pub fn quantity(bytes: i64) -> String {
    assert_eq!(bytes % (1 << 20), 0, "{bytes} bytes");
    assert_ne!(bytes % (1 << 30), 0, "{bytes} bytes are gibibytes");
    format!("{}Mi", bytes >> 20)
}

/// Formats a value as one line of YAML with the necessary quotes: JSON is YAML.
struct YamlFlow<T>(T);

impl<T: Serialize> Display for YamlFlow<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(&self.0).map_err(|_| fmt::Error)?)
    }
}

#[cfg(test)]
mod tests;
