//! Installing, removing and listing handlers, for every engine in the same way.

use std::path::{Path, PathBuf};

use crust_state::DelegateKind;

use crate::config_file::ConfigFile;
use crate::engine::{Engine, Runtime, WantedHandler};
use crate::error::{HandlerError, Result};
use crate::node_root::NodeRoot;
use crate::plan::ChangePlan;

/// A handler that an operator asks to install or to remove.
#[derive(Debug)]
pub struct HandlerRequest {
    /// The engine whose configuration is changed.
    pub engine: &'static dyn Engine,
    /// Its file, if that isn't the default one.
    pub config: Option<PathBuf>,
    /// The handler's name.
    pub handler: String,
    /// The program that the handler runs. On removal: a program that is runcrust even though its name doesn't say so.
    pub program: Option<PathBuf>,
    /// The kind of the program's delegate: podman has to be told what a runtime supports.
    pub delegate: Option<DelegateKind>,
    /// containerd's `SystemdCgroup`. `None`: as the node's other runtimes have it.
    pub systemd_cgroup: Option<bool>,
}

impl HandlerRequest {
    /// Returns the file that is read first.
    #[must_use]
    pub fn file(&self) -> &Path {
        let named = self.config.as_deref();
        named.unwrap_or_else(|| Path::new(self.engine.info().file))
    }
}

/// A handler in an engine's configuration, with a program that it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handler {
    /// The file that sets it.
    pub file: PathBuf,
    /// Its name.
    pub name: String,
    /// The program.
    pub program: PathBuf,
}

impl Handler {
    /// Returns whether the program is runcrust, judged by its name alone.
    #[must_use]
    pub fn is_runcrust(&self) -> bool {
        is_runcrust(&self.program)
    }
}

/// Plans to add a handler, or to bring it up to date.
pub fn install(node: &NodeRoot, request: &HandlerRequest) -> Result<ChangePlan> {
    let engine = request.engine;
    let program = request.program.as_deref().unwrap_or(Path::new(""));
    let wanted = WantedHandler {
        handler: check_name(&request.handler)?,
        program: check_program_path(program)?,
        delegate: request.delegate,
        systemd_cgroup: request.systemd_cgroup,
    };
    let files = engine.read(node, request.file())?;
    if let Some(service) = engine.info().service
        && request.config.is_none()
        && !is_on(node, engine, &files)
    {
        let (path, unit) = (engine.info().file.into(), service.unit.to_owned());
        return Err(HandlerError::NoEngine(path, unit));
    }
    plan_install(engine, files, &wanted)
}

/// Plans an installation into files that were read.
pub(crate) fn plan_install(
    engine: &dyn Engine,
    files: Vec<ConfigFile>,
    wanted: &WantedHandler<'_>,
) -> Result<ChangePlan> {
    for file in &files {
        for runtime in named(engine, file, wanted.handler)? {
            check_ours(&runtime, file, Some(wanted.program))?;
        }
    }
    let edit = engine.install(&files, wanted)?;
    let programs = vec![wanted.program.into()];
    let edits = vec![(edit.path, Some(edit.text))];
    Ok(ChangePlan::new(files, edits, edit.notes, programs))
}

/// Plans to remove a handler from every file that has it. Files of packages stay as they are.
pub fn uninstall(node: &NodeRoot, request: &HandlerRequest) -> Result<ChangePlan> {
    let engine = request.engine;
    let own = request.program.as_deref().map(check_program_path);
    let files = engine.read(node, request.file())?;
    plan_uninstall(engine, files, &request.handler, own.transpose()?)
}

/// Plans a removal from files that were read. `own` is a program that is runcrust whatever its name is.
pub(crate) fn plan_uninstall(
    engine: &dyn Engine,
    files: Vec<ConfigFile>,
    handler: &str,
    own: Option<&str>,
) -> Result<ChangePlan> {
    let (mut notes, mut programs) = (Vec::new(), Vec::new());
    let (mut found, mut foreign): (Vec<&ConfigFile>, _) = (Vec::new(), None);
    for file in &files {
        let runtimes = named(engine, file, handler)?;
        let checked = runtimes.iter().try_for_each(|it| check_ours(it, file, own));
        match checked {
            Err(error) => foreign = foreign.or(Some(error)),
            Ok(()) if runtimes.is_empty() => {}
            Ok(()) if file.is_packaged => notes.push(format!(
                "{} has handler {handler}, and stays: it is its package's",
                file.path.display()
            )),
            Ok(()) => {
                found.push(file);
                let all = runtimes.into_iter().flat_map(|it| it.programs);
                programs.extend(all.map(PathBuf::from));
            }
        }
    }
    if let Some(error) = foreign
        && ((found.is_empty() && notes.is_empty()) || engine.info().merges_entries)
    {
        return Err(error);
    }
    if !found.is_empty() {
        check_not_default(engine, &files, handler)?;
    }
    let mut edits = Vec::new();
    for file in found {
        edits.push((file.path.clone(), engine.uninstall(file, handler)?));
    }
    let left: Vec<Option<String>> = edits.iter().map(|(_, text)| text.clone()).collect();
    notes.extend(engine.removal_notes(&files, &left));
    Ok(ChangePlan::new(files, edits, notes, programs))
}

