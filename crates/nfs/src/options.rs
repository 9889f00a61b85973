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
        "mount option {0}: isn't an option of NFS; hint: remove it, or correct it by the manual page nfs(5)"
    )]
    Unknown(String),
    /// The option isn't accepted, whatever its value is.
    #[error("mount option {option}: {reason}; hint: remove it from the volume's mount options")]
    Refused {
        /// The option's name, without its value.
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
}

/// The values that an option accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// The option stands alone, as in `soft`.
    Nothing,
    /// A number of decimal digits, without a sign.
    Number,
    /// One of these words.
    Word(&'static [&'static str]),
}

impl fmt::Display for Expected {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => formatter.write_str("no value"),
            Self::Number => formatter.write_str("a decimal number"),
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

/// The meaning of an option.
#[derive(Debug, Clone, Copy)]
enum Meaning {
    /// An option without a value. Of the options with the same slot the last one counts.
    Flag {
        slot: &'static str,
        /// Whether the kernel behaves in the same way without the option.
        is_default: bool,
    },
    /// An option whose value is a decimal number. The kernel checks the number.
    Number,
    /// An option whose value is one of these words. The first one is the kernel's default.
    Word(&'static [&'static str]),
    /// Sets the four times of the attribute cache.
    AttributeCacheTime,
    /// Sets the version by the option's value.
    Version,
    /// Is a version itself.
    IsVersion(&'static str),
    MinorVersion,
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
const SECURITY: &str = "isn't supported: runcrust mounts shares with sec=sys, because other flavors need credentials on the node";
const SLOPPY: &str = "would let unknown options be ignored";

fn meaning(key: &str) -> Option<Meaning> {
    let flag = |slot| Meaning::Flag {
        slot,
        is_default: false,
    };
    let default = |slot| Meaning::Flag {
        slot,
        is_default: true,
    };
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
        "lock" => default("lock"),
        "nolock" => flag("lock"),
        "rdirplus" | "nordirplus" => flag("rdirplus"),
        "resvport" => default("resvport"),
        "noresvport" => flag("resvport"),
        "sharecache" => default("sharecache"),
        "nosharecache" => flag("sharecache"),
        "migration" => flag("migration"),
        "nomigration" => default("migration"),
        "trunkdiscovery" | "notrunkdiscovery" => flag("trunkdiscovery"),
        "timeo" | "retrans" | "rsize" | "wsize" | "bsize" | "namlen" | "nconnect"
        | "max_connect" | "port" | "mountport" | "acregmin" | "acregmax" | "acdirmin"
        | "acdirmax" => Meaning::Number,
        "actimeo" => Meaning::AttributeCacheTime,
        "lookupcache" => Meaning::Word(&["all", "none", "pos", "positive"]),
        "local_lock" => Meaning::Word(&["none", "all", "flock", "posix"]),
        "write" => Meaning::Word(&["lazy", "eager", "wait"]),
        "sec" => Meaning::Word(&["sys"]),
        "mountvers" => Meaning::Word(&["3"]),
        "mountproto" => Meaning::Word(&["", "tcp", "udp", "tcp6", "udp6"]),
        "vers" | "nfsvers" => Meaning::Version,
        "v3" => Meaning::IsVersion("3"),
        "v4" => Meaning::IsVersion("4"),
        "v4.0" => Meaning::IsVersion("4.0"),
        "v4.1" => Meaning::IsVersion("4.1"),
        "v4.2" => Meaning::IsVersion("4.2"),
        "minorversion" => Meaning::MinorVersion,
        "proto" => Meaning::Transport,
        "tcp" => Meaning::IsTransport("tcp"),
        "udp" => Meaning::IsTransport("udp"),
        // The kernel ignores `intr` since Linux 2.6.25. `retry` says for how long mount.nfs retries, but a create has
        // a deadline of its own.
        "fg" | "intr" | "nointr" | "retry" => Meaning::Ignored,
        "bg" => Meaning::Refused(BACKGROUND),
        "sloppy" => Meaning::Refused(SLOPPY),
        "addr" | "clientaddr" | "mountaddr" | "mounthost" => Meaning::Refused(OTHER_HOST),
        "rdma" => Meaning::Refused(RDMA),
        "xprtsec" => Meaning::Refused(SECURITY),
        _ => return None,
    })
}

