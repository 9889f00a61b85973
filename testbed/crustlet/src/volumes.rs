//! Volumes, from what pods want of them to what exists.
//!
//! | module | contents |
//! |---|---|
//! | `spec` | a pod's volume, resolved |
//! | `claim_ref` | the references between claims and volumes |
//! | `desired`, `actual` | the desired and the actual volumes (KEP-3756) |
//! | `plan`, `backoff` | the next step of each volume, and the delay after a failure |
//! | `stats` | usage and health |
//! | `view` | the documents of `crustlet get volumes` |
//! | `layout`, `data` | the paths on the disk, and the files beside volumes |

pub(crate) mod actual;
pub(crate) mod backoff;
pub(crate) mod claim_ref;
pub(crate) mod data;
pub(crate) mod desired;
pub(crate) mod layout;
pub(crate) mod plan;
pub(crate) mod spec;
pub(crate) mod stats;
pub(crate) mod view;

#[cfg(test)]
mod tests;
