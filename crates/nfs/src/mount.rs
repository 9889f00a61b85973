//! Mounts a share with the new mount API (fsopen(2), fsconfig(2), fsmount(2)). Works out what mount.nfs(8) would have
//! worked out: the server's address, the protocol's version, and the address for callbacks.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use crust_blockfs::filesystem::FsContext;
use crust_blockfs::options::{FsOption, MountOptions};
use crust_blockfs::sys::add_attributes;
use crust_blockfs::{Deadline, DeviceNumber};
use rustix::fs::{AtFlags, FileType, Statx, StatxFlags, statx};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, MountAttrFlags, fsmount};

mod long_source;

use crate::error::{FailedShareCall, ShareMountCall, ShareMountError};
use crate::options::Contact;
use crate::probe::{PROBE_TIMEOUT, probe};
use crate::server;
use crate::version::{NextAttempt, NfsVersion, after_failure};
use crate::{Share, client};

/// The length in bytes of the longest value that fsconfig(2) accepts.
const MAX_PARAMETER_LENGTH: usize = 255;

/// The mount to make.
#[derive(Debug, Clone, Copy)]
pub struct ShareMountRequest<'a> {
    /// The share to mount.
    pub share: &'a Share,
    /// The type that was staged: `nfs4`, or `nfs` for any version.
    pub fstype: &'a str,
    /// The options, as [`normalize`](crate::options::normalize) returns them.
    pub options: &'a MountOptions,
    /// Whether the calling thread is in the host's network namespace. The kernel looks for rpc.statd in the namespace of
    /// the mount (`nsm_create` of fs/lockd/mon.c), and only the host's has one.
    pub is_host_network: bool,
    /// Deadline for the probe of the server. It does not limit the kernel's own mount.
    pub deadline: Deadline,
}

/// A mount of a share that isn't attached anywhere.
#[derive(Debug)]
pub struct MountedShare {
    /// The only reference to the mount (`O_PATH`, close-on-exec): closing it unmounts the share.
    pub mount: OwnedFd,
    /// The number of the superblock, as mountinfo shows it. It is no device's, and mounts of the same share with the
    /// same options have the same number.
    pub superblock: DeviceNumber,
    /// The version that was negotiated.
    pub version: NfsVersion,
}

/// Mounts a share. The mount isn't attached anywhere, and other mounts of the share with the same options share its
/// superblock.
///
/// The calling thread's network namespace is the one from which the server is contacted as long as the share is mounted.
/// Blocks until the server has answered. An address whose services don't answer within ten seconds is given up. That
/// doesn't include the resolution of the server's name.
pub fn mount_detached(request: &ShareMountRequest<'_>) -> Result<MountedShare, ShareMountError> {
    let share = request.share;
    let contact = Contact::new(request.options, request.fstype);
    let unusable = |source| ShareMountError::Server {
        share: share.to_string(),
        source,
    };
    let addresses = server::resolve(share, contact.transport).map_err(unusable)?;
    let mut reported = unusable(server::no_address(share, contact.transport));
    'addresses: for address in addresses {
        let mut version = contact.versions.first();
        let mut probe_time = PROBE_TIMEOUT;
        loop {
            let attempt = MountAttempt {
                request,
                contact,
                address,
                version,
            };
            let error = match attempt.mount(&mut probe_time) {
                Ok(mounted) => return Ok(mounted),
                Err(error) => error,
            };
            tracing::debug!(%share, %address, %version, "an attempt to mount has failed: {error}");
            let errno = error.errno();
            if reported.is_replaced_by(&error) {
                reported = error;
            }
            match errno.map(|errno| after_failure(contact.versions, version, errno)) {
                Some(NextAttempt::Version(next)) => version = next,
                Some(NextAttempt::Address) => break,
                Some(NextAttempt::None) | None => break 'addresses,
            }
        }
    }
    Err(reported)
}

/// An attempt to mount a share from one address with one version.
struct MountAttempt<'a> {
    request: &'a ShareMountRequest<'a>,
    contact: Contact,
    address: SocketAddr,
    version: NfsVersion,
}

