//! A row of the crash matrix: what is killed, and how its caller recovers.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use runcrust_tests::container::end;
use runcrust_tests::gc::{assert_nothing_unknown, collect};
use runcrust_tests::steps::Step;
use runcrust_tests::{Bundle, Container, Delegate};
use serde_json::Value;

use crate::scene::Scene;

/// An operation on a volume.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    /// The programs of runcrust that carry out the operation.
    pub(crate) programs: &'static [&'static str],
    /// Programs that are also called for the operation if the delegate is runc.
    pub(crate) runc_alone: &'static [&'static str],
    /// Lines that are added to the default configuration.
    pub(crate) configuration: &'static str,
    /// The volume's file system.
    pub(crate) fstype: &'static str,
    /// Whether kubelet's directory is a link. Each volume then has two entries.
    pub(crate) is_linked: bool,
    /// Whether the pod has a second volume.
    pub(crate) has_second_volume: bool,
    /// Prepares the operation.
    pub(crate) prepare: fn(&Scene) -> Prepared,
    /// Repeats the operation, and returns the containers that exist afterwards. The volume is mounted at `/data` in the
    /// first one.
    pub(crate) repeat: fn(Prepared, &Scene) -> Vec<Container>,
}

impl Row {
    /// Returns a row on a node with the default configuration and an ext4.
    pub(crate) const fn new(
        programs: &'static [&'static str],
        prepare: fn(&Scene) -> Prepared,
        repeat: fn(Prepared, &Scene) -> Vec<Container>,
    ) -> Self {
        Self {
            programs,
            runc_alone: &[],
            configuration: "",
            fstype: "ext4",
            is_linked: false,
            has_second_volume: false,
            prepare,
            repeat,
        }
    }

    /// Returns the programs of runcrust that make the row's steps with this delegate.
    pub(crate) fn programs(&self, delegate: Delegate) -> BTreeSet<&'static str> {
        let more = match delegate {
            Delegate::Runc => self.runc_alone,
            Delegate::Crun => &[],
        };
        self.programs.iter().chain(more).copied().collect()
    }

    /// Returns the callers that continue first after a kill at a step. The two callers alternate from one occurrence of
    /// a call to the next, with runc in the opposite order to crun, so that each caller is tested with one of the
    /// delegates. After the step of a program that only runc calls, both callers are returned.
    pub(crate) fn first_callers(&self, delegate: Delegate, step: &Step) -> &'static [FirstCaller] {
        if self.runc_alone.contains(&&*step.program) {
            return FirstCaller::EACH;
        }
        let turn = step.nth + usize::from(delegate == Delegate::Runc);
        std::slice::from_ref(&FirstCaller::EACH[turn % 2])
    }

    /// Asserts that after the kill no state is unknown, that the operation can be repeated, that another pod works
    /// afterwards, that both see the data, and that nothing is left when they have ended. The same must hold if `gc`
    /// runs first: `gc` must remove nothing that is needed.
    pub(crate) fn assert_recovers(&self, prepared: Prepared, scene: &Scene, first: FirstCaller) {
        scene.assert_host_is_clean();
        if prepared.sandbox.is_none() {
            scene.wait_until_free();
        }
        match first {
            FirstCaller::Caller => assert_nothing_unknown(&scene.node),
            FirstCaller::Gc => {
                let report = collect(&scene.node);
                assert_eq!(report.left, <[Value; 0]>::default(), "{report:?}");
            }
        }
        let containers = (self.repeat)(prepared, scene);
        scene.assert_works(&containers[0]);
        end(containers);
        scene.assert_works_for_another_pod();
        scene.unstage_and_assert_clean();
    }

    /// Makes kubelet's directory a link.
    pub(crate) const fn behind_a_link(mut self) -> Self {
        self.is_linked = true;
        self
    }

    /// Sets further lines of the configuration.
    pub(crate) const fn configured(mut self, configuration: &'static str) -> Self {
        self.configuration = configuration;
        self
    }
}

