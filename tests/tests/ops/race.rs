//! Many clients with few volumes: entries are complete at any time, and no acknowledged stage is lost.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use crust_proto::v1::runtime_client::RuntimeClient;
use crust_proto::v1::{RuntimeStageVolumeRequest, RuntimeUnstageVolumeRequest};
use nix::fcntl::{Flock, FlockArg};
use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::ops::stage_request;
use runcrust_tests::random::Random;
use runcrust_tests::{Delegate, LoopDevice, Node, Ops, wait_until, wait_until_async};
use serde_json::Value;
use tonic::Code::{DeadlineExceeded, FailedPrecondition};

use crate::{expect_error, reason};

const CLIENTS: usize = 64;
const VOLUMES: usize = 8;

/// Calls of each client.
const ROUNDS: usize = 12;

/// A request with the same number in all fields, so that a mixture of two requests is noticed.
pub(crate) fn numbered_request(
    target: &Path,
    device: &LoopDevice,
    number: usize,
) -> RuntimeStageVolumeRequest {
    let option = format!("commit={number}");
    RuntimeStageVolumeRequest {
        // The requests have different lengths, so that a partly overwritten file is noticed as well.
        mount_flags: vec![option; 1 + number % 50],
        volume_supplemental_group: (number + 1).to_string(),
        readonly: number.is_multiple_of(2),
        ..stage_request(target, device)
    }
}

/// Returns the number in a `mountInfo.json`, and asserts that the file is complete.
#[track_caller]
pub(crate) fn number(text: &[u8]) -> usize {
    let shown = String::from_utf8_lossy(text);
    let info: Value =
        serde_json::from_slice(text).unwrap_or_else(|error| panic!("{error}: {shown}"));
    let group = info["metadata"]["fsGroup"]
        .as_str()
        .unwrap_or_else(|| panic!("{shown}"));
    let number = group.parse::<usize>().expect("a number") - 1;
    let options = info["options"]
        .as_array()
        .unwrap_or_else(|| panic!("{shown}"));
    let all = options
        .iter()
        .all(|option| *option == format!("commit={number}"));
    assert!(all && options.len() == 1 + number % 50, "{shown}");
    let read_only = info["metadata"]["readOnly"] == true;
    assert_eq!(read_only, number.is_multiple_of(2), "{shown}");
    number
}

/// Returns the number of an entry, or `None` without an entry.
#[track_caller]
pub(crate) fn number_of(entry: &Path) -> Option<usize> {
    let directory = match File::open(entry) {
        Ok(directory) => directory,
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        Err(error) => panic!("{error}"),
    };
    let file = format!("/proc/self/fd/{}/mountInfo.json", directory.as_raw_fd());
    match fs::read(file) {
        Ok(text) => Some(number(&text)),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            // Entries are removed at once: the directory has lost its name before it loses its files.
            let named = fs::metadata(entry).map(|it| it.ino()).ok();
            assert_ne!(
                named,
                Some(directory.metadata().unwrap().ino()),
                "half an entry"
            );
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Makes all clients call at once, each for random volumes.
fn race(ops: &Ops, targets: &Arc<Vec<PathBuf>>, device: &Arc<LoopDevice>, unstage_once_in: usize) {
    ops.block_on(async {
        let clients = (0..CLIENTS).map(|client| {
            let mut calls = RuntimeClient::new(ops.channel(ops.socket()));
            let (targets, device) = (Arc::clone(targets), Arc::clone(device));
            tokio::spawn(async move {
                let mut random = Random::new(client as u64);
                for round in 0..ROUNDS {
                    let target = random.pick(&targets);
                    let number = client * ROUNDS + round;
                    if unstage_once_in > 0 && random.once_in(unstage_once_in) {
                        let volume_target_path = utf8(target).to_owned();
                        let request = RuntimeUnstageVolumeRequest { volume_target_path };
                        calls
                            .runtime_unstage_volume(request)
                            .await
                            .expect("unstage");
                    } else {
                        let request = numbered_request(target, &device, number);
                        calls.runtime_stage_volume(request).await.expect("stage");
                    }
                }
            })
        });
        for client in clients.collect::<Vec<_>>() {
            client.await.expect("a client");
        }
    });
}

#[test]
fn sixty_four_clients_see_only_complete_entries() {
    let (node, ops) = Ops::with_node(Delegate::Runc);
    let device = Arc::new(node.ext4());
    let targets = (0..VOLUMES).map(|index| node.target("pod-a", &format!("pv-{index}")));
    let targets: Arc<Vec<PathBuf>> = Arc::new(targets.collect());
    let is_over = AtomicBool::new(false);
    let reads = AtomicUsize::new(0);
    thread::scope(|scope| {
        for readers in 0..2 {
            let (node, targets, is_over, reads) = (&node, &targets, &is_over, &reads);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    for target in targets.iter().skip(readers).step_by(2) {
                        reads.fetch_add(
                            usize::from(number_of(&node.entry(target)).is_some()),
                            Ordering::Relaxed,
                        );
                    }
                }
            });
        }
        let done = SetOnDrop(&is_over);
        race(&ops, &targets, &device, 3);
        race(&ops, &targets, &device, 0);
        drop(done);
    });
    assert!(
        reads.load(Ordering::Relaxed) > 100,
        "the readers found entries"
    );
    for target in targets.iter() {
        assert!(
            number_of(&node.entry(target)).is_some(),
            "an acknowledged stage was lost"
        );
        ops.unstage(target).unwrap();
    }
    assert_eq!(node.records(), <[PathBuf; 0]>::default());
}

