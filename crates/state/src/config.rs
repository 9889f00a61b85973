//! runcrust's configuration.

mod delegate;
mod file;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::trust::TrustError;
use crust_blockfs::fstypes;

pub use delegate::{DelegateKind, DelegateSettings};
pub use file::{not_found, parse, read};

pub const CONFIG_DIRECTORY: &str = "/etc/runcrust";

/// The sandboxes that get a `/.crust`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SandboxMode {
    /// Only sandboxes of pods that have staged volumes when the sandbox is created.
    #[default]
    Auto,
    /// All sandboxes, so that volumes can be staged later.
    Always,
}

/// Whether pods on the same node may share a volume if its access mode allows that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sharing {
    /// Pods may share a volume. All have the same kernel, and so the same superblock.
    #[default]
    Allow,
    /// Pods may not share a volume, as on a runtime that runs each pod with its own kernel.
    Deny,
}

/// The handling of a mount from the directory of a CSI volume that isn't staged, isn't mounted and has no files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unstaged {
    /// The create fails, because the container would write to the node's disk.
    #[default]
    Refuse,
    /// The mount is passed through.
    Pass,
}

/// The program that mounts a container's volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MountMode {
    /// runcrust mounts the volume, and the container gets an ordinary bind mount.
    #[default]
    Bind,
    /// A hook in the container mounts the volume, and the container gets the device. For comparisons and testbeds.
    Hook,
}

/// Whether a container also gets the block devices of its volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceNode {
    /// The devices of volumes with `metadata.deviceNode`.
    #[default]
    Metadata,
    /// All devices.
    Always,
    /// No device, even with `metadata.deviceNode`.
    Never,
}

/// The way in which mounts in the attach directory are kept out of the host's mount table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AttachMode {
    /// `Group` if the kernel supports it, else `Bind`.
    #[default]
    Auto,
    /// The mount that contains the attach directory is put back into its peer group (`MOVE_MOUNT_SET_GROUP`, Linux
    /// 5.15).
    Group,
    /// The attach directory is a private bind mount of itself on the host.
    Bind,
}

/// The network namespace from which a network volume's server is contacted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NfsNetwork {
    /// The host's, as for the mounts that kubelet makes.
    #[default]
    Host,
    /// The sandbox's. A container without a sandbox has no network when its volumes are mounted, and uses the host's.
    Sandbox,
}

/// The handling of an fsGroup that a file server refuses to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RefusedFsGroup {
    /// The create fails, as kubelet's own mount does.
    #[default]
    Fail,
    /// The volume is mounted without the group, and its condition says so.
    Report,
}

/// The configuration. It is read from `/etc/runcrust/<name>.toml`, where `<name>` is the name that runcrust was called
/// by. If that file doesn't exist, `/etc/runcrust/config.toml` is read. If neither exists, the defaults apply. An
/// unknown key is an error.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The file that was read; `None` for the defaults.
    #[serde(skip)]
    pub source: Option<PathBuf>,
    /// The path of the delegate. If it is unset, the first OCI runtime that is found is used.
    pub delegate: Option<PathBuf>,
    /// The kind of `delegate`. If it is unset, the name of the delegate's file decides.
    pub delegate_kind: Option<DelegateKind>,
    /// The path of the hook. If it is unset, `crust-mount-hook` beside the resolved path of runcrust.
    pub hook: Option<PathBuf>,
    pub crust_root: PathBuf,
    pub state_dir: PathBuf,
    /// The root directories of kubelets.
    pub kubelet_dirs: Vec<PathBuf>,
    /// The directories below which a parent of a mount's source can be a target path. The directories of CSI volumes in
    /// kubelet directories always can.
    pub match_roots: Vec<PathBuf>,
    /// The file systems that may be mounted. They are limited because the kernel loads a module by this name.
    pub fstypes: Vec<String>,
    /// The mount options of every volume. The volume's own options follow them.
    pub default_options: Vec<String>,
    pub sandbox: SandboxMode,
    pub shared: Sharing,
    pub unstaged: Unstaged,
    pub mount_mode: MountMode,
    pub device_node: DeviceNode,
    pub attach: AttachMode,
    pub nfs_network: NfsNetwork,
    pub refused_fs_group: RefusedFsGroup,
    /// Whether to look up volumes also where CSI drivers stage them for Kata Containers.
    pub kata_layout: bool,
    /// Capabilities of the CRUST interface that aren't advertised, to imitate a runtime without them.
    pub capabilities_off: Vec<String>,
    /// The log file, for messages other than errors. If it is unset, nothing is logged.
    pub log: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            source: None,
            delegate: None,
            delegate_kind: None,
            hook: None,
            crust_root: "/run/crust".into(),
            state_dir: "/run/runcrust".into(),
            kubelet_dirs: vec!["/var/lib/kubelet".into()],
            match_roots: Vec::new(),
            fstypes: fstypes::allowed_by_default()
                .chain(crust_nfs::FSTYPES)
                .map(str::to_owned)
                .collect(),
            default_options: Vec::new(),
            sandbox: SandboxMode::default(),
            shared: Sharing::default(),
            unstaged: Unstaged::default(),
            mount_mode: MountMode::default(),
            device_node: DeviceNode::default(),
            attach: AttachMode::default(),
            nfs_network: NfsNetwork::default(),
            refused_fs_group: RefusedFsGroup::default(),
            kata_layout: false,
            capabilities_off: Vec::new(),
            log: None,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("open {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// Users other than root can change the file, which names programs that root executes.
    #[error(transparent)]
    Untrusted(TrustError),
    /// The file isn't TOML, or a key is unknown or has a wrong type.
    #[error("{}: {}", path.display(), message)]
    Syntax {
        path: PathBuf,
        /// The error with its line number.
        message: String,
    },
    /// The value of a key can't be used.
    #[error("{}: {key}: {reason}", path.display())]
    Value {
        path: PathBuf,
        key: &'static str,
        reason: String,
    },
}

