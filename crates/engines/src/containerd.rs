//! containerd: `plugins."…cri…".containerd.runtimes.<handler>`.
//!
//! A configuration consists of a file, and of the files that its `imports` lead to, in that order. containerd 1.x uses
//! the section of a plugin in the last file that has one, and 2.x merges the sections (`mergeConfig` in
//! `cmd/containerd/server/config`). The handler is therefore added to the last file that has the section. Both releases
//! then read it, and nothing else in the section is lost.

mod imports;

use std::path::Path;

use toml_edit::{Item, Value};

use crate::config_file::{EngineConfigFile, MARK};
#[cfg(test)]
use crate::engine::Samples;
use crate::engine::{Engine, EngineInfo, FileEdit, HandlerSpec, Runtime};
use crate::error::{HandlerError, Result};
use crate::node_root::NodeRoot;
use crate::service::Service;
use crate::toml::{self, Toml, split_bom, wrong_type};

const RUNTIME_TYPE: &str = "io.containerd.runc.v2";

/// The names of the CRI plugin: in version 1, in version 2, and since version 3.
const PLUGINS: [&str; 3] = [
    "cri",
    "io.containerd.grpc.v1.cri",
    "io.containerd.cri.v1.runtime",
];

/// The comment above `runc`, which is added together with the first handler. containerd 1.x has its built-in runtime
/// only as long as no runtime is set, and its CRI plugin doesn't start if `default_runtime_name` isn't a runtime.
const DEFAULT_RUNTIME: &str =
    "# Added by runcrust install: containerd 1.x forgets its own default where another is set.\n";

#[derive(Debug)]
pub(crate) struct Containerd;

impl Engine for Containerd {
    fn info(&self) -> EngineInfo {
        EngineInfo {
            name: "containerd",
            title: "containerd",
            file: "/etc/containerd/config.toml",
            service: Some(Service {
                unit: "containerd.service",
                reloads: false,
            }),
            has_systemd_cgroup: true,
            merges_entries: true,
        }
    }

    fn read(&self, node: &NodeRoot, first: &Path) -> Result<Vec<EngineConfigFile>> {
        imports::read(node, first)
    }

    /// Lists the runtimes under all names of the plugin, whatever the version of the file is.
    fn runtimes(&self, file: &EngineConfigFile) -> Result<Vec<Runtime>> {
        toml::runtimes(file, PLUGINS.map(runtimes_path), |entry| {
            let runtime_type = entry.get("runtime_type").and_then(Item::as_str);
            let options = entry.get("options");
            let program = options.and_then(|options| options.get("BinaryName")?.as_str());
            let mismatch = match (runtime_type, program) {
                _ if !entry.is_table_like() => Some("it isn't a table".to_owned()),
                (None, _) => Some("it has no runtime_type".to_owned()),
                (Some(RUNTIME_TYPE), Some(_)) => None,
                (Some(RUNTIME_TYPE), None) => {
                    Some("it runs containerd's default, as it has no BinaryName".to_owned())
                }
                (Some(other), _) => Some(format!("its runtime_type is {other:?}")),
            };
            (program.into_iter().collect(), mismatch)
        })
    }

    fn defaults(&self, file: &EngineConfigFile) -> Result<Vec<(String, String)>> {
        let key = |plugin| ["plugins", plugin, "containerd", "default_runtime_name"];
        toml::defaults(file, PLUGINS.map(key))
    }

    fn install(&self, files: &[EngineConfigFile], spec: &HandlerSpec<'_>) -> Result<FileEdit> {
        let version = check_version(&files[0])?;
        let plugin = plugin_name(version);
        let mut target = None;
        for file in files.iter().filter(|file| file.is_always_read) {
            let toml = Toml::parse_file(file)?;
            // Only the newest 2.x releases read plugins from a file with an older version than the main file.
            let file_version = toml.get(&["version"]).and_then(Item::as_integer);
            let is_same = file_version.is_none_or(|file_version| {
                file_version == version || !(2..=4).contains(&file_version)
            });
            if is_same && toml.get(&["plugins", plugin]).is_some() {
                target = Some(file);
            }
        }
        let drop_in = imports::drop_in(files)?.map(|path| EngineConfigFile::new(path, None));
        let file = match (target, &drop_in) {
            (Some(file), _) => file,
            (None, None) => &files[0],
            (None, Some(new)) => files
                .iter()
                .find(|file| file.path == new.path)
                .unwrap_or(new),
        };
        let text = text_with_version(file, version)?;
        let inherited = inherited_cgroup(files, version)?;
        let mut toml = Toml::parse(&file.path, &text)?;
        add(&mut toml, plugin, spec, inherited)?;
        let notes = notes(files, spec, inherited)?;
        Ok(FileEdit {
            notes,
            ..FileEdit::new(&file.path, toml.text())
        })
    }

