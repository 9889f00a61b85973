//! Manifests as people write them, with the KEPs' fields: YAML, one builder a kind, and no more of each than suites
//! need.

mod classes;
mod pod;
mod storage;

use std::fmt::{self, Display};

use serde::Serialize;

pub use self::classes::{CsiDriver, RuntimeClass, StorageClass};
pub use self::pod::Pod;
pub use self::storage::{Claim, Volume};

/// Several objects as the documents of one file.
pub fn documents(objects: &[&dyn Display]) -> String {
    let texts: Vec<String> = objects.iter().map(ToString::to_string).collect();
    texts.join("---\n")
}

/// Bytes as Kubernetes writes those of a volume of crust-csi's, which are whole mebibytes: `32Mi`.
#[track_caller]
pub fn quantity(bytes: i64) -> String {
    assert_eq!(bytes % (1 << 20), 0, "{bytes} bytes");
    assert_ne!(bytes % (1 << 30), 0, "{bytes} bytes are gibibytes");
    format!("{}Mi", bytes >> 20)
}

/// A value as YAML has it in one line, quoted where it has to be: JSON is YAML.
struct Flow<T>(T);

impl<T: Serialize> Display for Flow<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(&self.0).map_err(|_| fmt::Error)?)
    }
}

#[cfg(test)]
mod tests;
