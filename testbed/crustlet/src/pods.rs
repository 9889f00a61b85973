//! Pods: what there is of them, what is to be done next, and what it looks like.
//!
//! All of it are functions of their arguments.

pub(crate) mod config;
pub(crate) mod decide;
pub(crate) mod failures;
#[cfg(test)]
mod fixture;
pub(crate) mod labels;
pub(crate) mod observed;
pub(crate) mod restart;
pub(crate) mod status;
mod steps;

pub(crate) use steps::{End, PodStep, RunSandbox, StartContainer, Subject};
