//! The user namespace of a container that is about to be created. The container's mounts of volumes need its id
//! mappings.

use std::fmt::Write as _;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags, fstat, open};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use serde::Serialize;

use crate::errno::Name;
use crate::sys;

/// A range of `linux.uidMappings` or `linux.gidMappings` (config-linux.md, "User namespace mappings").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(into = "(u32, u32, u32)")]
pub struct IdRange {
    /// The first id in the container.
    pub container: u32,
    /// The id on the host that `container` is mapped to.
    pub host: u32,
    /// The number of ids.
    pub size: u32,
}

impl From<IdRange> for (u32, u32, u32) {
    fn from(range: IdRange) -> Self {
        (range.container, range.host, range.size)
    }
}

/// The user namespace of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum UserNamespace {
    /// An existing user namespace, by its path.
    #[serde(rename = "joins")]
    Joined(Box<Path>),
    /// A user namespace that the delegate will create.
    New {
        /// The mappings of user ids (`linux.uidMappings`).
        users: Vec<IdRange>,
        /// The mappings of group ids (`linux.gidMappings`).
        groups: Vec<IdRange>,
    },
}

/// The error of opening or creating a user namespace.
#[derive(Debug, thiserror::Error)]
#[error("{call}: {}", Name(*errno))]
pub struct UserNamespaceError {
    /// The call, with its arguments.
    pub call: String,
    /// The error of the call.
    pub errno: Errno,
}

fn failed(call: impl Into<String>) -> impl FnOnce(Errno) -> UserNamespaceError {
    let call = call.into();
    move |errno| UserNamespaceError { call, errno }
}

impl UserNamespace {
    /// Opens a user namespace with the container's id mappings: the existing namespace, or a new one with the
    /// mappings that the delegate will give the container's namespace. `None` if it is the user namespace of this
    /// process.
    pub fn open(&self) -> Result<Option<OwnedFd>, UserNamespaceError> {
        let (users, groups) = match self {
            Self::Joined(path) => return open_existing(path),
            Self::New { users, groups } => (users, groups),
        };
        let child = sys::start_in_user_namespace().map_err(failed("clone3(CLONE_NEWUSER)"))?;
        let child = NamespaceHolder(child);
        child.write("uid_map", users)?;
        child.write("gid_map", groups)?;
        let path = child.file("ns/user");
        let opened = open(&*path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        opened.map(Some).map_err(failed(format!("open({path})")))
    }
}

/// Opens an existing user namespace; `None` if it is that of this process.
fn open_existing(path: &Path) -> Result<Option<OwnedFd>, UserNamespaceError> {
    let open_namespace = |path: &Path| -> Result<_, UserNamespaceError> {
        let call = format!("open({})", path.display());
        let fd = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let fd = fd.map_err(failed(call))?;
        let stat = fstat(&fd).map_err(failed("fstat"))?;
        Ok((fd, (stat.st_dev, stat.st_ino)))
    };
    let (fd, namespace) = open_namespace(path)?;
    let (_, own) = open_namespace(Path::new("/proc/self/ns/user"))?;
    Ok((namespace != own).then_some(fd))
}

/// A child process that does nothing but hold a namespace. It is killed when this is dropped.
struct NamespaceHolder(Pid);

impl NamespaceHolder {
    fn file(&self, name: &str) -> String {
        format!("/proc/{}/{name}", self.0.as_raw_nonzero())
    }

    fn write(&self, name: &str, ranges: &[IdRange]) -> Result<(), UserNamespaceError> {
        let path = self.file(name);
        let file = open(&*path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(failed(format!("open({path})")))?;
        let text = map_lines(ranges);
        // The kernel accepts a map only in a single write (user_namespaces(7)).
        let written = rustix::io::write(file, text.as_bytes());
        written
            .map(drop)
            .map_err(failed(format!("write({name}, {:?})", text.trim_end())))
    }
}

impl Drop for NamespaceHolder {
    fn drop(&mut self) {
        // The child hasn't been reaped, so the pid can't be another process's.
        let _ = kill_process(self.0, Signal::KILL);
        let _ = waitpid(Some(self.0), WaitOptions::empty());
    }
}

/// Returns the contents of `uid_map` or `gid_map`, with a line for each range.
fn map_lines(ranges: &[IdRange]) -> String {
    let mut text = String::new();
    for range in ranges {
        // Writing to a String can't fail.
        let _ = writeln!(text, "{} {} {}", range.container, range.host, range.size);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANGES: [IdRange; 2] = [
        IdRange {
            container: 0,
            host: 100_000,
            size: 65_536,
        },
        IdRange {
            container: 70_000,
            host: 5,
            size: 1,
        },
    ];

    #[test]
    fn a_new_namespace_differs_from_that_of_this_process() {
        let ids = UserNamespace::New {
            users: RANGES.into(),
            groups: vec![RANGES[1]],
        };
        let namespace = ids.open().unwrap().expect("a new namespace");
        let own = std::fs::read_link("/proc/self/ns/user").unwrap();
        let opened = format!(
            "/proc/self/fd/{}",
            std::os::fd::AsRawFd::as_raw_fd(&namespace)
        );
        assert_ne!(std::fs::read_link(opened).unwrap(), own);
    }

    #[test]
    fn the_process_that_holds_a_namespace_is_killed_on_drop() {
        let child = NamespaceHolder(sys::start_in_user_namespace().unwrap());
        let path = child.file("status");
        assert!(Path::new(&path).exists());
        drop(child);
        assert!(!Path::new(&path).exists());
    }

    #[test]
    fn the_namespace_of_this_process_needs_no_mapping() {
        let own = UserNamespace::Joined(Path::new("/proc/self/ns/user").into());
        assert!(own.open().unwrap().is_none());
        let missing = UserNamespace::Joined(Path::new("/proc/0/ns/user").into());
        let error = missing.open().unwrap_err().to_string();
        assert_eq!(error, "open(/proc/0/ns/user): ENOENT");
    }

    #[test]
    fn the_error_shows_mappings_that_the_kernel_refuses() {
        let good = vec![RANGES[1]];
        let twice = vec![RANGES[0], RANGES[0]];
        for (users, groups, name) in [
            (twice.clone(), good.clone(), "uid_map"),
            (good, twice, "gid_map"),
        ] {
            let error = UserNamespace::New { users, groups }
                .open()
                .unwrap_err()
                .to_string();
            let expected = format!("write({name}, \"0 100000 65536\\n0 100000 65536\"): EINVAL");
            assert!(error.starts_with(&expected), "{error}");
        }
    }

    #[test]
    fn a_map_has_a_line_for_each_range() {
        assert_eq!(map_lines(&RANGES), "0 100000 65536\n70000 5 1\n");
    }
}
