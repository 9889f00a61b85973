//! The types of requirements and their groups.

use std::fs;
use std::path::Path;

use runcrust_tests::host;

use crate::scene::Scene;

/// The runtimes that have to meet a requirement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequirementKind {
    /// Met only by a runtime that mounts deferred volumes.
    Deferred,
    /// Met only by a runtime that mounts shares. Only checked if the caller provides one.
    Network,
    /// Met by any OCI runtime; one that mounts deferred volumes still has to meet it.
    Ordinary,
}

/// The level of a requirement, as in RFC 2119.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    /// If the requirement is not met, data is lost or belongs to another pod, or a pod does not start.
    Must,
    /// Only the protocol specifies the requirement, and not the KEP, or a runtime can have a reason not to meet it.
    Should,
}

/// A prerequisite of a requirement, besides root, loop devices and ext4.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Prerequisite {
    /// The `mkfs` program and the kernel's driver of a file system.
    FileSystem(&'static str),
    /// A crust directory in which nothing is staged, because the check makes it invalid for a moment.
    UnusedCrustDirectory,
}

#[derive(Debug)]
pub(crate) struct Requirement {
    /// The id, whose meaning never changes.
    pub(crate) id: &'static str,
    pub(crate) kind: RequirementKind,
    pub(crate) level: Level,
    /// The section of KEP-2857 or of docs/protocol.md that specifies the requirement.
    pub(crate) source: &'static str,
    pub(crate) sentence: &'static str,
    pub(crate) needs: Option<Prerequisite>,
    /// Whether no other requirement may be checked at the same time.
    pub(crate) alone: bool,
    /// Checks the requirement. Panics with what it observed if the requirement is not met.
    pub(crate) check: fn(&Scene<'_>),
}

/// A group of requirements about one subject.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) name: &'static str,
    pub(crate) requirements: &'static [Requirement],
}

/// Returns a requirement that only a runtime which mounts deferred volumes meets. Its level is MUST.
pub(crate) const fn deferred(
    id: &'static str,
    source: &'static str,
    sentence: &'static str,
    check: fn(&Scene<'_>),
) -> Requirement {
    Requirement {
        id,
        kind: RequirementKind::Deferred,
        level: Level::Must,
        source,
        sentence,
        needs: None,
        alone: false,
        check,
    }
}

/// Returns a requirement that only a runtime which mounts shares meets. Its level is MUST.
pub(crate) const fn network(
    id: &'static str,
    source: &'static str,
    sentence: &'static str,
    check: fn(&Scene<'_>),
) -> Requirement {
    Requirement {
        kind: RequirementKind::Network,
        ..deferred(id, source, sentence, check)
    }
}

/// Returns a requirement that every OCI runtime meets. Its level is MUST.
pub(crate) const fn ordinary(
    id: &'static str,
    source: &'static str,
    sentence: &'static str,
    check: fn(&Scene<'_>),
) -> Requirement {
    Requirement {
        kind: RequirementKind::Ordinary,
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

    pub(crate) const fn needs(self, need: Prerequisite) -> Self {
        Self {
            needs: Some(need),
            ..self
        }
    }
}

impl RequirementKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Deferred => "deferred",
            Self::Network => "network",
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

impl Prerequisite {
    /// Returns what this machine lacks, if anything.
    pub(crate) fn missing(self, crust_root: &Path) -> Option<String> {
        match self {
            Self::FileSystem(fstype) => missing_file_system(fstype),
            Self::UnusedCrustDirectory => {
                let entries = fs::read_dir(crust_root).into_iter().flatten();
                let used = entries.count() > 0;
                used.then(|| format!("volumes are staged in {}", crust_root.display()))
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
        return Some(format!("{mkfs} is not installed"));
    }
    let known = host::kernel_mounts(fstype);
    (!known).then(|| format!("this kernel cannot mount {fstype}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_prerequisite_is_named() {
        let missing = |need: Prerequisite, crust_root: &str| need.missing(Path::new(crust_root));
        let no_such = missing(Prerequisite::FileSystem("no-such-fs"), "/");
        assert_eq!(no_such.as_deref(), Some("mkfs.no-such-fs is not installed"));
        assert_eq!(missing(Prerequisite::FileSystem("ext4"), "/"), None);
        assert_eq!(
            missing(Prerequisite::UnusedCrustDirectory, "/no/such"),
            None
        );
        let used = missing(Prerequisite::UnusedCrustDirectory, "/etc");
        assert_eq!(used.as_deref(), Some("volumes are staged in /etc"));
    }
}
