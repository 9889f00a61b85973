//! From what is asked for to a plan.

mod siblings;

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};

use crate::change::{Change, Plan};
use crate::edit::{Edit, Source};
use crate::entry::{Handler, Unwanted, Wanted};
use crate::error::HandlerError;
use crate::node::{Kept, Node};
use crate::service::{Service, Verb};
use crate::{containerd, crio, docker, podman};

/// Whose configuration it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// containerd 1.6 and later.
    Containerd,
    /// CRI-O.
    Crio,
    /// podman.
    Podman,
    /// dockerd.
    Docker,
}

impl Engine {
    /// The file that is edited where none is named.
    #[must_use]
    pub fn default_file(self) -> &'static Path {
        Path::new(match self {
            Self::Containerd => "/etc/containerd/config.toml",
            Self::Crio => "/etc/crio/crio.conf.d/99-runcrust.conf",
            Self::Podman => "/etc/containers/containers.conf.d/runcrust.conf",
            Self::Docker => "/etc/docker/daemon.json",
        })
    }

    /// The daemon that reads it; podman has none.
    #[must_use]
    pub const fn service(self) -> Option<Service<'static>> {
        let (unit, verb) = match self {
            Self::Containerd => ("containerd.service", Verb::Restart),
            Self::Crio => ("crio.service", Verb::Restart),
            Self::Podman => return None,
            // Its runtimes are among what dockerd reads anew on SIGHUP.
            Self::Docker => ("docker.service", Verb::Reload),
        };
        Some(Service { unit, verb })
    }
}

/// What is asked for.
#[derive(Debug)]
pub struct Request {
    /// Whose configuration it is.
    pub engine: Engine,
    /// Its file, where that isn't the engine's usual one.
    pub config: Option<PathBuf>,
    /// The handler's name.
    pub handler: String,
    /// What the handler runs; to be removed, only what runcrust is called besides.
    pub program: Option<PathBuf>,
    /// Whether the program's delegate is crun: podman is told what a runtime supports.
    pub is_crun: bool,
    /// containerd's `SystemdCgroup`; `None` is as its `runc` has it.
    pub systemd_cgroup: Option<bool>,
}

/// A configuration has a handful.
const MOST_FILES: usize = 1000;

/// The files that a request is about, by their paths.
#[derive(Debug, Default)]
struct Files {
    sources: Vec<Source>,
    kept: HashMap<PathBuf, Kept>,
    /// What the sources import, to every containerd.
    patterns: Vec<containerd::Pattern>,
}

impl Request {
    /// The file that is read first.
    #[must_use]
    pub fn file(&self) -> &Path {
        let named = self.config.as_deref();
        named.unwrap_or_else(|| self.engine.default_file())
    }
}

/// What adds a handler, or brings it up to date.
pub fn install(node: &Node, request: &Request) -> Result<Plan, HandlerError> {
    let program = request.program.as_deref().unwrap_or(Path::new(""));
    let wanted = Wanted {
        handler: handler(&request.handler)?,
        program: program_name(program)?,
        is_crun: request.is_crun,
        systemd_cgroup: request.systemd_cgroup,
    };
    let files = Files::read(node, request.engine, request.file())?;
    if request.config.is_none() && !files.are_there() {
        check_engine(node, request.engine)?;
    }
    let first = files.main();
    let edits = match request.engine {
        Engine::Containerd => {
            let drop_in = files.patterns.iter().find_map(containerd::Pattern::drop_in);
            containerd::install(&files.sources, drop_in.as_deref(), wanted)?
        }
        Engine::Crio => crio::CRIO.install(&files.sources, wanted)?,
        Engine::Podman => podman::PODMAN.install(&files.sources, wanted)?,
        Engine::Docker => vec![docker::install(first, wanted)?],
    };
    let notes = match request.engine {
        Engine::Containerd => containerd::notes(&files.sources, wanted)?,
        Engine::Podman => podman::support::notes(&files.sources, wanted)?,
        _ => Vec::new(),
    };
    Ok(files.plan(edits, notes, Some(program.to_owned())))
}

/// What removes a handler.
pub fn uninstall(node: &Node, request: &Request) -> Result<Plan, HandlerError> {
    let program = request.program.as_deref().map(program_name).transpose()?;
    let unwanted = Unwanted {
        // An operator may have chosen one that `install` wouldn't.
        handler: &request.handler,
        program,
    };
    let files = Files::read(node, request.engine, request.file())?;
    let (edits, program) = match request.engine {
        Engine::Containerd => containerd::uninstall(&files.sources, unwanted)?,
        Engine::Crio => crio::CRIO.uninstall(&files.sources, unwanted)?,
        Engine::Podman => podman::PODMAN.uninstall(&files.sources, unwanted)?,
        Engine::Docker => docker::uninstall(files.main(), unwanted)?,
    };
    let notes = match request.engine {
        Engine::Containerd => containerd::missing(&files.sources),
        Engine::Crio => crio::CRIO.kept(&files.sources, unwanted)?,
        Engine::Podman => podman::PODMAN.kept(&files.sources, unwanted)?,
        Engine::Docker => docker::kept(&edits),
    };
    Ok(files.plan(edits, notes, program))
}