/// Returns whether any file system has the option, so that nfs(5) needn't list it.
fn is_generic(key: &str) -> bool {
    LABEL_OPTIONS.contains(&key) || SUPERBLOCK_FLAGS.contains(&key)
}

/// Checks the options of a share, and brings them into one form: lists with the same meaning become equal. Options that
/// the kernel doesn't get, or that it wouldn't notice, are left out.
///
/// `fstype` is `nfs4` or `nfs`; `nfs4` only permits version 4.
pub fn normalize(options: &MountOptions, fstype: &str) -> Result<MountOptions, ShareOptionError> {
    let mut slots = Slots::default();
    for option in &options.fs_options {
        slots.add(option)?;
    }
    slots.check_version(fstype)?;
    Ok(MountOptions {
        fs_options: slots.into_options(),
        ..options.clone()
    })
}

/// The options that count, by slot.
#[derive(Default)]
struct Slots(BTreeMap<String, FsOption>);

impl Slots {
    fn add(&mut self, option: &FsOption) -> Result<(), ShareOptionError> {
        let key = option.key();
        if is_generic(key) {
            self.0.insert(key.to_owned(), option.clone());
            return Ok(());
        }
        let meaning = meaning(key).ok_or_else(|| ShareOptionError::Unknown(key.to_owned()))?;
        match meaning {
            Meaning::Ignored => {}
            Meaning::Refused(reason) => {
                let option = key.to_owned();
                return Err(ShareOptionError::Refused { option, reason });
            }
            Meaning::Flag { slot, is_default } => {
                expect_none(option)?;
                self.set(slot, (!is_default).then(|| option.clone()));
            }
            Meaning::Number => self.set(key, Some(number(option)?)),
            Meaning::AttributeCacheTime => {
                let value = number(option)?.value().unwrap_or_default().to_owned();
                for key in ATTRIBUTE_CACHE_TIMES {
                    self.set(key, Some(with_value(key, &value)));
                }
            }
            Meaning::Word(words) => {
                let value = word(option, words)?;
                self.set(key, (words.first() != Some(&value)).then(|| option.clone()));
            }
            Meaning::Version => {
                let value = word(option, VERSIONS)?;
                self.set("vers", Some(with_value("vers", value)));
            }
            Meaning::IsVersion(version) => {
                expect_none(option)?;
                self.set("vers", Some(with_value("vers", version)));
            }
            Meaning::MinorVersion => {
                let minor = word(option, &["0", "1", "2"])?;
                self.set("vers", Some(with_value("vers", &format!("4.{minor}"))));
            }
            Meaning::Transport => {
                let refused = |reason| ShareOptionError::Refused {
                    option: option.to_string(),
                    reason,
                };
                if matches!(option.value(), Some("rdma" | "rdma6")) {
                    return Err(refused(RDMA));
                }
                let value = word(option, TRANSPORTS)?;
                self.set("proto", Some(with_value("proto", value)));
            }
            Meaning::IsTransport(transport) => {
                expect_none(option)?;
                self.set("proto", Some(with_value("proto", transport)));
            }
        }
        Ok(())
    }

    fn set(&mut self, slot: &str, option: Option<FsOption>) {
        match option {
            Some(option) => self.0.insert(slot.to_owned(), option),
            None => self.0.remove(slot),
        };
    }

    fn check_version(&self, fstype: &str) -> Result<(), ShareOptionError> {
        let version = self.0.get("vers");
        let is_v3 = version.and_then(FsOption::value) == Some("3");
        match version {
            Some(version) if is_v3 && fstype == "nfs4" => Err(ShareOptionError::Value {
                option: version.to_string(),
                expected: Expected::Word(&VERSIONS[1..]),
            }),
            _ => Ok(()),
        }
    }