/// The caller that runs first after a kill.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum FirstCaller {
    /// The caller, or kubelet, which repeats the operation.
    Caller,
    /// A reconciliation, as `crust_ops` starts one periodically.
    Gc,
}

impl FirstCaller {
    pub(crate) const EACH: &[Self] = &[Self::Gc, Self::Caller];

    /// Alternates between `gc` and the caller.
    pub(crate) fn alternating(nth: usize) -> Self {
        Self::EACH[nth % 2]
    }
}

/// An operation that is ready to start.
pub(crate) struct Prepared {
    /// The command that is killed.
    pub(crate) command: Command,
    /// The container that the operation concerns, if any, and its bundle.
    pub(crate) container: Option<(Container, Bundle)>,
    /// The pod's running sandbox, if any.
    pub(crate) sandbox: Option<Container>,
    /// Earlier containers that were killed without a `delete`.
    pub(crate) vanished: Vec<Container>,
}

impl Prepared {
    /// Returns a command that concerns no container.
    pub(crate) fn subcommand(command: Command) -> Self {
        Self {
            command,
            container: None,
            sandbox: None,
            vanished: Vec::new(),
        }
    }

    /// Returns the create of a container.
    pub(crate) fn create(scene: &Scene, bundle: Bundle) -> Self {
        let bundle = bundle.write();
        let container = scene.node.container(&bundle);
        Self::of_container(container.create_command(), container, bundle)
    }

    /// Returns the create of a container whose bundle was already used by a container that has ended.
    pub(crate) fn second_create(scene: &Scene, bundle: Bundle) -> Self {
        let bundle = bundle.write();
        scene.node.run(&bundle).end();
        let container = scene.node.container(&bundle);
        Self::of_container(container.create_command(), container, bundle)
    }

    /// Returns the delete of a container that has run.
    pub(crate) fn delete(scene: &Scene, bundle: Bundle) -> Self {
        let bundle = bundle.write();
        let container = scene.node.run(&bundle);
        container.stop();
        let command = container.command(&["delete", container.id()]);
        Self::of_container(command, container, bundle)
    }

    fn of_container(command: Command, container: Container, bundle: Bundle) -> Self {
        Self {
            container: Some((container, bundle)),
            ..Self::subcommand(command)
        }
    }

    /// Adds the pod's running sandbox.
    pub(crate) fn in_sandbox(mut self, sandbox: Container) -> Self {
        self.sandbox = Some(sandbox);
        self
    }

    /// Starts the command as the leader of a process group.
    pub(crate) fn start(&mut self) -> Child {
        let mut command = std::mem::replace(&mut self.command, Command::new("true"));
        command.process_group(0);
        self.spawn(command)
    }

    /// Starts a command made from [`Self::command`], with the standard streams that containerd sets.
    pub(crate) fn spawn(&self, command: Command) -> Child {
        match &self.container {
            Some((container, _)) => container.spawn(command),
            None => Scene::spawn(command),
        }
    }

    /// Deletes the container by force, as containerd's shim does after a call that failed or was killed.
    pub(crate) fn delete_like_shim(&self) {
        if let Some((container, _)) = &self.container {
            let _ = container.delete_force();
        }
    }

    /// Removes what the delegate left of the first container, and creates and starts another one from the same bundle.
    /// Returns the new container and the sandbox.
    pub(crate) fn create_and_start(self, scene: &Scene) -> Vec<Container> {
        let (first, bundle) = self.container.expect("a row about a container");
        drop(first);
        let mut containers = vec![scene.node.run(&bundle)];
        containers.extend(self.sandbox);
        containers
    }

    /// Deletes the containers and their bundles.
    pub(crate) fn end(self) {
        let container = self.container.map(|(container, _)| container);
        for container in container.into_iter().chain(self.sandbox) {
            let _ = container.delete_force().success();
            fs::remove_dir_all(container.bundle()).expect("rm -r of the bundle");
        }
    }
}
