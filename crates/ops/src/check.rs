//! Checks the configuration and the node: `crust_ops --check`.

use std::error::Error;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use crust_serve::listen::check_trusted_directory;
use crust_state::Config;
use crust_state::check::{self, CheckVerdict, Finding};
use crust_state::socket::{SocketState, probe};
use crust_volume::host_features;
use rustix::fs::{Access, access};

use crate::cli::{Capabilities, CliCall, Policy, Runs};
use crate::settings::{MetricsAddress, Settings};

/// Prints a line for each check, and returns a failure if one of them failed. Makes nothing.
pub(crate) fn run(file: &Path, named: bool) -> ExitCode {
    let mut all_right = true;
    let mut tell = |finding: Finding| {
        println!("{finding}");
        all_right &= finding.verdict != CheckVerdict::Fail;
    };
    let settings = Settings::load(file, named);
    tell(told("configuration", &settings, |_| shown(file)));
    let settings = settings.unwrap_or_default();
    tell(check::root_user());
    tell(host_features::check_capabilities());
    let policy = settings.policy();
    for program in &policy.allowed {
        let trusted = crate::cli::check(program, &policy.allowed);
        tell(told("runtime-cli", &trusted, |()| shown(program)));
    }
    let runtimes = settings.runtimes();
    tell(told("runtime's configuration", &runtimes, source));
    if let Ok(config) = &runtimes {
        runtimes_own(&settings, config)
            .into_iter()
            .for_each(&mut tell);
        // With a wrong configuration every answer of the runtime is an error, which was printed above.
        if crate::cli::check(&settings.runtime, &policy.allowed).is_ok() {
            tell(runtime(&settings.runtime, &policy));
        }
    }
    for path in [&settings.listen, &settings.crust_listen] {
        if !path.as_os_str().is_empty() {
            tell(socket("socket", path));
        }
    }
    if let Ok(Some(address)) = settings.metrics() {
        tell(metrics_address(&address));
    }
    if all_right {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn told<T, E: Error + 'static>(
    what: &'static str,
    outcome: &Result<T, E>,
    found: impl FnOnce(&T) -> String,
) -> Finding {
    match outcome {
        Ok(value) => Finding::pass(what, found(value)),
        Err(error) => Finding::from_error(what, error),
    }
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn source(config: &Config) -> String {
    let source = config.source.as_deref();
    source.map_or_else(|| "the defaults".to_owned(), shown)
}

/// Checks what the runtime's configuration names. Where it names no delegate, the runtime looks for one.
fn runtimes_own(settings: &Settings, config: &Config) -> Vec<Finding> {
    let mut found = Vec::new();
    if let Some(delegate) = &config.delegate {
        let hint = "set `delegate` in the runtime's configuration to where runc or crun is";
        found.push(check::program("delegate", delegate, hint));
    }
    let hint = "install crust-mount-hook beside the runtime, or set `hook` in its configuration";
    let beside = || {
        let real = settings.runtime.canonicalize();
        real.unwrap_or_else(|_| settings.runtime.clone())
            .with_file_name("crust-mount-hook")
    };
    let hook = config.hook.clone().unwrap_or_else(beside);
    found.push(check::program("hook", &hook, hint));
    found.push(check::directory("crust directory", &config.crust_root));
    found.push(check::directory("state directory", &config.state_dir));
    found.extend(config.match_roots.iter().map(|root| match_root(root)));
    found
}

/// Checks whether volumes can be staged below a match root. In a container of its own, `crust_ops` sees only what is
/// mounted there.
fn match_root(root: &Path) -> Finding {
    const WHAT: &str = "match root";
    if root.is_dir() {
        return Finding::pass(WHAT, shown(root));
    }
    let found = format!(
        "{} isn't a directory in this mount namespace",
        root.display()
    );
    let fix = "make the directory; if crust_ops runs in a pod, give its container a volumeMount of it with \
               mountPropagation: HostToContainer";
    Finding::warn(WHAT, found, fix)
}

/// Checks what the runtime itself finds on this host.
fn runtime(program: &Path, policy: &Policy) -> Finding {
    const WHAT: &str = "runtime";
    let found = match ask(program, policy) {
        Ok(found) => found,
        Err(error) => return Finding::from_error(WHAT, error.as_ref()),
    };
    if found.file_systems.is_empty() {
        let found = format!(
            "{}: this kernel has none of its `fstypes`",
            program.display()
        );
        return Finding::fail(WHAT, found, "modprobe ext4");
    }
    Finding::pass(WHAT, format!("mounts {}", found.file_systems.join(", ")))
}

fn ask(program: &Path, policy: &Policy) -> Result<Capabilities, Box<dyn Error>> {
    let mut threads = tokio::runtime::Builder::new_current_thread();
    let threads = threads.enable_all().build()?;
    let answer = threads.block_on(policy.ask(
        &Runs::default(),
        CliCall {
            program,
            arguments: &["capabilities".into()],
            is_left_alone: false,
        },
        None,
    ));
    Ok(answer?)
}

/// Checks whether a socket can be made at a path.
fn socket(what: &'static str, path: &Path) -> Finding {
    if let Err(error) = check_trusted_directory(path) {
        return Finding::from_error(what, &error);
    }
    let place = path.display();
    match probe(path) {
        Err(error) => Finding::from_error(what, &error),
        Ok(SocketState::NotAStreamSocket) => Finding::fail(
            what,
            format!("{place} isn't a socket of that kind"),
            "name another place or remove it",
        ),
        Ok(SocketState::Listening) => Finding::pass(
            what,
            format!("{place}, where somebody listens already: systemd, or a crust_ops"),
        ),
        Ok(SocketState::Missing | SocketState::Stale) => {
            let directory = path.ancestors().skip(1).find(|part| part.exists());
            let directory = directory.unwrap_or(Path::new("/"));
            match access(directory, Access::WRITE_OK) {
                Ok(()) => Finding::pass(what, place.to_string()),
                Err(errno) => Finding::fail(
                    what,
                    format!("{}: {errno}", directory.display()),
                    "a socket is made there, so it has to be writable for root",
                ),
            }
        }
    }
}

/// How long another process may take to answer at the port of the metrics.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Checks whether metrics can be shown at an address.
fn metrics_address(address: &MetricsAddress) -> Finding {
    const WHAT: &str = "metrics";
    let address = match address {
        MetricsAddress::Unix(path) => return socket(WHAT, path),
        MetricsAddress::Tcp(address) => address,
    };
    match TcpListener::bind(address) {
        Ok(_) => Finding::pass(WHAT, address.to_string()),
        Err(error) if error.kind() == ErrorKind::AddrInUse && is_ours(address) => {
            let found = format!("{address}, where a crust_ops answers already");
            Finding::pass(WHAT, found)
        }
        Err(error) => Finding::fail(
            WHAT,
            format!("bind {address}: {error}"),
            "another port in `metrics_listen`; `ss -lntp` tells whose it is",
        ),
    }
}

/// Returns whether a `crust_ops` answers at a port. A check beside a daemon that runs finds the port taken, and all is
/// well.
fn is_ours(address: &SocketAddr) -> bool {
    let asked = || {
        let mut stream = TcpStream::connect_timeout(address, ANSWER_TIMEOUT)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
        let mut answer = Vec::new();
        stream.take(1024 * 1024).read_to_end(&mut answer)?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = asked().unwrap_or_default();
    String::from_utf8_lossy(&answer).contains("\ncrust_ops_staged_volumes ")
}
