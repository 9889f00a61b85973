//! Finds the delegate, the OCI runtime that runcrust wraps, and execs it.

pub(crate) mod effective_kind;
pub(crate) mod version;

use std::convert::Infallible;
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crust_blockfs::sys;
use crust_state::DelegateKind;
use crust_state::config::DelegateSettings;

/// The paths at which runcrust looks for a delegate if none is configured, in this order (docs/configuration.md).
/// `PATH` isn't used, because containerd and podman pass little or none of it.
const DEFAULT_PATHS: [&str; 4] = [
    "/usr/sbin/runc",
    "/usr/bin/runc",
    "/usr/local/sbin/runc",
    "/usr/bin/crun",
];

/// Returns the paths at which runcrust looks for a delegate if none is configured, in this order.
pub(crate) fn default_paths() -> [&'static Path; 4] {
    DEFAULT_PATHS.map(Path::new)
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum DelegateError {
    #[error(
        "delegate {}: not an absolute path; hint: set `delegate` in runcrust's configuration to the path of runc or \
         crun", .0.display()
    )]
    Relative(PathBuf),
    /// The configured path doesn't exist or can't be read.
    #[error("delegate {}: stat; hint: check `delegate` in runcrust's configuration", path.display())]
    Stat {
        path: PathBuf,
        /// The error of lstat(2), realpath(3) or stat(2).
        #[source]
        source: io::Error,
    },
    /// The path isn't an executable regular file.
    #[error(
        "delegate {}: not an executable file; hint: check `delegate` in runcrust's configuration",
        .0.display()
    )]
    NotExecutable(PathBuf),
    /// No delegate is configured, and none of [`DEFAULT_PATHS`] is an executable file.
    #[error(
        "no delegate: none of {} is an executable file; hint: install runc or crun, or set \
         `delegate` in runcrust's configuration", DEFAULT_PATHS.join(", ")
    )]
    NotFound,
    /// The delegate is runcrust, which would exec itself forever.
    #[error(
        "delegate {} is runcrust itself; hint: set `delegate` in runcrust's configuration to the path of runc or crun",
        .0.display()
    )]
    Recursion(PathBuf),
    /// runcrust's own device and inode numbers are needed to detect recursion.
    #[error("stat(\"/proc/self/exe\"); hint: check that a procfs is mounted on /proc")]
    Proc(#[source] io::Error),
    #[error("delegate {}: execve; hint: check `delegate` in runcrust's configuration", path.display())]
    Exec {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// An OCI runtime that can be executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Delegate {
    path: PathBuf,
    kind: DelegateKind,
}

impl Delegate {
    /// Finds the configured delegate, or the first of the default paths that is executable.
    ///
    /// Its kind is the configured one, or else follows from the file name after symbolic links are resolved.
    pub(crate) fn find(configured: &DelegateSettings) -> Result<Self, DelegateError> {
        let (path, found) = match &configured.path {
            Some(path) => (path.as_path(), Executable::lookup(path)?),
            None => DEFAULT_PATHS
                .iter()
                .map(Path::new)
                .find_map(|path| Some((path, Executable::lookup(path).ok()?)))
                .ok_or(DelegateError::NotFound)?,
        };
        let own_metadata = fs::metadata("/proc/self/exe").map_err(DelegateError::Proc)?;
        if (own_metadata.dev(), own_metadata.ino()) == (found.metadata.dev(), found.metadata.ino())
        {
            return Err(DelegateError::Recursion(path.to_path_buf()));
        }
        Ok(Self {
            path: path.to_path_buf(),
            kind: configured.kind.unwrap_or(found.kind),
        })
    }

    /// Returns the delegate's path as configured or found, with symbolic links unresolved.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) const fn kind(&self) -> DelegateKind {
        self.kind
    }

    /// Execs the delegate with `argv[1..]`; its `argv[0]` is its own path. The environment, the process id and all
    /// inherited descriptors are unchanged. Returns only if the exec fails.
    ///
    /// Standard streams that the caller had closed are `/dev/null` here and stay so: if they are closed, runc 1.1.5 can
    /// give the container a descriptor of a host directory as a standard stream.
    pub(crate) fn exec(&self, argv: &[OsString]) -> Result<Infallible, DelegateError> {
        Err(DelegateError::Exec {
            path: self.path.clone(),
            source: sys::exec(&self.path, argv.get(1..).unwrap_or_default()),
        })
    }
}

struct Executable {
    metadata: Metadata,
    /// The kind that follows from the file name.
    kind: DelegateKind,
}