impl Config {
    /// Reads the configuration of a program that was called as `argv0`.
    pub fn load(argv0: Option<&OsString>) -> Result<Self, ConfigError> {
        ConfigFile::find(argv0)?.map_or_else(|| Ok(Self::default()), |file| file.config())
    }

    /// Returns the paths of the configuration files of a program that was called as `argv0`. The first one that exists
    /// is read.
    pub fn candidate_files(argv0: Option<&OsString>) -> impl Iterator<Item = PathBuf> {
        let directory = Path::new(CONFIG_DIRECTORY);
        let name = argv0.and_then(|argv0| Path::new(argv0).file_name());
        let named_file = name.map(|name| {
            let mut file_name = name.to_owned();
            file_name.push(".toml");
            directory.join(file_name)
        });
        named_file
            .into_iter()
            .chain([directory.join("config.toml")])
    }

    /// Reads only the keys about the delegate, as [`ConfigFile::delegate`] does.
    pub fn load_delegate(argv0: Option<&OsString>) -> Result<DelegateSettings, ConfigError> {
        let file = ConfigFile::find(argv0)?;
        file.map_or_else(|| Ok(DelegateSettings::default()), |file| file.delegate())
    }

    /// Reads a configuration file. Fails if it doesn't exist.
    pub fn load_file(path: &Path) -> Result<Self, ConfigError> {
        let text = read(path)?.ok_or_else(|| not_found(path))?;
        Self::parse(path, &text)
    }

    fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let mut config: Self = parse(path, text)?;
        config.check_paths(path)?;
        config.delegate_settings().check(path)?;
        if config.fstypes.is_empty() {
            let reason = "is empty: no volume could be mounted".to_owned();
            return Err(ConfigError::Value {
                path: path.to_owned(),
                key: "fstypes",
                reason,
            });
        }
        config.source = Some(path.to_owned());
        Ok(config)
    }

    fn check_paths(&self, path: &Path) -> Result<(), ConfigError> {
        let lists = [
            ("kubelet_dirs", &self.kubelet_dirs),
            ("match_roots", &self.match_roots),
        ];
        let single = [
            ("delegate", self.delegate.as_ref()),
            ("hook", self.hook.as_ref()),
            ("crust_root", Some(&self.crust_root)),
            ("state_dir", Some(&self.state_dir)),
            ("log", self.log.as_ref()),
        ];
        let single = single
            .into_iter()
            .filter_map(|(key, value)| Some((key, value?)));
        let listed = lists
            .into_iter()
            .flat_map(|(key, paths)| paths.iter().map(move |p| (key, p)));
        for (key, value) in single.chain(listed) {
            // The working directory depends on the caller, and PATH may be empty.
            if !value.is_absolute() {
                let reason = format!("{} isn't an absolute path", value.display());
                return Err(ConfigError::Value {
                    path: path.to_owned(),
                    key,
                    reason,
                });
            }
        }
        if self.match_roots.iter().any(|root| root.parent().is_none()) {
            let reason = "`/` would match every mount".to_owned();
            return Err(ConfigError::Value {
                path: path.to_owned(),
                key: "match_roots",
                reason,
            });
        }
        Ok(())
    }

    /// Returns the keys about the delegate.
    #[must_use]
    pub fn delegate_settings(&self) -> DelegateSettings {
        DelegateSettings {
            path: self.delegate.clone(),
            kind: self.delegate_kind,
        }
    }

    /// Returns the attach directory, where the delegate finds the volumes in the transient namespace.
    #[must_use]
    pub fn attach_directory(&self) -> PathBuf {
        self.state_dir.join("attach")
    }
}

