//! The types of requirements and their groups.

use std::fs;
use std::path::Path;

use runcrust_tests::host;

use crate::scene::Scene;

/// The runtimes that have to meet a requirement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The runtime mounts deferred volumes: one that knows nothing of them doesn't meet it.
    Deferred,
    /// Any OCI runtime meets it; one that mounts deferred volumes still has to.
    Ordinary,
}

/// The level of a requirement, as in RFC 2119.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    /// Data is lost or somebody else's, or a pod doesn't start, without it.
    Must,
    /// The protocol asks for it beyond the KEP, or a runtime can have a reason not to do it.
    Should,
}

/// A need of a requirement on the machine besides an ext4 on a loop device.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Need {
    /// Its `mkfs` and the kernel's driver, which puts something on the volume beforehand.
    FileSystem(&'static str),
    /// A crust directory where nobody else has staged anything: it is spoilt for a moment.
    UnusedCrustDirectory,
}

/// One requirement.
#[derive(Debug)]
pub(crate) struct Requirement {
    /// The id, which never changes.
    pub(crate) id: &'static str,
    pub(crate) kind: Kind,
    pub(crate) level: Level,
    /// The section of KEP-2857 or of docs/protocol.md in which it is written.
    pub(crate) source: &'static str,
    /// The requirement.
    pub(crate) sentence: &'static str,
    pub(crate) needs: Option<Need>,
    /// Whether no other requirement is checked at the same time.
    pub(crate) alone: bool,
    /// Checks the requirement. Panics with what it saw if that isn't met.
    pub(crate) check: fn(&Scene<'_>),
}

/// Requirements about one thing.
#[derive(Debug)]
pub(crate) struct Group {
    /// The name of the group.
    pub(crate) name: &'static str,
    pub(crate) requirements: &'static [Requirement],
}

/// A requirement that only a runtime which mounts deferred volumes meets.
pub(crate) const fn deferred(
    id: &'static str,
    source: &'static str,
    sentence: &'static str,
    check: fn(&Scene<'_>),
) -> Requirement {
    Requirement {
        id,
        kind: Kind::Deferred,
        level: Level::Must,
        source,
        sentence,
        needs: None,
        alone: false,
        check,
    }
}

/// A requirement that every OCI runtime meets.
pub(crate) const fn ordinary(
    id: &'static str,
    source: &'static str,
    sentence: &'static str,
    check: fn(&Scene<'_>),
) -> Requirement {
    Requirement {
        kind: Kind::Ordinary,
        ..deferred(id, source, sentence, check)
    }
}

impl Requirement {
    pub(crate) const fn should(self) -> Self {
        Self {
            level: Level::Should,
            ..self
        }
    }

    pub(crate) const fn alone(self) -> Self {
        Self {
            alone: true,
            ..self
        }
    }

    pub(crate) const fn needs(self, need: Need) -> Self {
        Self {
            needs: Some(need),
            ..self
        }
    }
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Deferred => "deferred",
            Self::Ordinary => "ordinary",
        }
    }
}

impl Level {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Must => "MUST",
            Self::Should => "SHOULD",
        }
    }
}

impl Need {
    /// Returns what is missing on this machine.
    pub(crate) fn missing(self, crust_root: &Path) -> Option<String> {
        match self {
            Self::FileSystem(fstype) => missing_file_system(fstype),
            Self::UnusedCrustDirectory => {
                let entries = fs::read_dir(crust_root).into_iter().flatten();
                let used = entries.count() > 0;
                used.then(|| format!("others' volumes are staged in {}", crust_root.display()))
            }
        }
    }
}

fn missing_file_system(fstype: &str) -> Option<String> {
    let mkfs = format!("mkfs.{fstype}");
    let directories = ["/sbin", "/usr/sbin", "/bin", "/usr/bin"];
    if !directories
        .iter()
        .any(|directory| Path::new(directory).join(&mkfs).exists())
    {
        return Some(format!("there is no {mkfs}"));
    }
    let known = host::kernel_mounts(fstype);
    (!known).then(|| format!("this kernel mounts no {fstype}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        let missing = |need: Need, crust_root: &str| need.missing(Path::new(crust_root));
        let no_such = missing(Need::FileSystem("no-such-fs"), "/");
        assert_eq!(no_such.as_deref(), Some("there is no mkfs.no-such-fs"));
        assert_eq!(missing(Need::FileSystem("ext4"), "/"), None);
        assert_eq!(missing(Need::UnusedCrustDirectory, "/no/such"), None);
        let used = missing(Need::UnusedCrustDirectory, "/etc");
        assert_eq!(used.as_deref(), Some("others' volumes are staged in /etc"));
    }
}