impl MountAttempt<'_> {
    /// Probes the server, mounts the share, and checks what was mounted. `probe_time` is what all probes of the address
    /// may still take together.
    fn mount(&self, probe_time: &mut Duration) -> Result<MountedShare, ShareMountError> {
        // Comes first, because the kernel may lack the version.
        let context = self.open_context()?;
        self.probe(probe_time)?;
        self.check_statd()?;
        let mount = self.make_mount(&context)?;
        self.check_mount(mount)
    }

    /// Returns the kernel's type for the version.
    const fn fstype(&self) -> &'static str {
        if self.version.is_v4() { "nfs4" } else { "nfs" }
    }

    fn open_context(&self) -> Result<FsContext, ShareMountError> {
        let opened = client::open_context(self.request.share, self.fstype())?;
        let opened = opened.map_err(|errno| self.failed(ShareMountCall::Open, errno, Vec::new()));
        Ok(FsContext::new(opened?))
    }

    fn probe(&self, probe_time: &mut Duration) -> Result<(), ShareMountError> {
        let start = Instant::now();
        let deadline = self.request.deadline.at_most(*probe_time);
        let answered = probe(self.address, self.contact, self.version, deadline);
        *probe_time = probe_time.saturating_sub(start.elapsed());
        answered.map_err(|source| ShareMountError::Server {
            share: self.request.share.to_string(),
            source,
        })
    }

    /// Fails if version 3 takes locks on the server, and the kernel would find no rpc.statd.
    fn check_statd(&self) -> Result<(), ShareMountError> {
        let share = || self.request.share.to_string();
        if self.version.is_v4() || !self.contact.has_remote_locks {
            Ok(())
        } else if !self.request.is_host_network {
            Err(ShareMountError::NoStatdInNetwork { share: share() })
        } else if !client::has_statd() {
            Err(ShareMountError::NoStatd { share: share() })
        } else {
            Ok(())
        }
    }

    fn make_mount(&self, context: &FsContext) -> Result<OwnedFd, ShareMountError> {
        let source = self.request.share.to_string();
        if source.len() <= MAX_PARAMETER_LENGTH {
            self.configure(context, source)?;
            return fsmount(context, FsMountFlags::FSMOUNT_CLOEXEC, self.attributes())
                .map_err(|errno| self.failed(ShareMountCall::Mount, errno, context.log()));
        }
        let read_only = self.request.options.read_only;
        long_source::mount(&source, self.fstype(), &self.kernel_options(), read_only)
            .and_then(|mount| add_attributes(&mount, self.attributes()).map(|()| mount))
            .map_err(|errno| self.failed(ShareMountCall::Legacy, errno, Vec::new()))
    }

    /// Fails if the share isn't a directory.
    fn check_mount(&self, mount: OwnedFd) -> Result<MountedShare, ShareMountError> {
        let stat =
            stat(&mount).map_err(|errno| self.failed(ShareMountCall::Stat, errno, Vec::new()))?;
        match FileType::from_raw_mode(stat.stx_mode.into()) {
            FileType::Directory => Ok(MountedShare {
                mount,
                superblock: DeviceNumber::new(stat.stx_dev_major, stat.stx_dev_minor),
                version: self.version,
            }),
            other => Err(ShareMountError::NotADirectory {
                share: self.request.share.to_string(),
                kind: describe(other),
            }),
        }
    }

    /// Configures and creates the superblock.
    fn configure(&self, context: &FsContext, source: String) -> Result<(), ShareMountError> {
        let source = FsOption::Value {
            key: "source".to_owned(),
            value: source,
        };
        let read_only = self.request.options.read_only;
        let read_only_flag = read_only.then(|| FsOption::Flag("ro".to_owned()));
        let options = [source].into_iter().chain(self.kernel_options());
        for option in options.chain(read_only_flag) {
            let set = match &option {
                FsOption::Flag(key) => context.set_flag(key),
                FsOption::Value { key, value } => context.set_string(key, value.as_ref()),
            };
            set.map_err(|errno| self.failed(ShareMountCall::Option(option), errno, context.log()))?;
        }
        let created = context.create(false, read_only);
        created.map_err(|errno| self.failed(ShareMountCall::Create, errno, context.log()))
    }

    fn attributes(&self) -> MountAttrFlags {
        let options = self.request.options;
        let mut attributes = options.attributes;
        attributes.set(MountAttrFlags::MOUNT_ATTR_RDONLY, options.read_only);
        attributes
    }

    /// Returns the options for the kernel, apart from the source and `ro`, in an order in which it accepts them.
    fn kernel_options(&self) -> Vec<FsOption> {
        let value = |key: &str, value: String| FsOption::Value {
            key: key.to_owned(),
            value,
        };
        let mut options = vec![
            value("vers", self.version.to_string()),
            value("addr", server::kernel_text(self.address)),
        ];
        if self.version.is_v4() {
            options.push(value("clientaddr", server::local_address(self.address)));
        }
        // Without it, the kernel takes the flavor that the server prefers.
        options.push(value("sec", "sys".to_owned()));
        let given = self.request.options.fs_options.iter();
        let given = given.filter(|option| is_for_version(option.key(), self.version));
        options.extend(given.cloned());
        if needs_own_superblock(&options) {
            options.push(FsOption::Flag("nosharecache".to_owned()));
        }
        options
    }

    fn failed(&self, call: ShareMountCall, errno: Errno, log: Vec<String>) -> ShareMountError {
        ShareMountError::Call(Box::new(FailedShareCall {
            share: self.request.share.clone(),
            call,
            address: self.address,
            version: self.version,
            errno,
            log,
        }))
    }
}

