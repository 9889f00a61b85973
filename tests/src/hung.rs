//! A file system that stops answering.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// The name of the only file, which has 16 MiB of zeros.
const FILE: &str = "disk.img";

/// A FUSE file system that accepts requests and does not answer them. A process that waits for an answer can't even be
/// killed until this is dropped.
#[derive(Debug)]
pub struct HungFilesystem {
    place: PathBuf,
    is_silent: Arc<AtomicBool>,
    is_over: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

impl HungFilesystem {
    /// Mounts a file system that does not answer from the beginning over a directory.
    #[track_caller]
    pub fn mount(place: &Path) -> Self {
        let hung = Self::mount_answering(place);
        hung.stop_answering();
        hung
    }

    /// Mounts a file system that answers until [`Self::stop_answering`] over a directory.
    #[track_caller]
    pub fn mount_answering(place: &Path) -> Self {
        let requests = File::options().read(true).write(true).open("/dev/fuse");
        let requests = requests.expect("/dev/fuse");
        let data = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0,allow_other",
            requests.as_raw_fd()
        );
        let mounted = mount(
            Some("hung"),
            place,
            Some("fuse"),
            MsFlags::empty(),
            Some(&*data),
        );
        mounted.unwrap_or_else(|error| panic!("mount {}: {error}", place.display()));
        let [is_silent, is_over] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let server = Server {
            requests,
            is_silent: Arc::clone(&is_silent),
            is_over: Arc::clone(&is_over),
        };
        let hung = Self {
            place: place.to_owned(),
            is_silent,
            is_over,
            server: Some(thread::spawn(move || server.serve())),
        };
        // By now the kernel has got an answer to INIT. Without it a waiting process could still be killed.
        assert!(hung.file().exists(), "{}", hung.file().display());
        hung
    }

    /// Returns the path of the only file.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        self.place.join(FILE)
    }

    pub fn stop_answering(&self) {
        self.is_silent.store(true, Ordering::SeqCst);
    }

    /// Ends the server, so that all waiting requests fail. The file system stays mounted.
    pub fn fail(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        let _ = self.server.take().map(JoinHandle::join);
    }
}

impl Drop for HungFilesystem {
    fn drop(&mut self) {
        self.fail();
        let _ = umount2(&self.place, MntFlags::MNT_DETACH);
    }
}

/// The server side of the FUSE protocol (`include/uapi/linux/fuse.h`).
struct Server {
    requests: File,
    is_silent: Arc<AtomicBool>,
    is_over: Arc<AtomicBool>,
}

impl Server {
    const ROOT: u64 = 1;
    const ONLY: u64 = 2;

    fn serve(self) {
        let mut request = vec![0; 1 << 17];
        while !self.is_over.load(Ordering::SeqCst) {
            let mut ready = [PollFd::new(self.requests.as_fd(), PollFlags::POLLIN)];
            if !matches!(poll(&mut ready, PollTimeout::from(20_u8)), Ok(1)) {
                continue;
            }
            // A request may be withdrawn in the meantime.
            let Ok(length) = (&self.requests).read(&mut request) else {
                continue;
            };
            if !self.is_silent.load(Ordering::SeqCst) {
                self.answer(&request[..length]);
            }
        }
    }

    fn answer(&self, request: &[u8]) {
        let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().expect("four"));
        let long = |at: usize| u64::from_ne_bytes(request[at..at + 8].try_into().expect("eight"));
        let (opcode, unique, node) = (word(4), long(8), long(16));
        let body = &request[40..];
        let answer = match opcode {
            // LOOKUP
            1 if body.strip_suffix(&[0]) == Some(FILE.as_bytes()) => {
                let mut entry = numbers(&[Self::ONLY, 0, 0, 0, 0]);
                entry.extend(attributes(Self::ONLY));
                Ok(entry)
            }
            1 => Err(nix::libc::ENOENT),
            // FORGET and BATCH_FORGET have no answer.
            2 | 42 => return,
            // GETATTR
            3 => {
                let mut answer = numbers(&[0, 0]);
                answer.extend(attributes(node));
                Ok(answer)
            }
            // OPEN, OPENDIR
            14 | 27 => Ok(numbers(&[0, 0])),
            // READ: the size is at offset 16 of `struct fuse_read_in`.
            15 => Ok(vec![0; word(40 + 16) as usize]),
            // RELEASE, FLUSH, RELEASEDIR
            18 | 25 | 29 => Ok(Vec::new()),
            // INIT: version 7.31, with no features, and writes of one page.
            26 => {
                let words = [7_u32, 31, 0, 0, 0, 4096, 1];
                let mut answer: Vec<u8> = words.iter().flat_map(|it| it.to_ne_bytes()).collect();
                answer.resize(64, 0);
                Ok(answer)
            }
            _ => Err(nix::libc::ENOSYS),
        };
        let (error, body) = answer.map_or_else(|error| (-error, Vec::new()), |body| (0, body));
        let length = u32::try_from(16 + body.len()).expect("short");
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend(error.to_ne_bytes());
        bytes.extend(unique.to_ne_bytes());
        bytes.extend(body);
        // The caller may be gone.
        let _ = (&self.requests).write(&bytes);
    }
}

/// Encodes a `struct fuse_attr`.
fn attributes(node: u64) -> Vec<u8> {
    let (mode, size): (u32, u64) = if node == Server::ROOT {
        (0o040_755, 0)
    } else {
        (0o100_600, 16 << 20)
    };
    let mut attributes = numbers(&[node, size, size / 512, 0, 0, 0]);
    let words = [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0];
    attributes.extend(words.iter().flat_map(|it: &u32| it.to_ne_bytes()));
    attributes
}

fn numbers(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|it| it.to_ne_bytes()).collect()
}
