//! fsGroup, entry by entry: what a pod makes of a generated tree is what a naive walker with
//! kubelet's rules makes of a copy of it, and nothing outside of the volume changes.

mod budgets;
mod interrupted;
mod large;
mod others;
mod rules;
mod scene;
mod tables;
