//! A `crustlet` of the test's own: kubelet's part, on a [`Node`] and in front of a [`Containerd`].

mod metrics;
mod objects;
mod places;
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
use crate::cleanup::{Cleanup, Working};
use crate::csi::{DRIVER, NODE};
use crate::daemon::Daemon;
use crate::{Containerd, Node, Run, binary, http, mounts, wait_until};

/// How long it may take to start, to end, or to do what a test waits for.
const AGENT_TIMEOUT: Duration = Duration::from_secs(40);

/// The agent, with the handler's kubelet directory as its root directory. Dropped, it is killed, and what is mounted
/// below that goes; its pods go with their [`Containerd`], which is dropped after it.
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
    /// Started, with a driver that answers at a socket.
    #[track_caller]
    pub fn start(node: &Node, containerd: &Containerd, driver: &Path) -> Self {
        Self::with(node, containerd, driver, &[])
    }

    /// With further arguments, as `--name=value`, each time that it is started.
    #[track_caller]
    pub fn with(node: &Node, containerd: &Containerd, driver: &Path, arguments: &[&str]) -> Self {
        let mut crustlet = Self::stopped(node, containerd, driver);
        crustlet.settings = overridden(&crustlet.settings, arguments);
        crustlet.spawn(crustlet.command(&[]));
        crustlet
    }

    /// Not started yet.
    pub fn stopped(node: &Node, containerd: &Containerd, driver: &Path) -> Self {
        let _working = Working::begin();
        // Where only root can change anything.
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

    /// Another one of the same container runtime, with all else its own, started.
    ///
    /// # Panics
    ///
    /// When its directories can't be made, or it doesn't start.
    #[track_caller]
    #[must_use]
    pub fn start_another(&self, name: &str) -> Self {
        let _working = Working::begin();
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

    /// The agent's command line, with arguments that stand for what it would be given by those names.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(binary("crustlet"));
        command
            .arg("serve")
            .args(overridden(&self.settings, arguments));
        command
    }

    /// Starts it by this command and waits until it answers.
    #[track_caller]
    pub fn spawn(&self, command: Command) {
        let _ = fs::remove_file(&self.socket);
        self.daemon.spawn(command);
        wait_until("crustlet to listen", AGENT_TIMEOUT, || {
            assert!(self.is_running(), "it has ended: {}", self.log());
            UnixStream::connect(&self.socket).is_ok()
        });
    }

    /// SIGKILL.
    pub fn kill(&self) {
        self.daemon.kill();
    }

    /// SIGKILL, and another one, with these arguments besides.
    #[track_caller]
    pub fn restart(&self, arguments: &[&str]) {
        self.kill();
        self.spawn(self.command(arguments));
    }

    /// SIGTERM; how it has ended.
    #[track_caller]
    pub fn stop(&self) -> ExitStatus {
        self.daemon.stop("crustlet", AGENT_TIMEOUT)
    }

    /// Whether it hasn't ended.
    pub fn is_running(&self) -> bool {
        self.daemon.is_running()
    }

    /// Its pid.
    pub fn pid(&self) -> i32 {
        self.daemon.pid()
    }

    /// What it logged.
    pub fn log(&self) -> String {
        self.daemon.log()
    }

    /// Writes a file of manifests, or replaces it: at once, as a rename does.
    pub fn write(&self, name: &str, yaml: &str) {
        // Several threads may write at a time.
        let beside = self.manifests.with_file_name(format!("{name}.new"));
        fs::write(&beside, yaml).expect("a manifest");
        fs::rename(&beside, self.manifest(name)).expect("a manifest in its place");
    }

    /// Removes a file of manifests.
    ///
    /// # Panics
    ///
    /// When there is none by the name.
    #[track_caller]
    pub fn remove(&self, name: &str) {
        let file = self.manifest(name);
        fs::remove_file(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }

    /// `crustlet run` of a manifest: by the agent, which writes the file itself.
    pub fn run(&self, yaml: &str) -> Run {
        let file = self.manifests.with_extension("yaml");
        fs::write(&file, yaml).expect("a manifest");
        self.cli(&["run", crate::node::utf8(&file)])
    }

    /// A command of the agent's client: `["get", "pods"]`.
    ///
    /// # Panics
    ///
    /// When it doesn't end for long.
    #[track_caller]
    pub fn cli(&self, arguments: &[&str]) -> Run {
        let ended = Run::within(&mut self.client(arguments), AGENT_TIMEOUT);
        ended.unwrap_or_else(|| panic!("{arguments:?} doesn't end: {}", self.diagnostics()))
    }

    /// The same, not run yet.
    pub fn client(&self, arguments: &[&str]) -> Command {
        let (verb, rest) = arguments.split_first().expect("a command");
        let mut command = Command::new(binary("crustlet"));
        // Before whatever follows a `--`.
        command.arg(verb).arg("--socket").arg(&self.socket);
        command.args(rest);
        command
    }

    /// What it tells Prometheus.
    ///
    /// # Panics
    ///
    /// When it doesn't answer, or not as Prometheus would have it.
    #[track_caller]
    pub fn metrics(&self) -> Metrics {
        let (head, body) = self.get_page("/metrics");
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        Metrics::parse(&body).unwrap_or_else(|line| panic!("no metric's line: {line}\n{body}"))
    }

    /// A page of its metrics' address: its head and body.
    ///
    /// # Panics
    ///
    /// When it doesn't answer.
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

/// Settings, but for those that are given anew by their names: `--name=value`.
fn overridden(settings: &[String], anew: &[&str]) -> Vec<String> {
    let name = |argument: &str| argument.split('=').next().map(str::to_owned);
    let said: Vec<Option<String>> = anew.iter().map(|it| name(it)).collect();
    let kept = settings.iter().filter(|it| !said.contains(&name(it)));
    let anew = anew.iter().map(|&it| it.to_owned());
    kept.cloned().chain(anew).collect()
}

/// An address that no other process's tests have, and by which nothing but this host is reached: so nobody takes it
/// while the agent is restarted.
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
    fn an_argument_stands_for_the_one_by_its_name() {
        let settings = ["--csi=a=unix:///a", "--period=1"].map(str::to_owned);
        let anew = ["--period=5", "--feature-gates=A=false,B=true"];
        let expected = [
            "--csi=a=unix:///a",
            "--period=5",
            "--feature-gates=A=false,B=true",
        ];
        assert_eq!(overridden(&settings, &anew), expected);
        assert_eq!(overridden(&settings, &[]), settings);
    }

    #[test]
    fn metrics_are_asked_for_at_an_address_of_the_process_own() {
        let addresses = [own_address(), own_address()];
        assert!(addresses.iter().all(|it| it.ip().is_loopback()));
        assert_ne!(addresses[0], addresses[1]);
        assert_ne!(addresses[0].ip(), Ipv4Addr::LOCALHOST);
    }
}
