//! `manuals DIRECTORY` writes the manual pages and shell completions to a directory, laid out like a prefix's `share`.
//!
//! The date of the pages is taken from `SOURCE_DATE_EPOCH`. If that isn't set, they have no date.

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, bail};
use crust_manuals::{File, completions, pages};

fn main() -> Result<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(directory), None) = (arguments.next(), arguments.next()) else {
        bail!("usage: manuals DIRECTORY");
    };
    for file in pages(&date()?)?.into_iter().chain(completions()) {
        write(Path::new(&directory), &file)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn write(directory: &Path, file: &File) -> Result<()> {
    let path = directory.join(&file.path);
    let parent = path.parent().unwrap_or(directory);
    fs::create_dir_all(parent).with_context(|| format!("mkdir {}", parent.display()))?;
    fs::write(&path, &file.text).with_context(|| format!("write {}", path.display()))
}

#[expect(
    clippy::disallowed_methods,
    reason = "reproducible-builds.org defines SOURCE_DATE_EPOCH, and this program doesn't run on nodes"
)]
fn date() -> Result<String> {
    let epoch = std::env::var("SOURCE_DATE_EPOCH").unwrap_or_default();
    if epoch.is_empty() {
        return Ok(String::new());
    }
    let seconds = epoch.parse();
    let seconds = seconds.with_context(|| format!("SOURCE_DATE_EPOCH: {epoch:?}"))?;
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    let time = humantime::format_rfc3339(time).to_string();
    Ok(time.split('T').next().unwrap_or_default().to_owned())
}