    fn uninstall(&self, file: &EngineConfigFile, handler: &str) -> Result<Option<String>> {
        let mut toml = Toml::parse_file(file)?;
        for plugin in PLUGINS {
            let runtimes = runtimes_path(plugin);
            let before = toml.members(&runtimes).count();
            toml.remove(&[&runtimes[..], &[handler]].concat())?;
            // A `runc` that `install` added is removed with the last of the other runtimes, unless it was changed.
            let runc = [&runtimes[..], &["runc"]].concat();
            let is_alone = before > 1 && toml.members(&runtimes).count() == 1;
            let is_unchanged =
                toml.is_below(&runc, DEFAULT_RUNTIME) && toml.members(&runc).count() == 1;
            if is_alone && is_unchanged {
                toml.remove(&runc)?;
            }
        }
        let left = toml.text();
        let versions = (2..=4).map(|version| format!("{MARK}version = {version}\n"));
        Ok((!versions.into_iter().any(|new| new == left)).then_some(left))
    }

    fn removal_notes(&self, files: &[EngineConfigFile], _left: &[Option<String>]) -> Vec<String> {
        missing_imports(files)
    }

    #[cfg(test)]
    fn samples(&self) -> Samples {
        tests::SAMPLES
    }
}

/// Returns the name of the CRI plugin in a file of this version, which must not be 1.
fn plugin_name(version: i64) -> &'static str {
    PLUGINS[if version == 2 { 1 } else { 2 }]
}

fn runtimes_path(plugin: &'static str) -> [&'static str; 4] {
    ["plugins", plugin, "containerd", "runtimes"]
}

/// Returns the version of a configuration, which is that of its first file. For a file that sets nothing it is 2, which
/// both containerd 1.x and 2.x read.
fn check_version(main: &EngineConfigFile) -> Result<i64> {
    let toml = Toml::parse_file(main)?;
    let version = toml.get(&["version"]);
    match version.map(Item::as_integer) {
        Some(None) => Err(wrong_type(&main.path, &["version"], "a number")),
        None if toml.is_empty() => Ok(2),
        None | Some(Some(0 | 1)) => Err(HandlerError::Version1(main.path.clone())),
        Some(Some(version @ 2..=4)) => Ok(version),
        Some(Some(other)) => Err(HandlerError::UnknownVersion(main.path.clone(), other)),
    }
}

/// Returns the text of a file. Adds a version to a file that sets nothing, because without one it would have version 1.
fn text_with_version(file: &EngineConfigFile, version: i64) -> Result<String> {
    let text = file.text.as_deref().unwrap_or(MARK);
    if !Toml::parse(&file.path, text)?.is_empty() {
        return Ok(text.to_owned());
    }
    let (bom, rest) = split_bom(text);
    Ok(match file.text {
        Some(_) => format!("{bom}version = {version}\n{rest}"),
        None => format!("{text}version = {version}\n"),
    })
}

