//! Installs, removes and lists handlers, in the same way for every engine.

use std::path::{Path, PathBuf};

use crust_state::DelegateKind;

use crate::config_file::EngineConfigFile;
use crate::engine::{Engine, HandlerSpec, Runtime};
use crate::error::{HandlerError, Result};
use crate::node_root::NodeRoot;
use crate::plan::ChangePlan;

/// A handler that an operator asks to install or to remove.
#[derive(Debug)]
pub struct HandlerRequest {
    /// The engine whose configuration is changed.
    pub engine: &'static dyn Engine,
    /// The engine's file; `None` for the default one.
    pub config: Option<PathBuf>,
    pub handler: String,
    /// The program that the handler runs. For a removal: a program that is runcrust even though its name doesn't begin
    /// with "runcrust".
    pub program: Option<PathBuf>,
    /// The kind of the program's delegate. podman's configuration lists which runtimes support a feature.
    pub delegate: Option<DelegateKind>,
    /// containerd's `SystemdCgroup`; `None` for the value of the node's other runtimes.
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
    /// The file that contains the handler.
    pub file: PathBuf,
    pub name: String,
    pub program: PathBuf,
}

impl Handler {
    /// Returns whether the program is runcrust, judging by its name alone.
    #[must_use]
    pub fn is_runcrust(&self) -> bool {
        is_runcrust(&self.program)
    }
}

/// Plans to add a handler, or to update it.
pub fn install(node: &NodeRoot, request: &HandlerRequest) -> Result<ChangePlan> {
    let engine = request.engine;
    let program = request.program.as_deref().unwrap_or(Path::new(""));
    let spec = HandlerSpec {
        name: check_name(&request.handler)?,
        program: check_program_path(program)?,
        delegate: request.delegate,
        systemd_cgroup: request.systemd_cgroup,
    };
    let files = engine.read(node, request.file())?;
    if let Some(service) = engine.info().service
        && request.config.is_none()
        && !is_installed(node, engine, &files)
    {
        let (path, unit) = (engine.info().file.into(), service.unit.to_owned());
        return Err(HandlerError::NoEngine(path, unit));
    }
    plan_install(engine, files, &spec)
}

/// Plans to add a handler to files that have been read.
pub(crate) fn plan_install(
    engine: &dyn Engine,
    files: Vec<EngineConfigFile>,
    spec: &HandlerSpec<'_>,
) -> Result<ChangePlan> {
    for file in &files {
        for runtime in runtimes_named(engine, file, spec.name)? {
            check_is_runcrust(&runtime, file, Some(spec.program))?;
        }
    }
    let edit = engine.install(&files, spec)?;
    let programs = vec![spec.program.into()];
    let edits = vec![(edit.path, Some(edit.text))];
    Ok(ChangePlan::new(files, edits, edit.notes, programs))
}

/// Plans to remove a handler from every file that contains it, except from files of packages.
pub fn uninstall(node: &NodeRoot, request: &HandlerRequest) -> Result<ChangePlan> {
    let engine = request.engine;
    let own_program = request.program.as_deref().map(check_program_path);
    let files = engine.read(node, request.file())?;
    plan_uninstall(engine, files, &request.handler, own_program.transpose()?)
}

