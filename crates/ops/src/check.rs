//! `crust_ops --check`.

mod metrics;

use std::path::Path;
use std::process::ExitCode;

use crust_state::trust::{Flaw, Kind, walk};
use crust_state::{Config, CrustDirectory, StateDirectory};
use rustix::fs::{Access, access};
use rustix::thread::{CapabilitySet, capabilities};

use crate::cli::{Asked, Capabilities, Policy, Runs};
use crate::listen::{Occupant, occupant, trusted_directory};
use crate::settings::Settings;

/// Without them no volume is mounted: the runtime is a child of ours when it publishes, and enters a
/// sandbox's mount namespace.
const NEEDED: [(CapabilitySet, &str); 2] = [
    (CapabilitySet::SYS_ADMIN, "CAP_SYS_ADMIN"),
    (CapabilitySet::SYS_CHROOT, "CAP_SYS_CHROOT"),
];

/// What is found right, or why it isn't.
type Outcome = Result<String, String>;

/// Prints what is right and what isn't, a line each; fails where anything isn't. It makes nothing;
/// the runtime, which it asks, makes its state directory.
pub(crate) fn run(file: &Path, named: bool) -> ExitCode {
    let mut all_right = true;
    let mut tell = |what: &str, outcome: Outcome| match outcome {
        Ok(found) => println!("ok    {what}: {found}"),
        Err(why) => {
            println!("FAIL  {what}: {why}");
            all_right = false;
        }
    };
    let settings = Settings::load(file, named);
    tell(
        "configuration",
        told(&settings, |_| file.display().to_string()),
    );
    let settings = settings.unwrap_or_default();
    tell("user", user());
    tell("capabilities", own_capabilities());
    let policy = settings.policy();
    for program in &policy.allowed {
        let trusted = crate::cli::check(program, &policy.allowed);
        tell(
            "runtime-cli",
            told(&trusted, |()| program.display().to_string()),
        );
    }
    let runtimes = settings.runtimes();
    tell("runtime's configuration", told(&runtimes, source));
    if let Ok(config) = &runtimes {
        for (what, outcome) in runtimes_own(&settings, config) {
            tell(what, outcome);
        }
        // What it says to everything where its configuration is wrong was told.
        if crate::cli::check(&settings.runtime, &policy.allowed).is_ok() {
            tell("runtime", runtime(&settings.runtime, &policy));
        }
    }
    for socket in [&settings.listen, &settings.crust_listen] {
        if !socket.as_os_str().is_empty() {
            tell("socket", place_for(socket));
        }
    }
    if let Ok(Some(address)) = settings.metrics() {
        tell("metrics", metrics::place_for(&address));
    }
    if all_right {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn told<T, E: ToString>(outcome: &Result<T, E>, found: impl FnOnce(&T) -> String) -> Outcome {
    outcome.as_ref().map(found).map_err(ToString::to_string)
}

fn user() -> Outcome {
    match rustix::process::geteuid().as_raw() {
        0 => Ok("root".to_owned()),
        user => Err(format!("uid {user} isn't root; hint: start it as root")),
    }
}

fn own_capabilities() -> Outcome {
    let own = capabilities(None).map_err(|errno| format!("capget: {errno}"))?;
    let has = |one: CapabilitySet| own.effective.contains(one);
    let missing = NEEDED.iter().filter(|(one, _)| !has(*one));
    let missing: Vec<&str> = missing.map(|(_, name)| *name).collect();
    if !missing.is_empty() {
        return Err(format!(
            "without {}; hint: in a pod `privileged: true`, in a unit CapabilityBoundingSet=",
            missing.join(", ")
        ));
    }
    Ok(if has(CapabilitySet::SYS_RESOURCE) {
        "they suffice".to_owned()
    } else {
        "they suffice, but for ext4 to grow: that takes CAP_SYS_RESOURCE".to_owned()
    })
}

fn source(config: &Config) -> String {
    let source = config.source.as_deref();
    source.map_or_else(
        || "the defaults".to_owned(),
        |file| file.display().to_string(),
    )
}

/// What the runtime's configuration names. Where it names no delegate, the runtime looks for one.
fn runtimes_own(settings: &Settings, config: &Config) -> Vec<(&'static str, Outcome)> {
    let mut found = Vec::new();
    if let Some(delegate) = &config.delegate {
        let hint = "set `delegate` in the runtime's configuration to where runc or crun is";
        found.push(("delegate", program(delegate, hint)));
    }
    let hint = "install crust-mount-hook beside the runtime, or set `hook` in its configuration";
    let beside = || {
        let real = settings.runtime.canonicalize();
        real.unwrap_or_else(|_| settings.runtime.clone())
            .with_file_name("crust-mount-hook")
    };
    let hook = config.hook.clone().unwrap_or_else(beside);
    found.push(("hook", program(&hook, hint)));
    let exists = CrustDirectory::new(config).exists();
    let root = &config.crust_root;
    found.push(("crust directory", told(&exists, |there| made(root, *there))));
    let state = StateDirectory::open(&config.state_dir);
    let outcome = told(&state, |there| made(&config.state_dir, there.is_some()));
    found.push(("state directory", outcome));
    found
}

fn made(directory: &Path, is_there: bool) -> String {
    let will_be = if is_there { "" } else { " will be made" };
    format!("{}{will_be}", directory.display())
}

/// A program that root runs for every container.
fn program(path: &Path, hint: &str) -> Outcome {
    let real = walk(Path::new("/"), path, Kind::File).map_err(|flaw| match flaw {
        // It has a hint of its own.
        Flaw::Writable { .. } => flaw.to_string(),
        _ => format!("{flaw}; hint: {hint}"),
    })?;
    match access(&real, Access::EXEC_OK) {
        Ok(()) => Ok(path.display().to_string()),
        Err(_) => Err(format!(
            "{} can't be executed; hint: {hint}",
            real.display()
        )),
    }
}

/// What the runtime itself finds on this host.
fn runtime(program: &Path, policy: &Policy) -> Outcome {
    let mut threads = tokio::runtime::Builder::new_current_thread();
    let threads = threads.enable_all().build();
    let threads = threads.map_err(|error| format!("tokio: {error}"))?;
    let answer = threads.block_on(policy.ask(
        &Runs::default(),
        Asked {
            program,
            arguments: &["capabilities".into()],
            is_left_alone: false,
        },
        None,
    ));
    let found: Capabilities = answer.map_err(|error| error.to_string())?;
    if found.file_systems.is_empty() {
        return Err(format!(
            "{}: this kernel has none of its `fstypes`; hint: modprobe ext4",
            program.display()
        ));
    }
    Ok(format!("mounts {}", found.file_systems.join(", ")))
}

/// Whether a socket can be made there.
fn place_for(socket: &Path) -> Outcome {
    trusted_directory(socket).map_err(|error| error.to_string())?;
    let place = socket.display();
    match occupant(socket).map_err(|error| error.to_string())? {
        Occupant::Other => Err(format!(
            "{place} isn't a socket of that kind; hint: name another place or remove it"
        )),
        Occupant::Listener => Ok(format!(
            "{place}, where somebody listens already: systemd, or a crust_ops"
        )),
        Occupant::Nobody | Occupant::Left => {
            let directory = socket.ancestors().skip(1).find(|part| part.exists());
            let directory = directory.unwrap_or(Path::new("/"));
            match access(directory, Access::WRITE_OK) {
                Ok(()) => Ok(place.to_string()),
                Err(errno) => Err(format!(
                    "{}: {errno}; hint: a socket is made there, so it has to be writable for root",
                    directory.display()
                )),
            }
        }
    }
}
