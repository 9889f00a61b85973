//! A private `crustlet`, which does kubelet's part on a [`Node`] with a [`Containerd`].

mod metrics;
mod objects;
mod paths;
mod waits;

use std::fs;
use std::io::{Write as _, stderr};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{self, Command, ExitStatus};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

pub use self::metrics::Metrics;
pub use self::objects::Event;
use crate::cleanup::{Cleanup, OperationGuard};
use crate::csi::{DRIVER, NODE};
use crate::daemon::Daemon;
use crate::{Containerd, Node, Run, binary, http, mounts, wait_until};

/// The longest time that the agent may take to start, to end, or to do what a test waits for.
const AGENT_TIMEOUT: Duration = Duration::from_secs(40);

/// The agent. Its root directory is the kubelet directory of the node's handler. On drop it is killed and everything
/// below its root directory is unmounted. Its pods are removed with the [`Containerd`], which is dropped later.
#[derive(Debug)]
pub struct Crustlet {
    daemon: Daemon,
    settings: Vec<String>,
    root: PathBuf,
    manifests: PathBuf,
    socket: PathBuf,
    metrics: SocketAddr,
    _cleanup: Cleanup,
}

impl Crustlet {
    /// Starts an agent with a driver at this socket.
    #[track_caller]
    pub fn start(node: &Node, containerd: &Containerd, driver: &Path) -> Self {
        Self::with(node, containerd, driver, &[])
    }

    /// Starts an agent with further arguments of the form `--name=value`. They also apply after a restart.
    #[track_caller]
    pub fn with(node: &Node, containerd: &Containerd, driver: &Path, arguments: &[&str]) -> Self {
        let mut crustlet = Self::stopped(node, containerd, driver);
        crustlet.settings = overridden(&crustlet.settings, arguments);
        crustlet.spawn(crustlet.command(&[]));
        crustlet
    }

    /// Configures an agent without starting it.
    pub fn stopped(node: &Node, containerd: &Containerd, driver: &Path) -> Self {
        let _operation = OperationGuard::begin();
        // The agent's files are in a directory that only root can change.
        let home = node.handler().path();
        let root = node.handler().kubelet_dir();
        let manifests = home.with_file_name("manifests");
        for directory in [&root, &manifests] {
            fs::create_dir_all(directory).expect("a directory of the agent's");
        }
        let daemon = Daemon::logging_to(&node.dir().join("crustlet.log"));
        let (socket, metrics) = (home.with_file_name("n"), own_address());
        let owned = (daemon.clone(), root.clone());
        Self {
            _cleanup: Cleanup::register(move || {
                owned.0.kill();
                mounts::unmount_below(&owned.1)
            }),
            settings: vec![
                format!("--root-dir={}", root.display()),
                format!("--manifests={}", manifests.display()),
                format!("--listen=unix://{}", socket.display()),
                format!("--metrics-address={metrics}"),
                format!(
                    "--container-runtime-endpoint=unix://{}",
                    containerd.socket().display()
                ),
                format!("--cgroup-root={}", containerd.cgroup()),
                format!("--pod-logs-dir={}", node.dir().join("logs").display()),
                format!("--csi={DRIVER}=unix://{}", driver.display()),
                format!("--node-name={NODE}"),
                "--volume-stats-agg-period=1".to_owned(),
            ],
            daemon,
            root,
            manifests,
            socket,
            metrics,
        }
    }

    /// Starts a second agent on the same container runtime, with its own directories and addresses.
    #[track_caller]
    #[must_use]
    pub fn start_another(&self, name: &str) -> Self {
        let _operation = OperationGuard::begin();
        let place = self.manifests.with_file_name(name);
        let (root, manifests, socket) =
            (place.join("root"), place.join("manifests"), place.join("n"));
        fs::create_dir_all(&manifests).expect("a directory of the agent's");
        let metrics = own_address();
        let settings = overridden(
            &self.settings,
            &[
                &format!("--root-dir={}", root.display()),
                &format!("--manifests={}", manifests.display()),
                &format!("--listen=unix://{}", socket.display()),
                &format!("--metrics-address={metrics}"),
                &format!("--pod-logs-dir={}", place.join("logs").display()),
            ],
        );
        let daemon = Daemon::logging_to(&place.join("log"));
        let owned = daemon.clone();
        let other = Self {
            _cleanup: Cleanup::register(move || {
                owned.kill();
                Vec::new()
            }),
            daemon,
            settings,
            root,
            manifests,
            socket,
            metrics,
        };
        other.spawn(other.command(&[]));
        other
    }