impl Executable {
    fn lookup(path: &Path) -> Result<Self, DelegateError> {
        if !path.is_absolute() {
            return Err(DelegateError::Relative(path.to_path_buf()));
        }
        let failed = |source| DelegateError::Stat {
            path: path.to_path_buf(),
            source,
        };
        let mut metadata = fs::symlink_metadata(path).map_err(failed)?;
        let mut kind = DelegateKind::from_file_name(path);
        if metadata.is_symlink() {
            // `/usr/bin/runc` may be a link to crun, and krun is always a link to crun.
            let target = fs::canonicalize(path).map_err(failed)?;
            metadata = fs::metadata(&target).map_err(failed)?;
            kind = DelegateKind::from_file_name(&target);
        }
        if !metadata.is_file() || metadata.permissions().mode() & 0o111 == 0 {
            return Err(DelegateError::NotExecutable(path.to_path_buf()));
        }
        Ok(Self { metadata, kind })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{OpenOptionsExt, symlink};

    use super::*;

    fn script(path: &Path, mode: u32) {
        fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(path)
            .unwrap();
    }

    fn find(path: &Path) -> Result<Delegate, DelegateError> {
        Delegate::find(&DelegateSettings {
            path: Some(path.to_owned()),
            kind: None,
        })
    }

    #[test]
    fn the_kind_is_configured_or_derived_from_the_resolved_name() {
        let dir = tempfile::tempdir().unwrap();
        let in_dir = |name: &str| dir.path().join(name);
        script(&in_dir("crun-1.27"), 0o755);
        script(&in_dir("runc"), 0o755);
        symlink("crun-1.27", in_dir("oci-runtime")).unwrap();
        symlink("runc", in_dir("crun")).unwrap();
        for (name, by_name) in [
            ("crun-1.27", DelegateKind::Crun),
            ("runc", DelegateKind::Runc),
            ("oci-runtime", DelegateKind::Crun),
            ("crun", DelegateKind::Runc),
        ] {
            let configured = DelegateKind::ALL.map(Some);
            for kind in configured.into_iter().chain([None]) {
                let path = Some(in_dir(name));
                let delegate = Delegate::find(&DelegateSettings { path, kind }).unwrap();
                let expected = kind.unwrap_or(by_name);
                assert_eq!(delegate.kind(), expected, "{name}, {kind:?}");
                assert_eq!(
                    delegate.path,
                    in_dir(name),
                    "the path is executed as configured"
                );
            }
        }
    }

    #[test]
    fn the_default_paths_are_documented_in_order() {
        let listed = DEFAULT_PATHS.map(|path| format!("`{path}`")).join(", ");
        let documented = include_str!("../docs/configuration.md");
        assert!(documented.contains(&format!("| first of {listed} |")));
    }

    #[test]
    fn a_path_that_cannot_be_executed_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let in_dir = |name: &str| dir.path().join(name);
        script(&in_dir("data"), 0o644);
        symlink("nowhere", in_dir("dangling")).unwrap();
        let error = |path: &Path| find(path).unwrap_err();
        assert!(matches!(
            error(&in_dir("data")),
            DelegateError::NotExecutable(_)
        ));
        assert!(matches!(error(dir.path()), DelegateError::NotExecutable(_)));
        assert!(matches!(
            error(&in_dir("dangling")),
            DelegateError::Stat { .. }
        ));
        assert!(matches!(
            error(&in_dir("missing")),
            DelegateError::Stat { .. }
        ));
        assert!(matches!(
            error(Path::new("runc")),
            DelegateError::Relative(_)
        ));
        assert!(
            error(&in_dir("missing"))
                .to_string()
                .contains("/missing: stat")
        );
    }

    #[test]
    fn runcrust_as_its_own_delegate_is_refused_even_through_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("runc");
        let own = std::env::current_exe().unwrap();
        symlink(&own, &link).unwrap();
        for path in [&own, &link] {
            let error = find(path).unwrap_err();
            assert!(matches!(error, DelegateError::Recursion(_)), "{error}");
            assert!(error.to_string().contains("is runcrust itself"));
        }
    }

    #[test]
    fn a_failed_exec_names_the_delegate() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("runc");
        fs::write(&path, "#!/nowhere/at/all\n").unwrap();
        let delegate = Delegate {
            path,
            kind: DelegateKind::Runc,
        };
        let DelegateError::Exec { path, source } = delegate
            .exec(&["runcrust".into(), "state".into()])
            .unwrap_err()
        else {
            panic!("another error");
        };
        assert_eq!(path, delegate.path);
        assert_eq!(source.kind(), io::ErrorKind::PermissionDenied);
    }
}
