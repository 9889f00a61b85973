//! `crust-mount-hook` runs the OCI hooks that runcrust adds to a config (runtime-spec, "POSIX-platform Hooks"):
//!
//! | verb | hook | what it does |
//! |---|---|---|
//! | `sandbox` | createRuntime of a sandbox | mounts the pod's volumes in the new sandbox |
//! | `mount` | createContainer of a container | mounts the container's volumes in it (`mount_mode = "hook"`) |
//! | `publish` | createRuntime of a container | records the container as a user of its volumes |
//! | `release` | poststop of a container | removes the user |
//! | `release-sandbox` | poststop of a sandbox | removes the sandbox's records |

mod input;
mod mount;
mod users;

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use crust_blockfs::Deadline;
use crust_blockfs::device::LoopDeviceCache;
use crust_state::{Config, CrustDirectory, StateDirectory, error_message, logging, timeouts};
use crust_volume::Context;
use crust_volume::privileges::{self, Operation};
use dlmalloc::GlobalDlmalloc;

use input::{ContainerState, HookArgs, HookVerb};

/// The same allocator as runcrust's. musl's allocator maps each large buffer separately, which takes 40 system calls in
/// a sandbox's hook.
#[global_allocator]
static ALLOCATOR: GlobalDlmalloc = GlobalDlmalloc;

fn main() -> ExitCode {
    let result = run();
    logging::clear_progress();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report_error(&error_message(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

/// Writes an error to the log and, in one line, to stderr: runc includes the line in its own error.
fn report_error(message: &str) {
    tracing::error!("{message}");
    // Stderr may be closed or read-only.
    let _ = writeln!(std::io::stderr(), "crust-mount-hook: {message}");
}

fn run() -> Result<()> {
    // This comes before anything that may fail: a hook that exits without reading its stdin kills crun by SIGPIPE.
    let container = ContainerState::read()?;
    let arguments = HookArgs::parse(lexopt::Parser::from_env())?;
    privileges::drop_all_but(operation(&arguments.verb))?;
    let config = match &arguments.config {
        Some(file) => Config::load_file(file)?,
        None => Config::default(),
    };
    logging::start(config.log.as_deref());
    std::panic::set_hook(Box::new(|panic| {
        report_error(&error_message(anyhow!("{panic}").as_ref()));
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
        HookVerb::Sandbox(sandbox) => mount::into_sandbox(&context, &container, &sandbox),
        HookVerb::Mount(mount) => mount::into_container(&context, &container, &mount),
        HookVerb::Publish { volumes } => users::confirm(&context, &container, &volumes),
        HookVerb::Release { volumes } => users::release(&context, &container, &volumes),
        HookVerb::ReleaseSandbox => users::release_sandbox(&context, &container),
    }
    .with_context(|| format!("container {}", container.id))
}

/// Returns the operation whose capabilities the hook needs. It drops all others for good, since it executes no program.
fn operation(verb: &HookVerb) -> Operation {
    match verb {
        HookVerb::Sandbox(_) => Operation::Sandbox,
        HookVerb::Mount(_) => Operation::Mount,
        HookVerb::Publish { .. } => Operation::Publish,
        HookVerb::Release { .. } | HookVerb::ReleaseSandbox => Operation::Release,
    }
}

fn time_limit(verb: &HookVerb) -> Duration {
    let timeouts = match verb {
        HookVerb::Sandbox(_) => timeouts::SANDBOX,
        HookVerb::Mount(_) => timeouts::CONTAINER,
        HookVerb::Publish { .. } | HookVerb::Release { .. } | HookVerb::ReleaseSandbox => {
            timeouts::RECORD
        }
    };
    timeouts.hook
}
