//! A row of the crash matrix: what is killed on its way, and how its caller goes on.

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

/// What is done to a volume.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    /// The programs of ours that have a part in it.
    pub(crate) programs: &'static [&'static str],
    /// Those that runc alone calls for it.
    pub(crate) runc_alone: &'static [&'static str],
    /// Further lines of the configuration.
    pub(crate) configuration: &'static str,
    /// The volume's file system.
    pub(crate) fstype: &'static str,
    /// kubelet's directory is a link: each volume has two entries.
    pub(crate) linked: bool,
    /// The pod has a second volume.
    pub(crate) two: bool,
    /// Makes what it begins with.
    pub(crate) begin: fn(&Scene) -> Begun,
    /// Does the same again; which containers there are then. The first has the volume at `/data`.
    pub(crate) again: fn(Begun, &Scene) -> Vec<Container>,
}

impl Row {
    /// On a node as it is installed, with an ext4.
    pub(crate) const fn new(
        programs: &'static [&'static str],
        begin: fn(&Scene) -> Begun,
        again: fn(Begun, &Scene) -> Vec<Container>,
    ) -> Self {
        Self {
            programs,
            runc_alone: &[],
            configuration: "",
            fstype: "ext4",
            linked: false,
            two: false,
            begin,
            again,
        }
    }

    /// The programs of ours that have a part in it with this delegate.
    pub(crate) fn programs(&self, delegate: Delegate) -> BTreeSet<&'static str> {
        let more = match delegate {
            Delegate::Runc => self.runc_alone,
            Delegate::Crun => &[],
        };
        self.programs.iter().chain(more).copied().collect()
    }

    /// Who goes on after a kill at a step. They take turns, and crun's are the others than runc's: over
    /// both, each has been first. After what runc alone calls each is.
    pub(crate) fn turns(&self, delegate: Delegate, step: &Step) -> &'static [First] {
        if self.runc_alone.contains(&&*step.program) {
            return First::EACH;
        }
        let turn = step.nth + usize::from(delegate == Delegate::Runc);
        std::slice::from_ref(&First::EACH[turn % 2])
    }

    /// After the kill nothing is found that nobody can be sure of, or that stands in the way of the
    /// same again, and of another pod, with the data that is there; and nothing is left when they have
    /// ended. So it is when `gc` goes on first, which takes nothing away that is needed.
    pub(crate) fn goes_on(&self, begun: Begun, scene: &Scene, first: First) {
        scene.assert_host_is_clean();
        if begun.sandbox.is_none() {
            scene.wait_until_free();
        }
        match first {
            First::Caller => assert_nothing_unknown(&scene.node),
            First::Gc => {
                let said = collect(&scene.node);
                assert_eq!(said.left, <[Value; 0]>::default(), "{said:?}");
            }
        }
        let containers = (self.again)(begun, scene);
        scene.assert_works(&containers[0]);
        end(containers);
        scene.assert_works_for_another_pod();
        scene.put_away();
    }

    /// Where kubelet's directory is a link.
    pub(crate) const fn linked(mut self) -> Self {
        self.linked = true;
        self
    }

    /// With another configuration.
    pub(crate) const fn configured(mut self, configuration: &'static str) -> Self {
        self.configuration = configuration;
        self
    }
}

/// Who goes on after a kill.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum First {
    /// The caller, or kubelet: the same is done again.
    Caller,
    /// A timer: `crust_ops` reconciles.
    Gc,
}

impl First {
    pub(crate) const EACH: &[Self] = &[Self::Gc, Self::Caller];

    /// Every other one is `gc`'s.
    pub(crate) fn by_turns(nth: usize) -> Self {
        Self::EACH[nth % 2]
    }
}

/// What is about to be done.
pub(crate) struct Begun {
    /// It is killed somewhere.
    pub(crate) command: Command,
    /// The container that it is about, where it is about one, and that one's bundle.
    pub(crate) container: Option<(Container, Bundle)>,
    /// The pod's sandbox, where one runs.
    pub(crate) sandbox: Option<Container>,
    /// Containers of before, whose end no delegate has seen.
    pub(crate) vanished: Vec<Container>,
}

impl Begun {
    /// A command about no container.
    pub(crate) fn verb(command: Command) -> Self {
        Self {
            command,
            container: None,
            sandbox: None,
            vanished: Vec::new(),
        }
    }

    /// The create of a container.
    pub(crate) fn create(scene: &Scene, bundle: Bundle) -> Self {
        let bundle = bundle.write();
        let container = scene.node.container(&bundle);
        Self::about(container.create_command(), container, bundle)
    }

    /// The create of a container of a bundle that had one before, which has ended.
    pub(crate) fn create_again(scene: &Scene, bundle: Bundle) -> Self {
        let bundle = bundle.write();
        scene.node.run(&bundle).end();
        let container = scene.node.container(&bundle);
        Self::about(container.create_command(), container, bundle)
    }

    /// The delete of a container that has run.
    pub(crate) fn delete(scene: &Scene, bundle: Bundle) -> Self {
        let bundle = bundle.write();
        let container = scene.node.run(&bundle);
        container.stop();
        let command = container.command(&["delete", container.id()]);
        Self::about(command, container, bundle)
    }

    fn about(command: Command, container: Container, bundle: Bundle) -> Self {
        Self {
            container: Some((container, bundle)),
            ..Self::verb(command)
        }
    }

    /// Beside a sandbox.
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

    /// Starts a command made of [`Self::command`], with the streams that containerd would give it.
    pub(crate) fn spawn(&self, command: Command) -> Child {
        match &self.container {
            Some((container, _)) => container.spawn(command),
            None => Scene::spawn(command),
        }
    }

    /// Does what containerd's shim does after a call that failed or ended.
    pub(crate) fn clear(&self) {
        if let Some((container, _)) = &self.container {
            let _ = container.delete_force();
        }
    }

    /// Creates and starts the container of the same bundle again. What the delegate left of the
    /// first is its own.
    pub(crate) fn created_again(self, scene: &Scene) -> Vec<Container> {
        let (first, bundle) = self.container.expect("a row about a container");
        drop(first);
        let mut containers = vec![scene.node.run(&bundle)];
        containers.extend(self.sandbox);
        containers
    }

    /// Ends what there is, and removes the bundles.
    pub(crate) fn end(self) {
        let container = self.container.map(|(container, _)| container);
        for container in container.into_iter().chain(self.sandbox) {
            let _ = container.delete_force().success();
            fs::remove_dir_all(container.bundle()).expect("the bundle goes");
        }
    }
}
