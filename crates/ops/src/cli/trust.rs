//! Decides whether the program that a volume's `runtime-cli` names may be run as root.

use std::path::{Component, Path, PathBuf};

use crust_state::trust::{self, PathKind, TrustError};

/// The reason why a program isn't run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Untrusted {
    /// The path is relative or contains `..`.
    #[error(
        "runtime-cli {0:?} isn't an absolute path without `..`; hint: check that `runtime-cli` in the volume's entry names \
         runcrust"
    )]
    NotAbsolute(PathBuf),
    /// The configuration doesn't name the program.
    #[error(
        "runtime-cli {program:?} isn't one of those that may be run ({allowed}); hint: add it to `allowed_clis` in \
         crust_ops' configuration if it is a runtime of this node"
    )]
    NotAllowed {
        program: PathBuf,
        /// The paths of the allowed programs, separated by commas.
        allowed: String,
    },
    /// A user other than root can change the program, or that can't be determined.
    #[error("runtime-cli {program:?}: {flaw}")]
    Flawed { program: PathBuf, flaw: TrustError },
}

/// Checks that a program is allowed, by its path or by the path that it resolves to, and that only root can change the
/// file and each directory and link of the path. Then no other user can replace it between this check and the exec.
pub(crate) fn check(program: &Path, allowed: &[PathBuf]) -> Result<(), Untrusted> {
    let mut parts = program.components();
    let is_absolute = parts.next() == Some(Component::RootDir);
    if !is_absolute || parts.any(|part| !matches!(part, Component::Normal(_))) {
        return Err(Untrusted::NotAbsolute(program.to_owned()));
    }
    let real = trust::resolve(Path::new("/"), program, PathKind::File).map_err(|flaw| {
        Untrusted::Flawed {
            program: program.to_owned(),
            flaw,
        }
    })?;
    if allowed.iter().any(|path| path == program || *path == real) {
        return Ok(());
    }
    let allowed = allowed.iter().map(|path| path.display().to_string());
    Err(Untrusted::NotAllowed {
        program: program.to_owned(),
        allowed: allowed.collect::<Vec<_>>().join(", "),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    /// Creates a directory with a program `cli`. It is in `/run`, because all users can write to `/tmp`.
    fn program_directory() -> tempfile::TempDir {
        let directory = tempfile::Builder::new().tempdir_in("/run").unwrap();
        fs::write(directory.path().join("cli"), "").unwrap();
        directory
    }

    fn check_allowed(program: &Path, allowed: &Path) -> Result<(), String> {
        check(program, &[allowed.to_owned()]).map_err(|error| error.to_string())
    }

    #[test]
    fn an_allowed_program_may_be_named_by_a_link() {
        let directory = program_directory();
        let (program, link) = (directory.path().join("cli"), directory.path().join("link"));
        symlink(
            "./../".to_owned() + directory.path().file_name().unwrap().to_str().unwrap() + "/cli",
            &link,
        )
        .unwrap();
        assert_eq!(check_allowed(&program, &program), Ok(()));
        assert_eq!(check_allowed(&link, &program), Ok(()));
        assert_eq!(check_allowed(&link, &link), Ok(()));
        let other = check_allowed(&program, &link).unwrap_err();
        assert!(
            other.contains("isn't one of those that may be run"),
            "{other}"
        );
    }

    #[test]
    fn a_program_that_others_can_change_is_untrusted() {
        let directory = program_directory();
        let program = directory.path().join("cli");
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
        for mode in [0o775, 0o757] {
            set(&program, mode).unwrap();
            let error = check_allowed(&program, &program).unwrap_err();
            assert!(error.contains("can be written by others"), "{error}");
        }
        set(&program, 0o755).unwrap();
        set(directory.path(), 0o1777).unwrap();
        let error = check_allowed(&program, &program).unwrap_err();
        assert!(
            error.contains("can be written by others"),
            "the sticky bit doesn't matter: {error}"
        );
        set(directory.path(), 0o755).unwrap();
        chown(&program, Some(1), None).unwrap();
        let error = check_allowed(&program, &program).unwrap_err();
        assert!(error.contains("isn't owned by root"), "{error}");
    }

    #[test]
    fn a_link_into_a_writable_directory_is_untrusted() {
        let (directory, elsewhere) = (program_directory(), program_directory());
        let target = elsewhere.path().join("cli");
        fs::set_permissions(elsewhere.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let link = directory.path().join("link");
        symlink(&target, &link).unwrap();
        let error = check_allowed(&link, &link).unwrap_err();
        assert!(
            error.contains(&format!("{} can be written", elsewhere.path().display())),
            "{error}"
        );
    }

    #[test]
    fn a_path_that_does_not_lead_to_a_program_is_an_error() {
        let directory = program_directory();
        let at = |name: &str| directory.path().join(name);
        symlink("b", at("a")).unwrap();
        symlink("a", at("b")).unwrap();
        for (program, expected) in [
            (PathBuf::from("cli"), "isn't an absolute path"),
            (PathBuf::from("/usr/../cli"), "isn't an absolute path"),
            (at("missing"), "No such file"),
            (directory.path().to_owned(), "isn't a file"),
            (at("a"), "too many symbolic links"),
        ] {
            let error = check_allowed(&program, &program).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
