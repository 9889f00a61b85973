//! `manuals DIRECTORY`: writes `man/*.8` and `completions/*` into it, in the place of what is there.
//!
//! The pages' date is that of `SOURCE_DATE_EPOCH`; without it they have none.

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
    let directory = Path::new(&directory);
    write(&directory.join("man"), pages(&date()?)?)?;
    write(&directory.join("completions"), completions())?;
    Ok(ExitCode::SUCCESS)
}

fn write(directory: &Path, files: Vec<File>) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("mkdir {}", directory.display()))?;
    for File { name, text } in files {
        let path = directory.join(name);
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

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
