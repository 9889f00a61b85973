//! Tests of fsGroup. The result on a generated tree is compared, file by file, with the result of a simple
//! implementation of kubelet's rules on a copy of the tree. Nothing outside of the volume may change.

mod budgets;
mod file_systems;
mod inode_tables;
mod interrupted;
mod large;
mod rules;
mod scene;
