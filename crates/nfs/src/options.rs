//! The mount options of shares: nfs(5), "Options supported by all versions" to "Options for NFS version 4 only".

use std::collections::BTreeMap;
use std::fmt;

use crust_blockfs::options::{FsOption, LABEL_OPTIONS, MountOptions, SUPERBLOCK_FLAGS};

use crate::version::{AllowedVersions, NfsVersion};

/// The error of a mount option that a share can't have. It is displayed as one sentence with the option and the next
/// step.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShareOptionError {
    /// nfs(5) doesn't know the option.
    #[error(
        "mount option {0}: is not an NFS mount option; hint: remove it, or correct its spelling (nfs(5))"
    )]
    Unknown(String),
    /// The option, or its value, isn't accepted.
    #[error("mount option {option}: {reason}; hint: remove it from the volume's mount options")]
    Refused {
        /// The option, with its value if that is the cause.
        option: String,
        /// The reason as a clause.
        reason: &'static str,
    },
    /// The option has no value, or one that it can't have.
    #[error("mount option {option}: expected {expected}; hint: correct the volume's mount options")]
    Value {
        /// The option as it was given.
        option: String,
        /// The values that are accepted.
        expected: Expected,
    },
    /// Two options name different versions.
    #[error(
        "mount options {version} and {minor}: they name different versions; hint: remove one of them"
    )]
    VersionConflict {
        /// The option that sets the version, as text.
        version: String,
        /// The option `minorversion`, as text.
        minor: String,
    },
}

/// The values that an option accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// The option stands alone, as in `soft`.
    Nothing,
    /// A number of decimal digits, without a sign.
    Number {
        /// The smallest accepted number.
        min: u32,
        /// The greatest accepted number.
        max: u32,
    },
    /// One of these words.
    Word(&'static [&'static str]),
}

impl fmt::Display for Expected {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => formatter.write_str("no value"),
            Self::Number { min, max } => write!(formatter, "a decimal number from {min} to {max}"),
            Self::Word([word]) => formatter.write_str(word),
            Self::Word(words) => write!(formatter, "one of {}", words.join(", ")),
        }
    }
}

/// The transport protocol of a share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp,
    Tcp6,
    Udp,
    Udp6,
}

impl Transport {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Tcp6 => "tcp6",
            Self::Udp => "udp",
            Self::Udp6 => "udp6",
        }
    }

    fn parse(name: &str) -> Self {
        match name {
            "tcp6" => Self::Tcp6,
            "udp" => Self::Udp,
            "udp6" => Self::Udp6,
            _ => Self::Tcp,
        }
    }

    pub(crate) const fn is_ipv6(self) -> bool {
        matches!(self, Self::Tcp6 | Self::Udp6)
    }

    pub(crate) const fn is_udp(self) -> bool {
        matches!(self, Self::Udp | Self::Udp6)
    }
}

