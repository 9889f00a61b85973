//! The runtime that does the work: finding it, and becoming it.

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

/// The places where a delegate is looked for if the configuration names none (docs/configuration.md). `PATH` isn't
/// searched: containerd and podman pass little or none of it.
const DEFAULT_PATHS: [&str; 4] = [
    "/usr/sbin/runc",
    "/usr/bin/runc",
    "/usr/local/sbin/runc",
    "/usr/bin/crun",
];

/// Returns the places where a delegate that isn't configured is looked for, in this order.
pub(crate) fn default_paths() -> [&'static Path; 4] {
    DEFAULT_PATHS.map(Path::new)
}

/// The error of finding or running a delegate.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DelegateError {
    /// `delegate` has a path without a leading slash.
    #[error(
        "delegate {}: not an absolute path; hint: set `delegate` in runcrust's configuration \
         to where runc or crun is", .0.display()
    )]
    Relative(PathBuf),
    /// The configured one can't be looked at.
    #[error("delegate {}: stat; hint: check `delegate` in runcrust's configuration", path.display())]
    Stat {
        /// The configured path.
        path: PathBuf,
        /// The error of lstat, realpath or stat.
        #[source]
        source: io::Error,
    },
    /// Something is there, but nothing to execute.
    #[error(
        "delegate {}: not an executable file; hint: check `delegate` in runcrust's configuration",
        .0.display()
    )]
    NotExecutable(PathBuf),
    /// None of the built-in list exists.
    #[error(
        "no delegate: none of {} is an executable file; hint: install runc or crun, or set \
         `delegate` in runcrust's configuration", DEFAULT_PATHS.join(", ")
    )]
    NotFound,
    /// runcrust would call itself without end.
    #[error(
        "delegate {} is runcrust itself; hint: set `delegate` in runcrust's configuration to \
         where runc or crun is", .0.display()
    )]
    Recursion(PathBuf),
    /// Without it a delegate that is runcrust can't be told.
    #[error("stat(\"/proc/self/exe\"); hint: is /proc mounted?")]
    Proc(#[source] io::Error),
    /// execve(2) came back.
    #[error("delegate {}: execve", path.display())]
    Exec {
        /// The delegate.
        path: PathBuf,
        /// The error.
        #[source]
        source: io::Error,
    },
}

/// A runtime that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Delegate {
    path: PathBuf,
    kind: DelegateKind,
}

impl Delegate {
    /// Finds the configured delegate, or else the first of the built-in list. Where its kind isn't configured the
    /// name of its file decides, with links resolved.
    pub(crate) fn find(configured: &DelegateSettings) -> Result<Self, DelegateError> {
        let (path, found) = match &configured.path {
            Some(path) => (path.as_path(), Found::at(path)?),
            None => DEFAULT_PATHS
                .iter()
                .map(Path::new)
                .find_map(|path| Some((path, Found::at(path).ok()?)))
                .ok_or(DelegateError::NotFound)?,
        };
        let own = fs::metadata("/proc/self/exe").map_err(DelegateError::Proc)?;
        if (own.dev(), own.ino()) == (found.metadata.dev(), found.metadata.ino()) {
            return Err(DelegateError::Recursion(path.to_path_buf()));
        }
        Ok(Self {
            path: path.to_path_buf(),
            kind: configured.kind.unwrap_or(found.kind),
        })
    }

    /// Returns the delegate's path, as it was configured or found.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the kind in force.
    pub(crate) const fn kind(&self) -> DelegateKind {
        self.kind
    }

    /// Becomes the delegate: `argv[1..]`, the environment, the process id and every inherited
    /// descriptor stay as they are, `argv[0]` is the delegate's path. Returns only to say why
    /// it couldn't.
    ///
    /// Standard streams that the caller had closed stay what they are here, `/dev/null`: with them closed,
    /// runc 1.1.5 gives a container a directory of the host's as one.
    pub(crate) fn exec(&self, argv: &[OsString]) -> Result<Infallible, DelegateError> {
        Err(DelegateError::Exec {
            path: self.path.clone(),
            source: sys::exec(&self.path, argv.get(1..).unwrap_or_default()),
        })
    }
}

struct Found {
    metadata: Metadata,
    /// The kind that the file's name stands for.
    kind: DelegateKind,
}

impl Found {
    fn at(path: &Path) -> Result<Self, DelegateError> {
        if !path.is_absolute() {
            return Err(DelegateError::Relative(path.to_path_buf()));
        }
        let failed = |source| DelegateError::Stat {
            path: path.to_path_buf(),
            source,
        };
        let mut metadata = fs::symlink_metadata(path).map_err(failed)?;
        let mut kind = DelegateKind::of_file(path);
        if metadata.is_symlink() {
            // `/usr/bin/runc` may be a link to crun (and krun always is one).
            let target = fs::canonicalize(path).map_err(failed)?;
            metadata = fs::metadata(&target).map_err(failed)?;
            kind = DelegateKind::of_file(&target);
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
    fn the_kind_is_configured_or_that_of_the_linked_file() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        script(&at("crun-1.27"), 0o755);
        script(&at("runc"), 0o755);
        symlink("crun-1.27", at("oci-runtime")).unwrap();
        symlink("runc", at("crun")).unwrap();
        for (name, by_name) in [
            ("crun-1.27", DelegateKind::Crun),
            ("runc", DelegateKind::Runc),
            ("oci-runtime", DelegateKind::Crun),
            ("crun", DelegateKind::Runc),
        ] {
            let configured = DelegateKind::ALL.map(Some);
            for kind in configured.into_iter().chain([None]) {
                let path = Some(at(name));
                let delegate = Delegate::find(&DelegateSettings { path, kind }).unwrap();
                let expected = kind.unwrap_or(by_name);
                assert_eq!(delegate.kind(), expected, "{name}, {kind:?}");
                assert_eq!(
                    delegate.path,
                    at(name),
                    "the path is executed as configured"
                );
            }
        }
    }

    #[test]
    fn where_a_delegate_is_looked_for_is_documented_in_that_order() {
        let listed = DEFAULT_PATHS.map(|path| format!("`{path}`")).join(", ");
        let documented = include_str!("../docs/configuration.md");
        assert!(documented.contains(&format!("| first of {listed} |")));
    }

    #[test]
    fn what_can_not_be_executed_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        script(&at("data"), 0o644);
        symlink("nowhere", at("dangling")).unwrap();
        let error = |path: &Path| find(path).unwrap_err();
        assert!(matches!(
            error(&at("data")),
            DelegateError::NotExecutable(_)
        ));
        assert!(matches!(error(dir.path()), DelegateError::NotExecutable(_)));
        assert!(matches!(error(&at("dangling")), DelegateError::Stat { .. }));
        assert!(matches!(error(&at("missing")), DelegateError::Stat { .. }));
        assert!(matches!(
            error(Path::new("runc")),
            DelegateError::Relative(_)
        ));
        assert!(error(&at("missing")).to_string().contains("/missing: stat"));
    }

    #[test]
    fn runcrust_as_its_own_delegate_is_refused_through_links_too() {
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
    fn an_exec_that_fails_names_the_delegate() {
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