    fn into_options(self) -> Vec<FsOption> {
        self.0.into_values().collect()
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

fn number(option: &FsOption) -> Result<FsOption, ShareOptionError> {
    let value = option
        .value()
        .filter(|value| !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()));
    let value = value.ok_or_else(|| unexpected(option, Expected::Number))?;
    let digits = value.trim_start_matches('0');
    Ok(with_value(
        option.key(),
        if digits.is_empty() { "0" } else { digits },
    ))
}

fn word<'o>(
    option: &'o FsOption,
    words: &'static [&'static str],
) -> Result<&'o str, ShareOptionError> {
    let value = option.value().filter(|value| !value.is_empty());
    let value = value.filter(|value| words.contains(value));
    value.ok_or_else(|| {
        let known = words.strip_prefix(&[""]).unwrap_or(words);
        unexpected(option, Expected::Word(known))
    })
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
    /// The port of the NFS service; `None` for the usual one.
    pub(crate) port: Option<u16>,
    /// Whether the port of version 3's MOUNT service is given.
    pub(crate) has_mount_port: bool,
    /// Whether locks are taken on the server.
    pub(crate) has_remote_locks: bool,
}

impl Contact {
    pub(crate) fn new(options: &MountOptions, fstype: &str) -> Self {
        let value = |key: &str| {
            let option = options.fs_options.iter().find(|option| option.key() == key);
            option.and_then(FsOption::value)
        };
        let has = |key: &str| options.fs_options.iter().any(|option| option.key() == key);
        let versions = match value("vers") {
            Some("3") => AllowedVersions::Only(NfsVersion::V3),
            Some("4.0") => AllowedVersions::Only(NfsVersion::V4_0),
            Some("4.1") => AllowedVersions::Only(NfsVersion::V4_1),
            Some("4.2") => AllowedVersions::Only(NfsVersion::V4_2),
            Some(_) => AllowedVersions::AnyV4,
            None if fstype == "nfs4" => AllowedVersions::AnyV4,
            None => AllowedVersions::Any,
        };
        let transport = value("proto").map(|transport| match transport {
            "tcp6" => Transport::Tcp6,
            "udp" => Transport::Udp,
            "udp6" => Transport::Udp6,
            _ => Transport::Tcp,
        });
        Self {
            versions,
            transport,
            // 0 means that rpcbind is asked for the port.
            port: value("port")
                .and_then(|port| port.parse().ok())
                .filter(|port| *port != 0),
            has_mount_port: has("mountport"),
            has_remote_locks: !has("nolock") && !matches!(value("local_lock"), Some("all")),
        }
    }
}

#[cfg(test)]
mod tests {
    use crust_blockfs::options;

    use super::*;

    fn normalized(list: &[&str]) -> Result<String, ShareOptionError> {
        let options = normalize(&options::parse(list).unwrap(), "nfs")?;
        let texts = options.fs_options.iter().map(FsOption::to_string);
        Ok(texts.collect::<Vec<_>>().join(","))
    }

    #[test]
    fn lists_of_the_same_meaning_become_equal() {
        for (lists, expected) in [
            (
                &[
                    &["vers=4.2"][..],
                    &["nfsvers=4.2"],
                    &["v4.2"],
                    &["minorversion=2"],
                    &["v3", "vers=4.2"],
                ][..],
                "vers=4.2",
            ),
            (&[&["tcp"], &["proto=tcp"], &["udp,proto=tcp"]], "proto=tcp"),
            (
                &[
                    &[],
                    &["hard"],
                    &["soft,hard"],
                    &["ac,cto,lock"],
                    &["sec=sys"],
                    &["retry=2,fg,intr"],
                ],
                "",
            ),
            (&[&["soft"], &["hard,soft"]], "soft"),
            (
                &[
                    &["actimeo=7"],
                    &["acregmin=7,acregmax=007,acdirmin=7,acdirmax=7"],
                ],
                "acdirmax=7,acdirmin=7,acregmax=7,acregmin=7",
            ),
            (
                &[&["actimeo=7,acregmin=3"]],
                "acdirmax=7,acdirmin=7,acregmax=7,acregmin=3",
            ),
            (
                &[&["nolock,timeo=50"], &["timeo=50,lock,nolock"]],
                "nolock,timeo=50",
            ),
            (
                &[&["local_lock=none"], &["local_lock=all,local_lock=none"]],
                "",
            ),
            (
                &[&["sync,context=u:r:t"], &["context=u:r:t", "sync"]],
                "context=u:r:t,sync",
            ),
        ] {
            for list in lists {
                assert_eq!(normalized(list).as_deref(), Ok(expected), "{list:?}");
            }
        }
    }

