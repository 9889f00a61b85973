//! docker with runcrust as a runtime. Each test has its own daemon, with its own storage and state.

mod daemon;
mod installed;
mod life;
mod mounts;
mod scene;
mod settings;
mod twins;
