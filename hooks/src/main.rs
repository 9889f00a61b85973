//! `crust-mount-hook`: the OCI hooks that runcrust adds to a config (runtime-spec, "POSIX-platform
//! Hooks"). `sandbox` mounts a pod's volumes into its new sandbox, `mount` into a container where
//! that is configured, `publish` records a container that exists, `release` forgets one that has
//! ended.

mod input;
mod mount;
mod users;

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use crust_blockfs::Deadline;
use crust_blockfs::device::LoopDeviceCache;
use crust_state::{Config, CrustDirectory, StateDirectory, logging, sentence, timeouts};
use crust_volume::Context;
use crust_volume::privileges::{self, Operation};
use dlmalloc::GlobalDlmalloc;

use input::{ContainerState, HookArgs, Verb};

/// The same allocator as runcrust's. musl's maps each large buffer by itself, which is 40 system calls of a sandbox's
/// hook.
#[global_allocator]
static ALLOCATOR: GlobalDlmalloc = GlobalDlmalloc;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tell(&sentence(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

fn tell(message: &str) {
    tracing::error!("{message}");
    // One line: runc puts it into its own error. Stderr may be closed or read-only.
    let _ = writeln!(std::io::stderr(), "crust-mount-hook: {message}");
}

fn run() -> Result<()> {
    // Before anything that may fail: a hook that ends without reading kills crun by SIGPIPE.
    let container = ContainerState::read()?;
    let arguments = HookArgs::parse(lexopt::Parser::from_env())?;
    privileges::drop_all_but(step(&arguments.verb))?;
    let config = match &arguments.config {
        Some(file) => Config::load_file(file)?,
        None => Config::default(),
    };
    logging::start(config.log.as_deref());
    std::panic::set_hook(Box::new(|panic| {
        tell(&sentence(anyhow!("{panic}").as_ref()));
    }));
    let crust = CrustDirectory::new(&config);
    let state = StateDirectory::create(&config.state_dir)?;
    let deadline = Deadline::after(time_limit(&arguments.verb));
    let context = Context {
        config: &config,
        crust: &crust,
        state: &state,
        deadline,
        loop_devices: &LoopDeviceCache::default(),
    };
    match arguments.verb {
        Verb::Sandbox(sandbox) => mount::into_sandbox(&context, &container, &sandbox),
        Verb::Mount(mount) => mount::into_container(&context, &container, &mount),
        Verb::Publish { volumes } => users::publish(&context, &container, &volumes),
        Verb::Release { volumes } => users::release(&context, &container, &volumes),
        Verb::ReleaseSandbox => users::release_sandbox(&context, &container),
    }
    .with_context(|| format!("container {}", container.id))
}

/// This process executes nothing: what it doesn't need it never has again.
fn step(verb: &Verb) -> Operation {
    match verb {
        Verb::Sandbox(_) => Operation::Sandbox,
        Verb::Mount(_) => Operation::Mount,
        Verb::Publish { .. } => Operation::Publish,
        Verb::Release { .. } | Verb::ReleaseSandbox => Operation::Release,
    }
}

fn time_limit(verb: &Verb) -> Duration {
    let timeouts = match verb {
        Verb::Sandbox(_) => timeouts::SANDBOX,
        Verb::Mount(_) => timeouts::CONTAINER,
        Verb::Publish { .. } | Verb::Release { .. } | Verb::ReleaseSandbox => timeouts::RECORD,
    };
    timeouts.hook
}
