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

use crate::cli::{Capabilities, CliCall, CliRuns, Policy};
use crate::settings::{MetricsAddress, Settings};

/// Prints one line for each check. Returns a failure if one of them failed. Changes nothing on the node.
pub(crate) fn run(file: &Path, is_explicit: bool) -> ExitCode {
    let mut passed = true;
    let mut report = |finding: Finding| {
        println!("{finding}");
        passed &= finding.verdict != CheckVerdict::Fail;
    };
    let settings = Settings::load(file, is_explicit);
    report(finding("configuration", &settings, |settings| {
        source_text(settings.source.as_deref())
    }));
    let settings = settings.unwrap_or_default();
    report(check::root_user());
    report(host_features::check_capabilities());
    let policy = settings.policy();
    for program in &policy.allowed {
        let trusted = crate::cli::check(program, &policy.allowed);
        report(finding("runtime-cli", &trusted, |()| path_text(program)));
    }
    let config = settings.runtime_config();
    report(finding("runtime's configuration", &config, |config| {
        source_text(config.source.as_deref())
    }));
    if let Ok(config) = &config {
        check_runtime_config(&settings, config)
            .into_iter()
            .for_each(&mut report);
        // With an invalid configuration every call to the runtime would only repeat the error above.
        if crate::cli::check(&settings.runtime, &policy.allowed).is_ok() {
            report(check_runtime(&settings.runtime, &policy));
        }
    }
    for path in [&settings.listen, &settings.crust_listen] {
        if !path.as_os_str().is_empty() {
            report(check_socket("socket", path));
        }
    }
    if let Ok(Some(address)) = settings.metrics() {
        report(check_metrics_address(&address));
    }
    if passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn finding<T, E: Error + 'static>(
    name: &'static str,
    result: &Result<T, E>,
    found: impl FnOnce(&T) -> String,
) -> Finding {
    match result {
        Ok(value) => Finding::pass(name, found(value)),
        Err(error) => Finding::from_error(name, error),
    }
}

fn path_text(path: &Path) -> String {
    path.display().to_string()
}

/// Returns the text for a configuration that was read from a file, or is the default.
fn source_text(source: Option<&Path>) -> String {
    source.map_or_else(|| "the defaults".to_owned(), path_text)
}

/// Checks the programs and directories in the runtime's configuration. If it names no delegate, the runtime searches
/// for one, and nothing is checked.
fn check_runtime_config(settings: &Settings, config: &Config) -> Vec<Finding> {
    let mut found = Vec::new();
    if let Some(delegate) = &config.delegate {
        let hint = "set `delegate` in the runtime's configuration to the path of runc or crun";
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
    found.extend(config.match_roots.iter().map(|root| check_match_root(root)));
    found
}

/// Checks whether `crust_ops` can see a match root. In a container of its own it only sees directories that are mounted
/// there.
fn check_match_root(root: &Path) -> Finding {
    const NAME: &str = "match root";
    if root.is_dir() {
        return Finding::pass(NAME, path_text(root));
    }
    let found = format!(
        "{} isn't a directory in this mount namespace",
        root.display()
    );
    let fix = "create the directory; if crust_ops runs in a pod, give its container a volumeMount of it with \
               mountPropagation: HostToContainer";
    Finding::warn(NAME, found, fix)
}

/// Checks whether the runtime can mount a file system on this host.
fn check_runtime(program: &Path, policy: &Policy) -> Finding {
    const NAME: &str = "runtime";
    let found = match ask_capabilities(program, policy) {
        Ok(found) => found,
        Err(error) => return Finding::from_error(NAME, error.as_ref()),
    };
    if found.file_systems.is_empty() {
        let found = format!(
            "{}: this kernel has none of its `fstypes`",
            program.display()
        );
        return Finding::fail(
            NAME,
            found,
            "load the module of one of them, such as with `modprobe ext4`",
        );
    }
    Finding::pass(NAME, format!("mounts {}", found.file_systems.join(", ")))
}

fn ask_capabilities(program: &Path, policy: &Policy) -> Result<Capabilities, Box<dyn Error>> {
    let mut executor = tokio::runtime::Builder::new_current_thread();
    let executor = executor.enable_all().build()?;
    let answer = executor.block_on(policy.ask(
        &CliRuns::default(),
        CliCall {
            program,
            arguments: &["capabilities".into()],
            runs_to_completion: false,
        },
        None,
    ));
    Ok(answer?)
}

/// Checks whether the daemon can listen on a socket at a path.
fn check_socket(name: &'static str, path: &Path) -> Finding {
    if let Err(error) = check_trusted_directory(path) {
        return Finding::from_error(name, &error);
    }
    let socket = path.display();
    match probe(path) {
        Err(error) => Finding::from_error(name, &error),
        Ok(SocketState::NotAStreamSocket) => Finding::fail(
            name,
            format!("{socket} isn't a stream socket"),
            "configure another path, or remove the file",
        ),
        Ok(SocketState::Listening) => Finding::pass(
            name,
            format!("{socket}, on which systemd or a crust_ops already listens"),
        ),
        Ok(SocketState::Missing | SocketState::Stale) => {
            let directory = path.ancestors().skip(1).find(|part| part.exists());
            let directory = directory.unwrap_or(Path::new("/"));
            match access(directory, Access::WRITE_OK) {
                Ok(()) => Finding::pass(name, socket.to_string()),
                Err(errno) => Finding::fail(
                    name,
                    format!("{}: {errno}", directory.display()),
                    "make the directory writable for root, because the socket is created there",
                ),
            }
        }
    }
}

/// The timeout for another process to answer at the metrics port.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Checks whether the daemon can serve metrics at an address.
fn check_metrics_address(address: &MetricsAddress) -> Finding {
    const NAME: &str = "metrics";
    let address = match address {
        MetricsAddress::Unix(path) => return check_socket(NAME, path),
        MetricsAddress::Tcp(address) => address,
    };
    match TcpListener::bind(address) {
        Ok(_) => Finding::pass(NAME, address.to_string()),
        Err(error) if error.kind() == ErrorKind::AddrInUse && is_crust_ops(address) => {
            let found = format!("{address}, where a crust_ops already answers");
            Finding::pass(NAME, found)
        }
        Err(error) => Finding::fail(
            NAME,
            format!("bind {address}: {error}"),
            "set another port in `metrics_listen`; `ss -lntp` shows which process uses this one",
        ),
    }
}

/// Returns true if a `crust_ops` answers at a port. If the daemon is running during the check, the port is expected to
/// be in use.
fn is_crust_ops(address: &SocketAddr) -> bool {
    let request = || {
        let mut stream = TcpStream::connect_timeout(address, ANSWER_TIMEOUT)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
        let mut answer = Vec::new();
        stream.take(1024 * 1024).read_to_end(&mut answer)?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = request().unwrap_or_default();
    String::from_utf8_lossy(&answer).contains("\ncrust_ops_staged_volumes ")
}
