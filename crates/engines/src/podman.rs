//! podman: `[engine.runtimes]`, and the lists of runtimes that support a feature (`containers.conf(5)`).
//!
//! podman looks up a runtime in `runtime_supports_json` and `runtime_supports_nocgroups` by its name in
//! `engine.runtimes`, or by the last part of the path in `--runtime` (`newConmonOCIRuntime` in libpod). The errors of a
//! runtime that isn't in the first list are read as text. A runtime that isn't in the second list gets no containers
//! with `--cgroups=disabled`.
//!
//! A list in a file replaces podman's default and the lists in earlier files, so a new list repeats their names. podman
//! 4.7 can append to a list instead (`{append=true}`), but older releases don't start with such a list.

use std::path::Path;

use crust_state::DelegateKind;
use toml_edit::{Array, Item, Value};

use crate::config_file::{EngineConfigFile, MARK};
#[cfg(test)]
use crate::engine::Samples;
use crate::engine::{Engine, EngineInfo, FileEdit, HandlerSpec, Runtime};
use crate::error::Result;
use crate::node_root::{DropIns, NodeRoot};
use crate::toml::{self, Toml, wrong_type};

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
    fn info(&self) -> EngineInfo {
        EngineInfo {
            name: "podman",
            title: "podman",
            file: "/etc/containers/containers.conf.d/runcrust.conf",
            service: None,
            has_systemd_cgroup: false,
            merges_entries: false,
        }
    }

    fn read(&self, node: &NodeRoot, first: &Path) -> Result<Vec<EngineConfigFile>> {
        FILES.read(node, first)
    }

    fn runtimes(&self, file: &EngineConfigFile) -> Result<Vec<Runtime>> {
        toml::runtimes(file, [RUNTIMES], |entry| {
            let programs = names(entry).unwrap_or_default();
            let mismatch = match (entry.is_array(), programs.is_empty()) {
                (false, _) => Some("it isn't a list of programs".to_owned()),
                (true, true) => Some("it has no program".to_owned()),
                (true, false) => None,
            };
            (programs, mismatch)
        })
    }

    fn defaults(&self, file: &EngineConfigFile) -> Result<Vec<(String, String)>> {
        toml::defaults(file, [["engine", "runtime"]])
    }

    fn install(&self, files: &[EngineConfigFile], spec: &HandlerSpec<'_>) -> Result<FileEdit> {
        let file = &files[0];
        let mut toml = Toml::parse(&file.path, file.text.as_deref().unwrap_or(MARK))?;
        let mut notes = Vec::new();
        for list in &LISTS {
            notes.extend(list.write(&mut toml, files, spec)?);
        }
        let entry = [&RUNTIMES[..], &[spec.name]].concat();
        let programs = toml.get(&entry).and_then(names).unwrap_or_default();
        if programs.first() != Some(&spec.program) {
            let programs: Array = [spec.program].into_iter().collect();
            toml.set(&entry, programs, file.mark())?;
        }
        Ok(FileEdit {
            notes,
            ..FileEdit::new(&file.path, toml.text())
        })
    }

    fn uninstall(&self, file: &EngineConfigFile, handler: &str) -> Result<Option<String>> {
        let mut toml = Toml::parse_file(file)?;
        toml.remove(&[&RUNTIMES[..], &[handler]].concat())?;
        for list in &LISTS {
            list.remove(&mut toml, handler)?;
        }
        for table in [&RUNTIMES[..], &["engine"]] {
            let is_inline = toml.get(table).is_some_and(Item::is_inline_table);
            if is_inline || file.is_from_install() || toml.is_below(table, MARK) {
                toml.remove_header(table)?;
            }
        }
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
struct FeatureList {
    key: &'static str,
    /// podman's default, which is the same in all releases since 4.3.
    default: &'static [&'static str],
    /// Returns whether a handler belongs into the list.
    is_supported: fn(&HandlerSpec<'_>) -> bool,
}

const NO_CGROUPS: FeatureList = FeatureList {
    key: "runtime_supports_nocgroups",
    default: &["crun", "krun"],
    // podman runs the runtime with `--cgroup-manager disabled`, which runc doesn't know.
    is_supported: |spec| spec.delegate == Some(DelegateKind::Crun),
};

/// The lists that an installation adds to. `runtime_supports_kvm` is missing, because it is for runtimes that start a
/// virtual machine.
const LISTS: [FeatureList; 3] = [
    FeatureList {
        key: "runtime_supports_json",
        default: &["crun", "runc", "kata", "runsc", "youki", "krun"],
        // Both runcrust and its delegates write the JSON log that podman requests.
        is_supported: |_| true,
    },
    NO_CGROUPS,
    // The name that podman actually reads, at least up to 5.8. The manual page has the name of the list above.
    FeatureList {
        key: "runtime_supports_nocgroup",
        ..NO_CGROUPS
    },
];

impl FeatureList {
    const fn keys(&self) -> [&'static str; 2] {
        ["engine", self.key]
    }

    /// Adds the handler to the list in the first file, or removes it if its delegate no longer supports the feature.
    /// Returns notes on files that podman reads later and in which the list lacks the handler.
    fn write(
        &self,
        toml: &mut Toml<'_>,
        files: &[EngineConfigFile],
        spec: &HandlerSpec<'_>,
    ) -> Result<Vec<String>> {
        let (first, is_supported) = (&files[0], (self.is_supported)(spec));
        let mut others: Vec<&EngineConfigFile> = files[1..].iter().collect();
        others.sort_by_key(|file| rank(&file.path));
        let mut names: Vec<String> = self.default.iter().map(|&name| name.to_owned()).collect();
        let mut notes = Vec::new();
        for file in others {
            let (other, key, handler) = (Toml::parse_file(file)?, self.key, spec.name);
            let Some(list) = other.get(&self.keys()) else {
                continue;
            };
            let set = self.names(list, &file.path)?;
            if rank(&file.path) < rank(&first.path) {
                names.retain(|_| appends(list));
                names.extend(set.into_iter().map(str::to_owned));
            } else if is_supported && !appends(list) && !set.contains(&handler) {
                let path = file.path.display();
                notes.push(format!(
                    "{path} sets {key}, too, and podman reads that file later: add {handler:?} to its list"
                ));
            }
        }
        if let Some(list) = toml.get(&self.keys()) {
            let is_listed = self.names(list, &first.path)?.contains(&spec.name);
            match (is_listed, is_supported) {
                (true, false) => self.remove(toml, spec.name)?,
                (false, true) => toml.push(&self.keys(), spec.name)?,
                _ => {}
            }
        } else if is_supported && !names.iter().any(|name| name == spec.name) {
            names.push(spec.name.to_owned());
            let names = names.into_iter().collect::<Array>().to_string();
            let names = names.trim_start_matches('[').trim_end_matches(']');
            let list = format!("[\n  {MARK}  {names}\n]");
            toml.add(&self.keys(), &list, first.mark())?;
        }
        Ok(notes)
    }

    /// Removes the handler from the list. If [`Self::write`] created the list, and it contains no other handler of the
    /// file, the whole list is removed.
    fn remove(&self, toml: &mut Toml<'_>, handler: &str) -> Result<()> {
        let keys = self.keys();
        toml.remove_from(&keys, handler)?;
        let is_handler = |name: &&str| {
            let is_runtime = toml.get(&[&RUNTIMES[..], &[name]].concat()).is_some();
            is_runtime && !self.default.contains(name)
        };
        let left = toml.get(&keys).and_then(names).unwrap_or_default();
        if !toml.begins_with(&keys, MARK) || left.iter().any(is_handler) {
            return Ok(());
        }
        toml.remove(&keys)
    }

    fn names<'a>(&self, list: &'a Item, path: &Path) -> Result<Vec<&'a str>> {
        names(list).ok_or_else(|| wrong_type(path, &self.keys(), "a list of names"))
    }
}

fn names(list: &Item) -> Option<Vec<&str>> {
    Some(list.as_array()?.iter().filter_map(Value::as_str).collect())
}

/// Returns whether a list is of the form `["a", {append=true}]`.
fn appends(list: &Item) -> bool {
    let tables = list.as_array().into_iter().flatten();
    let mut flags = tables.filter_map(|value| value.as_inline_table()?.get("append")?.as_bool());
    flags.any(|flag| flag)
}

/// Returns a sort key that orders files as podman reads them (containers.conf(5)): the package's file, the operator's
/// file, and the drop-ins by name.
fn rank(path: &Path) -> (u8, &Path) {
    let is_drop_in = path.parent() == Some(Path::new(FILES.directory));
    let group = match (is_drop_in, path.starts_with("/usr")) {
        (true, _) => 2,
        (false, false) => 1,
        (false, true) => 0,
    };
    (group, path)
}

#[cfg(test)]
mod tests;