/// Returns whether an option concerns a version. The negotiated version replaces `vers`. `mountport`, `mountproto`,
/// `mountvers` and `namlen` are for version 3 only.
fn is_for_version(key: &str, version: NfsVersion) -> bool {
    match key {
        "vers" => false,
        "mountport" | "mountproto" | "mountvers" | "namlen" => !version.is_v4(),
        _ => true,
    }
}

/// Returns whether the kernel would share a superblock with another value of an option, so that the values of the first
/// mount would apply to all mounts. `nfs_compare_mount_options` of fs/nfs/super.c compares all options but these and
/// those for which `nosharecache` has no effect:
///
/// - `noresvport`, `nconnect`, `max_connect` and `migration` belong to the connection (`struct nfs_client`), which
///   superblocks share whatever their options are (`nfs_match_client` of fs/nfs/client.c).
/// - `fsc`: the second superblock of a share with the same options gets no cache (`nfs_fscache_get_super_cookie` of
///   fs/nfs/fscache.c).
fn needs_own_superblock(options: &[FsOption]) -> bool {
    let has = |keys: &[&str]| options.iter().any(|option| keys.contains(&option.key()));
    has(&["timeo", "retrans", "bsize", "namlen"]) && !has(&["nosharecache"])
}

/// Returns the type of a mount's root, and the number of its superblock. Doesn't wait for the server.
fn stat(mount: &OwnedFd) -> Result<Statx, Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    statx(mount, c"", flags, StatxFlags::TYPE)
}

