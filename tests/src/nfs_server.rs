//! The kernel's NFS server in a network namespace of its own, so that it has its own address, and several tests can run
//! one at a time.

use std::fs::{self, File};
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use runcrust_harness::node::{WAIT_TIMEOUT, utf8};
use runcrust_harness::{Run, TestDir, wait_until};

/// The script of the first process in the server's namespaces. It ends when it is killed, and all others with it.
const INIT: &str = r#"
set -eu
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/lib/nfs
mkdir -p /run/rpcbind /var/lib/nfs/sm /var/lib/nfs/sm.bak /var/lib/nfs/v4recovery
touch /var/lib/nfs/etab /var/lib/nfs/rmtab /var/lib/nfs/state
mount --bind "$1" /etc/exports
mount -t nfsd nfsd /proc/fs/nfsd
ip link set lo up
echo > "$2"
exec sleep infinity
"#;

/// A running server. It is stopped when this is dropped.
#[derive(Debug)]
pub struct NfsServer {
    init: Child,
    exports: PathBuf,
    /// The exported directory on the host.
    directory: PathBuf,
    number: u32,
}

static NEXT: AtomicU32 = AtomicU32::new(0);

impl NfsServer {
    /// Starts a server that exports an empty directory to everyone, with root not mapped to nobody.
    pub fn start(dir: &TestDir) -> Self {
        Self::start_with(dir, "rw,no_root_squash")
    }

    /// Starts a server that exports an empty directory with these options (exports(5)).
    pub fn start_with(dir: &TestDir, options: &str) -> Self {
        let directory = dir.subdir(format!("export-{}", NEXT.load(Ordering::Relaxed)));
        Self::start_on(dir, directory, options)
    }

    /// Starts another server that exports the directory of this one.
    #[must_use]
    pub fn start_twin(&self, dir: &TestDir) -> Self {
        Self::start_on(dir, self.directory.clone(), "rw,no_root_squash")
    }

