//! fsGroup: the result on a generated tree is compared, file by file, with that of a simple implementation of kubelet's
//! rules on a copy, and nothing outside of the volume changes.

mod budgets;
mod file_systems;
mod inode_tables;
mod interrupted;
mod large;
mod rules;
mod scene;
