//! The runtime's configuration.

mod delegate;
mod file;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::trust::TrustError;
use crust_blockfs::fstypes;

pub use delegate::{DelegateKind, DelegateSettings};
pub use file::{missing, parse, read};

/// The directory of configuration files.
pub const CONFIG_DIRECTORY: &str = "/etc/runcrust";

/// Whether every sandbox gets a `/.crust`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SandboxMode {
    /// Only one of a pod that volumes are staged for when it is made.
    #[default]
    Auto,
    /// Every one, so that volumes can come later.
    Always,
}

/// Whether pods of this node may share a volume whose access mode allows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sharing {
    /// They may: one kernel means one superblock.
    #[default]
    Allow,
    /// They may not, as on a runtime with a kernel a pod.
    Deny,
}

/// The treatment of a mount from a CSI volume's directory that isn't staged, isn't mounted and holds no files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unstaged {
    /// The container isn't created: it would write to the node's own disk.
    #[default]
    Refuse,
    /// The mount is passed through.
    Pass,
}

/// The program that mounts a container's volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MountMode {
    /// runcrust: the container gets an ordinary bind mount.
    #[default]
    Bind,
    /// A hook in the container, which has the device: for comparison and for testbeds.
    Hook,
}

/// Whether a container gets the raw devices of its volumes beside them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceNode {
    /// Those of volumes whose `metadata.deviceNode` asks for it.
    #[default]
    Metadata,
    /// All of them.
    Always,
    /// None, whatever the metadata asks for.
    Never,
}

/// How the attach directory is kept out of the host's mount table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Attach {
    /// `Group` where the kernel can, else `Bind`.
    #[default]
    Auto,
    /// The mount that holds it is put back into its peer group (`MOVE_MOUNT_SET_GROUP`, Linux
    /// 5.15).
    Group,
    /// It is a private bind mount of itself on the host.
    Bind,
}

/// The configuration, `/etc/runcrust/<name>.toml`, then `/etc/runcrust/config.toml`, then the
/// defaults; `<name>` is the name that runcrust was called by. An unknown key is an error.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The file that was read; the defaults have none.
    #[serde(skip)]
    pub source: Option<PathBuf>,
    /// The OCI runtime that containers are handed to; unset, the first one found.
    pub delegate: Option<PathBuf>,
    /// The kind of runtime that `delegate` is; unset, its file's name decides.
    pub delegate_kind: Option<DelegateKind>,
    /// The hook; unset, `crust-mount-hook` beside the real path of runcrust.
    pub hook: Option<PathBuf>,
    /// The crust directory.
    pub crust_root: PathBuf,
    /// The runtime's own state.
    pub state_dir: PathBuf,
    /// Kubelets' root directories.
    pub kubelet_dirs: Vec<PathBuf>,
    /// Directories below which a parent of a mount's source can be a volume, besides kubelet's
    /// CSI volumes.
    pub match_roots: Vec<PathBuf>,
    /// File systems that may be mounted: the name reaches the kernel's module loader.
    pub fstypes: Vec<String>,
    /// Mount options for every volume, before its own.
    pub default_options: Vec<String>,
    /// The sandboxes that get a `/.crust`.
    pub sandbox: SandboxMode,
    /// Whether pods may share a volume.
    pub shared: Sharing,
    /// The treatment of CSI volumes that aren't staged.
    pub unstaged: Unstaged,
    /// The program that mounts a container's volumes.
    pub mount_mode: MountMode,
    /// Whether a container gets raw devices.
    pub device_node: DeviceNode,
    /// How the attach directory is kept out of the host's mount table.
    pub attach: Attach,
    /// Whether volumes are also looked for where CSI drivers stage them for Kata Containers.
    pub kata_layout: bool,
    /// Capabilities of the CRUST interface that aren't told, to play a lesser runtime.
    pub capabilities_off: Vec<String>,
    /// A file for what runcrust and its hook have to say beside errors; unset, nothing is logged.
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
            fstypes: fstypes::allowed_by_default().map(str::to_owned).collect(),
            default_options: Vec::new(),
            sandbox: SandboxMode::default(),
            shared: Sharing::default(),
            unstaged: Unstaged::default(),
            mount_mode: MountMode::default(),
            device_node: DeviceNode::default(),
            attach: Attach::default(),
            kata_layout: false,
            capabilities_off: Vec::new(),
            log: None,
        }
    }
}

/// The error of a configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("open {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// It names programs that root runs, so nobody else may write it.
    #[error(transparent)]
    Untrusted(TrustError),
    /// It isn't TOML, or a key is unknown or has a wrong type.
    #[error("{}: {}", path.display(), message)]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The error, with its place.
        message: String,
    },
    /// A key's value can't be used.
    #[error("{}: {key}: {reason}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// The key.
        key: &'static str,
        /// The reason.
        reason: String,
    },
}

