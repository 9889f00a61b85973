//! The names of what is being made.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::process::own_pid;

/// A dot-name of our own beside `name`. Of a name that is almost as long as names can be, a part.
pub(super) fn name(name: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = name.get(..100).unwrap_or(name);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    // A crash may have left one under a pid that is ours now.
    let now = since_the_epoch().as_nanos();
    format!(".{name}.{}.{now:x}.{next}", own_pid())
}

/// Says to everybody that somebody is at what has such a name, as long as it is open. The kernel takes
/// that back when its process is killed, whichever pid namespace that is in.
pub(super) fn hold(made: impl AsFd) -> Result<(), Errno> {
    flock(made, FlockOperation::NonBlockingLockExclusive)
}

pub(super) fn since_the_epoch() -> Duration {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default()
}

/// Who gave something such a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Maker {
    pub(super) pid: u32,
    /// When, since the epoch.
    pub(super) at: Duration,
}

/// `None` for a name that [`name`] doesn't make.
pub(super) fn maker(name: &str) -> Option<Maker> {
    let mut parts = name.strip_prefix('.')?.rsplitn(4, '.');
    let (next, at, pid) = (parts.next()?, parts.next()?, parts.next()?);
    parts.next().filter(|name| !name.is_empty())?;
    let _: u32 = next.parse().ok()?;
    let at = u64::from_str_radix(at, 16).ok()?;
    let (pid, at) = (pid.parse().ok()?, Duration::from_nanos(at));
    Some(Maker { pid, at })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_who_made_it_and_when() {
        let before = since_the_epoch();
        for long in ["mountInfo.json", &"a.b".repeat(80)] {
            let maker = maker(&name(long)).unwrap();
            assert_eq!(maker.pid, std::process::id());
            assert!(
                before <= maker.at && maker.at <= since_the_epoch(),
                "{maker:?}"
            );
        }
    }

    #[test]
    fn other_names_are_nobodys() {
        for other in [
            "",
            ".",
            "..",
            "name.1.a.0",
            ".name",
            ".name.1.a",
            "..1.a.0",
            ".name.x.a.0",
            ".name.1.xyz.0",
            ".name.1.a.b",
            ".name.-1.a.0",
            ".name.1.a.0.swp",
        ] {
            assert_eq!(maker(other), None, "{other}");
        }
    }
}
