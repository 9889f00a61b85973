//! podman: `[engine.runtimes]` and the lists of what runtimes support (`containers.conf(5)`).
//!
//! podman looks a runtime up in `runtime_supports_json` and `runtime_supports_nocgroups` by its name in
//! `engine.runtimes`, or by the last part of the path that `--runtime` gave (`newConmonOCIRuntime` in libpod). Without
//! the first list, errors are read as text; without the second, containers with `--cgroups=disabled` are refused. A list
//! in a file replaces podman's default and that of earlier files, so a new one repeats their names. podman 4.7 can append
//! to a list instead (`{append=true}`), but older releases don't start with that.

use std::path::Path;

use crust_state::DelegateKind;
use toml_edit::{Array, Item, Value};

use crate::config_file::{ConfigFile, DropIns};
#[cfg(test)]
use crate::engine::Samples;
use crate::engine::{Edit, Engine, MARK, Runtime, Wanted};
use crate::error::HandlerError;
use crate::node_root::NodeRoot;
use crate::service::Service;
use crate::toml::{self, Toml, indent, push, remove_from, set, wrong_type};

const FILES: DropIns = DropIns {
    files: &[
        "/usr/share/containers/containers.conf",
        "/etc/containers/containers.conf",
    ],
    directory: "/etc/containers/containers.conf.d",
    suffix: ".conf",
};

const RUNTIMES: [&str; 2] = ["engine", "runtimes"];

#[derive(Debug)]
pub(crate) struct Podman;

impl Engine for Podman {
    fn name(&self) -> &'static str {
        "podman"
    }

    fn default_file(&self) -> &'static Path {
        Path::new("/etc/containers/containers.conf.d/runcrust.conf")
    }

    fn service(&self) -> Option<Service<'static>> {
        None
    }

    fn read(&self, node: &NodeRoot, first: &Path) -> Result<Vec<ConfigFile>, HandlerError> {
        FILES.read(node, first)
    }

    fn runtimes(&self, file: &ConfigFile) -> Result<Vec<Runtime>, HandlerError> {
        toml::runtimes(file, &RUNTIMES, |entry| {
            let programs = names(entry).unwrap_or_default();
            let mismatch = match (entry.is_array(), programs.is_empty()) {
                (false, _) => Some("it isn't a list of programs".to_owned()),
                (true, true) => Some("it has no program".to_owned()),
                (true, false) => None,
            };
            (programs, mismatch)
        })
    }

    fn defaults(&self, file: &ConfigFile) -> Result<Vec<(String, String)>, HandlerError> {
        let default = toml::default(file, &["engine", "runtime"])?;
        Ok(default.into_iter().collect())
    }

    fn install(&self, files: &[ConfigFile], wanted: &Wanted<'_>) -> Result<Edit, HandlerError> {
        let file = &files[0];
        let mut toml = Toml::parse(&file.path, file.text.as_deref().unwrap_or(MARK))?;
        let mut notes = Vec::new();
        for list in &LISTS {
            list.write(&mut toml, files, wanted)?;
            notes.extend(list.overrides(files, wanted)?);
        }
        let entry = toml.get(&[&RUNTIMES[..], &[wanted.handler]].concat());
        if entry.and_then(names).and_then(|it| it.first().copied()) != Some(wanted.program) {
            let runtimes = toml.table(&RUNTIMES, file.mark())?;
            let programs: Array = [wanted.program].into_iter().collect();
            set(runtimes, wanted.handler, programs);
        }
        Ok(Edit {
            notes,
            ..Edit::new(&file.path, toml.text())
        })
    }

    fn uninstall(&self, file: &ConfigFile, handler: &str) -> Result<Option<String>, HandlerError> {
        let mut toml = Toml::of(file)?;
        toml.remove(&[&RUNTIMES[..], &[handler]].concat());
        for list in &LISTS {
            list.remove(&mut toml, handler);
        }
        toml.remove_if_added(&RUNTIMES, MARK, file.is_ours());
        toml.remove_if_added(&["engine"], MARK, file.is_ours());
        Ok(file.remaining(toml.text()))
    }

    #[cfg(test)]
    fn samples(&self) -> Samples {
        Samples {
            foreign: &[
                (
                    "[engine.runtimes]\ncrust = [\"/usr/bin/crun\"]\n",
                    "it runs /usr/bin/crun",
                ),
                (
                    "[engine.runtimes]\ncrust = [\"/opt/runcrust\", \"/usr/bin/crun\"]\n",
                    "it runs /opt/runcrust, /usr/bin/crun",
                ),
                ("[engine.runtimes]\ncrust = []\n", "it has no program"),
                (
                    "[engine.runtimes]\ncrust = \"/x\"\n",
                    "it isn't a list of programs",
                ),
            ],
            default: "[engine]\nruntime = \"crust\"\n",
            kept: &[
                "",
                "# Comments alone.\n",
                "[engine]\n# runtime = \"crun\"\n\n[engine.runtimes]\n#crun = [\n#\t\"/usr/bin/crun\",\n\
                 #]\n\n[engine.volume_plugins]\n",
                "[engine]\nruntime = \"runc\"\n\n[network]\ndns = []\n",
                "[engine.runtimes]\n  runc = [\n    \"/usr/bin/runc\", # Debian's\n  ]\n",
                "engine.runtimes.runc = [\"/usr/bin/runc\"]\n",
                "engine = { runtime = \"runc\" }\n",
                "[engine]\nruntime_supports_json = [] # kept\nruntime = \"runc\"\n",
                "[engine]\nruntime_supports_json = [\n  \"a\", # one\n  \"b\",\n  # end\n]\n",
                "[engine]\nruntime_supports_json = [ \"a\", {append=true} ]\n",
                "engine = { runtime_supports_json = [ \"a\", \"b\" ] }\n",
                "engine.runtime_supports_json = [ ]\n",
                "[engine]\nruntime_supports_json = [\n  \"a\",\n  \"b\"\n]\n",
            ],
            outdated: &[
                "[engine.runtimes]\ncrust = [\"/opt/runcrust\"] # old\n\n[network]\ndns = []\n",
            ],
            refused: &[
                ("[engine\n", "hint: "),
                (
                    "[engine]\nruntime_supports_json = \"crun\"\n",
                    "engine.runtime_supports_json isn't a list of names",
                ),
            ],
        }
    }
}

