//! A directory on which something is mounted when it is first used, as with systemd's automount units.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::unistd::getpgrp;

use crate::mounts;

/// Sends `AUTOFS_IOC_READY` of `linux/auto_fs.h` with the request's token. It is Perl because an ioctl needs `unsafe`
/// in Rust.
const READY: &str = "ioctl(STDIN, 0x9360, int(shift)) or die $!";

/// A direct autofs mount. Processes in this process group see the trigger and do not trigger it, as autofs does for its
/// daemon.
#[derive(Debug)]
pub struct Automount {
    place: PathBuf,
}

impl Automount {
    /// Mounts a trigger on `place`. When a process of another process group first uses it, `content` is bound there.
    #[track_caller]
    pub fn new(content: &Path, place: &Path) -> Self {
        let (requests, theirs) = nix::unistd::pipe().expect("pipe");
        let data = format!(
            "fd={},pgrp={},minproto=5,maxproto=5,direct",
            theirs.as_raw_fd(),
            getpgrp()
        );
        let kind = Some("autofs");
        let mounted = mount(Some("test"), place, kind, MsFlags::empty(), Some(&*data));
        mounted.unwrap_or_else(|error| panic!("mount {}: {error}", place.display()));
        let trigger = File::open(place).expect("the trigger");
        let (from, at) = (content.to_owned(), place.to_owned());
        // The mount holds the other end of the pipe, so the thread ends with the mount.
        drop(theirs);
        thread::spawn(move || serve(requests, &trigger, &from, &at));
        Self {
            place: place.to_owned(),
        }
    }
}

impl Drop for Automount {
    fn drop(&mut self) {
        // The first call unmounts the bind, and the second one the trigger.
        for _ in 0..2 {
            let _ = umount2(&self.place, MntFlags::MNT_DETACH);
        }
    }
}

/// Handles requests, each a `struct autofs_v5_packet` of `linux/auto_fs.h`.
fn serve(requests: OwnedFd, trigger: &File, from: &Path, at: &Path) {
    let mut requests = File::from(requests);
    let mut packet = [0; 304];
    while requests.read(&mut packet).is_ok_and(|length| length >= 12) {
        let token: [u8; 4] = packet[8..12].try_into().expect("four bytes");
        mounts::bind(from, at);
        let token = u32::from_ne_bytes(token).to_string();
        let mut perl = Command::new("perl");
        perl.args(["-e", READY, &token])
            .stdin(trigger.try_clone().expect("a descriptor"));
        assert!(perl.status().expect("perl").success(), "{token}");
    }
}