    #[test]
    fn attributes_and_read_only_are_kept() {
        let given = options::parse(&["ro,nosuid,nodev,hard"]).unwrap();
        let options = normalize(&given, "nfs4").unwrap();
        assert_eq!(
            (options.attributes, options.read_only),
            (given.attributes, true)
        );
        assert_eq!(options.fs_options, []);
    }

    #[test]
    fn an_option_that_a_share_cannot_have_is_named() {
        for (option, words) in [
            ("discard", "isn't an option of NFS"),
            ("nfsver=4", "nfsver: isn't an option"),
            ("addr=10.0.0.1", "names a host"),
            ("clientaddr=10.0.0.1", "names a host"),
            ("mounthost=other", "names a host"),
            ("bg", "in the background"),
            ("sloppy", "unknown options"),
            ("rdma", "over TCP or UDP"),
            ("proto=rdma", "over TCP or UDP"),
            ("sec=krb5", "expected one of sys"),
            ("xprtsec=tls", "sec=sys"),
            ("vers=2", "expected one of 3, 4, 4.0, 4.1, 4.2"),
            ("minorversion=3", "expected one of 0, 1, 2"),
            ("vers", "expected one of 3"),
            ("timeo=fast", "a decimal number"),
            ("timeo=-1", "a decimal number"),
            ("timeo", "a decimal number"),
            ("soft=yes", "soft=yes: expected no value"),
            ("v3=1", "no value"),
            ("tcp=1", "no value"),
            ("mountproto=", "expected one of tcp, udp"),
            ("lookupcache=maybe", "expected one of all, none"),
            ("fsc=tag", "no value"),
        ] {
            let error = normalized(&[option]).unwrap_err().to_string();
            assert!(error.contains(words), "{option}: {error}");
            let name = option.split('=').next().unwrap();
            assert!(error.contains(&format!("mount option {name}")), "{error}");
        }
        let v3 = options::parse(&["vers=3"]).unwrap();
        assert!(normalize(&v3, "nfs").is_ok());
        let error = normalize(&v3, "nfs4").unwrap_err().to_string();
        assert!(error.contains("expected one of 4, 4.0"), "{error}");
    }

    #[test]
    fn the_contact_follows_from_type_and_options() {
        use AllowedVersions::{Any, AnyV4, Only};
        for (fstype, list, versions, transport, port) in [
            ("nfs", "", Any, None, None),
            ("nfs4", "", AnyV4, None, None),
            ("nfs", "vers=4", AnyV4, None, None),
            ("nfs", "vers=3,port=0", Only(NfsVersion::V3), None, None),
            (
                "nfs4",
                "v4.1,port=20490",
                Only(NfsVersion::V4_1),
                None,
                Some(20490),
            ),
            ("nfs", "udp", Any, Some(Transport::Udp), None),
            ("nfs", "proto=tcp6", Any, Some(Transport::Tcp6), None),
        ] {
            let options = normalize(&options::parse(&[list]).unwrap(), fstype).unwrap();
            let contact = Contact::new(&options, fstype);
            let found = (contact.versions, contact.transport, contact.port);
            assert_eq!(found, (versions, transport, port), "{fstype} {list}");
            assert!(contact.has_remote_locks && !contact.has_mount_port);
        }
        for list in ["nolock", "local_lock=all"] {
            let options = normalize(&options::parse(&[list]).unwrap(), "nfs").unwrap();
            assert!(!Contact::new(&options, "nfs").has_remote_locks, "{list}");
        }
    }
}