/// The names of the handlers that run runcrust, sorted, in an engine's configuration: `config`, or else
/// the engine's usual files. A program is runcrust if its name begins so.
pub fn handlers(
    node: &Node,
    engine: Engine,
    config: Option<&Path>,
) -> Result<Vec<String>, HandlerError> {
    let first = config.unwrap_or_else(|| engine.default_file());
    let found = Files::read(node, engine, first)?.entries(engine)?;
    let ours = found.into_iter().filter(Handler::is_runcrust);
    let mut names: Vec<String> = ours.map(|handler| handler.name).collect();
    names.sort();
    names.dedup();
    Ok(names)
}

/// The handlers in an engine's usual files that name what they run; `None` where neither such a file nor
/// its unit is on the node.
pub fn entries(node: &Node, engine: Engine) -> Result<Option<Vec<Handler>>, HandlerError> {
    let files = Files::read(node, engine, engine.default_file())?;
    let service = engine.service();
    if !files.are_there() && !service.is_some_and(|service| service.is_on(node)) {
        return Ok(None);
    }
    files.entries(engine).map(Some)
}

impl Files {
    /// `first`, and what the engine reads with it.
    fn read(node: &Node, engine: Engine, first: &Path) -> Result<Self, HandlerError> {
        let mut files = Self::default();
        let mut pending = VecDeque::from([(first.to_owned(), true)]);
        while let Some((path, is_sure)) = pending.pop_front() {
            let there = files.sources.iter_mut().find(|source| source.path == path);
            if let Some(source) = there {
                source.is_sure |= is_sure;
                continue;
            }
            if files.sources.len() == MOST_FILES {
                let (path, most) = (first.to_owned(), MOST_FILES);
                return Err(HandlerError::Imports { path, most });
            }
            let (mut source, kept) = node.read(&path)?;
            source.is_sure = is_sure;
            if engine == Engine::Containerd {
                pending.extend(files.imports(node, &source)?);
            } else if files.sources.is_empty() {
                let siblings = siblings::of(node, engine, &path)?;
                pending.extend(siblings.into_iter().map(|path| (path, true)));
            }
            files.sources.push(source);
            files.kept.extend(kept.map(|kept| (path, kept)));
        }
        Ok(files)
    }

    /// The files that one imports, and whether every containerd finds them.
    fn imports(
        &mut self,
        node: &Node,
        source: &Source,
    ) -> Result<Vec<(PathBuf, bool)>, HandlerError> {
        let text = source.text.as_deref().unwrap_or_default();
        let mut found = Vec::new();
        for pattern in containerd::patterns(&source.path, text)? {
            let is_sure = source.is_sure && pattern.is_sure();
            let files = pattern.files(|directory| node.names(directory))?;
            found.extend(files.into_iter().map(|file| (file, is_sure)));
            if is_sure {
                self.patterns.push(pattern);
            }
        }
        Ok(found)
    }

    /// The handlers that name what they run.
    fn entries(&self, engine: Engine) -> Result<Vec<Handler>, HandlerError> {
        match engine {
            Engine::Containerd => containerd::entries(&self.sources),
            Engine::Crio => crio::CRIO.entries(&self.sources),
            Engine::Podman => podman::PODMAN.entries(&self.sources),
            Engine::Docker => docker::entries(self.main()),
        }
    }

    fn are_there(&self) -> bool {
        self.sources.iter().any(|source| source.text.is_some())
    }

    /// The one that the request names, which is read before all others.
    fn main(&self) -> &Source {
        &self.sources[0]
    }

    fn plan(mut self, edits: Vec<Edit>, notes: Vec<String>, program: Option<PathBuf>) -> Plan {
        let changes = edits.into_iter().map(|edit| {
            let kept = self.kept.remove(&edit.path);
            Change::new(edit, kept)
        });
        Plan {
            changes: changes.collect(),
            notes,
            program,
        }
    }
}

/// Fails where nothing says that the engine is on the node: its usual file would be read by nobody.
fn check_engine(node: &Node, engine: Engine) -> Result<(), HandlerError> {
    let Some(service) = engine.service() else {
        return Ok(());
    };
    if service.is_on(node) {
        return Ok(());
    }
    Err(HandlerError::NoEngine {
        unit: service.unit.to_owned(),
        path: engine.default_file().to_owned(),
    })
}

/// A `RuntimeClass` names it (a DNS label), a daemon's file has it as a key.
fn handler(name: &str) -> Result<&str, HandlerError> {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let has_edges = name.starts_with('-') || name.ends_with('-');
    if name.is_empty() || name.len() > 63 || has_edges || !name.bytes().all(allowed) {
        return Err(HandlerError::Name(name.to_owned()));
    }
    Ok(name)
}

fn program_name(program: &Path) -> Result<&str, HandlerError> {
    let name = program.to_str().filter(|_| program.is_absolute());
    name.ok_or_else(|| HandlerError::ProgramPath(program.to_owned()))
}

#[cfg(test)]
mod tests;