/// A client makes a call, which waits for the volume's lock, and disconnects. Another process holds the lock. The call
/// is carried out before the next call, or not at all.
#[test]
fn an_abandoned_call_never_overtakes_the_next() {
    let (node, ops) = Ops::with_node(Delegate::Runc);
    let device = Arc::new(node.ext4());
    let target = node.target("pod-a", "pv-1");
    let lock = node.lock_file(&target);
    for round in 0..12 {
        ops.stage(numbered_request(&target, &device, 3 * round))
            .unwrap();
        let held = Flock::lock(File::open(&lock).unwrap(), FlockArg::LockExclusive).unwrap();
        ops.block_on(async {
            let calls = RuntimeClient::new(ops.channel(ops.socket()));
            let abandoned = tokio::spawn({
                let (mut calls, target, device) =
                    (calls.clone(), target.clone(), Arc::clone(&device));
                async move {
                    if round % 2 == 0 {
                        let request = numbered_request(&target, &device, 3 * round + 1);
                        calls.runtime_stage_volume(request).await.map(drop)
                    } else {
                        let volume_target_path = utf8(&target).to_owned();
                        let request = RuntimeUnstageVolumeRequest { volume_target_path };
                        calls.runtime_unstage_volume(request).await.map(drop)
                    }
                }
            });
            wait_until_async("the lock to be waited for", WAIT_TIMEOUT, || {
                is_waited_for(&ops, &lock)
            })
            .await;
            abandoned.abort();
            let _ = abandoned.await;
            let next = tokio::spawn({
                let (mut calls, request) = (
                    calls.clone(),
                    numbered_request(&target, &device, 3 * round + 2),
                );
                async move { calls.runtime_stage_volume(request).await }
            });
            wait_until_async("the daemon to notice the disconnect", WAIT_TIMEOUT, || {
                ops.log().matches("the caller cancelled the call").count() > round
            })
            .await;
            drop(held);
            next.await.expect("a task").expect("the next call");
            wait_until_async("the first call to end", WAIT_TIMEOUT, || {
                !is_waited_for(&ops, &lock)
            })
            .await;
        });
        assert_eq!(number_of(&node.entry(&target)), Some(3 * round + 2));
    }
}

/// A call does not wait forever for another process, or for an earlier call that waits for one.
#[test]
fn a_held_lock_is_reported() {
    let node = Node::trusted(Delegate::Runc, "");
    let ops = Ops::with(&node, "unstage_timeout = 1");
    let device = node.ext4();
    let target = node.target("pod-a", "pv-1");
    ops.stage(numbered_request(&target, &device, 1)).unwrap();
    let lock = node.lock_file(&target);
    let held = Flock::lock(File::open(&lock).unwrap(), FlockArg::LockExclusive).unwrap();
    let call = ops.unstage(&target);
    assert_eq!(reason(&call), "VOLUME_STATE");
    let error = expect_error(call, FailedPrecondition);
    assert!(
        error.starts_with("volume pv-1: ") && error.contains(utf8(&lock)),
        "{error}"
    );
    ops.block_on(async {
        let mut client = RuntimeClient::new(ops.channel(ops.socket()));
        let request = numbered_request(&target, &device, 2);
        let abandoned = tokio::spawn(async move { client.runtime_stage_volume(request).await });
        wait_until_async("the lock to be waited for", WAIT_TIMEOUT, || {
            is_waited_for(&ops, &lock)
        })
        .await;
        abandoned.abort();
    });
    let call = ops.unstage(&target);
    assert_eq!(reason(&call), "DEADLINE");
    let error = expect_error(call, DeadlineExceeded);
    assert!(
        error.starts_with("volume pv-1: an earlier call for it"),
        "{error}"
    );
    assert_eq!(number_of(&node.entry(&target)), Some(1));
    drop(held);
    wait_until("the abandoned call to end", WAIT_TIMEOUT, || {
        ops.unstage(&target).is_ok()
    });
    assert_eq!(number_of(&node.entry(&target)), None);
}

/// Reports whether the daemon has opened the file of a volume's lock that another process holds.
fn is_waited_for(ops: &Ops, lock: &Path) -> bool {
    let open = fs::read_dir(format!("/proc/{}/fd", ops.pid())).expect("a running daemon");
    open.flatten()
        .any(|fd| fs::read_link(fd.path()).is_ok_and(|path| path == lock))
}

/// Sets a flag when it is dropped. The readers end when the flag is set. The flag has to be set even if the test
/// panics, because the scope then joins the readers, too.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