impl Config {
    /// Reads the configuration for a program called `argv0`.
    pub fn load(argv0: Option<&OsString>) -> Result<Self, ConfigError> {
        ConfigFile::of(argv0)?.map_or_else(|| Ok(Self::default()), |file| file.config())
    }

    /// The files for a program called `argv0`; the first that exists counts.
    pub fn files(argv0: Option<&OsString>) -> impl Iterator<Item = PathBuf> {
        let directory = Path::new(CONFIG_DIRECTORY);
        let name = argv0.and_then(|argv0| Path::new(argv0).file_name());
        let own = name.map(|name| {
            let mut file_name = name.to_owned();
            file_name.push(".toml");
            directory.join(file_name)
        });
        own.into_iter().chain([directory.join("config.toml")])
    }

    /// Reads only what is said of the delegate, as [`ConfigFile::delegate`] does.
    pub fn load_delegate(argv0: Option<&OsString>) -> Result<DelegateSettings, ConfigError> {
        let file = ConfigFile::of(argv0)?;
        file.map_or_else(|| Ok(DelegateSettings::default()), |file| file.delegate())
    }

    /// Reads one file, which must be there.
    pub fn load_file(path: &Path) -> Result<Self, ConfigError> {
        let text = read(path)?.ok_or_else(|| missing(path))?;
        Self::parse(path, &text)
    }

    fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let mut config: Self = parse(path, text)?;
        config.check_paths(path)?;
        config.delegate_settings().check(path)?;
        if config.fstypes.is_empty() {
            let reason = "is empty: no volume could ever be mounted".to_owned();
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
            // The working directory is the caller's, and PATH may be empty.
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
            let reason = "`/` would make every mount a volume's".to_owned();
            return Err(ConfigError::Value {
                path: path.to_owned(),
                key: "match_roots",
                reason,
            });
        }
        Ok(())
    }

    /// Returns what it says of the delegate.
    #[must_use]
    pub fn delegate_settings(&self) -> DelegateSettings {
        DelegateSettings {
            path: self.delegate.clone(),
            kind: self.delegate_kind,
        }
    }

    /// Returns the directory where the delegate finds the volumes, in a mount namespace of its own.
    #[must_use]
    pub fn attach_directory(&self) -> PathBuf {
        self.state_dir.join("attach")
    }
}

/// A configuration file that was read, and of which each call parses what it needs.
#[derive(Debug)]
pub struct ConfigFile {
    path: PathBuf,
    text: String,
}

impl ConfigFile {
    /// Reads the file for a program called `argv0`; `None` if there is none, so that the defaults apply.
    pub fn of(argv0: Option<&OsString>) -> Result<Option<Self>, ConfigError> {
        for path in Config::files(argv0) {
            if let Some(text) = read(&path)? {
                return Ok(Some(Self { path, text }));
            }
        }
        Ok(None)
    }

    /// Reads only the keys about the delegate. A mistake in another key's value must keep no container from being
    /// stopped.
    pub fn delegate(&self) -> Result<DelegateSettings, ConfigError> {
        DelegateSettings::read(&self.path, &self.text)
    }

    /// Reads all keys.
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

    /// As docs/configuration.md has them.
    #[test]
    fn an_empty_file_is_the_defaults() {
        let defaults = Config {
            source: Some("/etc/x.toml".into()),
            delegate: None,
            delegate_kind: None,
            hook: None,
            crust_root: "/run/crust".into(),
            state_dir: "/run/runcrust".into(),
            kubelet_dirs: vec!["/var/lib/kubelet".into()],
            match_roots: vec![],
            fstypes: ["ext4", "ext3", "xfs", "btrfs"].map(str::to_owned).into(),
            default_options: vec![],
            sandbox: SandboxMode::Auto,
            shared: Sharing::Allow,
            unstaged: Unstaged::Refuse,
            mount_mode: MountMode::Bind,
            device_node: DeviceNode::Metadata,
            attach: Attach::Auto,
            kata_layout: false,
            capabilities_off: Vec::new(),
            log: None,
        };
        assert_eq!(parse("").unwrap(), defaults);
        let source = defaults.source.clone();
        let without_a_file = Config::default();
        assert_eq!(
            Config {
                source,
                ..without_a_file
            },
            defaults
        );
    }

    /// A line that isn't prose has no space after its `#`.
    #[test]
    fn the_installed_file_shows_the_defaults() {
        let installed = include_str!("../../../deploy/etc/config.toml");
        assert_eq!(parse(installed).unwrap(), parse("").unwrap());
        let shown = installed.lines().filter_map(|line| line.strip_prefix('#'));
        let shown: Vec<&str> = shown.filter(|line| line.contains(" = ")).collect();
        let defaults = shown.iter().filter(|line| !line.starts_with(' '));
        let defaults: Vec<&str> = defaults.copied().collect();
        assert_eq!(parse(&defaults.join("\n")).unwrap(), parse("").unwrap());
        let all = shown.join("\n").replace("\n ", "\n");
        let keys = toml::from_str::<toml::Table>(all.trim()).unwrap();
        let documented = include_str!("../../../docs/configuration.md");
        let documented = documented
            .lines()
            .filter_map(|line| line.strip_prefix("| `"));
        let documented = documented.filter_map(|row| row.split_once("` | "));
        let mut documented: Vec<&str> = documented.map(|(key, _)| key).collect();
        documented.sort_unstable();
        let mut keys: Vec<&str> = keys.keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(keys, documented);
    }

