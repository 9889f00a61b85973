//! Finds this program, and the hook beside it.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};
use crust_state::Config;
use rustix::fs::{Access, FileType, access, stat};

/// This very program, whatever has taken its place.
pub(crate) const SELF_EXE: &str = "/proc/self/exe";

/// Returns the path that this program was called by, since its name selects the configuration; the real path if that
/// isn't absolute.
pub(crate) fn invocation_path(argv0: Option<&OsString>) -> Result<PathBuf> {
    let called = argv0.map(PathBuf::from).filter(|path| path.is_absolute());
    called.map_or_else(real_path, Ok)
}

/// The hook, which must be a program.
pub(crate) fn find_hook(config: &Config) -> Result<PathBuf> {
    let own = real_path()?;
    let beside = || own.with_file_name("crust-mount-hook");
    let program = config.hook.clone().unwrap_or_else(beside);
    let can_run = access(&program, Access::EXEC_OK).and_then(|()| stat(&program));
    let can_run = can_run.with_context(|| {
        format!(
            "{}; hint: install crust-mount-hook beside runcrust, or set `hook` in its \
             configuration",
            program.display()
        )
    })?;
    if FileType::from_raw_mode(can_run.st_mode) != FileType::RegularFile {
        bail!(
            "{} isn't a program; hint: set `hook` in runcrust's configuration",
            program.display()
        );
    }
    Ok(program)
}

/// Whether a path leads to this very program, by whatever name.
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
    // Replaced while it runs, as by an upgrade: what stands in its place.
    let place = own.as_os_str().as_bytes().strip_suffix(b" (deleted)");
    let place = place.map(|place| PathBuf::from(OsStr::from_bytes(place)));
    let there = place.filter(|place| place.exists());
    there.ok_or_else(|| anyhow!("{}: ENOENT: it was removed while it runs", own.display()))
}
