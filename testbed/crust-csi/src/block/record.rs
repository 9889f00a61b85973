//! The record of a block volume.

use crust_state::record::Version;
use serde::{Deserialize, Serialize};

use super::format::Fstype;
use super::{Capability, Publication};
use crate::capability::Parameters;
use crate::store::ByPath;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    version: Version<1>,
    /// The name in the request that created the volume. The id is derived from it. For an inline volume it is its pod.
    pub(crate) name: String,
    /// The size in bytes.
    pub(crate) capacity: u64,
    /// The parameters that the volume was created with.
    pub(crate) parameters: Parameters,
    #[serde(rename = "life")]
    pub(crate) lifecycle: Lifecycle,
    /// The file system of the volume. Once it is set, mkfs is never run again.
    #[serde(default)]
    #[serde(rename = "holds")]
    pub(crate) file_system: Option<Fstype>,
    /// The capabilities that the volume is staged with, by staging path.
    #[serde(default)]
    pub(crate) staged: ByPath<Capability>,
    /// The publications by target path. A publication is recorded first, so it is possible that it was never mounted or
    /// staged for the runtime.
    #[serde(default)]
    pub(crate) published: ByPath<Publication>,
    /// Whether an inline volume was published, so that its pod may have written to it.
    #[serde(default)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) was_published: bool,
}

/// The state of a volume between its creation and its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Lifecycle {
    /// The image is being created. There is no data.
    Creating,
    /// The volume exists.
    Ready,
    /// The image is being removed. The data is no longer needed.
    Deleting,
}

impl Record {
    /// Returns the record of a volume that is about to be created.
    pub(crate) fn new(name: &str, capacity: u64, parameters: Parameters) -> Self {
        Self {
            version: Version,
            name: name.to_owned(),
            capacity,
            parameters,
            lifecycle: Lifecycle::Creating,
            file_system: None,
            staged: ByPath::new(),
            published: ByPath::new(),
            was_published: false,
        }
    }
}
