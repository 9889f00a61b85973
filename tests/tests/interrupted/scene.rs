//! A node with a volume, and assertions that have to hold after any kill.

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use runcrust_tests::container::end;
use runcrust_tests::gc::{assert_nothing_unknown, collect};
use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::volume::{fsck, with_mounted};
use runcrust_tests::{
    Bundle, Container, Delegate, LoopDevice, Node, POD, Run, host, process, wait_until,
};
use serde_json::Value;

use crate::row::Row;

const OTHER_POD: &str = "99999999-2222-1111-4444-666666666666";

/// The id on the host of id 0 in a user namespace.
pub(crate) const FIRST_ID: u32 = 100_000;

/// The longest time that a device may stay in use after its last user has ended. An unstage waits this long.
const FREE_TIMEOUT: Duration = Duration::from_secs(10);

/// The number of bytes by which a device grows.
const GROWTH: u64 = 16 << 20;

/// A node with a device.
pub(crate) struct Scene {
    pub(crate) node: Node,
    pub(crate) device: LoopDevice,
    /// The device of the pod's second volume.
    second: Option<LoopDevice>,
    /// The number of lines that containers have written to the volume.
    lines: Cell<usize>,
    /// The original size of the file system in bytes.
    size: u64,
}

impl Scene {
    pub(crate) fn new(node: Node) -> Self {
        let device = node.ext4();
        Self::with(node, device, None)
    }

    /// Sets up the node, the volume and the configuration of a row.
    pub(crate) fn for_row(delegate: Delegate, row: &Row) -> Self {
        let node = Node::with(delegate, row.configuration);
        if row.is_linked {
            let real = node.dir().subdir("real");
            symlink(real, node.handler().kubelet_dir()).expect("a link");
        }
        let device = node.formatted(row.fstype);
        let second = row.has_second_volume.then(|| node.formatted(row.fstype));
        if let Some(second) = &second {
            with_mounted(second.path(), |root| fs::write(root.join("file"), "x\n"))
                .expect("a line");
        }
        Self::with(node, device, second)
    }

    fn with(node: Node, device: LoopDevice, second: Option<LoopDevice>) -> Self {
        let size = with_mounted(device.path(), |root| {
            fs::write(root.join("file"), "x\n").expect("a line");
            let statfs = rustix::fs::statvfs(root).expect("statvfs");
            statfs.f_blocks * statfs.f_frsize
        });
        Self {
            node,
            device,
            second,
            lines: Cell::new(1),
            size,
        }
    }

    /// Returns the volume's target path.
    pub(crate) fn target(&self) -> PathBuf {
        self.node.target(POD, "pv-1")
    }

    /// Returns the target path of the pod's second volume.
    fn second_target(&self) -> PathBuf {
        self.node.target(POD, "pv-2")
    }

    /// Returns the target path of the volume for another pod.
    fn other_pods_target(&self) -> PathBuf {
        self.node.target(OTHER_POD, "pv-1")
    }

    fn crust_command(&self, arguments: &[&str]) -> Command {
        let mut command = self.node.handler().command();
        command.arg("crust").args(arguments);
        command
    }

    fn staging_command(&self, subcommand: &[&str], target: &Path, device: &LoopDevice) -> Command {
        let mut command = self.crust_command(subcommand);
        command.arg(target).args(["--device", utf8(device.path())]);
        command.args(["--fstype", device.fstype(), "--fs-group", "4242"]);
        command
    }

    pub(crate) fn stage_command(&self) -> Command {
        self.staging_command(&["stage"], &self.target(), &self.device)
    }

    pub(crate) fn stage(&self) -> PathBuf {
        let _ = Run::capture(&mut self.stage_command()).success();
        self.target()
    }

    pub(crate) fn stage_second(&self) -> PathBuf {
        let device = self.second.as_ref().expect("a row with two volumes");
        let target = self.second_target();
        let _ = Run::capture(&mut self.staging_command(&["stage"], &target, device)).success();
        target
    }

    pub(crate) fn stage_for_another_pod(&self) {
        let target = self.other_pods_target();
        let _ =
            Run::capture(&mut self.staging_command(&["stage"], &target, &self.device)).success();
    }

    pub(crate) fn gc_command(&self) -> Command {
        self.crust_command(&["gc"])
    }

    pub(crate) fn unstage_command(&self) -> Command {
        self.crust_command(&["unstage", utf8(&self.target())])
    }

    pub(crate) fn unstage(&self) -> Run {
        Run::capture(&mut self.unstage_command())
    }

    pub(crate) fn publish_command(&self, sandbox: &Container) -> Command {
        let subcommand = ["publish", "--sandbox", sandbox.id()];
        self.staging_command(&subcommand, &self.target(), &self.device)
    }

    /// Grows the device, but not its file system.
    pub(crate) fn grow(&self) {
        let now = fs::metadata(self.device.file()).expect("stat").len();
        self.device.set_size(now + GROWTH);
    }

    /// Returns the command that grows the file system, now or at the next mount.
    pub(crate) fn resize_command(&self) -> Command {
        self.crust_command(&["resize", utf8(&self.target()), "0", "0"])
    }

    /// Asserts that the file system has grown.
    #[track_caller]
    pub(crate) fn assert_grown(&self, app: &Container) {
        let size = app.sh("stat -f -c '%b %S' /data");
        let numbers = size
            .split(' ')
            .map(|number| number.parse::<u64>().expect("a number"));
        assert!(numbers.product::<u64>() > self.size, "{size}");
    }

