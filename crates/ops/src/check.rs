//! `crust_ops --check`.

use std::path::Path;
use std::process::ExitCode;

use crust_state::{Config, CrustDirectory};

use crate::cli::Policy;
use crate::settings::Settings;

/// Prints what is right and what isn't, a line each; fails where anything isn't.
pub(crate) fn run(file: &Path, named: bool) -> ExitCode {
    let mut all_right = true;
    let mut tell = |what: &str, outcome: Result<String, String>| match outcome {
        Ok(found) => println!("ok    {what}: {found}"),
        Err(why) => {
            println!("FAIL  {what}: {why}");
            all_right = false;
        }
    };
    let settings = Settings::load(file, named);
    tell(
        "configuration",
        told(&settings, |_| file.display().to_string()),
    );
    let settings = settings.unwrap_or_default();
    let user = rustix::process::geteuid().as_raw();
    let is_root = if user == 0 {
        Ok("root".to_owned())
    } else {
        Err(format!("uid {user} isn't root"))
    };
    tell("user", is_root);
    let Policy { allowed, .. } = settings.policy();
    for program in &allowed {
        let trusted = crate::cli::check(program, &allowed);
        tell(
            "runtime-cli",
            told(&trusted, |()| program.display().to_string()),
        );
    }
    let runtimes = settings.runtimes();
    tell("runtime's configuration", told(&runtimes, source));
    if let Ok(config) = &runtimes {
        let root = config.crust_root.display();
        let exists = CrustDirectory::new(config).exists();
        tell(
            "crust directory",
            told(&exists, |there| match there {
                true => root.to_string(),
                false => format!("{root} will be made"),
            }),
        );
    }
    for socket in [&settings.listen, &settings.crust_listen] {
        if !socket.as_os_str().is_empty() {
            tell("socket", place_for(socket));
        }
    }
    if all_right {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn told<T, E: ToString>(
    outcome: &Result<T, E>,
    found: impl FnOnce(&T) -> String,
) -> Result<String, String> {
    outcome.as_ref().map(found).map_err(ToString::to_string)
}

fn source(config: &Config) -> String {
    let source = config.source.as_deref();
    source.map_or_else(
        || "the defaults".to_owned(),
        |file| file.display().to_string(),
    )
}

/// Whether a socket can be made there; nothing is.
fn place_for(socket: &Path) -> Result<String, String> {
    let missing = || format!("{} has no directory", socket.display());
    let mut directory = socket.parent().ok_or_else(missing)?;
    while !directory.exists() {
        directory = directory.parent().ok_or_else(missing)?;
    }
    if !directory.is_dir() {
        return Err(format!("{} isn't a directory", directory.display()));
    }
    let writable = rustix::fs::access(directory, rustix::fs::Access::WRITE_OK);
    match writable {
        Ok(()) => Ok(socket.display().to_string()),
        Err(errno) => Err(format!("{}: {errno}", directory.display())),
    }
}