    fn start_on(dir: &TestDir, directory: PathBuf, options: &str) -> Self {
        // Unique on the machine while this process lives.
        let number = std::process::id() % 5000 * 10 + NEXT.fetch_add(1, Ordering::Relaxed);
        let exports = dir.join(format!("exports-{number}"));
        let ready = dir.join(format!("nfs-ready-{number}"));
        write_exports(&exports, &directory, options);
        let init = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "unshare", "--net", "--pid", "--fork"])
            .args(["--kill-child", "--mount-proc", "--propagation", "private"])
            .args(["sh", "-c", INIT, "sh", utf8(&exports), utf8(&ready)])
            .stdin(Stdio::null())
            .spawn()
            .expect("unshare");
        let server = Self {
            init,
            exports,
            directory,
            number,
        };
        wait_until("the server's namespaces", WAIT_TIMEOUT, || ready.exists());
        server.connect();
        server.serve();
        server
    }

    fn connect(&self) {
        let (host, peer) = (
            format!("nfsh{}", self.number),
            format!("nfss{}", self.number),
        );
        let pid = self.pid().to_string();
        run(
            "ip",
            &[
                "link", "add", &host, "type", "veth", "peer", "name", &peer, "netns", &pid,
            ],
        );
        run(
            "ip",
            &[
                "addr",
                "add",
                &format!("{}/30", self.host_address()),
                "dev",
                &host,
            ],
        );
        run("ip", &["link", "set", &host, "up"]);
        self.inside(&[
            "ip",
            "addr",
            "add",
            &format!("{}/30", self.address()),
            "dev",
            &peer,
        ]);
        self.inside(&["ip", "link", "set", &peer, "up"]);
        let (host6, peer6) = (self.nth_ipv6_address(1), self.nth_ipv6_address(2));
        run(
            "ip",
            &["addr", "add", &format!("{host6}/64"), "dev", &host, "nodad"],
        );
        self.inside(&[
            "ip",
            "addr",
            "add",
            &format!("{peer6}/64"),
            "dev",
            &peer,
            "nodad",
        ]);
    }

    fn serve(&self) {
        self.inside(&["rpcbind"]);
        // A restarted server makes its clients wait for the grace period: ten seconds instead of ninety.
        let times =
            "echo 10 > /proc/fs/nfsd/nfsv4leasetime; echo 10 > /proc/fs/nfsd/nfsv4gracetime";
        self.inside(&["sh", "-c", times]);
        self.inside(&["exportfs", "-ra"]);
        self.inside(&["rpc.statd"]);
        self.inside(&["rpc.mountd"]);
        self.resume();
    }

    /// Returns the process in the server's namespaces, which is the child of `unshare`.
    fn pid(&self) -> i32 {
        let path = format!("/proc/{0}/task/{0}/children", self.init.id());
        let children = fs::read_to_string(path).expect("a list of children");
        children.trim().parse().expect("one child")
    }

    /// Runs a program in the server's namespaces.
    #[track_caller]
    pub fn inside(&self, command: &[&str]) {
        let target = format!("--target={}", self.pid());
        let mut arguments = vec!["--net", "--mount", "--pid", &target, "--"];
        arguments.extend(command);
        run("nsenter", &arguments);
    }

    /// Returns the path of the server's network namespace.
    pub fn network_namespace(&self) -> PathBuf {
        format!("/proc/{}/ns/net", self.pid()).into()
    }

    /// Returns the server's address.
    pub fn address(&self) -> String {
        self.nth_address(2)
    }

    fn host_address(&self) -> String {
        self.nth_address(1)
    }

    fn nth_address(&self, index: u32) -> String {
        let subnet = self.number * 4;
        format!(
            "10.{}.{}.{}",
            100 + subnet / 65536,
            subnet / 256 % 256,
            subnet % 256 + index
        )
    }

    fn nth_ipv6_address(&self, index: u32) -> String {
        format!("fd72:{:x}::{index}", self.number)
    }

    /// Returns the share by the server's IPv6 address.
    pub fn ipv6_share(&self) -> String {
        format!(
            "[{}]:{}",
            self.nth_ipv6_address(2),
            self.directory.display()
        )
    }

    /// Returns an address of this node at which no server runs.
    pub fn address_without_server(&self) -> String {
        self.host_address()
    }

    /// Returns whether this node's kernel has a client of the server.
    pub fn has_client(&self) -> bool {
        let address: Ipv4Addr = self.address().parse().expect("an address");
        let address = format!("{:08x}", address.to_bits());
        // The kernel lists the clients of a network namespace with their servers' addresses in hexadecimal.
        let servers = fs::read_to_string("/proc/fs/nfsfs/servers").unwrap_or_default();
        servers.lines().any(|line| line.contains(&address))
    }

    /// Returns the share as `server:/export`.
    pub fn share(&self) -> String {
        self.share_at("")
    }

    /// Returns a directory below the exported one as a share.
    pub fn share_at(&self, path: &str) -> String {
        format!("{}:{}{path}", self.address(), self.directory.display())
    }

    /// Returns the exported directory on the host.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Exports the directory with other options.
    pub fn export_with(&self, options: &str) {
        write_exports(&self.exports, &self.directory, options);
        self.inside(&["exportfs", "-ra"]);
    }

    /// Mounts another file system at a directory below the exported one, and exports it, too. Clients enter it.
    pub fn export_below(&self, path: &str) {
        let below = self.directory.join(path);
        self.inside(&["mount", "-t", "tmpfs", "tmpfs", utf8(&below)]);
        let line = export_line(&below, "rw,no_root_squash,fsid=1");
        let exports = fs::read_to_string(&self.exports).expect("read exports");
        fs::write(&self.exports, exports + &line).expect("write exports");
        self.inside(&["exportfs", "-ra"]);
    }

    /// Takes back what [`export_below`](Self::export_below) did.
    pub fn unexport_below(&self, path: &str) {
        self.export_with("rw,no_root_squash");
        self.inside(&["exportfs", "-f"]);
        self.inside(&["umount", "--lazy", utf8(&self.directory.join(path))]);
    }

    /// Stops the NFS service. Its port is closed then.
    pub fn stop(&self) {
        self.inside(&["rpc.nfsd", "0"]);
    }

    /// Starts the NFS service again.
    pub fn resume(&self) {
        self.inside(&["rpc.nfsd", "4"]);
    }

    /// Restarts the NFS service without some versions of the protocol.
    pub fn restart_without(&self, versions: &[&str]) {
        self.stop();
        let options = versions.iter().flat_map(|version| ["-N", version]);
        let command: Vec<&str> = ["rpc.nfsd"]
            .into_iter()
            .chain(options)
            .chain(["4"])
            .collect();
        self.inside(&command);
    }

    /// Lets a firewall drop everything that is sent to the server.
    pub fn block(&self) {
        self.firewall("-I");
    }

    /// Takes the firewall's rule back.
    pub fn unblock(&self) {
        self.firewall("-D");
    }

    /// Lets a firewall drop what is sent to a TCP port of the server, until [`Self::unblock_port`].
    pub fn block_port(&self, port: u16) {
        self.port_firewall("-I", port);
    }

    /// Takes the firewall's rule for a port back.
    pub fn unblock_port(&self, port: u16) {
        self.port_firewall("-D", port);
    }

    fn firewall(&self, action: &str) {
        let rule = ["-d", &self.address(), "-j", "DROP"];
        let arguments = [&["--wait", action, "OUTPUT"][..], &rule].concat();
        run("iptables", &arguments);
    }

    fn port_firewall(&self, action: &str, port: u16) {
        let (address, port) = (self.address(), port.to_string());
        let rule = ["-d", &address, "-p", "tcp", "--dport", &port, "-j", "DROP"];
        run(
            "iptables",
            &[&["--wait", action, "OUTPUT"][..], &rule].concat(),
        );
    }
}