/// A list of runtimes that support a feature.
#[derive(Debug)]
struct List {
    key: &'static str,
    /// podman's default, which is the same in all releases since 4.3.
    default: &'static [&'static str],
    /// Whether a handler belongs into the list.
    is_wanted: fn(&Wanted<'_>) -> bool,
}

const NO_CGROUPS: List = List {
    key: "runtime_supports_nocgroups",
    default: &["crun", "krun"],
    // podman calls the runtime with `--cgroup-manager disabled`, which runc doesn't know.
    is_wanted: |wanted| wanted.delegate == Some(DelegateKind::Crun),
};

/// The lists that an installation adds to. `runtime_supports_kvm` isn't one of them: it is for runtimes that start a
/// virtual machine.
const LISTS: [List; 3] = [
    List {
        key: "runtime_supports_json",
        default: &["crun", "runc", "kata", "runsc", "youki", "krun"],
        // Both runcrust and its delegates write the log that podman asks for.
        is_wanted: |_| true,
    },
    NO_CGROUPS,
    // The name that podman reads, up to 5.8 at least. The one above is the manual page's.
    List {
        key: "runtime_supports_nocgroup",
        ..NO_CGROUPS
    },
];

impl List {
    const fn keys(&self) -> [&'static str; 2] {
        ["engine", self.key]
    }

    /// Adds the handler to the first file's list, or removes it if its delegate can't do that any more.
    fn write(
        &self,
        toml: &mut Toml<'_>,
        files: &[ConfigFile],
        wanted: &Wanted<'_>,
    ) -> Result<(), HandlerError> {
        let is_wanted = (self.is_wanted)(wanted);
        if let Some(list) = toml.get(&self.keys()) {
            let is_there = self.names(list, &files[0].path)?.contains(&wanted.handler);
            if is_there && !is_wanted {
                self.remove(toml, wanted.handler);
            } else if is_wanted
                && !is_there
                && let Some(list) = toml.array_mut(&self.keys())
            {
                push(list, wanted.handler);
            }
            return Ok(());
        }
        let mut names = self.earlier_names(files)?;
        if !is_wanted || names.iter().any(|it| it == wanted.handler) {
            return Ok(());
        }
        names.push(wanted.handler.to_owned());
        let engine = toml.table(&["engine"], files[0].mark())?;
        let mut list: Array = names.into_iter().collect();
        list.fmt();
        let indent = engine.as_table_like().map(indent).unwrap_or_default();
        if let Some(first) = list.get_mut(0) {
            // Inside of the list a comment is allowed in every form of a table.
            first
                .decor_mut()
                .set_prefix(format!("\n{indent}  {MARK}{indent}  "));
        }
        list.set_trailing(format!("\n{indent}"));
        set(engine, self.key, list);
        Ok(())
    }

