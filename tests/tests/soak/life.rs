//! The life of one pod: a sandbox and two containers that write, of which one, or a program that creates or removes
//! them, may be killed.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::process::kill_now;
use runcrust_tests::steps::{self, Step};
use runcrust_tests::{Bundle, Container, cgroup, holds_within, wait_until};

use crate::kills::{KILLS, Kill};
use crate::pod_sequence::PodSequence;

/// The mount points of the volumes in a container, without the leading slash.
const MOUNT_POINTS: [&str; 2] = ["ext4", "xfs"];

/// The names of the apps, and of their files on the volumes.
const APPS: [&str; 2] = ["one", "two"];

/// Maximum delay before a kill, in milliseconds. On an idle machine, a create and the writers' work take slightly less.
const LONGEST_DELAY: usize = 250;

/// A shell function that verifies all lines on a volume and adds three.
const WRITER: &str = r#"
    work() {
        file=/$1/$name
        touch $file
        n=$(wc -l < $file)
        if [ $n -lt $2 ]; then echo "$file has $n lines, and had $2" >&2; exit 1; fi
        busybox seq 1 $n | cmp - $file
        for more in 1 2 3; do
            n=$((n + 1))
            echo $n | dd of=$file oflag=append conv=notrunc,fsync 2>/dev/null
            echo $n > /tmp/new
            mv /tmp/new /tmp/$1
        done
    }
"#;

/// One pod, and what is killed during its life.
pub(crate) struct PodLife<'l, 'g> {
    sequence: &'l mut PodSequence<'g>,
    uid: &'l str,
    targets: &'l [PathBuf; 2],
    kill: Kill,
    /// The index of the victim among the sandbox and the apps, in the order in which they are created.
    victim: usize,
}

impl<'l, 'g> PodLife<'l, 'g> {
    pub(crate) fn new(
        sequence: &'l mut PodSequence<'g>,
        uid: &'l str,
        targets: &'l [PathBuf; 2],
    ) -> Self {
        let kill = *sequence.random.pick(&KILLS);
        let victim = sequence.random.below(1 + APPS.len());
        Self {
            sequence,
            uid,
            targets,
            kill,
            victim,
        }
    }

    pub(crate) fn run(mut self) {
        let node = &self.sequence.soak_node.node;
        let sandbox = self.create(0, &node.sandbox_bundle(self.uid).write());
        let mut apps = [0, 1].map(|app| {
            let bundle = self.app_bundle(&sandbox, app);
            self.create(1 + app, &bundle)
        });
        self.disturb(&sandbox, &mut apps);
        for (app, container) in apps.iter().enumerate() {
            self.note_written(app, container);
        }
        let [one, two] = apps;
        let mut all = [sandbox, one, two];
        if self.sequence.random.once_in(2) {
            all.reverse();
        }
        for (index, container) in all.into_iter().enumerate() {
            self.end(index, &container);
        }
    }

    /// Returns the bundle of an app. The first one has the volumes, the second a subdirectory of each.
    fn app_bundle(&self, sandbox: &Container, app: usize) -> Bundle {
        let mut bundle = self.sequence.soak_node.node.app_bundle(sandbox);
        let mut script = format!("name={}{WRITER}", APPS[app]);
        for ((mount_point, target), volume) in MOUNT_POINTS
            .iter()
            .zip(self.targets)
            .zip(&self.sequence.volumes)
        {
            let collect_paths_below = ["", "two"][app];
            bundle = bundle.bind(
                target.join(collect_paths_below),
                &format!("/{mount_point}"),
                &[],
            );
            let _ = writeln!(script, "work {mount_point} {}", volume.written[app]);
        }
        script += "echo > /tmp/done\nexec sleep 2147483647";
        bundle.script(&script).write()
    }

    /// Creates and starts a container. The creating program may be killed, and a failed create is repeated as kubelet
    /// does.
    fn create(&mut self, index: usize, bundle: &Bundle) -> Container {
        let container = self.sequence.soak_node.node.container(bundle);
        let mut exists = index == self.victim && self.create_with_kill(&container);
        let mut error = None;
        holds_within(WAIT_TIMEOUT, || {
            if !exists {
                exists = container.create().status.success();
            }
            if !exists {
                error = container.last_log_error();
                self.sequence.tally.refused += 1;
                let _ = container.delete_force();
            }
            exists
        });
        assert!(exists, "{error:?}");
        let _ = container.start().success();
        container
    }