/// The values that an option takes, and what they set.
#[derive(Debug, Clone, Copy)]
enum OptionKind {
    /// An option without a value. Of the options with the same `group` the last one counts.
    Flag {
        group: &'static str,
        /// Whether this is the kernel's default.
        is_default: bool,
    },
    /// An option whose value is a decimal number. The kernel has the same limits.
    Number {
        min: u32,
        max: u32,
    },
    /// An option whose value is one of the allowed words.
    Word {
        allowed: &'static [&'static str],
        /// The value that has the same effect as no option.
        default: Option<&'static str>,
    },
    /// Adds to the kinds of locks that are local.
    LocalLock,
    /// `rdirplus`, alone or with a value.
    ReadDirPlus,
    /// Sets the four times of the attribute cache.
    AttributeCacheTime,
    /// Sets the version by the option's value.
    Version,
    /// Is a version itself.
    IsVersion(&'static str),
    Transport,
    /// Is a transport protocol itself.
    IsTransport(&'static str),
    /// Only concerns mount.nfs(8).
    Ignored,
    Refused(&'static str),
}

const VERSIONS: &[&str] = &["3", "4", "4.0", "4.1", "4.2"];
const TRANSPORTS: &[&str] = &["tcp", "tcp6", "udp", "udp6"];
/// The times that `actimeo` sets (nfs(5)).
const ATTRIBUTE_CACHE_TIMES: [&str; 4] = ["acregmin", "acregmax", "acdirmin", "acdirmax"];

const OTHER_HOST: &str =
    "names a host or an address, but a volume only has the server of its share";
const BACKGROUND: &str =
    "mounts later in the background, but a container needs the volume when it starts";
const RDMA: &str = "isn't supported: runcrust mounts shares over TCP or UDP";
const SECURITY: &str = "isn't supported: runcrust mounts shares with sec=sys and without TLS, because everything else \
                        needs credentials on the node";
const SLOPPY: &str = "would let unknown options be ignored";
const UDP_WITH_V4: &str =
    "isn't possible with version 4, which needs TCP (type nfs with vers=3 can use UDP)";

fn option_kind(key: &str) -> Option<OptionKind> {
    let flag = |group| OptionKind::Flag {
        group,
        is_default: false,
    };
    let default = |group| OptionKind::Flag {
        group,
        is_default: true,
    };
    let number = |min, max| OptionKind::Number { min, max };
    let word = |allowed: &'static [&'static str], default| OptionKind::Word { allowed, default };
    Some(match key {
        "hard" => default("recovery"),
        "soft" | "softerr" => flag("recovery"),
        "softreval" => flag("softreval"),
        "nosoftreval" => default("softreval"),
        "ac" => default("ac"),
        "noac" => flag("ac"),
        "acl" => default("acl"),
        "noacl" => flag("acl"),
        "cto" => default("cto"),
        "nocto" => flag("cto"),
        "fsc" => flag("fsc"),
        "nofsc" => default("fsc"),
        // The kernel's default, but it also overrides `local_lock`.
        "lock" | "nolock" => flag("lock"),
        "rdirplus" => OptionKind::ReadDirPlus,
        "nordirplus" => flag("rdirplus"),
        "resvport" => default("resvport"),
        "noresvport" => flag("resvport"),
        "sharecache" => default("sharecache"),
        "nosharecache" => flag("sharecache"),
        "migration" => flag("migration"),
        "nomigration" => default("migration"),
        "trunkdiscovery" | "notrunkdiscovery" => flag("trunkdiscovery"),
        "port" | "mountport" => number(0, u32::from(u16::MAX)),
        "timeo" => number(1, i32::MAX.unsigned_abs()),
        "retrans" => number(0, i32::MAX.unsigned_abs()),
        // NFS_MAX_CONNECTIONS and NFS_MAX_TRANSPORTS.
        "nconnect" | "max_connect" => number(1, 16),
        "rsize" | "wsize" | "bsize" | "namlen" | "acregmin" | "acregmax" | "acdirmin"
        | "acdirmax" => number(0, u32::MAX),
        "actimeo" => OptionKind::AttributeCacheTime,
        "lookupcache" => word(&["all", "none", "pos", "positive"], Some("all")),
        "local_lock" => OptionKind::LocalLock,
        "write" => word(&["lazy", "eager", "wait"], Some("lazy")),
        // Each mount passes `sec=sys` to the kernel, whose own default is the server's choice.
        "sec" => word(&["sys"], Some("sys")),
        "xprtsec" => word(&["none"], Some("none")),
        "mountvers" => word(&["3"], Some("3")),
        "mountproto" => word(TRANSPORTS, None),
        "vers" | "nfsvers" => OptionKind::Version,
        "v3" => OptionKind::IsVersion("3"),
        "v4" => OptionKind::IsVersion("4"),
        "v4.0" => OptionKind::IsVersion("4.0"),
        "v4.1" => OptionKind::IsVersion("4.1"),
        "v4.2" => OptionKind::IsVersion("4.2"),
        "minorversion" => word(&["0", "1", "2"], None),
        "proto" => OptionKind::Transport,
        "tcp" => OptionKind::IsTransport("tcp"),
        "udp" => OptionKind::IsTransport("udp"),
        // The kernel ignores `intr` since Linux 2.6.25. `retry` says for how long mount.nfs retries, but a create has
        // a deadline of its own.
        "fg" | "intr" | "nointr" | "retry" => OptionKind::Ignored,
        "bg" => OptionKind::Refused(BACKGROUND),
        "sloppy" => OptionKind::Refused(SLOPPY),
        "addr" | "clientaddr" | "mountaddr" | "mounthost" => OptionKind::Refused(OTHER_HOST),
        "rdma" => OptionKind::Refused(RDMA),
        _ => return None,
    })
}

/// Returns the reason why a value that the kernel knows isn't accepted.
fn unsupported_value(key: &str, value: &str) -> Option<&'static str> {
    match key {
        "proto" | "mountproto" if matches!(value, "rdma" | "rdma6") => Some(RDMA),
        "sec" if value != "sys" => Some(SECURITY),
        "xprtsec" if matches!(value, "tls" | "mtls") => Some(SECURITY),
        _ => None,
    }
}

/// Returns whether any file system has the option, so that nfs(5) needn't list it.
fn is_generic(key: &str) -> bool {
    LABEL_OPTIONS.contains(&key) || SUPERBLOCK_FLAGS.contains(&key)
}

