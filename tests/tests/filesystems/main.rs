//! Each supported file system in a pod: mounting, options, errors and clones.

mod clones;
mod errors;
mod life;
mod options;
mod without_sandbox;