    /// Kills a program of the create, if `self.kill` names one. Returns whether the container was created anyway,
    /// because the kill came too late or did not happen.
    fn create_with_kill(&mut self, container: &Container) -> bool {
        let random = &mut self.sequence.random;
        let (success, killed) = match self.kill {
            Kill::Runcrust => kill_create_at_step(container, "runcrust", 1 + random.below(100)),
            Kill::Hook => kill_create_at_step(container, "crust-mount-hook", 1 + random.below(100)),
            Kill::Delegate => {
                let mut child = container.spawn(container.create_command());
                thread::sleep(Duration::from_millis(random.below(LONGEST_DELAY) as u64));
                let killed = child.try_wait().expect("waitpid").is_none();
                if killed {
                    kill_now(child.id().cast_signed());
                }
                (child.wait().expect("waitpid").success(), killed)
            }
            _ => return false,
        };
        if killed {
            self.sequence.tally.count(self.kill);
        }
        if !success {
            container.clean_up_after_kill();
        }
        success
    }

    /// Kills containers while the apps write, or waits until they have written.
    fn disturb(&mut self, sandbox: &Container, apps: &mut [Container; 2]) {
        let moment = Duration::from_millis(self.sequence.random.below(LONGEST_DELAY) as u64);
        let app = self.victim % 2;
        match self.kill {
            Kill::App => {
                thread::sleep(moment);
                kill_now(apps[app].pid());
                self.note_written(app, &apps[app]);
                let _ = apps[app].delete_force().success();
                let bundle = self.app_bundle(sandbox, app);
                let recreated = self.create(usize::MAX, &bundle);
                remove_bundle(&std::mem::replace(&mut apps[app], recreated));
            }
            Kill::Sandbox => {
                thread::sleep(moment);
                kill_now(sandbox.pid());
            }
            Kill::Pod => {
                thread::sleep(moment);
                for container in [sandbox, &apps[0], &apps[1]] {
                    kill_now(container.pid());
                }
                self.sequence.tally.count(self.kill);
                return;
            }
            _ => {}
        }
        if matches!(self.kill, Kill::App | Kill::Sandbox) {
            self.sequence.tally.count(self.kill);
        }
        for container in apps {
            wait_until_written(container);
        }
    }

    /// Records how many lines an app has reported as written. These lines must never get lost.
    fn note_written(&mut self, app: usize, container: &Container) {
        for (mount_point, volume) in MOUNT_POINTS.iter().zip(&mut self.sequence.volumes) {
            let reported = fs::read_to_string(in_root(container, format!("tmp/{mount_point}")));
            let reported = reported.ok().and_then(|text| text.trim().parse().ok());
            volume.written[app] = volume.written[app].max(reported.unwrap_or(0));
        }
    }

    /// Ends a container as containerd does. The hook that releases its volumes may be killed.
    fn end(&mut self, index: usize, container: &Container) {
        container.stop();
        if self.kill == Kill::Release && index == self.victim {
            let delete = container.command(&["delete", container.id()]);
            let nth = 1 + self.sequence.random.below(12);
            let end = kill_at_step(container, &delete, "crust-mount-hook", nth);
            if end.killed {
                self.sequence.tally.count(self.kill);
            }
        }
        let _ = container.delete_force().success();
        let processes = || cgroup::processes(container.cgroup());
        wait_until("a container's processes to end", WAIT_TIMEOUT, || {
            processes().is_empty()
        });
        remove_bundle(container);
    }
}

/// Kills a program during a create. Returns whether the container was created anyway, and whether the program was
/// killed.
fn kill_create_at_step(container: &Container, program: &str, nth: usize) -> (bool, bool) {
    let end = kill_at_step(container, &container.create_command(), program, nth);
    (end.success, end.killed)
}

/// Runs a command of a container, and kills `program` at its `nth` step.
fn kill_at_step(
    container: &Container,
    command: &std::process::Command,
    program: &str,
    nth: usize,
) -> steps::TraceOutcome {
    let mut steps_seen = 0;
    let wanted = |step: &Step| {
        steps_seen += usize::from(step.program.starts_with(program));
        steps_seen == nth
    };
    steps::kill_when(command, wanted, |it| container.spawn(it))
}

fn wait_until_written(container: &Container) {
    let done = in_root(container, "tmp/done");
    let over = || done.exists() || !container.is_alive();
    wait_until("an app to write", WAIT_TIMEOUT, over);
    assert!(done.exists(), "the app has ended: {}", container.stderr());
}

/// Returns the host's path of a file in a container's root file system.
fn in_root(container: &Container, path: impl AsRef<Path>) -> PathBuf {
    container.bundle().join("rootfs").join(path)
}

fn remove_bundle(container: &Container) {
    fs::remove_dir_all(container.bundle()).expect("the bundle");
}