/// A configuration file that was read. Each method parses only the keys that it returns.
#[derive(Debug)]
pub struct ConfigFile {
    path: PathBuf,
    text: String,
}

impl ConfigFile {
    /// Reads the configuration file of a program that was called as `argv0`. Returns `None` if no file exists; the
    /// defaults apply in that case.
    pub fn find(argv0: Option<&OsString>) -> Result<Option<Self>, ConfigError> {
        for path in Config::candidate_files(argv0) {
            if let Some(text) = read(&path)? {
                return Ok(Some(Self { path, text }));
            }
        }
        Ok(None)
    }

    /// Parses the keys about the delegate. Errors in other keys are ignored, because a container has to be stoppable
    /// even then.
    pub fn delegate(&self) -> Result<DelegateSettings, ConfigError> {
        DelegateSettings::read(&self.path, &self.text)
    }

    /// Parses all keys.
    pub fn config(&self) -> Result<Config, ConfigError> {
        Config::parse(&self.path, &self.text)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(Path::new("/etc/x.toml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn an_empty_file_gives_the_defaults() {
        let defaults = Config {
            source: Some("/etc/x.toml".into()),
            delegate: None,
            delegate_kind: None,
            hook: None,
            crust_root: "/run/crust".into(),
            state_dir: "/run/runcrust".into(),
            kubelet_dirs: vec!["/var/lib/kubelet".into()],
            match_roots: vec![],
            fstypes: ["ext4", "ext3", "xfs", "btrfs", "nfs4", "nfs"]
                .map(str::to_owned)
                .into(),
            default_options: vec![],
            sandbox: SandboxMode::Auto,
            shared: Sharing::Allow,
            unstaged: Unstaged::Refuse,
            mount_mode: MountMode::Bind,
            device_node: DeviceNode::Metadata,
            attach: AttachMode::Auto,
            nfs_network: NfsNetwork::Host,
            refused_fs_group: RefusedFsGroup::Fail,
            kata_layout: false,
            capabilities_off: Vec::new(),
            log: None,
        };
        assert_eq!(parse("").unwrap(), defaults);
        let source = defaults.source.clone();
        let default = Config::default();
        assert_eq!(Config { source, ..default }, defaults);
    }

    /// In the installed file, a commented-out key has no space after its `#`, and prose has one.
    #[test]
    fn the_installed_file_and_the_documentation_list_all_keys() {
        let installed = include_str!("../../../deploy/etc/config.toml");
        let file = "deploy/etc/config.toml";
        assert_eq!(parse(installed).unwrap(), parse("").unwrap(), "{file}");
        let shown = installed.lines().filter_map(|line| line.strip_prefix('#'));
        let shown: Vec<&str> = shown.filter(|line| line.contains(" = ")).collect();
        let defaults = shown.iter().filter(|line| !line.starts_with(' '));
        let defaults: Vec<&str> = defaults.copied().collect();
        let shown_defaults = parse(&defaults.join("\n")).unwrap();
        assert_eq!(shown_defaults, parse("").unwrap(), "{file}");
        let all = shown.join("\n").replace("\n ", "\n");
        let keys = toml::from_str::<toml::Table>(all.trim()).unwrap();
        let mut documented: Vec<&str> = documented_rows().map(|(key, _)| key).collect();
        documented.sort_unstable();
        let mut keys: Vec<&str> = keys.keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(
            keys, documented,
            "deploy/etc/config.toml (left) and docs/configuration.md (right)"
        );
    }

    /// Returns the key and the rest of each row in docs/configuration.md.
    fn documented_rows() -> impl Iterator<Item = (&'static str, &'static str)> {
        let rows = include_str!("../../../docs/configuration.md").lines();
        rows.filter_map(|line| line.strip_prefix("| `")?.split_once("` | "))
    }

    #[test]
    fn the_documented_defaults_are_the_defaults() {
        let mut in_words = Vec::new();
        for (key, rest) in documented_rows() {
            let (default, _) = rest.split_once(" | ").unwrap();
            let row = format!("{key} = {}", default.trim_matches('`'));
            if toml::from_str::<toml::Table>(&row).is_ok() {
                let with_row = parse(&row).unwrap();
                let without = parse("").unwrap();
                assert_eq!(with_row, without, "docs/configuration.md says: {row}");
            } else {
                in_words.push(key);
            }
        }
        assert_eq!(in_words, ["delegate", "delegate_kind", "hook", "log"]);
    }

    #[test]
    fn keys_are_read() {
        let config = parse(
            "delegate = \"/usr/bin/oci\"\ndelegate_kind = \"crun\"\n\
             sandbox = \"always\"\nshared = \"deny\"\nunstaged = \"pass\"\n\
             crust_root = \"/c\"\nmatch_roots = [\"/data\"]\nfstypes = [\"xfs\"]\n\
             mount_mode = \"hook\"\ndevice_node = \"always\"\nattach = \"bind\"\nkata_layout = true\n\
             nfs_network = \"sandbox\"\nrefused_fs_group = \"report\"",
        )
        .unwrap();
        assert_eq!(config.delegate, Some("/usr/bin/oci".into()));
        assert_eq!(config.delegate_kind, Some(DelegateKind::Crun));
        assert_eq!(config.sandbox, SandboxMode::Always);
        assert_eq!(config.nfs_network, NfsNetwork::Sandbox);
        assert_eq!(config.refused_fs_group, RefusedFsGroup::Report);
        assert_eq!(
            (config.shared, config.unstaged),
            (Sharing::Deny, Unstaged::Pass)
        );
        assert_eq!(config.fstypes, ["xfs"]);
        assert_eq!(
            (config.mount_mode, config.device_node, config.attach),
            (MountMode::Hook, DeviceNode::Always, AttachMode::Bind)
        );
        assert!(config.kata_layout && !Config::default().kata_layout);
    }

    #[test]
    fn errors_name_the_line_or_the_key() {
        for (text, expected) in [
            (
                "\ndelegat = \"/usr/bin/crun\"",
                "/etc/x.toml: line 2: unknown field `delegat`",
            ),
            (
                "sandbox = \"never\"",
                "line 1: unknown variant `never`, expected `auto` or `always`",
            ),
            ("delegate = 1", "line 1: invalid type: integer `1`"),
            ("delegate = ", "line 1: "),
            (
                "delegate = \"crun\"",
                "delegate: crun isn't an absolute path",
            ),
            (
                "kubelet_dirs = [\"/a\", \"b\"]",
                "kubelet_dirs: b isn't an absolute path",
            ),
            (
                "match_roots = [\"/\"]",
                "match_roots: `/` would match every mount",
            ),
            ("fstypes = []", "fstypes: is empty"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{text:?} gave {error:?}");
        }
    }

    #[test]
    fn a_file_that_others_can_write_is_refused() {
        let temporary = tempfile::NamedTempFile::new().unwrap();
        Config::load_file(temporary.path()).unwrap();
        std::fs::set_permissions(temporary.path(), PermissionsExt::from_mode(0o666)).unwrap();
        let error = Config::load_file(temporary.path()).unwrap_err();
        assert!(matches!(error, ConfigError::Untrusted(_)), "{error}");
        let missing = Config::load_file(Path::new("/nonexistent.toml")).unwrap_err();
        assert!(matches!(missing, ConfigError::Read { .. }), "{missing}");
    }

    /// Other users could move another file that root owns to the path.
    #[test]
    fn a_file_that_others_can_replace_is_refused() {
        let temporary = tempfile::tempdir().unwrap();
        let directory = temporary.path().join("d");
        let file = directory.join("x.toml");
        std::fs::create_dir(&directory).unwrap();
        std::fs::write(&file, "").unwrap();
        Config::load_file(&file).unwrap();
        std::os::unix::fs::symlink("x.toml", directory.join("link")).unwrap();
        Config::load_file(&directory.join("link")).expect("a link, as in a mounted ConfigMap");
        std::fs::set_permissions(&directory, PermissionsExt::from_mode(0o777)).unwrap();
        for name in ["x.toml", "link"] {
            let error = Config::load_file(&directory.join(name)).unwrap_err();
            let expected = format!("{} can be written by others", directory.display());
            assert!(error.to_string().contains(&expected), "{error}");
        }
    }

    /// Other users could have removed the file. The defaults would then apply.
    #[test]
    fn a_missing_file_in_an_untrusted_directory_is_an_error() {
        let temporary = tempfile::tempdir().unwrap();
        let directory = temporary.path().join("d");
        let file = directory.join("x.toml");
        assert_eq!(read(&file).unwrap(), None, "the directory is missing too");
        std::fs::create_dir(&directory).unwrap();
        assert_eq!(read(&file).unwrap(), None);
        std::fs::set_permissions(&directory, PermissionsExt::from_mode(0o777)).unwrap();
        let error = read(&file).unwrap_err();
        assert!(matches!(error, ConfigError::Untrusted(_)), "{error}");
    }

    #[test]
    fn a_pipe_or_a_file_that_is_too_large_is_refused() {
        let temporary = tempfile::tempdir().unwrap();
        let at = |name: &str| temporary.path().join(name);
        // The pipe has no writer, so a blocking open would hang.
        rustix::fs::mkfifoat(rustix::fs::CWD, at("fifo"), rustix::fs::Mode::RUSR).unwrap();
        let large = std::fs::File::create(at("large")).unwrap();
        large.set_len(file::MAX_BYTES + 1).unwrap();
        for (name, reason) in [("fifo", "isn't a file"), ("large", "more than")] {
            let error = Config::load_file(&at(name)).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
