//! From what is asked for to a plan.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};

use crate::change::{Change, Edit, Plan, Source};
use crate::entry::{Unwanted, Wanted};
use crate::error::HandlerError;
use crate::node::{Kept, Node};
use crate::service::Service;
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
    pub const fn service(self) -> Option<Service> {
        let (unit, verb) = match self {
            Self::Containerd => ("containerd.service", "restart"),
            Self::Crio => ("crio.service", "restart"),
            Self::Podman => return None,
            // Its runtimes are among what dockerd reads anew on SIGHUP.
            Self::Docker => ("docker.service", "reload"),
        };
        Some(Service { unit, verb })
    }
}

/// What is asked for.
#[derive(Debug)]
pub struct Request {
    /// Whose configuration it is.
    pub engine: Engine,
    /// Its file.
    pub config: PathBuf,
    /// The handler's name.
    pub handler: String,
    /// What the handler runs; to be removed, only what runcrust is called besides.
    pub program: Option<PathBuf>,
    /// containerd's `SystemdCgroup`; `None` is as its `runc` has it.
    pub systemd_cgroup: Option<bool>,
}

/// The files that a request is about, by their paths.
#[derive(Debug, Default)]
struct Files {
    sources: Vec<Source>,
    kept: HashMap<PathBuf, Kept>,
    /// What the sources import.
    patterns: Vec<containerd::Pattern>,
}

/// What adds a handler, or brings it up to date.
pub fn install(node: &Node, request: &Request) -> Result<Plan, HandlerError> {
    let program = request.program.as_deref().unwrap_or(Path::new(""));
    let wanted = Wanted {
        handler: handler(&request.handler)?,
        program: program_name(program)?,
        systemd_cgroup: request.systemd_cgroup,
    };
    let files = Files::read(node, request)?;
    let first = files.main();
    let edits = match request.engine {
        Engine::Containerd => {
            let drop_in = files.patterns.iter().find_map(containerd::Pattern::drop_in);
            containerd::install(&files.sources, drop_in.as_deref(), wanted)?
        }
        Engine::Crio => vec![crio::install(first, wanted)?],
        Engine::Podman => vec![podman::install(first, wanted)?],
        Engine::Docker => vec![docker::install(first, wanted)?],
    };
    let remark = match request.engine {
        Engine::Containerd => containerd::note(&files.sources),
        _ => None,
    };
    Ok(files.plan(edits, remark, Some(program.to_owned())))
}

/// What removes a handler.
pub fn uninstall(node: &Node, request: &Request) -> Result<Plan, HandlerError> {
    let program = request.program.as_deref().map(program_name).transpose()?;
    let unwanted = Unwanted {
        handler: handler(&request.handler)?,
        program,
    };
    let files = Files::read(node, request)?;
    let first = files.main();
    let removed = match request.engine {
        Engine::Containerd => {
            let (edits, program) = containerd::uninstall(&files.sources, unwanted)?;
            return Ok(files.plan(edits, None, program));
        }
        Engine::Crio => crio::uninstall(first, unwanted)?,
        Engine::Podman => podman::uninstall(first, unwanted)?,
        Engine::Docker => docker::uninstall(first, unwanted)?,
    };
    let (edit, program) = removed.unzip();
    Ok(files.plan(edit.into_iter().collect(), None, program))
}

impl Files {
    fn read(node: &Node, request: &Request) -> Result<Self, HandlerError> {
        let mut files = Self::default();
        let mut pending = VecDeque::from([request.config.clone()]);
        while let Some(path) = pending.pop_front() {
            if files.sources.iter().any(|source| source.path == path) {
                continue;
            }
            let (source, kept) = node.read(&path)?;
            if request.engine == Engine::Containerd {
                pending.extend(files.imports(node, &source)?);
            }
            files.sources.push(source);
            files.kept.extend(kept.map(|kept| (path, kept)));
        }
        Ok(files)
    }

    fn imports(&mut self, node: &Node, source: &Source) -> Result<Vec<PathBuf>, HandlerError> {
        let text = source.text.as_deref().unwrap_or_default();
        let mut found = Vec::new();
        for pattern in containerd::patterns(&source.path, text)? {
            found.extend(pattern.files(|directory| node.names(directory))?);
            self.patterns.push(pattern);
        }
        Ok(found)
    }

    /// The one that the request names, which is read before all others.
    fn main(&self) -> &Source {
        &self.sources[0]
    }

    fn plan(mut self, edits: Vec<Edit>, remark: Option<String>, program: Option<PathBuf>) -> Plan {
        let changes = edits.into_iter().map(|edit| {
            let kept = self.kept.remove(&edit.path);
            Change::new(edit, kept)
        });
        Plan {
            changes: changes.collect(),
            note: remark,
            program,
        }
    }
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