fn write_exports(file: &Path, directory: &Path, options: &str) {
    // Written in place, because the file is a mount point.
    fs::write(file, export_line(directory, options)).expect("write exports");
}

fn export_line(directory: &Path, options: &str) -> String {
    let directory = directory.display();
    format!("\"{directory}\" *({options},no_subtree_check,insecure)\n")
}

#[track_caller]
fn run(program: &str, arguments: &[&str]) {
    let _ = Run::capture(Command::new(program).args(arguments)).success();
}

impl Drop for NfsServer {
    fn drop(&mut self) {
        // Clients that still have the share mounted must not wait for ever, so the server is made reachable.
        let rule = [
            "--wait",
            "-D",
            "OUTPUT",
            "-d",
            &self.address(),
            "-j",
            "DROP",
        ];
        let _ = Command::new("iptables").args(rule).output();
        let target = format!("--target={}", self.pid());
        let stop = ["--net", "--mount", "--pid", &target, "--", "rpc.nfsd", "0"];
        let _ = Command::new("nsenter").args(stop).output();
        let _ = self.init.kill();
        let _ = self.init.wait();
        let host = format!("nfsh{}", self.number);
        let _ = Command::new("ip").args(["link", "del", &host]).output();
    }
}

/// The time in which a client notices that a server answers again.
pub const RECOVERY_TIMEOUT: Duration = Duration::from_secs(60);

/// A line in `/etc/hosts`, until it is dropped.
#[derive(Debug)]
pub struct HostsEntry(String);

impl HostsEntry {
    /// Gives an address a name. A name may have several addresses.
    pub fn add(address: &str, name: &str) -> Self {
        let line = format!("{address} {name}\n");
        change_hosts(|hosts| hosts + &line).expect(HOSTS);
        Self(line)
    }
}

impl Drop for HostsEntry {
    fn drop(&mut self) {
        let _ = change_hosts(|hosts| hosts.replace(&self.0, ""));
    }
}

const HOSTS: &str = "/etc/hosts";

/// Changes the names of this node. Tests that run at the same time wait for each other.
fn change_hosts(change: impl FnOnce(String) -> String) -> io::Result<()> {
    let lock = File::open(HOSTS)?;
    lock.lock()?;
    fs::write(HOSTS, change(fs::read_to_string(HOSTS)?))
}
