//! What a pod makes of each file system that is allowed, and what each makes of a pod.

mod clones;
mod errors;
mod life;
mod options;
mod ways;
