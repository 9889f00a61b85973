//! Whether a program may be run as root because a file says so.

use std::path::{Component, Path, PathBuf};

use crust_state::trust::{self, PathKind, TrustError};

/// A program that isn't run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Untrusted {
    /// Its path is relative or has `..` in it.
    #[error("runtime-cli {0:?} isn't an absolute path without `..`")]
    NotAbsolute(PathBuf),
    /// Nobody said that it is the runtime's.
    #[error(
        "runtime-cli {program:?} isn't one of those that may be run ({allowed}); hint: `runtime` and \
         `allowed_clis` in crust_ops' configuration name them"
    )]
    NotAllowed {
        program: PathBuf,
        /// Those that may.
        allowed: String,
    },
    /// Others than root can change it, or nobody can tell.
    #[error("runtime-cli {program:?}: {flaw}")]
    Flawed {
        program: PathBuf,
        /// The flaw of a directory or of the program.
        flaw: TrustError,
    },
}

/// Checks that a program is one of those allowed, by its path or by what that leads to, and that
/// root alone can change what is run: the file, each directory and each link on the way. Then nobody
/// else can change it between this look and the exec.
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

    /// Below `/`, for `/tmp` can be written by everybody.
    fn lab() -> tempfile::TempDir {
        let lab = tempfile::Builder::new().tempdir_in("/run").unwrap();
        fs::write(lab.path().join("cli"), "").unwrap();
        lab
    }

    fn verdict(program: &Path, allowed: &Path) -> Result<(), String> {
        check(program, &[allowed.to_owned()]).map_err(|error| error.to_string())
    }

    #[test]
    fn a_program_of_roots_on_the_list_may_be_run_by_a_link_too() {
        let lab = lab();
        let (program, link) = (lab.path().join("cli"), lab.path().join("link"));
        symlink(
            "./../".to_owned() + lab.path().file_name().unwrap().to_str().unwrap() + "/cli",
            &link,
        )
        .unwrap();
        assert_eq!(verdict(&program, &program), Ok(()));
        assert_eq!(verdict(&link, &program), Ok(()));
        assert_eq!(verdict(&link, &link), Ok(()));
        let other = verdict(&program, &link).unwrap_err();
        assert!(
            other.contains("isn't one of those that may be run"),
            "{other}"
        );
    }

    #[test]
    fn what_others_can_change_is_not_run() {
        let lab = lab();
        let program = lab.path().join("cli");
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
        for mode in [0o775, 0o757] {
            set(&program, mode).unwrap();
            let error = verdict(&program, &program).unwrap_err();
            assert!(error.contains("can be written by others"), "{error}");
        }
        set(&program, 0o755).unwrap();
        set(lab.path(), 0o1777).unwrap();
        let error = verdict(&program, &program).unwrap_err();
        assert!(
            error.contains("can be written by others"),
            "the sticky bit is no help: {error}"
        );
        set(lab.path(), 0o755).unwrap();
        chown(&program, Some(1), None).unwrap();
        let error = verdict(&program, &program).unwrap_err();
        assert!(error.contains("isn't owned by root"), "{error}");
    }

    #[test]
    fn a_link_to_a_writable_place_is_not_followed() {
        let (lab, elsewhere) = (lab(), lab());
        let target = elsewhere.path().join("cli");
        fs::set_permissions(elsewhere.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let link = lab.path().join("link");
        symlink(&target, &link).unwrap();
        let error = verdict(&link, &link).unwrap_err();
        assert!(
            error.contains(&format!("{} can be written", elsewhere.path().display())),
            "{error}"
        );
    }

    #[test]
    fn what_is_no_program_is_told() {
        let lab = lab();
        let at = |name: &str| lab.path().join(name);
        symlink("b", at("a")).unwrap();
        symlink("a", at("b")).unwrap();
        for (program, expected) in [
            (PathBuf::from("cli"), "isn't an absolute path"),
            (PathBuf::from("/usr/../cli"), "isn't an absolute path"),
            (at("missing"), "No such file"),
            (lab.path().to_owned(), "isn't a file"),
            (at("a"), "too many symbolic links"),
        ] {
            let error = verdict(&program, &program).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
