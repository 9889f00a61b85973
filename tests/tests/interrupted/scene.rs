//! A node with a volume, and what has to be true of it whatever was killed.

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

/// What ids 0 and up of a user namespace are on the host.
pub(crate) const FIRST_ID: u32 = 100_000;

/// A device is free so long after its last user's end: what an unstage waits for.
const BOUND: Duration = Duration::from_secs(10);

/// What a device grows by.
const GROWTH: u64 = 16 << 20;

/// A node with a device.
pub(crate) struct Scene {
    pub(crate) node: Node,
    pub(crate) device: LoopDevice,
    /// Of the pod's second volume.
    second: Option<LoopDevice>,
    /// So many lines containers have written to the volume.
    lines: Cell<usize>,
    /// The file system's bytes as it was made.
    size: u64,
}

impl Scene {
    pub(crate) fn new(node: Node) -> Self {
        let device = node.ext4();
        Self::with(node, device, None)
    }

    /// What a row needs.
    pub(crate) fn of(delegate: Delegate, row: &Row) -> Self {
        let node = Node::with(delegate, row.configuration);
        if row.linked {
            let real = node.dir().subdir("real");
            symlink(real, node.handler().kubelet_dir()).expect("a link");
        }
        let device = node.formatted(row.fstype);
        let second = row.two.then(|| node.formatted(row.fstype));
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

    /// The volume's target path.
    pub(crate) fn target(&self) -> PathBuf {
        self.node.target(POD, "pv-1")
    }

    /// That of the pod's second volume.
    fn second_target(&self) -> PathBuf {
        self.node.target(POD, "pv-2")
    }

    /// That of the volume for another pod.
    fn others_target(&self) -> PathBuf {
        self.node.target(OTHER_POD, "pv-1")
    }

    fn verb(&self, arguments: &[&str]) -> Command {
        let mut command = self.node.handler().command();
        command.arg("crust").args(arguments);
        command
    }

    fn staging(&self, verb: &[&str], target: &Path, device: &LoopDevice) -> Command {
        let mut command = self.verb(verb);
        command.arg(target).args(["--device", utf8(device.path())]);
        command.args(["--fstype", device.fstype(), "--fs-group", "4242"]);
        command
    }

    pub(crate) fn stage_command(&self) -> Command {
        self.staging(&["stage"], &self.target(), &self.device)
    }

    pub(crate) fn stage(&self) -> PathBuf {
        let _ = Run::of(&mut self.stage_command()).success();
        self.target()
    }

    pub(crate) fn stage_second(&self) -> PathBuf {
        let device = self.second.as_ref().expect("a row of two volumes");
        let target = self.second_target();
        let _ = Run::of(&mut self.staging(&["stage"], &target, device)).success();
        target
    }

    pub(crate) fn stage_for_another_pod(&self) {
        let target = self.others_target();
        let _ = Run::of(&mut self.staging(&["stage"], &target, &self.device)).success();
    }

    pub(crate) fn gc_command(&self) -> Command {
        self.verb(&["gc"])
    }

    pub(crate) fn unstage_command(&self) -> Command {
        self.verb(&["unstage", utf8(&self.target())])
    }

    pub(crate) fn unstage(&self) -> Run {
        Run::of(&mut self.unstage_command())
    }

    pub(crate) fn publish_command(&self, sandbox: &Container) -> Command {
        let verb = ["publish", "--sandbox", sandbox.id()];
        self.staging(&verb, &self.target(), &self.device)
    }

    /// The device grows.
    pub(crate) fn grow(&self) {
        let now = fs::metadata(self.device.file()).expect("its file").len();
        self.device.set_size(now + GROWTH);
    }

    /// Its file system is to follow, with the next mount where there is none.
    pub(crate) fn resize_command(&self) -> Command {
        self.verb(&["resize", utf8(&self.target()), "0", "0"])
    }

    /// The file system has grown.
    #[track_caller]
    pub(crate) fn assert_grown(&self, app: &Container) {
        let size = app.sh("stat -f -c '%b %S' /data");
        let numbers = size
            .split(' ')
            .map(|number| number.parse::<u64>().expect("a number"));
        assert!(numbers.product::<u64>() > self.size, "{size}");
    }

    /// Starts a command of the command line.
    pub(crate) fn spawn(mut command: Command) -> Child {
        let command = command.stdin(Stdio::null()).stdout(Stdio::null());
        command.spawn().expect("it runs")
    }

    /// The bundle of a container in a sandbox.
    pub(crate) fn app_bundle(&self, sandbox: &Container) -> Bundle {
        let bundle = self.node.app_bundle(sandbox);
        bundle.bind(self.target(), "/data", &[])
    }

    /// The written bundle of a container without a sandbox, for this pod's volume.
    pub(crate) fn plain_bundle(&self) -> Bundle {
        self.plain(&self.target())
    }

    fn plain(&self, target: &Path) -> Bundle {
        let bundle = Bundle::plain(self.node.dir())
            .bind(target, "/data", &[])
            .write();
        // A hook that mounts makes none.
        fs::create_dir(bundle.rootfs().join("data")).expect("a mountpoint");
        bundle
    }

    /// A running container in a sandbox.
    pub(crate) fn app(&self, sandbox: &Container) -> Container {
        self.node.app(sandbox, &self.target(), "/data")
    }

    /// Nobody has the device any more.
    #[track_caller]
    pub(crate) fn wait_until_free(&self) {
        for device in self.devices() {
            device.wait_until_free(BOUND);
        }
    }

    fn devices(&self) -> impl Iterator<Item = &LoopDevice> {
        [&self.device].into_iter().chain(&self.second)
    }

    /// The host has nothing of the volume mounted, nobody has the attach directory's mounts, and
    /// none of the programs runs.
    #[track_caller]
    pub(crate) fn assert_host_is_clean(&self) {
        for device in self.devices() {
            assert_eq!(device.host_mounts(), Vec::<String>::new());
        }
        let attach = self.node.handler().state_dir().join("attach");
        let mut mounts = host::mounts_below(self.node.dir().path());
        // `attach = "bind"`
        mounts.retain(|point| *point != attach);
        assert_eq!(mounts, Vec::<PathBuf>::new());
        let in_use = || {
            let everybody = process::with_command_line(|_| true).into_iter();
            let below = |pid: &i32| {
                let mounts = host::mounts_of(pid).into_iter();
                let mut points = mounts.map(|mount| mount.point);
                points.any(|point| point != attach && point.starts_with(&attach))
            };
            everybody.filter(below).collect::<Vec<i32>>()
        };
        wait_until("the attach directory to be nobody's", WAIT_TIMEOUT, || {
            in_use().is_empty()
        });
        let own = utf8(self.node.dir().path());
        let left = || process::with_command_line(|line| line.contains(own));
        wait_until("what was killed to end", WAIT_TIMEOUT, || left().is_empty());
    }

    /// A container has what all those before it have written, and adds to it.
    #[track_caller]
    pub(crate) fn assert_works(&self, container: &Container) {
        let seen = container.sh("wc -l < /data/file; echo x >> /data/file");
        assert_eq!(seen, self.lines.get().to_string(), "lines in the volume");
        self.lines.set(self.lines.get() + 1);
    }

    #[track_caller]
    pub(crate) fn assert_works_for_another_pod(&self) {
        self.stage_for_another_pod();
        self.assert_works_for_another_pod_as_staged();
        let _ = self.node.unstage(&self.others_target()).success();
    }

    /// That pod's volume is staged.
    #[track_caller]
    pub(crate) fn assert_works_for_another_pod_as_staged(&self) {
        self.wait_until_free();
        let container = self.node.run(&self.plain(&self.others_target()));
        self.assert_works(&container);
        end([container]);
    }

    /// Everybody has ended: the device is free, when the volume is unstaged nobody has a record of
    /// anything, and the file system is whole and has what was written to it.
    #[track_caller]
    pub(crate) fn put_away(&self) {
        self.wait_until_free();
        assert_nothing_unknown(&self.node);
        for target in [self.target(), self.second_target(), self.others_target()] {
            let _ = self.node.unstage(&target).success();
        }
        assert_eq!(self.records(), Vec::<PathBuf>::new());
        // What was half made has no other way.
        let said = collect(&self.node);
        assert_eq!(said.left, <[Value; 0]>::default(), "{said:?}");
        assert_eq!(self.node.records(), Vec::<PathBuf>::new());
        self.assert_host_is_clean();
        let target = fs::read_dir(self.target()).expect("the target path");
        assert_eq!(target.count(), 0, "nothing stands on the host");
        for device in self.devices() {
            fsck(device.fstype(), device.path());
        }
        let file = with_mounted(self.device.path(), |root| {
            fs::read_to_string(root.join("file"))
        });
        assert_eq!(file.expect("a file").lines().count(), self.lines.get());
    }

    /// What is on record. What was being written when its writer was killed has a name that nobody
    /// reads.
    fn records(&self) -> Vec<PathBuf> {
        let is_record = |file: &PathBuf| {
            let hidden = |name: &std::ffi::OsStr| name.as_encoded_bytes().starts_with(b".");
            !file.iter().any(hidden)
        };
        self.node.records().into_iter().filter(is_record).collect()
    }
}
