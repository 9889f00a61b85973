//! A killed daemon leaves complete entries or none, and has done everything that it acknowledged.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crust_proto::v1::RuntimeUnstageVolumeRequest;
use crust_proto::v1::runtime_client::RuntimeClient;
use runcrust_tests::gc::{assert_nothing_unknown, collect};
use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::random::Random;
use runcrust_tests::{Delegate, LoopDevice, Node, Ops, wait_until, wait_until_async};
use tonic::Code::{FailedPrecondition, NotFound};
use tonic_types::StatusExt as _;

use crate::race::{number_of, numbered_request};

const VOLUMES: usize = 8;

/// Returns the number of times that the daemon is killed: the value of `RUNCRUST_TORTURE`, or 30.
fn rounds() -> usize {
    std::env::var("RUNCRUST_TORTURE").map_or(30, |times| {
        times.parse().expect("RUNCRUST_TORTURE is a number")
    })
}

/// A volume and the numbers that may be staged for it: the one that was acknowledged last, and the one that was
/// requested last. `None` means that nothing is staged.
#[derive(Debug, Clone)]
struct Volume {
    target: PathBuf,
    acknowledged: Option<usize>,
    requested: Option<usize>,
}

impl Volume {
    /// Stages one number after the other, and unstages in between, until the daemon ends.
    async fn work(
        mut self,
        mut client: RuntimeClient<tonic::transport::Channel>,
        device: Arc<LoopDevice>,
        numbers: Arc<AtomicUsize>,
        mut random: Random,
    ) -> Self {
        loop {
            let number = numbers.fetch_add(1, Ordering::Relaxed);
            let number_or_none = (!random.once_in(4)).then_some(number);
            self.requested = number_or_none;
            let answered = if number_or_none.is_some() {
                let request = numbered_request(&self.target, &device, number);
                client.runtime_stage_volume(request).await.map(drop)
            } else {
                let volume_target_path = utf8(&self.target).to_owned();
                let request = RuntimeUnstageVolumeRequest { volume_target_path };
                client.runtime_unstage_volume(request).await.map(drop)
            };
            if let Err(error) = answered {
                assert!(
                    error.get_details_error_info().is_none(),
                    "an answer of the daemon: {error}"
                );
                return self;
            }
            self.acknowledged = number_or_none;
        }
    }

    /// Asserts that the staged number is the acknowledged or the requested one.
    #[track_caller]
    fn assert_consistent(&mut self, entry: &Path) {
        let found = number_of(entry);
        assert!(
            found == self.acknowledged || found == self.requested,
            "{found:?} is staged for {self:?}"
        );
        (self.acknowledged, self.requested) = (found, found);
    }
}

#[test]
fn a_daemon_killed_under_load_keeps_acknowledged_changes() {
    let node = Node::trusted(Delegate::Runc, "");
    let ops = Ops::stopped(&node, "");
    let device = Arc::new(node.ext4());
    let numbers = Arc::new(AtomicUsize::new(0));
    let mut volumes: Vec<Volume> = (0..VOLUMES)
        .map(|index| Volume {
            target: node.target("pod-a", &format!("pv-{index}")),
            acknowledged: None,
            requested: None,
        })
        .collect();
    let mut random = Random::new(7);
    for round in 0..rounds() {
        ops.spawn(ops.command());
        let enough = numbers.load(Ordering::Relaxed) + 1 + random.below(300);
        volumes = ops.block_on(async {
            let working = volumes.into_iter().enumerate().map(|(index, volume)| {
                let client = RuntimeClient::new(ops.channel(ops.socket()));
                let random = Random::new((round * VOLUMES + index) as u64);
                let (device, numbers) = (Arc::clone(&device), Arc::clone(&numbers));
                tokio::spawn(volume.work(client, device, numbers, random))
            });
            let working: Vec<_> = working.collect();
            wait_until_async("enough calls", WAIT_TIMEOUT, || {
                numbers.load(Ordering::Relaxed) >= enough
            })
            .await;
            ops.kill();
            let mut volumes = Vec::new();
            for volume in working {
                volumes.push(volume.await.expect("a client"));
            }
            volumes
        });
        for volume in &mut volumes {
            volume.assert_consistent(&node.entry(&volume.target));
        }
    }
    ops.spawn(ops.command());
    for volume in &volumes {
        ops.unstage(&volume.target).unwrap();
        assert_eq!(number_of(&node.entry(&volume.target)), None);
    }
}