/// Lists the handlers in an engine's default files that name the programs that they run. `None` if neither such a file
/// nor the engine's unit is on the node.
pub fn handlers(node: &NodeRoot, engine: &dyn Engine) -> Result<Option<Vec<Handler>>> {
    let files = engine.read(node, engine.info().file.as_ref())?;
    if !is_on(node, engine, &files) {
        return Ok(None);
    }
    list(engine, &files).map(Some)
}

/// Returns the names of the handlers that run runcrust in an engine's default files, sorted. A program is runcrust if
/// its name begins with "runcrust".
pub fn runcrust_handlers(node: &NodeRoot, engine: &dyn Engine) -> Result<Vec<String>> {
    let found = list(engine, &engine.read(node, engine.info().file.as_ref())?)?;
    let ours = found.into_iter().filter(Handler::is_runcrust);
    let mut names: Vec<String> = ours.map(|handler| handler.name).collect();
    names.sort();
    names.dedup();
    Ok(names)
}

fn list(engine: &dyn Engine, files: &[ConfigFile]) -> Result<Vec<Handler>> {
    let mut found = Vec::new();
    for file in files {
        for runtime in engine.runtimes(file)? {
            let programs = runtime.programs.into_iter();
            found.extend(programs.map(|program| Handler {
                file: file.path.clone(),
                name: runtime.name.clone(),
                program: program.into(),
            }));
        }
    }
    Ok(found)
}

/// Returns whether a file or a unit shows that the engine is on the node.
fn is_on(node: &NodeRoot, engine: &dyn Engine, files: &[ConfigFile]) -> bool {
    let service = engine.info().service;
    files.iter().any(|file| file.text.is_some())
        || service.is_some_and(|service| service.is_on(node))
}

fn named(engine: &dyn Engine, file: &ConfigFile, handler: &str) -> Result<Vec<Runtime>> {
    let mut runtimes = engine.runtimes(file)?;
    runtimes.retain(|runtime| runtime.name == handler);
    Ok(runtimes)
}

/// Fails if a runtime isn't runcrust, perhaps an older one at another path. `own` is a program that is runcrust
/// whatever its name is.
fn check_ours(runtime: &Runtime, file: &ConfigFile, own: Option<&str>) -> Result<()> {
    let is_ours = |program: &String| is_runcrust(program.as_ref()) || own == Some(program);
    let what = match &runtime.mismatch {
        Some(mismatch) => mismatch.clone(),
        None if runtime.programs.iter().all(is_ours) => return Ok(()),
        None => format!("it runs {}", runtime.programs.join(", ")),
    };
    let (path, name) = (file.path.clone(), runtime.name.clone());
    Err(HandlerError::Foreign(path, name, what))
}

/// Fails if a file makes the handler the default runtime: containers that name none would not start any more.
fn check_not_default(engine: &dyn Engine, files: &[ConfigFile], handler: &str) -> Result<()> {
    for file in files {
        let mut defaults = engine.defaults(file)?.into_iter();
        if let Some((key, name)) = defaults.find(|(_, name)| name == handler) {
            return Err(HandlerError::Default(file.path.clone(), name, key));
        }
    }
    Ok(())
}

/// Returns the name if it is a DNS label, which a `RuntimeClass` needs, and which every engine's file takes as a key.
fn check_name(name: &str) -> Result<&str> {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let has_edges = name.starts_with('-') || name.ends_with('-');
    if name.is_empty() || name.len() > 63 || has_edges || !name.bytes().all(allowed) {
        return Err(HandlerError::Name(name.to_owned()));
    }
    Ok(name)
}

fn check_program_path(program: &Path) -> Result<&str> {
    let name = program.to_str().filter(|_| program.is_absolute());
    name.ok_or_else(|| HandlerError::ProgramPath(program.to_owned()))
}

/// Returns whether a program's name begins with "runcrust". runcrust has several names: the name selects its
/// configuration.
fn is_runcrust(program: &Path) -> bool {
    let name = program.file_name();
    name.is_some_and(|name| name.as_encoded_bytes().starts_with(b"runcrust"))
}

#[cfg(test)]
pub(crate) mod tests;