/// Checks the options of a share, and brings them into one form: lists with the same meaning become equal. Leaves out
/// options for mount.nfs and the kernel's defaults.
///
/// `fstype` is `nfs4` or `nfs`; `nfs4` only permits version 4.
pub fn normalize(options: &MountOptions, fstype: &str) -> Result<MountOptions, ShareOptionError> {
    let mut normalized = NormalizedOptions::default();
    for option in &options.fs_options {
        normalized.add(option)?;
    }
    normalized.combine_versions()?;
    normalized.combine_locks();
    normalized.check_version(fstype)?;
    Ok(MountOptions {
        fs_options: normalized.0.into_values().collect(),
        ..options.clone()
    })
}

/// The options that count, by key or by group of flags.
#[derive(Default)]
struct NormalizedOptions(BTreeMap<String, FsOption>);

impl NormalizedOptions {
    fn add(&mut self, option: &FsOption) -> Result<(), ShareOptionError> {
        let key = option.key();
        if is_generic(key) {
            self.0.insert(key.to_owned(), option.clone());
            return Ok(());
        }
        let kind = option_kind(key).ok_or_else(|| ShareOptionError::Unknown(key.to_owned()))?;
        let unsupported = option
            .value()
            .and_then(|value| unsupported_value(key, value));
        if let Some(reason) = unsupported {
            let option = option.to_string();
            return Err(ShareOptionError::Refused { option, reason });
        }
        match kind {
            OptionKind::Ignored => {}
            OptionKind::Refused(reason) => {
                let option = key.to_owned();
                return Err(ShareOptionError::Refused { option, reason });
            }
            OptionKind::Flag { group, is_default } => {
                expect_none(option)?;
                self.set(group, (!is_default).then(|| option.clone()));
            }
            OptionKind::Number { min, max } => self.set_value(key, &number(option, min, max)?),
            OptionKind::AttributeCacheTime => {
                let value = number(option, 0, u32::MAX)?;
                for key in ATTRIBUTE_CACHE_TIMES {
                    self.set_value(key, &value);
                }
            }
            OptionKind::Word { allowed, default } => {
                let value = match word(option, allowed)? {
                    "positive" => "pos",
                    value => value,
                };
                self.set(
                    key,
                    (Some(value) != default).then(|| with_value(key, value)),
                );
            }
            OptionKind::LocalLock => {
                let added = word(option, &["none", "all", "flock", "posix"])?;
                let local = match (self.value(key), added) {
                    (_, "none") => None,
                    // A later kind of locks doesn't replace an earlier one.
                    (Some(local), added) if local != added => Some("all"),
                    (_, added) => Some(added),
                };
                self.set(key, local.map(|local| with_value(key, local)));
            }
            OptionKind::ReadDirPlus => {
                let policy = match option.value() {
                    Some(_) => Some(word(option, &["none", "force"])?),
                    None => None,
                };
                let option = policy.map(|policy| match policy {
                    "none" => FsOption::Flag("nordirplus".to_owned()),
                    policy => with_value(key, policy),
                });
                self.set(key, option);
            }
            OptionKind::Version => self.set_value("vers", word(option, VERSIONS)?),
            OptionKind::IsVersion(version) => {
                expect_none(option)?;
                self.set_value("vers", version);
            }
            OptionKind::Transport => self.set_value("proto", word(option, TRANSPORTS)?),
            OptionKind::IsTransport(transport) => {
                expect_none(option)?;
                self.set_value("proto", transport);
            }
        }
        Ok(())
    }

    fn set(&mut self, group: &str, option: Option<FsOption>) {
        match option {
            Some(option) => self.0.insert(group.to_owned(), option),
            None => self.0.remove(group),
        };
    }

    fn set_value(&mut self, key: &str, value: &str) {
        self.set(key, Some(with_value(key, value)));
    }

    fn value(&self, key: &str) -> Option<&str> {
        self.0.get(key).and_then(FsOption::value)
    }

    /// Combines `vers=4` with `minorversion`, as mount.nfs(8) does.
    fn combine_versions(&mut self) -> Result<(), ShareOptionError> {
        let Some(minor) = self.0.remove("minorversion") else {
            return Ok(());
        };
        let combined = format!("4.{}", minor.value().unwrap_or_default());
        match self.value("vers") {
            Some(version) if version != "4" && version != combined => {
                Err(ShareOptionError::VersionConflict {
                    version: format!("vers={version}"),
                    minor: minor.to_string(),
                })
            }
            _ => {
                self.set_value("vers", &combined);
                Ok(())
            }
        }
    }

