//! `ctr run --runc-binary`: containerd without CRI.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use runcrust_tests::node::{PATIENCE, utf8};
use runcrust_tests::{Bundle, Containerd, Node, Run, on_each_delegate};

const POD: &str = "cccccccc-2222-1111-4444-555555555555";

struct Ctr<'a> {
    containerd: &'a Containerd,
    runtime: PathBuf,
    rootfs: PathBuf,
}

impl Ctr<'_> {
    /// In containerd's own namespace for CRI, of which the harness clears what is left.
    fn command(&self, arguments: &[&str]) -> Run {
        let mut ctr = Command::new("ctr");
        ctr.arg("--address")
            .arg(self.containerd.socket())
            .args(["--namespace", "k8s.io"]);
        Run::of(ctr.args(arguments))
    }

    fn run(&self, id: &str, source: &Path, options: &str) -> Run {
        let root = self.containerd.runtime_root("ctr");
        let mount = format!(
            "type=bind,src={},dst=/data,options={options}",
            source.display()
        );
        let flags = [
            "run",
            "--detach",
            "--null-io",
            "--rootfs",
            "--runc-binary",
            utf8(&self.runtime),
        ];
        let paths = [
            "--runc-root",
            utf8(&root),
            "--mount",
            &mount,
            utf8(&self.rootfs),
            id,
        ];
        self.command(&[&flags[..], &paths[..], &runcrust_tests::bundle::IDLE[..]].concat())
    }

    #[track_caller]
    fn sh(&self, id: &str, script: &str) -> String {
        let run = self.command(&[
            "tasks",
            "exec",
            "--exec-id",
            "sh",
            id,
            "/bin/sh",
            "-ec",
            script,
        ]);
        run.success().stdout.trim().to_owned()
    }

    fn remove(&self, id: &str) {
        let _ = self.command(&["tasks", "delete", "--force", id]).success();
        let _ = self.command(&["containers", "delete", id]).success();
    }
}

on_each_delegate! {
    fn a_container_has_its_volume_and_a_failure_its_reason(delegate: Delegate) {
        let node = Node::new(delegate);
        let runtime = node.handler().runtime();
        let containerd = Containerd::start(node.dir(), &[("ctr", &runtime)]);
        let ctr = Ctr {
            containerd: &containerd,
            runtime: runtime.program().to_owned(),
            rootfs: Bundle::plain(node.dir()).write().rootfs(),
        };
        let device = node.ext4();
        let target = node.stage(POD, "pv-1", &device, &["--fs-group", "4242"]);
        let id = format!("ctr-{}", std::process::id());
        let _ = ctr.run(&id, &target, "rbind:rw").success();
        assert_eq!(ctr.sh(&id, "echo x > /data/file; stat -c %g /data"), "4242");
        let _ = node.stats(&target).success();
        ctr.remove(&id);
        device.wait_until_free(PATIENCE);
        let _ = ctr.run(&id, &target.join("sub"), "rbind:ro").success();
        assert_eq!(ctr.sh(&id, "touch /data/x 2>/dev/null || echo read-only"), "read-only");
        ctr.remove(&id);
        device.wait_until_free(PATIENCE);
        assert_eq!(fs::read_dir(&target).unwrap().count(), 0, "nothing stands on the host");

        fs::write(node.entry(&target).join("mountInfo.json"), "{").unwrap();
        let failed = ctr.run(&id, &target, "rbind:rw").failure();
        assert!(failed.stderr.contains("volume pv-1: "), "{failed}");
        let _ = ctr.command(&["containers", "delete", &id]);
    }
}
