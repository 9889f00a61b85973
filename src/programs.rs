//! Finds the running runcrust program and its hook.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};
use crust_state::Config;
use rustix::fs::{Access, FileType, access, stat};

/// The path of the running program. It leads to the same file even after another file was installed at the program's
/// own path.
pub(crate) const SELF_EXE: &str = "/proc/self/exe";

/// Returns the path that runcrust was called by, because its name selects the configuration. Returns the real path if
/// `argv0` isn't an absolute path.
pub(crate) fn invocation_path(argv0: Option<&OsString>) -> Result<PathBuf> {
    let called = argv0.map(PathBuf::from).filter(|path| path.is_absolute());
    called.map_or_else(real_path, Ok)
}

/// Returns the path of `crust-mount-hook`: the configured one, or the one beside runcrust. Fails if it isn't an
/// executable file.
pub(crate) fn find_hook(config: &Config) -> Result<PathBuf> {
    let runcrust = real_path()?;
    let beside = || runcrust.with_file_name("crust-mount-hook");
    let program = config.hook.clone().unwrap_or_else(beside);
    let stat = access(&program, Access::EXEC_OK).and_then(|()| stat(&program));
    let stat = stat.with_context(|| {
        format!(
            "{}; hint: install crust-mount-hook beside runcrust, or set `hook` in runcrust's \
             configuration",
            program.display()
        )
    })?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        bail!(
            "{} isn't a program; hint: set `hook` in runcrust's configuration to the path of crust-mount-hook",
            program.display()
        );
    }
    Ok(program)
}

/// Returns whether a path leads to the running program, under any name.
pub(crate) fn is_this_program(path: &Path) -> bool {
    match (stat(path), stat(SELF_EXE)) {
        (Ok(it), Ok(own)) => (it.st_dev, it.st_ino) == (own.st_dev, own.st_ino),
        _ => false,
    }
}

fn real_path() -> Result<PathBuf> {
    let own = fs::read_link(SELF_EXE).context("readlink(\"/proc/self/exe\")")?;
    if own.exists() {
        return Ok(own);
    }
    // The program's file was deleted or replaced, for example by an upgrade. Use the new file.
    let path = own.as_os_str().as_bytes().strip_suffix(b" (deleted)");
    let path = path.map(|path| PathBuf::from(OsStr::from_bytes(path)));
    let replacement = path.filter(|path| path.exists());
    replacement.ok_or_else(|| {
        anyhow!(
            "{}: runcrust was deleted while it was running; hint: install runcrust again",
            own.display()
        )
    })
}
