//! `ctr run --runc-binary`: containerd without CRI.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::volume::fsck;
use runcrust_tests::{
    Bundle, Containerd, Node, Run, StagedVolume, on_each_delegate, on_each_file_system, process,
    process_name, refusal, wait_until,
};

struct Ctr<'a> {
    node: &'a Node,
    containerd: Containerd,
}

impl<'a> Ctr<'a> {
    fn new(node: &'a Node) -> Self {
        let runtime = node.handler().runtime();
        Self {
            containerd: Containerd::start(node.dir(), &[("ctr", &runtime)]),
            node,
        }
    }

    /// Runs in containerd's namespace for the CRI, which the harness cleans up.
    fn command(&self, arguments: &[&str]) -> Run {
        let mut ctr = Command::new("ctr");
        ctr.arg("--address")
            .arg(self.containerd.socket())
            .args(["--namespace", "k8s.io"]);
        Run::capture(ctr.args(arguments))
    }

    /// Runs `ctr run` with the volume at `/data` and a rootfs of its own.
    fn run(&self, id: &str, mount: (&Path, &str), flags: &[&str], process: &[&str]) -> Run {
        let runtime = self.node.handler().runtime();
        let root = self.containerd.runtime_root("ctr");
        let rootfs: PathBuf = Bundle::plain(self.node.dir()).write().rootfs();
        let (source, options) = mount;
        let mount = format!(
            "type=bind,src={},dst=/data,options={options}",
            source.display()
        );
        let paths = [
            "--rootfs",
            "--runc-binary",
            utf8(runtime.program()),
            "--runc-root",
            utf8(&root),
            "--mount",
            &mount,
            utf8(&rootfs),
            id,
        ];
        self.command(&[&["run"], flags, &paths, process].concat())
    }

    /// Starts a detached container that sleeps.
    fn start(&self, id: &str, source: &Path, options: &str) -> Run {
        self.run(
            id,
            (source, options),
            &["--detach", "--null-io"],
            &runcrust_tests::bundle::IDLE,
        )
    }

    #[track_caller]
    fn sh(&self, id: &str, script: &str) -> String {
        let exec = [
            "tasks",
            "exec",
            "--exec-id",
            "sh",
            id,
            "/bin/sh",
            "-ec",
            script,
        ];
        self.command(&exec).success().stdout.trim().to_owned()
    }

    /// Returns the status that containerd reports for a task: RUNNING, PAUSED or STOPPED.
    fn status(&self, id: &str) -> String {
        let tasks = self.command(&["tasks", "list"]).success().stdout;
        let task = tasks
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>());
        let task = task
            .filter(|words| words[0] == id)
            .map(|words| words[2].to_owned());
        task.collect()
    }

    fn remove(&self, id: &str) {
        let _ = self.command(&["tasks", "delete", "--force", id]).success();
        let _ = self.command(&["containers", "delete", id]).success();
    }

    #[track_caller]
    fn end(&self, ids: &[&str], volume: &StagedVolume) {
        for id in ids {
            self.remove(id);
        }
        volume.device.wait_until_free(WAIT_TIMEOUT);
        volume.unstage_all();
    }
}

/// Returns a task name that is unique among parallel tests, because it is also the name of its shim.
fn id(name: &str) -> String {
    format!("{name}-{}", process_name())
}

