//! docker with runcrust as a runtime. Each test has its own daemon, with its own storage and state.

mod bare_delegate;
mod daemon;
mod installed;
mod life;
mod mounts;
mod scene;
mod settings;