    #[test]
    fn keys_are_read() {
        let config = parse(
            "delegate = \"/usr/bin/oci\"\ndelegate_kind = \"crun\"\n\
             sandbox = \"always\"\nshared = \"deny\"\nunstaged = \"pass\"\n\
             crust_root = \"/c\"\nmatch_roots = [\"/data\"]\nfstypes = [\"xfs\"]\n\
             mount_mode = \"hook\"\ndevice_node = \"always\"\nattach = \"bind\"\nkata_layout = true",
        )
        .unwrap();
        assert_eq!(config.delegate, Some("/usr/bin/oci".into()));
        assert_eq!(config.delegate_kind, Some(DelegateKind::Crun));
        assert_eq!(config.sandbox, SandboxMode::Always);
        assert_eq!(
            (config.shared, config.unstaged),
            (Sharing::Deny, Unstaged::Pass)
        );
        assert_eq!(config.fstypes, ["xfs"]);
        assert_eq!(
            (config.mount_mode, config.device_node, config.attach),
            (MountMode::Hook, DeviceNode::Always, Attach::Bind)
        );
        assert!(config.kata_layout && !Config::default().kata_layout);
    }

    #[test]
    fn mistakes_are_named_with_their_line_or_key() {
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
                "match_roots: `/` would make every mount a volume's",
            ),
            ("fstypes = []", "fstypes: is empty"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{text:?} gave {error:?}");
        }
    }

    #[test]
    fn a_file_that_others_can_write_is_not_obeyed() {
        let temporary = tempfile::NamedTempFile::new().unwrap();
        Config::load_file(temporary.path()).unwrap();
        std::fs::set_permissions(temporary.path(), PermissionsExt::from_mode(0o666)).unwrap();
        let error = Config::load_file(temporary.path()).unwrap_err();
        assert!(matches!(error, ConfigError::Untrusted(_)), "{error}");
        let missing = Config::load_file(Path::new("/nonexistent.toml")).unwrap_err();
        assert!(matches!(missing, ConfigError::Read { .. }), "{missing}");
    }

    /// A file of root's that somebody else put there is root's still.
    #[test]
    fn a_file_that_others_can_replace_is_not_obeyed() {
        let lab = tempfile::tempdir().unwrap();
        let (directory, file) = (lab.path().join("d"), lab.path().join("d/x.toml"));
        std::fs::create_dir(&directory).unwrap();
        std::fs::write(&file, "").unwrap();
        Config::load_file(&file).unwrap();
        std::os::unix::fs::symlink("x.toml", directory.join("link")).unwrap();
        Config::load_file(&directory.join("link")).expect("as a ConfigMap has it");
        std::fs::set_permissions(&directory, PermissionsExt::from_mode(0o777)).unwrap();
        for name in ["x.toml", "link"] {
            let error = Config::load_file(&directory.join(name)).unwrap_err();
            let expected = format!("{} can be written by others", directory.display());
            assert!(error.to_string().contains(&expected), "{error}");
        }
    }

    /// Or they could take the file away, and have the defaults.
    #[test]
    fn no_file_in_a_directory_that_others_can_write_is_not_no_file() {
        let lab = tempfile::tempdir().unwrap();
        let directory = lab.path().join("d");
        let file = directory.join("x.toml");
        assert_eq!(read(&file).unwrap(), None, "no directory either");
        std::fs::create_dir(&directory).unwrap();
        assert_eq!(read(&file).unwrap(), None);
        std::fs::set_permissions(&directory, PermissionsExt::from_mode(0o777)).unwrap();
        let error = read(&file).unwrap_err();
        assert!(matches!(error, ConfigError::Untrusted(_)), "{error}");
    }

    #[test]
    fn what_is_no_file_of_a_sensible_size_is_not_read() {
        let lab = tempfile::tempdir().unwrap();
        let at = |name: &str| lab.path().join(name);
        // Nobody writes to it.
        rustix::fs::mkfifoat(rustix::fs::CWD, at("fifo"), rustix::fs::Mode::RUSR).unwrap();
        let large = std::fs::File::create(at("large")).unwrap();
        large.set_len(file::MOST_BYTES + 1).unwrap();
        for (name, why) in [("fifo", "isn't a file"), ("large", "more than")] {
            let error = Config::load_file(&at(name)).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
