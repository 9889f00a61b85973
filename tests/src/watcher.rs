//! Watches the host's mount table.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};

use nix::poll::{PollFd, PollFlags, poll};

use crate::host::{Device, Mount};

/// The interval between two reads while the kernel reports no change.
const INTERVAL_MILLISECONDS: u8 = 2;

/// Records all mounts of one device. It reads the host's mountinfo at each change that the kernel reports (POLLPRI),
/// and every two milliseconds. A mount that is gone before the read that follows the wake-up (about 100 µs) can be
/// missed.
#[derive(Debug)]
#[must_use]
pub struct MountWatcher {
    shared: Arc<WatchState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct WatchState {
    end: AtomicBool,
    seen: Mutex<BTreeSet<String>>,
}

impl WatchState {
    fn seen(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MountWatcher {
    /// Starts to watch for mounts of a block device. The table was read once when this returns.
    pub fn start(device: &Path) -> Self {
        let device = Device::from_path(device);
        let shared = Arc::new(WatchState::default());
        let (ready, looked) = mpsc::channel();
        let thread = thread::spawn({
            let shared = Arc::clone(&shared);
            move || watch(&device, &shared, &ready)
        });
        looked.recv().expect("the watching thread looks once");
        Self {
            shared,
            thread: Some(thread),
        }
    }

    /// Returns the lines of mountinfo that were seen so far.
    pub fn seen(&self) -> Vec<String> {
        self.shared.seen().iter().cloned().collect()
    }

    /// Stops after a last read, and returns the lines of mountinfo that were seen.
    pub fn finish(mut self) -> Vec<String> {
        self.stop().expect("the watching thread doesn't panic");
        self.seen()
    }

    /// Stops after a last read, and checks that the device was never mounted.
    #[track_caller]
    pub fn assert_never_mounted(self) {
        let seen = self.finish();
        assert!(seen.is_empty(), "the host's mount table had {seen:#?}");
    }

    fn stop(&mut self) -> thread::Result<()> {
        self.shared.end.store(true, Ordering::Release);
        self.thread.take().map_or(Ok(()), JoinHandle::join)
    }
}

impl Drop for MountWatcher {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

fn watch(device: &Device, shared: &WatchState, ready: &mpsc::Sender<()>) {
    let mut table = File::open("/proc/self/mountinfo").expect("/proc/self/mountinfo");
    let mut text = String::new();
    loop {
        let last = shared.end.load(Ordering::Acquire);
        text.clear();
        table.rewind().expect("rewind mountinfo");
        table.read_to_string(&mut text).expect("read mountinfo");
        let mounts = text.lines().filter_map(Mount::parse);
        shared.seen().extend(
            mounts
                .filter(|mount| mount.is_of(device))
                .map(|mount| mount.line),
        );
        let _ = ready.send(());
        if last {
            return;
        }
        // After a signal or a timeout the table is read as well.
        let mut waiting = [PollFd::new(table.as_fd(), PollFlags::POLLPRI)];
        let _ = poll(&mut waiting, INTERVAL_MILLISECONDS);
    }
}