/// Returns a file type with its article.
const fn describe(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "a file",
        FileType::Symlink => "a symbolic link",
        FileType::BlockDevice => "a block device",
        FileType::CharacterDevice => "a character device",
        FileType::Fifo => "a named pipe",
        FileType::Socket => "a socket",
        _ => "a file of an unknown type",
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use crust_blockfs::options::parse;

    use super::*;
    use crate::options::normalize;

    fn options_for_kernel(list: &str, version: NfsVersion) -> Vec<String> {
        let options = normalize(&parse(&[list]).unwrap(), "nfs").unwrap();
        let share = "[::1]:/a,b".parse().unwrap();
        let request = ShareMountRequest {
            share: &share,
            fstype: "nfs",
            options: &options,
            is_host_network: true,
            deadline: Deadline::never(),
        };
        let attempt = MountAttempt {
            request: &request,
            contact: Contact::new(&options, "nfs"),
            address: "[::1]:0".parse().unwrap(),
            version,
        };
        let options = attempt.kernel_options().into_iter();
        options.map(|option| option.to_string()).collect()
    }

    #[test]
    fn the_kernel_gets_what_mount_nfs_would_have_worked_out() {
        use NfsVersion::{V3, V4_1};
        const V4_CONTACT: &str = "vers=4.1,addr=::1,clientaddr=::1,sec=sys";
        const V3_CONTACT: &str = "vers=3,addr=::1,sec=sys";
        for (list, version, contact, given) in [
            ("", V4_1, V4_CONTACT, ""),
            ("", V3, V3_CONTACT, ""),
            ("sec=sys", V4_1, V4_CONTACT, ""),
            ("vers=4,mountport=9,namlen=9", V4_1, V4_CONTACT, ""),
            ("soft,ro,proto=tcp6", V4_1, V4_CONTACT, ",proto=tcp6,soft"),
            (
                "mountport=9,nolock,vers=3",
                V3,
                V3_CONTACT,
                ",nolock,mountport=9",
            ),
            ("fsc,nconnect=2", V4_1, V4_CONTACT, ",fsc,nconnect=2"),
            (
                "migration,noresvport,max_connect=2",
                V4_1,
                V4_CONTACT,
                ",max_connect=2,migration,noresvport",
            ),
            ("timeo=50", V4_1, V4_CONTACT, ",timeo=50,nosharecache"),
            ("retrans=5", V3, V3_CONTACT, ",retrans=5,nosharecache"),
            ("bsize=4096", V4_1, V4_CONTACT, ",bsize=4096,nosharecache"),
            ("namlen=99", V3, V3_CONTACT, ",namlen=99,nosharecache"),
            (
                "timeo=50,nosharecache",
                V4_1,
                V4_CONTACT,
                ",nosharecache,timeo=50",
            ),
        ] {
            let options = options_for_kernel(list, version).join(",");
            assert_eq!(options, format!("{contact}{given}"), "{list}");
        }
    }

    #[test]
    fn the_probes_of_an_address_share_their_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let options = format!("port={}", address.port());
        let options = normalize(&parse(&[options]).unwrap(), "nfs4").unwrap();
        let share = "127.0.0.1:/a".parse().unwrap();
        let request = ShareMountRequest {
            share: &share,
            fstype: "nfs4",
            options: &options,
            is_host_network: true,
            deadline: Deadline::never(),
        };
        let mut probe_time = Duration::from_millis(50);
        for version in [NfsVersion::V4_2, NfsVersion::V4_1] {
            let attempt = MountAttempt {
                request: &request,
                contact: Contact::new(&options, "nfs4"),
                address,
                version,
            };
            let error = attempt.probe(&mut probe_time).unwrap_err().to_string();
            assert!(error.contains("doesn't answer"), "{error}");
            assert_eq!(probe_time, Duration::ZERO);
        }
    }

    #[test]
    fn locks_of_version_3_need_the_network_of_the_host() {
        for (list, version, is_host_network, is_refused) in [
            ("", NfsVersion::V3, false, true),
            ("local_lock=flock", NfsVersion::V3, false, true),
            ("nolock", NfsVersion::V3, false, false),
            ("local_lock=all", NfsVersion::V3, false, false),
            ("nolock", NfsVersion::V3, true, false),
            ("", NfsVersion::V4_2, false, false),
        ] {
            let options = normalize(&parse(&[list]).unwrap(), "nfs").unwrap();
            let share = "srv:/a".parse().unwrap();
            let attempt = MountAttempt {
                request: &ShareMountRequest {
                    share: &share,
                    fstype: "nfs",
                    options: &options,
                    is_host_network,
                    deadline: Deadline::never(),
                },
                contact: Contact::new(&options, "nfs"),
                address: "10.0.0.1:0".parse().unwrap(),
                version,
            };
            let checked = attempt.check_statd();
            let is_expected = match &checked {
                Err(error @ ShareMountError::NoStatdInNetwork { .. }) => {
                    is_refused && error.to_string().contains("nolock or local_lock=all")
                }
                checked => checked.is_ok() && !is_refused,
            };
            assert!(is_expected, "{list} {version}: {checked:?}");
        }
    }

    #[test]
    fn a_failed_call_names_share_address_version_and_the_next_step() {
        let failed = |call, errno| FailedShareCall {
            share: "srv:/a b".parse().unwrap(),
            call,
            address: "10.0.0.1:0".parse().unwrap(),
            version: NfsVersion::V4_2,
            errno,
            log: vec!["NFS: hm".to_owned()],
        };
        let error = failed(ShareMountCall::Create, Errno::ACCESS).to_string();
        let start = "fsconfig(create): EACCES for \"srv:/a b\" at 10.0.0.1 with version 4.2 (kernel: NFS: hm); hint: let";
        assert!(error.starts_with(start), "{error}");
        let option = FsOption::parse("rsize=big");
        let error = failed(ShareMountCall::Option(option), Errno::INVAL).to_string();
        assert!(
            error.starts_with("fsconfig(\"rsize=big\"): EINVAL"),
            "{error}"
        );
        assert!(error.ends_with("mount options by nfs(5)"), "{error}");
    }
}