    /// Returns the agent's command line. An argument replaces the setting of the same name.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(binary("crustlet"));
        command
            .arg("serve")
            .args(overridden(&self.settings, arguments));
        command
    }

    /// Starts the agent with this command and waits until it listens.
    #[track_caller]
    pub fn spawn(&self, command: Command) {
        let _ = fs::remove_file(&self.socket);
        self.daemon.spawn(command);
        wait_until("crustlet to listen", AGENT_TIMEOUT, || {
            assert!(self.is_running(), "crustlet has ended: {}", self.log());
            UnixStream::connect(&self.socket).is_ok()
        });
    }

    /// Kills the agent with SIGKILL.
    pub fn kill(&self) {
        self.daemon.kill();
    }

    /// Kills the agent with SIGKILL and starts it again with these additional arguments.
    #[track_caller]
    pub fn restart(&self, arguments: &[&str]) {
        self.kill();
        self.spawn(self.command(arguments));
    }

    /// Stops the agent with SIGTERM and returns its exit status.
    #[track_caller]
    pub fn stop(&self) -> ExitStatus {
        self.daemon.stop("crustlet", AGENT_TIMEOUT)
    }

    pub fn is_running(&self) -> bool {
        self.daemon.is_running()
    }

    pub fn pid(&self) -> i32 {
        self.daemon.pid()
    }

    pub fn log(&self) -> String {
        self.daemon.log()
    }

    /// Writes or replaces a file of manifests atomically.
    pub fn write(&self, name: &str, yaml: &str) {
        // Several threads may write at the same time.
        let temporary = self.manifests.with_file_name(format!("{name}.new"));
        fs::write(&temporary, yaml).expect("a manifest");
        fs::rename(&temporary, self.manifest(name)).expect("rename of a manifest");
    }

    #[track_caller]
    pub fn remove(&self, name: &str) {
        let file = self.manifest(name);
        fs::remove_file(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }

    /// Runs `crustlet run` with a manifest. The agent writes the file itself.
    pub fn run(&self, yaml: &str) -> Run {
        let file = self.manifests.with_extension("yaml");
        fs::write(&file, yaml).expect("a manifest");
        self.cli(&["run", crate::node::utf8(&file)])
    }

    /// Runs a command of the agent's client, such as `["get", "pods"]`.
    #[track_caller]
    pub fn cli(&self, arguments: &[&str]) -> Run {
        let ended = Run::capture_within(&mut self.client(arguments), AGENT_TIMEOUT);
        ended.unwrap_or_else(|| panic!("{arguments:?} does not end: {}", self.diagnostics()))
    }

    /// Returns the command of [`Self::cli`] without running it.
    pub fn client(&self, arguments: &[&str]) -> Command {
        let (verb, rest) = arguments.split_first().expect("a command");
        let mut command = Command::new(binary("crustlet"));
        // `--socket` comes before the arguments, because a `--` may be among them.
        command.arg(verb).arg("--socket").arg(&self.socket);
        command.args(rest);
        command
    }

    /// Reads the agent's metrics, which must be valid Prometheus text.
    #[track_caller]
    pub fn metrics(&self) -> Metrics {
        let (head, body) = self.get_page("/metrics");
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        Metrics::parse(&body).unwrap_or_else(|line| panic!("not a line of metrics: {line}\n{body}"))
    }

    /// Gets a page from the metrics address, and returns its head and body.
    #[track_caller]
    pub fn get_page(&self, path: &str) -> (String, String) {
        let stream = TcpStream::connect(self.metrics);
        let stream = stream.unwrap_or_else(|error| panic!("{}: {error}", self.metrics));
        http::get(stream, path)
    }
}

impl Drop for Crustlet {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let end = lines[lines.len().saturating_sub(40)..].join("\n");
            let _ = writeln!(stderr(), "the end of crustlet's log:\n{end}");
        }
    }
}

/// Returns the settings after replacing those that `replacements` has under the same name (`--name=value`).
fn overridden(settings: &[String], replacements: &[&str]) -> Vec<String> {
    let name = |argument: &str| argument.split('=').next().map(str::to_owned);
    let names: Vec<Option<String>> = replacements.iter().map(|it| name(it)).collect();
    let kept = settings.iter().filter(|it| !names.contains(&name(it)));
    let replacements = replacements.iter().map(|&it| it.to_owned());
    kept.cloned().chain(replacements).collect()
}

/// Returns a loopback address that no other process's tests use, so that it stays free while the agent is restarted.
fn own_address() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(10_248);
    let [_, high, middle, low] = process::id().to_be_bytes();
    // Pids have 22 bits.
    let address = Ipv4Addr::new(127, 64 | (high & 63), middle, low);
    SocketAddr::from((address, NEXT.fetch_add(1, Ordering::Relaxed)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_replaces_the_setting_of_its_name() {
        let settings = ["--csi=a=unix:///a", "--period=1"].map(str::to_owned);
        let replacements = ["--period=5", "--feature-gates=A=false,B=true"];
        let expected = [
            "--csi=a=unix:///a",
            "--period=5",
            "--feature-gates=A=false,B=true",
        ];
        assert_eq!(overridden(&settings, &replacements), expected);
        assert_eq!(overridden(&settings, &[]), settings);
    }

    #[test]
    fn metrics_addresses_are_unique_and_local() {
        let addresses = [own_address(), own_address()];
        assert!(addresses.iter().all(|it| it.ip().is_loopback()));
        assert_ne!(addresses[0], addresses[1]);
        assert_ne!(addresses[0].ip(), Ipv4Addr::LOCALHOST);
    }
}