/// Plans to remove a handler from files that have been read. `own_program` is a program that counts as runcrust
/// whatever its name is.
pub(crate) fn plan_uninstall(
    engine: &dyn Engine,
    files: Vec<EngineConfigFile>,
    handler: &str,
    own_program: Option<&str>,
) -> Result<ChangePlan> {
    let (mut notes, mut programs) = (Vec::new(), Vec::new());
    let (mut found, mut foreign): (Vec<&EngineConfigFile>, _) = (Vec::new(), None);
    for file in &files {
        let runtimes = runtimes_named(engine, file, handler)?;
        let checked = runtimes
            .iter()
            .try_for_each(|runtime| check_is_runcrust(runtime, file, own_program));
        match checked {
            Err(error) => foreign = foreign.or(Some(error)),
            Ok(()) if runtimes.is_empty() => {}
            Ok(()) if file.is_packaged => notes.push(format!(
                "{} still has handler {handler}: the file belongs to a package and is not changed",
                file.path.display()
            )),
            Ok(()) => {
                found.push(file);
                let all = runtimes.into_iter().flat_map(|runtime| runtime.programs);
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

/// Lists the handlers in an engine's default files, with the programs that they run. A handler without a program is
/// left out. `None` if neither such a file nor the engine's unit is on the node.
pub fn handlers(node: &NodeRoot, engine: &dyn Engine) -> Result<Option<Vec<Handler>>> {
    let files = engine.read(node, engine.info().file.as_ref())?;
    if !is_installed(node, engine, &files) {
        return Ok(None);
    }
    list_handlers(engine, &files).map(Some)
}

/// Returns the names of the handlers that run runcrust in an engine's default files, sorted. A program is runcrust if
/// its name begins with "runcrust".
pub fn runcrust_handlers(node: &NodeRoot, engine: &dyn Engine) -> Result<Vec<String>> {
    let found = list_handlers(engine, &engine.read(node, engine.info().file.as_ref())?)?;
    let matching = found.into_iter().filter(Handler::is_runcrust);
    let mut names: Vec<String> = matching.map(|handler| handler.name).collect();
    names.sort();
    names.dedup();
    Ok(names)
}

fn list_handlers(engine: &dyn Engine, files: &[EngineConfigFile]) -> Result<Vec<Handler>> {
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
fn is_installed(node: &NodeRoot, engine: &dyn Engine, files: &[EngineConfigFile]) -> bool {
    let service = engine.info().service;
    files.iter().any(|file| file.text.is_some())
        || service.is_some_and(|service| service.is_installed(node))
}

fn runtimes_named(
    engine: &dyn Engine,
    file: &EngineConfigFile,
    handler: &str,
) -> Result<Vec<Runtime>> {
    let mut runtimes = engine.runtimes(file)?;
    runtimes.retain(|runtime| runtime.name == handler);
    Ok(runtimes)
}

/// Fails if a runtime isn't runcrust. An older runcrust at another path is accepted. `own_program` is a program that
/// counts as runcrust whatever its name is.
fn check_is_runcrust(
    runtime: &Runtime,
    file: &EngineConfigFile,
    own_program: Option<&str>,
) -> Result<()> {
    let is_own = |program: &String| is_runcrust(program.as_ref()) || own_program == Some(program);
    let difference = match &runtime.mismatch {
        Some(mismatch) => mismatch.clone(),
        None if runtime.programs.iter().all(is_own) => return Ok(()),
        None => format!("it runs {}", runtime.programs.join(", ")),
    };
    let (path, name) = (file.path.clone(), runtime.name.clone());
    Err(HandlerError::Foreign(path, name, difference))
}

/// Fails if a file makes the handler the default runtime. After its removal, containers that name no handler would not
/// start.
fn check_not_default(engine: &dyn Engine, files: &[EngineConfigFile], handler: &str) -> Result<()> {
    for file in files {
        let mut defaults = engine.defaults(file)?.into_iter();
        if let Some((key, name)) = defaults.find(|(_, name)| name == handler) {
            return Err(HandlerError::Default(file.path.clone(), name, key));
        }
    }
    Ok(())
}

/// Returns the name if it is a DNS label. A `RuntimeClass` needs one, and every engine's file accepts it as a key.
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

/// Returns whether a program's name begins with "runcrust". runcrust may have other names than that, because the name
/// selects its configuration.
fn is_runcrust(program: &Path) -> bool {
    let name = program.file_name();
    name.is_some_and(|name| name.as_encoded_bytes().starts_with(b"runcrust"))
}

#[cfg(test)]
pub(crate) mod tests;
