//! Volumes, from what pods want of them to what there is.
//!
//! | room | what is there |
//! |---|---|
//! | `spec` | what a pod's volume comes to |
//! | `bound` | which claim has which volume |
//! | `desired`, `actual` | what is wanted, what there is (KEP-3756) |
//! | `plan` | the next step of each volume |
//! | `stats` | how full one is and how it fares |
//! | `shown` | a volume as people are shown it |
//! | `layout`, `data` | where things are on the disk, and what is written beside them |

pub(crate) mod actual;
pub(crate) mod backoff;
pub(crate) mod bound;
pub(crate) mod data;
pub(crate) mod desired;
pub(crate) mod layout;
pub(crate) mod plan;
pub(crate) mod shown;
pub(crate) mod spec;
pub(crate) mod stats;

#[cfg(test)]
mod tests;