    /// Removes `local_lock` if `lock` or `nolock` is given, in any order. These override it
    /// (`nfs_try_mount_request` of fs/nfs/super.c). For older kernels the order counts.
    fn combine_locks(&mut self) {
        let Some(lock) = self.0.get("lock") else {
            return;
        };
        if lock.key() == "lock" {
            self.0.remove("lock");
        }
        self.0.remove("local_lock");
    }

    fn check_version(&self, fstype: &str) -> Result<(), ShareOptionError> {
        let is_v3 = self.value("vers") == Some("3");
        if let Some(version) = self.0.get("vers")
            && is_v3
            && fstype == "nfs4"
        {
            return Err(unexpected(version, Expected::Word(&VERSIONS[1..])));
        }
        let is_v4 = fstype == "nfs4" || (self.0.contains_key("vers") && !is_v3);
        let is_udp = |option: &&FsOption| matches!(option.value(), Some("udp" | "udp6"));
        match self.0.get("proto").filter(is_udp) {
            Some(option) if is_v4 => Err(ShareOptionError::Refused {
                option: option.to_string(),
                reason: UDP_WITH_V4,
            }),
            _ => Ok(()),
        }
    }
}

fn with_value(key: &str, value: &str) -> FsOption {
    FsOption::Value {
        key: key.to_owned(),
        value: value.to_owned(),
    }
}

fn expect_none(option: &FsOption) -> Result<(), ShareOptionError> {
    match option.value() {
        None => Ok(()),
        Some(_) => Err(unexpected(option, Expected::Nothing)),
    }
}

/// Returns an option's number without leading zeros.
fn number(option: &FsOption, min: u32, max: u32) -> Result<String, ShareOptionError> {
    let value = option
        .value()
        .filter(|value| value.bytes().all(|byte| byte.is_ascii_digit()));
    let number = value.and_then(|value| value.parse::<u32>().ok());
    let number = number.filter(|number| (min..=max).contains(number));
    let number = number.ok_or_else(|| unexpected(option, Expected::Number { min, max }))?;
    Ok(number.to_string())
}

fn word<'o>(
    option: &'o FsOption,
    allowed: &'static [&'static str],
) -> Result<&'o str, ShareOptionError> {
    let value = option.value().filter(|value| allowed.contains(value));
    value.ok_or_else(|| unexpected(option, Expected::Word(allowed)))
}

fn unexpected(option: &FsOption, expected: Expected) -> ShareOptionError {
    ShareOptionError::Value {
        option: option.to_string(),
        expected,
    }
}

/// The options that decide how the server is contacted, of a list that [`normalize`] has returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Contact {
    pub(crate) versions: AllowedVersions,
    pub(crate) transport: Option<Transport>,
    /// The port of the NFS service; `None` for the version's default, 0 if rpcbind is asked.
    pub(crate) port: Option<u16>,
    /// The transport of version 3's MOUNT service; `None` for that of the NFS service.
    pub(crate) mount_transport: Option<Transport>,
    /// The port of version 3's MOUNT service; 0 if rpcbind is asked.
    pub(crate) mount_port: u16,
    /// Whether locks are taken on the server.
    pub(crate) has_remote_locks: bool,
}

impl Contact {
    pub(crate) fn new(options: &MountOptions, fstype: &str) -> Self {
        let find = |key: &str| {
            let mut options = options.fs_options.iter();
            options.find(|option| option.key() == key)
        };
        let value = |key: &str| find(key).and_then(FsOption::value);
        let port = |key: &str| value(key).and_then(|port| port.parse().ok());
        let transport = value("proto").map(Transport::parse);
        let versions = match value("vers") {
            Some("3") => AllowedVersions::Only(NfsVersion::V3),
            Some("4.0") => AllowedVersions::Only(NfsVersion::V4_0),
            Some("4.1") => AllowedVersions::Only(NfsVersion::V4_1),
            Some("4.2") => AllowedVersions::Only(NfsVersion::V4_2),
            Some(_) => AllowedVersions::AnyV4,
            None if fstype == "nfs4" => AllowedVersions::AnyV4,
            None if transport.is_some_and(Transport::is_udp) => {
                AllowedVersions::Only(NfsVersion::V3)
            }
            None => AllowedVersions::Any,
        };
        Self {
            versions,
            transport,
            port: port("port"),
            mount_transport: value("mountproto").map(Transport::parse),
            mount_port: port("mountport").unwrap_or_default(),
            has_remote_locks: find("nolock").is_none() && value("local_lock") != Some("all"),
        }
    }
}

#[cfg(test)]
mod tests;