fn add(
    toml: &mut Toml<'_>,
    plugin: &'static str,
    spec: &HandlerSpec<'_>,
    inherited: Option<bool>,
) -> Result<()> {
    let runtimes = runtimes_path(plugin);
    if plugin == PLUGINS[1] && toml.members(&runtimes).next().is_none() {
        let runc = [&runtimes[..], &["runc", "runtime_type"]].concat();
        toml.set(&runc, RUNTIME_TYPE, DEFAULT_RUNTIME)?;
    }
    let key = |keys: &[&'static str]| [&runtimes[..], &[spec.name], keys].concat();
    toml.set(&key(&["runtime_type"]), RUNTIME_TYPE, "")?;
    toml.set(&key(&["options", "BinaryName"]), spec.program, "")?;
    let cgroup = key(&["options", "SystemdCgroup"]);
    let existing = toml.get(&cgroup).and_then(Item::as_bool);
    if let Some(value) = spec.systemd_cgroup.or(existing).or(inherited) {
        toml.set(&cgroup, value, "")?;
    }
    Ok(())
}

/// Returns `SystemdCgroup` of the node's default runtime, or else of `runc`, or else of any runtime, from the last file
/// that sets it. kubelet uses the same cgroup driver as these runtimes. In each file only the section for the file's
/// own version is used. A file without a version has the version `version`.
fn inherited_cgroup(files: &[EngineConfigFile], version: i64) -> Result<Option<bool>> {
    let parsed = files
        .iter()
        .map(Toml::parse_file)
        .collect::<Result<Vec<_>, _>>()?;
    let sections = || {
        parsed.iter().rev().filter_map(|toml| {
            let file_version = toml.get(&["version"]).and_then(Item::as_integer);
            let plugin = plugin_name(file_version.unwrap_or(version));
            toml.get(&["plugins", plugin, "containerd"])
        })
    };
    let default = sections().find_map(|section| section.get("default_runtime_name")?.as_str());
    let default = default.unwrap_or("runc");
    Ok(sections().find_map(|section| {
        // In containerd 1.x, `default_runtime` takes precedence over `default_runtime_name`.
        let table = section.get("default_runtime").filter(|table| {
            let runtime_type = table.get("runtime_type").and_then(Item::as_str);
            runtime_type.is_some_and(|runtime_type| !runtime_type.is_empty())
        });
        let named = |name| flag(section.get("runtimes")?.get(name)?);
        let any = || {
            let mut runtimes = section.get("runtimes")?.as_table_like()?.iter();
            runtimes.find_map(|(_, runtime)| flag(runtime))
        };
        let table = table.and_then(flag);
        table
            .or_else(|| named(default))
            .or_else(|| named("runc"))
            .or_else(any)
    }))
}

fn flag(runtime: &Item) -> Option<bool> {
    runtime.get("options")?.get("SystemdCgroup")?.as_bool()
}

/// Returns notes for the operator about the installation of a handler.
fn notes(
    files: &[EngineConfigFile],
    spec: &HandlerSpec<'_>,
    inherited: Option<bool>,
) -> Result<Vec<String>> {
    let mut notes = missing_imports(files);
    let main = files[0].path.display();
    for file in files {
        let (toml, path) = (Toml::parse_file(file)?, file.path.display());
        let disabled = toml.get(&["disabled_plugins"]).and_then(Item::as_array);
        let mut disabled = disabled.into_iter().flatten().filter_map(Value::as_str);
        if let Some(plugin) = disabled.find(|plugin| PLUGINS.contains(plugin)) {
            notes.push(format!(
                "{path} disables plugin {plugin}: Kubernetes can't use the handlers in {main}"
            ));
        }
        if !file.is_always_read
            && PLUGINS
                .iter()
                .any(|plugin| toml.get(&["plugins", plugin]).is_some())
        {
            notes.push(format!(
                "{path} is imported by a relative pattern, which containerd 1.x resolves in the directory that it was \
                 started in: the handler isn't added to that file; hint: make the pattern absolute"
            ));
        }
    }
    if spec.systemd_cgroup.or(inherited).is_none() {
        notes.push(format!(
            "no runtime sets SystemdCgroup, so {} gets containerd's default, false; hint: \
             use --systemd-cgroup true if kubelet's cgroup driver is systemd",
            spec.name
        ));
    }
    Ok(notes)
}

/// Returns notes on files that are imported but don't exist. containerd doesn't start then.
fn missing_imports(files: &[EngineConfigFile]) -> Vec<String> {
    let missing = files.iter().skip(1).filter(|file| file.text.is_none());
    let notes = missing.map(|file| {
        format!(
            "{} is imported but doesn't exist, so containerd doesn't start; hint: create it, or remove it \
             from `imports`",
            file.path.display()
        )
    });
    notes.collect()
}

#[cfg(test)]
mod tests;
