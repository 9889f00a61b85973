//! The desired and the actual state of volumes, and the steps from one to the other.
//!
//! | module | contents |
//! |---|---|
//! | `spec` | resolves a pod's volume |
//! | `claim_ref` | the references between claims and volumes |
//! | `desired`, `actual` | the desired and the actual state (KEP-3756) |
//! | `plan`, `backoff` | the next steps of each volume, and the delay after a failure |
//! | `stats` | usage and health |
//! | `view` | the documents of `crustlet get volumes` |
//! | `layout`, `data` | the paths in the root directory, and the records of volumes |

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