/// An strace that kills a running daemon when one of its threads enters `call` for the `nth` time, before the kernel
/// carries it out.
struct Killer(Child);

impl Killer {
    fn attach(ops: &Ops, call: &str, nth: usize) -> Self {
        let pid = ops.pid();
        let mut strace = Command::new("/usr/bin/strace");
        strace
            .args(["-qq", "-f", "-o", "/dev/null", "-e"])
            .arg(format!("trace={call}"))
            .arg("-e")
            .arg(format!("inject={call}:signal=KILL:when={nth}"))
            .args(["-p", &pid.to_string()])
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        let killer = Self(strace.spawn().expect("strace"));
        wait_until(
            "strace to have attached to all threads",
            WAIT_TIMEOUT,
            || {
                // The daemon may still have been busy with the last call, and be killed already.
                if !ops.is_running() {
                    return true;
                }
                let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("a running daemon");
                tasks.flatten().all(|task| {
                    let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
                    status
                        .lines()
                        .any(|line| line.starts_with("TracerPid:") && !line.ends_with("\t0"))
                })
            },
        );
        killer
    }
}

impl Drop for Killer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// System calls with which a stage or an unstage reads or changes something.
const STEPS: [&str; 9] = [
    "openat",
    "openat2",
    "mkdirat",
    "write",
    "fsync",
    "renameat",
    "renameat2",
    "unlinkat",
    "flock",
];

/// Kills the daemon at each step of a call that changes a volume from `before` to `after`, on a node with plain target
/// paths, and on one whose target paths contain a link, where a volume has two entries. Returns the number of kills.
fn kill_at_each_step(before: Option<usize>, after: Option<usize>) -> usize {
    kill_at_each_step_on(&Node::trusted(Delegate::Runc, ""), before, after) + {
        let node = Node::trusted(Delegate::Runc, "");
        let real = node.dir().subdir("real");
        symlink(real, node.handler().kubelet_dir()).expect("a link");
        kill_at_each_step_on(&node, before, after)
    }
}

fn kill_at_each_step_on(node: &Node, before: Option<usize>, after: Option<usize>) -> usize {
    let device = node.ext4();
    let target = node.target("pod-a", "pv-1");
    let ops = Ops::stopped(node, "");
    let call = |number: Option<usize>| match number {
        Some(number) => ops.stage(numbered_request(&target, &device, number)),
        None => ops.unstage(&target),
    };
    let mut killed = 0;
    for step in STEPS {
        for nth in 1.. {
            ops.spawn(ops.command());
            call(before).unwrap();
            let strace = Killer::attach(&ops, step, nth);
            let answer = call(after);
            drop(strace);
            ops.kill();
            let found = number_of(&node.entry(&target));
            let Err(error) = answer else {
                assert_eq!(found, after);
                break;
            };
            assert!(
                error.get_details_error_info().is_none(),
                "an answer of the daemon: {error}"
            );
            killed += 1;
            assert!(
                [before, after].contains(&found),
                "killed at {step} {nth}: {found:?}"
            );
            assert_nothing_unknown(node);
            // The next call finds a complete entry or none, and the repeated call succeeds.
            ops.spawn(ops.command());
            let code = ops.stats(&target).unwrap_err().code();
            let expected = if found.is_some() {
                FailedPrecondition
            } else {
                NotFound
            };
            assert_eq!(code, expected, "killed at {step} {nth}");
            call(after).unwrap();
            assert_eq!(number_of(&node.entry(&target)), after);
            ops.kill();
        }
    }
    let _ = node.unstage(&target);
    collect(node);
    node.assert_nothing_left();
    killed
}

#[test]
fn a_killed_stage_leaves_a_complete_entry_or_none() {
    assert!(kill_at_each_step(None, Some(1)) >= 40);
}

#[test]
fn a_killed_replacement_leaves_the_old_or_the_new_entry() {
    assert!(kill_at_each_step(Some(1), Some(2)) >= 40);
}

#[test]
fn a_killed_unstage_leaves_a_complete_entry_or_none() {
    assert!(kill_at_each_step(Some(1), None) >= 40);
}