on_each_delegate! {
    fn a_container_has_its_volume_or_a_clear_error(delegate: Delegate) {
        let volume = StagedVolume::with(delegate, &["--fs-group", "4242"]);
        let ctr = Ctr::new(&volume);
        let id = id("ctr");
        let _ = ctr.start(&id, &volume.target, "rbind:rw").success();
        assert_eq!(ctr.sh(&id, "echo x > /data/file; stat -c %g /data"), "4242");
        let _ = volume.stats().success();
        ctr.remove(&id);
        volume.device.wait_until_free(WAIT_TIMEOUT);
        let _ = ctr.start(&id, &volume.target.join("sub"), "rbind:ro").success();
        assert_eq!(ctr.sh(&id, "touch /data/x 2>/dev/null || echo read-only"), "read-only");
        ctr.remove(&id);
        volume.device.wait_until_free(WAIT_TIMEOUT);
        assert_eq!(fs::read_dir(&volume.target).unwrap().count(), 0, "files are left on the host");

        let info = volume.entry().join("mountInfo.json");
        let good = fs::read_to_string(&info).unwrap();
        for bad in ["{".to_owned(), good.replace("\"ext4\"", "\"xfs\"")] {
            fs::write(&info, bad).unwrap();
            let bundle = Bundle::plain(volume.dir()).bind(&volume.target, "/data", &["rbind", "rw"]).write();
            let message = refusal::create_refused(&volume, &bundle).naming_volume("pv-1").message();
            let failed = ctr.start(&id, &volume.target, "rbind:rw").failure();
            assert_eq!(failed.stderr.matches(&message).count(), 1, "{failed}");
            let _ = ctr.command(&["containers", "delete", &id]);
        }
        fs::write(&info, good).unwrap();
        let _ = ctr.start(&id, &volume.target, "rbind:rw").success();
        assert_eq!(ctr.sh(&id, "cat /data/file"), "x");
        ctr.end(&[&id], &volume);
    }

    fn a_foreground_container_returns_its_exit_code(delegate: Delegate) {
        let volume = StagedVolume::new(delegate);
        let ctr = Ctr::new(&volume);
        // ctr stops copying output when it learns of the end: containerd's `Task.Delete` first cancels its pipes.
        let script = ["/bin/sh", "-ec", "echo x >> /data/file; cat /data/file; echo err >&2; sleep 1; exit 7"];
        for output in ["x\n", "x\nx\n"] {
            let run = ctr.run(&id("foreground"), (&volume.target, "rbind:rw"), &["--rm"], &script);
            let result = (run.status.code(), run.stdout.as_str(), run.stderr.as_str());
            assert_eq!(result, (Some(7), output, "err\n"));
            volume.device.wait_until_free(WAIT_TIMEOUT);
        }
        ctr.end(&[], &volume);
    }

    fn two_containers_survive_a_restart_of_containerd(delegate: Delegate) {
        let volume = StagedVolume::new(delegate);
        let ctr = Ctr::new(&volume);
        let (one, two) = (id("one"), id("two"));
        for id in [&one, &two] {
            let _ = ctr.start(id, &volume.target, "rbind:rw").success();
        }
        let _ = ctr.sh(&one, "echo hello > /data/file");
        assert_eq!(ctr.sh(&two, "cat /data/file"), "hello");
        let has_metrics = || {
            let metrics = ctr.command(&["tasks", "metrics", "--format", "json", &one]);
            metrics.status.success() && metrics.stdout.starts_with('{')
        };
        // A shim reads the mount table when its container starts. If other tests mount meanwhile, it may not find the
        // cgroups there ("cannot find cgroup mount destination"), and never has metrics.
        let had_metrics = has_metrics();
        let _ = ctr.command(&["tasks", "pause", &one]).success();
        assert_eq!(ctr.status(&one), "PAUSED");
        let _ = volume.stats().success();
        ctr.containerd.restart();
        let _ = ctr.command(&["tasks", "resume", &one]).success();
        // After a restart of containerd, ctr sometimes misses what a program writes that ends at once.
        wait_until("the file", WAIT_TIMEOUT, || ctr.sh(&one, "cat /data/file") == "hello");
        assert_eq!(has_metrics(), had_metrics);
        let _ = ctr.command(&["tasks", "kill", "--signal", "SIGKILL", &one]).success();
        wait_until("the task to end", WAIT_TIMEOUT, || ctr.status(&one) == "STOPPED");
        assert_eq!(ctr.sh(&two, "cat /data/file"), "hello");
        ctr.end(&[&one, &two], &volume);
    }

    fn a_task_ends_when_its_shim_dies(delegate: Delegate) {
        let volume = StagedVolume::new(delegate);
        let ctr = Ctr::new(&volume);
        let id = id("ctr");
        let _ = ctr.start(&id, &volume.target, "rbind:rw").success();
        process::kill_now(ctr.containerd.shim(&id));
        volume.device.wait_until_free(WAIT_TIMEOUT);
        // containerd lists a task as its shim reports it, so the task is not listed before it is forgotten.
        wait_until("containerd to forget the task", WAIT_TIMEOUT, || {
            let _ = ctr.command(&["containers", "delete", &id]).success();
            let restarted = ctr.start(&id, &volume.target, "rbind:rw");
            let is_known = restarted.stderr.contains("already exists");
            !is_known && restarted.success().status.success()
        });
        ctr.end(&[&id], &volume);
    }
}

on_each_file_system! {
    fn a_container_has_its_volume_on(delegate: Delegate, fstype: &'static str) {
        let (node, device) = Node::with_formatted(delegate, fstype);
        let volume = StagedVolume::on_device(node, device, &["--fs-group", "4242"]);
        let ctr = Ctr::new(&volume);
        let id = id("ctr");
        let _ = ctr.start(&id, &volume.target, "rbind:rw").success();
        assert_eq!(ctr.sh(&id, "echo x > /data/file; stat -c %g /data"), "4242");
        ctr.end(&[&id], &volume);
        fsck(fstype, volume.device.path());
    }
}
