//! One pod's life: a sandbox and two containers that write, one of which, or whoever makes them, may be
//! killed; and its end.

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
use crate::lane::Lane;

/// The volumes' places in a container.
const PLACES: [&str; 2] = ["ext4", "xfs"];

/// The apps, by their files' names.
const APPS: [&str; 2] = ["one", "two"];

/// A little longer than a create takes when nothing else runs, and than the writers write.
const MOMENT: usize = 250;

/// Finds all lines that were written before, and adds three to each volume.
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

/// A pod that lives.
pub(crate) struct Life<'l, 'g> {
    lane: &'l mut Lane<'g>,
    uid: &'l str,
    targets: &'l [PathBuf; 2],
    kill: Kill,
    /// Of sandbox and apps, in the order they are created.
    victim: usize,
}

impl<'l, 'g> Life<'l, 'g> {
    pub(crate) fn new(lane: &'l mut Lane<'g>, uid: &'l str, targets: &'l [PathBuf; 2]) -> Self {
        let kill = *lane.random.pick(&KILLS);
        let victim = lane.random.below(1 + APPS.len());
        Self {
            lane,
            uid,
            targets,
            kill,
            victim,
        }
    }

    pub(crate) fn live(mut self) {
        let node = &self.lane.ground.node;
        let sandbox = self.created(0, &node.sandbox_bundle(self.uid).write());
        let mut apps = [0, 1].map(|app| {
            let bundle = self.app_bundle(&sandbox, app);
            self.created(1 + app, &bundle)
        });
        self.disturb(&sandbox, &mut apps);
        for (app, container) in apps.iter().enumerate() {
            self.note_written(app, container);
        }
        let [one, two] = apps;
        let mut all = [sandbox, one, two];
        if self.lane.random.once_in(2) {
            all.reverse();
        }
        for (index, container) in all.into_iter().enumerate() {
            self.ended(index, &container);
        }
    }

    /// The first app has the volumes, the second a directory of each.
    fn app_bundle(&self, sandbox: &Container, app: usize) -> Bundle {
        let mut bundle = self.lane.ground.node.app_bundle(sandbox);
        let mut script = format!("name={}{WRITER}", APPS[app]);
        for ((place, target), volume) in PLACES.iter().zip(self.targets).zip(&self.lane.volumes) {
            let below = ["", "two"][app];
            bundle = bundle.bind(target.join(below), &format!("/{place}"), &[]);
            let _ = writeln!(script, "work {place} {}", volume.written[app]);
        }
        script += "echo > /tmp/done\nexec sleep 2147483647";
        bundle.script(&script).write()
    }

    /// A container of the bundle, which runs in the end. Who creates it may be killed, and kubelet tries
    /// again where that fails.
    fn created(&mut self, index: usize, bundle: &Bundle) -> Container {
        let container = self.lane.ground.node.container(bundle);
        let mut there = index == self.victim && self.create_is_killed(&container);
        let mut error = None;
        holds_within(WAIT_TIMEOUT, || {
            if !there {
                there = container.create().status.success();
            }
            if !there {
                error = container.last_log_error();
                self.lane.tally.refused += 1;
                let _ = container.delete_force();
            }
            there
        });
        assert!(there, "{error:?}");
        let _ = container.start().success();
        container
    }

    /// Whether it came to be all the same: nobody came so far, or it was too late.
    fn create_is_killed(&mut self, container: &Container) -> bool {
        let random = &mut self.lane.random;
        let (success, killed) = match self.kill {
            Kill::Runcrust => create_killed_at(container, "runcrust", 1 + random.below(100)),
            Kill::Hook => create_killed_at(container, "crust-mount-hook", 1 + random.below(100)),
            Kill::Delegate => {
                let mut child = container.spawn(container.create_command());
                thread::sleep(Duration::from_millis(random.below(MOMENT) as u64));
                let killed = child.try_wait().expect("waitpid").is_none();
                if killed {
                    kill_now(child.id().cast_signed());
                }
                (child.wait().expect("waitpid").success(), killed)
            }
            _ => return false,
        };
        if killed {
            self.lane.tally.count(self.kill);
        }
        if !success {
            container.clean_up_after_kill();
        }
        success
    }

    /// Kills while the apps write, or lets them end their work.
    fn disturb(&mut self, sandbox: &Container, apps: &mut [Container; 2]) {
        let moment = Duration::from_millis(self.lane.random.below(MOMENT) as u64);
        let app = self.victim % 2;
        match self.kill {
            Kill::App => {
                thread::sleep(moment);
                kill_now(apps[app].pid());
                self.note_written(app, &apps[app]);
                let _ = apps[app].delete_force().success();
                let bundle = self.app_bundle(sandbox, app);
                let again = self.created(usize::MAX, &bundle);
                remove_bundle(&std::mem::replace(&mut apps[app], again));
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
                self.lane.tally.count(self.kill);
                return;
            }
            _ => {}
        }
        if matches!(self.kill, Kill::App | Kill::Sandbox) {
            self.lane.tally.count(self.kill);
        }
        for container in apps {
            wait_for_its_work(container);
        }
    }

    /// What an app had on the disk when it said so is there for ever.
    fn note_written(&mut self, app: usize, container: &Container) {
        for (place, volume) in PLACES.iter().zip(&mut self.lane.volumes) {
            let said = fs::read_to_string(in_root(container, format!("tmp/{place}")));
            let said = said.ok().and_then(|text| text.trim().parse().ok());
            volume.written[app] = volume.written[app].max(said.unwrap_or(0));
        }
    }

    /// Ended as containerd does, but that the hook may be killed that releases it.
    fn ended(&mut self, index: usize, container: &Container) {
        container.stop();
        if self.kill == Kill::Release && index == self.victim {
            let delete = container.command(&["delete", container.id()]);
            let nth = 1 + self.lane.random.below(12);
            let ended = killed_at(container, &delete, "crust-mount-hook", nth);
            if ended.killed {
                self.lane.tally.count(self.kill);
            }
        }
        let _ = container.delete_force().success();
        let left = || cgroup::processes(container.cgroup());
        wait_until("a container's processes to end", WAIT_TIMEOUT, || {
            left().is_empty()
        });
        remove_bundle(container);
    }
}

/// Whether it was created all the same, and whether anybody was killed.
fn create_killed_at(container: &Container, program: &str, nth: usize) -> (bool, bool) {
    let ended = killed_at(container, &container.create_command(), program, nth);
    (ended.success, ended.killed)
}

/// A command of a container's, of which a program is killed at its so-manieth step.
fn killed_at(
    container: &Container,
    command: &std::process::Command,
    program: &str,
    nth: usize,
) -> steps::TraceOutcome {
    let mut made = 0;
    let wanted = |step: &Step| {
        made += usize::from(step.program.starts_with(program));
        made == nth
    };
    steps::kill_when(command, wanted, |it| container.spawn(it))
}

fn wait_for_its_work(container: &Container) {
    let done = in_root(container, "tmp/done");
    let over = || done.exists() || !container.is_alive();
    wait_until("an app to write", WAIT_TIMEOUT, over);
    assert!(done.exists(), "it has ended: {}", container.stderr());
}

/// A file in a container's root, seen from the host.
fn in_root(container: &Container, path: impl AsRef<Path>) -> PathBuf {
    container.bundle().join("rootfs").join(path)
}

fn remove_bundle(container: &Container) {
    fs::remove_dir_all(container.bundle()).expect("the bundle goes");
}
