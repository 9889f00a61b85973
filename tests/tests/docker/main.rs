//! docker with runcrust as a runtime: a daemon with storage and state of its own for each test.

mod daemon;
mod installed;
mod life;
mod mounts;
mod scene;
mod settings;
mod twins;
