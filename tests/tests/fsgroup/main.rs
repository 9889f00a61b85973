//! fsGroup: on generated trees the result is that of a simple implementation of kubelet's rules, and nothing outside of
//! the volume changes. Both results are compared file by file.

mod budgets;
mod file_systems;
mod inode_tables;
mod interrupted;
mod large;
mod rules;
mod scene;