    /// Starts a command without standard input and output.
    pub(crate) fn spawn(mut command: Command) -> Child {
        let command = command.stdin(Stdio::null()).stdout(Stdio::null());
        command.spawn().expect("a child process")
    }

    /// Returns the bundle of a container in a sandbox, with the volume at `/data`.
    pub(crate) fn app_bundle(&self, sandbox: &Container) -> Bundle {
        let bundle = self.node.app_bundle(sandbox);
        bundle.bind(self.target(), "/data", &[])
    }

    /// Returns the written bundle of a container without a sandbox, with the volume at `/data`.
    pub(crate) fn plain_bundle(&self) -> Bundle {
        self.plain(&self.target())
    }

    fn plain(&self, target: &Path) -> Bundle {
        let bundle = Bundle::plain(self.node.dir())
            .bind(target, "/data", &[])
            .write();
        // A hook that mounts the volume does not create the mountpoint.
        fs::create_dir(bundle.rootfs().join("data")).expect("a mountpoint");
        bundle
    }

    /// Runs a container in a sandbox, with the volume at `/data`.
    pub(crate) fn app(&self, sandbox: &Container) -> Container {
        self.node.app(sandbox, &self.target(), "/data")
    }

    /// Waits until the devices are free.
    #[track_caller]
    pub(crate) fn wait_until_free(&self) {
        for device in self.devices() {
            device.wait_until_free(FREE_TIMEOUT);
        }
    }

    fn devices(&self) -> impl Iterator<Item = &LoopDevice> {
        [&self.device].into_iter().chain(&self.second)
    }

    /// Asserts that the host has no mount of the volume, that no process has a mount below the attach directory, and
    /// that none of the test's programs runs.
    #[track_caller]
    pub(crate) fn assert_host_is_clean(&self) {
        for device in self.devices() {
            assert_eq!(device.host_mounts(), Vec::<String>::new());
        }
        let attach = self.node.handler().state_dir().join("attach");
        let mut mounts = host::mounts_below(self.node.dir().path());
        // With `attach = "bind"` the attach directory itself is a mount.
        mounts.retain(|point| *point != attach);
        assert_eq!(mounts, Vec::<PathBuf>::new());
        let processes_with_mounts = || {
            let all = process::with_command_line(|_| true).into_iter();
            let below = |pid: &i32| {
                let mounts = host::mounts_of(pid).into_iter();
                let mut points = mounts.map(|mount| mount.point);
                points.any(|point| point != attach && point.starts_with(&attach))
            };
            all.filter(below).collect::<Vec<i32>>()
        };
        wait_until("the attach directory to be unused", WAIT_TIMEOUT, || {
            processes_with_mounts().is_empty()
        });
        let node_dir = utf8(self.node.dir().path());
        let left = || process::with_command_line(|line| line.contains(node_dir));
        wait_until("the killed processes to end", WAIT_TIMEOUT, || {
            left().is_empty()
        });
    }

    /// Asserts that a container sees the lines that all earlier containers wrote, and adds a line.
    #[track_caller]
    pub(crate) fn assert_works(&self, container: &Container) {
        let seen = container.sh("wc -l < /data/file; echo x >> /data/file");
        assert_eq!(
            seen,
            self.lines.get().to_string(),
            "number of lines in the volume"
        );
        self.lines.set(self.lines.get() + 1);
    }

    #[track_caller]
    pub(crate) fn assert_works_for_another_pod(&self) {
        self.stage_for_another_pod();
        self.assert_works_for_another_staged_pod();
        let _ = self.node.unstage(&self.other_pods_target()).success();
    }

    /// Makes the assertion of [`Self::assert_works`] for another pod whose volume is already staged.
    #[track_caller]
    pub(crate) fn assert_works_for_another_staged_pod(&self) {
        self.wait_until_free();
        let container = self.node.run(&self.plain(&self.other_pods_target()));
        self.assert_works(&container);
        end([container]);
    }

    /// Unstages all volumes when all containers have ended. Asserts that the devices are free, that no record is left,
    /// and that the file systems are intact and contain all lines that containers wrote.
    #[track_caller]
    pub(crate) fn unstage_and_assert_clean(&self) {
        self.wait_until_free();
        assert_nothing_unknown(&self.node);
        for target in [
            self.target(),
            self.second_target(),
            self.other_pods_target(),
        ] {
            let _ = self.node.unstage(&target).success();
        }
        assert_eq!(self.records(), Vec::<PathBuf>::new());
        // Only gc removes partly written records.
        let report = collect(&self.node);
        assert_eq!(report.left, <[Value; 0]>::default(), "{report:?}");
        assert_eq!(self.node.records(), Vec::<PathBuf>::new());
        self.assert_host_is_clean();
        let target = fs::read_dir(self.target()).expect("the target path");
        assert_eq!(target.count(), 0, "files are left on the host");
        for device in self.devices() {
            fsck(device.fstype(), device.path());
        }
        let file = with_mounted(self.device.path(), |root| {
            fs::read_to_string(root.join("file"))
        });
        assert_eq!(file.expect("a file").lines().count(), self.lines.get());
    }

    /// Returns the records. A partly written record has a name that begins with a dot, and is ignored.
    fn records(&self) -> Vec<PathBuf> {
        let is_record = |file: &PathBuf| {
            let hidden = |name: &std::ffi::OsStr| name.as_encoded_bytes().starts_with(b".");
            !file.iter().any(hidden)
        };
        self.node.records().into_iter().filter(is_record).collect()
    }
}