    /// Removes the handler from the list, and a list that [`Self::write`] made with the last handler of its file.
    fn remove(&self, toml: &mut Toml<'_>, handler: &str) {
        let Some(list) = toml.array_mut(&self.keys()) else {
            return;
        };
        let first = list
            .get(0)
            .and_then(|first| first.decor().prefix()?.as_str());
        let is_ours = first.is_some_and(|prefix| prefix.contains(MARK.trim_end()));
        remove_from(list, handler);
        let mut left: Vec<String> = list
            .iter()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect();
        left.retain(|name| toml.get(&[&RUNTIMES[..], &[name]].concat()).is_some());
        left.retain(|name| !self.default.contains(&name.as_str()));
        if is_ours && left.is_empty() {
            toml.remove(&self.keys());
        }
    }

    /// Returns notes on the files that podman reads after the first one and that set the list without the handler.
    fn overrides(
        &self,
        files: &[ConfigFile],
        wanted: &Wanted<'_>,
    ) -> Result<Vec<String>, HandlerError> {
        let mut notes = Vec::new();
        for file in files
            .iter()
            .filter(|it| rank(&it.path) > rank(&files[0].path))
        {
            let toml = Toml::of(file)?;
            if let Some(list) = toml.get(&self.keys())
                && (self.is_wanted)(wanted)
                && !appends(list)
                && !self.names(list, &file.path)?.contains(&wanted.handler)
            {
                notes.push(format!(
                    "{} sets {} too, and podman reads it later: add {:?} to that list",
                    file.path.display(),
                    self.key,
                    wanted.handler
                ));
            }
        }
        Ok(notes)
    }

    /// Returns the names that the list has in the files that podman reads before the first one.
    fn earlier_names(&self, files: &[ConfigFile]) -> Result<Vec<String>, HandlerError> {
        let mut earlier: Vec<&ConfigFile> = files.iter().collect();
        earlier.retain(|file| rank(&file.path) < rank(&files[0].path));
        earlier.sort_by_key(|file| rank(&file.path));
        let mut found: Vec<String> = self.default.iter().map(|&it| it.to_owned()).collect();
        for file in earlier {
            let toml = Toml::of(file)?;
            let Some(list) = toml.get(&self.keys()) else {
                continue;
            };
            if !appends(list) {
                found.clear();
            }
            found.extend(self.names(list, &file.path)?.into_iter().map(str::to_owned));
        }
        Ok(found)
    }

    fn names<'a>(&self, list: &'a Item, path: &Path) -> Result<Vec<&'a str>, HandlerError> {
        names(list).ok_or_else(|| wrong_type(path, &self.keys(), "a list of names"))
    }
}

fn names(list: &Item) -> Option<Vec<&str>> {
    Some(list.as_array()?.iter().filter_map(Value::as_str).collect())
}

/// Returns whether a list is of the form `["a", {append=true}]`.
fn appends(list: &Item) -> bool {
    let tables = list.as_array().into_iter().flatten();
    let mut words = tables.filter_map(|value| value.as_inline_table()?.get("append")?.as_bool());
    words.any(|word| word)
}

/// Returns a file's place in the order in which podman reads its files (containers.conf(5)): the package's, the
/// operator's, and the drop-ins by their names.
fn rank(path: &Path) -> (u8, &Path) {
    let is_drop_in = path.parent() == Some(Path::new(FILES.directory));
    let place = match (is_drop_in, path.starts_with("/usr")) {
        (true, _) => 2,
        (false, false) => 1,
        (false, true) => 0,
    };
    (place, path)
}

#[cfg(test)]
mod tests;
