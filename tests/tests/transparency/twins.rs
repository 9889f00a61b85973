//! One life of a container twice: with the bare delegate, and with runcrust before it.

use std::fs;
use std::path::Path;

use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::{
    Bundle, Container, Delegate, LoopDevice, Node, POD, Runtime, TestDir, cgroup, process,
    wait_until,
};

use crate::twin::{Answer, Call, Twin};

/// The two, and what they stand on. Dropped in this order.
pub(crate) struct Twins {
    pub(crate) bare: Twin,
    pub(crate) ours: Twin,
    #[expect(dead_code, reason = "guards")]
    sandboxes: Option<[Container; 2]>,
    device: Option<LoopDevice>,
    dir: TestDir,
    pub(crate) node: Node,
}

impl Twins {
    /// Containers without volumes; `change` makes the bundles what they are to be.
    pub(crate) fn plain(delegate: Delegate, change: impl Fn(Bundle) -> Bundle) -> Self {
        let (node, dir) = (Node::new(delegate), TestDir::new());
        let make =
            |runtime: &Runtime, dir| Twin::new(runtime, change(Bundle::plain(dir)).write(), dir);
        Self {
            bare: make(&Runtime::bare(delegate), &dir),
            ours: make(&node.handler().runtime(), node.dir()),
            sandboxes: None,
            device: None,
            dir,
            node,
        }
    }

    /// The sandboxes of two pods; for that of ours a volume is staged.
    pub(crate) fn sandboxes(delegate: Delegate, change: impl Fn(Bundle) -> Bundle) -> Self {
        let (node, dir) = (Node::new(delegate), TestDir::new());
        let device = node.ext4();
        let _target = node.stage(POD, "pv-1", &device, &[]);
        let make = |runtime: &Runtime, dir| {
            Twin::new(runtime, change(Bundle::sandbox(dir, POD)).write(), dir)
        };
        Self {
            bare: make(&Runtime::bare(delegate), &dir),
            ours: make(&node.handler().runtime(), node.dir()),
            sandboxes: None,
            device: Some(device),
            dir,
            node,
        }
    }

    /// Two apps of pods with `/data`: ours is a deferred volume, the other a directory.
    pub(crate) fn apps(delegate: Delegate, change: impl Fn(Bundle) -> Bundle) -> Self {
        let pods = Self::sandboxes(delegate, |bundle| bundle);
        for twin in [&pods.bare, &pods.ours] {
            let _ = twin.container.create().success();
            let _ = twin.container.start().success();
        }
        let Self {
            bare,
            ours,
            device,
            dir,
            node,
            ..
        } = pods;
        let data = dir.subdir("data");
        let target = node.target(POD, "pv-1");
        let make = |old: &Twin, dir: &TestDir, source: &Path| {
            let bundle = Bundle::app_in(dir, &old.container).bind(source, "/data", &[]);
            Twin::new(&old.runtime, change(bundle).write(), dir)
        };
        Self {
            bare: make(&bare, &dir, &data),
            ours: make(&ours, node.dir(), &target),
            sandboxes: Some([bare.container, ours.container]),
            device,
            dir,
            node,
        }
    }

    /// What each says: first the bare delegate.
    pub(crate) fn answers(&self, line: &str) -> [Answer; 2] {
        let call = Call {
            line,
            ..Call::default()
        };
        self.both().map(|twin| twin.call(&call))
    }

    /// Both answer the same.
    #[track_caller]
    pub(crate) fn same_call(&self, call: Call<'_>) -> Answer {
        let (theirs, ours) = (self.bare.call(&call), self.ours.call(&call));
        assert_eq!(theirs, ours, "bare, and by runcrust: {}", call.line);
        ours
    }

    #[track_caller]
    pub(crate) fn same(&self, line: &str) -> Answer {
        self.same_call(Call {
            line,
            ..Call::default()
        })
    }

    /// Waits until both containers run what is in their config, whose command line has this.
    #[track_caller]
    pub(crate) fn wait_for_program(&self, name: &str) {
        for twin in self.both() {
            let pid = twin.pid().expect("a pid file");
            wait_until("the container's program", WAIT_TIMEOUT, || {
                fs::read_to_string(format!("/proc/{pid}/cmdline"))
                    .is_ok_and(|line| line.contains(name))
            });
        }
    }

    /// Waits until both containers are frozen: crun's `pause` doesn't.
    #[track_caller]
    pub(crate) fn wait_for_the_frost(&self) {
        for twin in self.both() {
            let group = twin.container.cgroup();
            wait_until("a frozen container", WAIT_TIMEOUT, || {
                cgroup::is_frozen(group)
            });
        }
    }

    /// Waits until nothing of both containers runs. The first process of a pid namespace that has
    /// left its cgroup still waits for the others'.
    #[track_caller]
    pub(crate) fn wait_for_the_end(&self) {
        for twin in self.both() {
            let (group, pid) = (twin.container.cgroup(), twin.pid());
            wait_until("the container's end", WAIT_TIMEOUT, || {
                cgroup::processes(group).is_empty() && !pid.is_some_and(process::is_alive)
            });
        }
    }

    /// Ends both containers, and deletes them when they have ended: in a hurry the delegates
    /// complain of cgroups that are still in use, or don't.
    #[track_caller]
    pub(crate) fn end(&self) {
        let _ = self.same("--root @ROOT kill @ID KILL").success();
        self.wait_for_the_end();
        let _ = self.same("--root @ROOT delete @ID").success();
    }

    pub(crate) fn both(&self) -> [&Twin; 2] {
        [&self.bare, &self.ours]
    }

    /// Whether runcrust has found a volume in its bundle.
    pub(crate) fn has_a_volume(&self) -> bool {
        self.device.is_some() && self.ours.bundle.config() != *self.ours.bundle.spec()
    }
}
