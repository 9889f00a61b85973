//! Two containers that are called in the same way: one with the bare delegate, the other one with runcrust in front of
//! the delegate.

use std::fs;
use std::path::Path;

use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::{
    Bundle, Container, Delegate, LoopDevice, Node, POD, Runtime, TestDir, cgroup, wait_until,
};

use crate::compared_container::{Answer, Call, ComparedContainer};

/// The two containers and their environment. Dropped in this order.
pub(crate) struct ContainerPair {
    pub(crate) bare: ComparedContainer,
    pub(crate) wrapped: ComparedContainer,
    #[expect(dead_code, reason = "guards")]
    sandboxes: Option<[Container; 2]>,
    device: Option<LoopDevice>,
    dir: TestDir,
    pub(crate) node: Node,
}

impl ContainerPair {
    /// Returns containers without volumes. `change` adapts each bundle.
    pub(crate) fn plain(delegate: Delegate, change: impl Fn(Bundle) -> Bundle) -> Self {
        let (node, dir) = (Node::new(delegate), TestDir::new());
        let make = |runtime: &Runtime, dir| {
            ComparedContainer::new(runtime, change(Bundle::plain(dir)).write(), dir)
        };
        Self {
            bare: make(&Runtime::bare(delegate), &dir),
            wrapped: make(&node.handler().runtime(), node.dir()),
            sandboxes: None,
            device: None,
            dir,
            node,
        }
    }

    /// Returns the sandboxes of two pods. A volume is staged for the pod whose sandbox runcrust creates.
    pub(crate) fn sandboxes(delegate: Delegate, change: impl Fn(Bundle) -> Bundle) -> Self {
        let (node, dir) = (Node::new(delegate), TestDir::new());
        let device = node.ext4();
        let _target = node.stage(POD, "pv-1", &device, &[]);
        let make = |runtime: &Runtime, dir| {
            ComparedContainer::new(runtime, change(Bundle::sandbox(dir, POD)).write(), dir)
        };
        Self {
            bare: make(&Runtime::bare(delegate), &dir),
            wrapped: make(&node.handler().runtime(), node.dir()),
            sandboxes: None,
            device: Some(device),
            dir,
            node,
        }
    }

    /// Returns two app containers in pods, with a mount at `/data`: a deferred volume with runcrust, a directory with
    /// the bare delegate.
    pub(crate) fn apps(delegate: Delegate, change: impl Fn(Bundle) -> Bundle) -> Self {
        let pods = Self::sandboxes(delegate, |bundle| bundle);
        for member in [&pods.bare, &pods.wrapped] {
            let _ = member.container.create().success();
            let _ = member.container.start().success();
        }
        let Self {
            bare,
            wrapped,
            device,
            dir,
            node,
            ..
        } = pods;
        let data = dir.subdir("data");
        let target = node.target(POD, "pv-1");
        let make = |old: &ComparedContainer, dir: &TestDir, source: &Path| {
            let bundle = Bundle::app_in(dir, &old.container).bind(source, "/data", &[]);
            ComparedContainer::new(&old.runtime, change(bundle).write(), dir)
        };
        Self {
            bare: make(&bare, &dir, &data),
            wrapped: make(&wrapped, node.dir(), &target),
            sandboxes: Some([bare.container, wrapped.container]),
            device,
            dir,
            node,
        }
    }

    /// Calls both runtimes, and returns the answers, that of the bare delegate first.
    pub(crate) fn answers(&self, line: &str) -> [Answer; 2] {
        let call = Call {
            line,
            ..Call::default()
        };
        self.members().map(|member| member.call(&call))
    }

    /// Calls both runtimes, and asserts that the answers are the same.
    #[track_caller]
    pub(crate) fn assert_same_call(&self, call: Call<'_>) -> Answer {
        let (bare, wrapped) = (self.bare.call(&call), self.wrapped.call(&call));
        assert_eq!(
            bare, wrapped,
            "left: bare; right: by runcrust: {}",
            call.line
        );
        wrapped
    }

    #[track_caller]
    pub(crate) fn assert_same(&self, line: &str) -> Answer {
        self.assert_same_call(Call {
            line,
            ..Call::default()
        })
    }

    /// Waits until the command lines of both containers' processes contain `name`.
    #[track_caller]
    pub(crate) fn wait_for_program(&self, name: &str) {
        for member in self.members() {
            let pid = member.pid().expect("a pid file");
            wait_until("the container's program", WAIT_TIMEOUT, || {
                fs::read_to_string(format!("/proc/{pid}/cmdline"))
                    .is_ok_and(|line| line.contains(name))
            });
        }
    }

    /// Waits until both containers are frozen: crun's `pause` does not wait for it.
    #[track_caller]
    pub(crate) fn wait_until_frozen(&self) {
        for member in self.members() {
            let group = member.container.cgroup();
            wait_until("a frozen container", WAIT_TIMEOUT, || {
                cgroup::is_frozen(group)
            });
        }
    }

    /// Waits until both containers have no processes, and the first one is reaped: crun reports a zombie and a missing
    /// process differently. The first process of a pid namespace may have left its cgroup while it waits for the other
    /// processes of the namespace.
    #[track_caller]
    pub(crate) fn wait_until_ended(&self) {
        for member in self.members() {
            let (group, pid) = (member.container.cgroup(), member.pid());
            wait_until("the container's end", WAIT_TIMEOUT, || {
                let is_reaped = pid.is_none_or(|pid| !Path::new(&format!("/proc/{pid}")).exists());
                is_reaped && cgroup::processes(group).is_empty()
            });
        }
    }

    /// Kills both containers, waits for their end, and deletes them. Before the processes have ended, the delegates may
    /// complain about cgroups in use, or not.
    #[track_caller]
    pub(crate) fn end(&self) {
        let _ = self.assert_same("--root @ROOT kill @ID KILL").success();
        self.wait_until_ended();
        let _ = self.assert_same("--root @ROOT delete @ID").success();
    }

    pub(crate) fn members(&self) -> [&ComparedContainer; 2] {
        [&self.bare, &self.wrapped]
    }

    /// Returns whether runcrust has rewritten its bundle for a volume.
    pub(crate) fn has_a_volume(&self) -> bool {
        self.device.is_some() && self.wrapped.bundle.config() != *self.wrapped.bundle.spec()
    }
}
