//! containerd: `plugins."…cri…".containerd.runtimes.<handler>`.
//!
//! Its configuration is a file and those that its `imports` name, one after another in the order in
//! which they are found. containerd 1.x takes a plugin's section whole from the last file that has
//! one, 2.x merges them (`cmd/containerd/server/config`, `mergeConfig`). So the handler goes into the
//! last file that has the section, among those that both find: nothing of it is lost, and both read
//! the handler.

mod cgroup;
mod imports;
mod notes;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

pub(crate) use imports::{Pattern, patterns};
pub(crate) use notes::{missing, notes};
use toml_edit::Item;

use crate::edit::{Edit, MARK, Source};
use crate::entry::{Handler, Unwanted, Wanted, refuse_default};
use crate::error::HandlerError;
use crate::tables::{Indent, Toml, give_header, kind, set};

const RUNTIME_TYPE: &str = "io.containerd.runc.v2";

/// The CRI plugin's names, from version 1 on.
const PLUGINS: [&str; 3] = [
    "cri",
    "io.containerd.grpc.v1.cri",
    "io.containerd.cri.v1.runtime",
];

/// What a new file begins with: containerd 1.x and 2.x both read version 2.
const NEW: &str = "version = 2\n";

/// Beside a handler of ours containerd 1.x has no runtimes but those that are written down.
const DEFAULT_RUNTIME: &str =
    "# Added by runcrust install: containerd 1.x forgets its own default where another is set.\n";

/// The version of a configuration, which is its first file's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Version(i64);

impl Version {
    fn of(main: &Toml<'_>, path: &Path) -> Result<Self, HandlerError> {
        match main.get(&["version"]).and_then(Item::as_integer) {
            // 0 stands for none.
            None if main.get(&["version"]).is_some() => Err(kind(path, &["version"], "a number")),
            None | Some(0 | 1) if main.is_empty() => Ok(Self(2)),
            None | Some(0) => Ok(Self(1)),
            Some(version @ 1..=4) => Ok(Self(version)),
            Some(version) => {
                let path = path.to_owned();
                Err(HandlerError::UnknownVersion { path, version })
            }
        }
    }

    /// Of an imported file, which may be older.
    fn or_own(self, file: &Toml<'_>) -> Self {
        let own = file.get(&["version"]).and_then(Item::as_integer);
        own.filter(|own| (2..=4).contains(own)).map_or(self, Self)
    }

    const fn plugin(self) -> &'static str {
        match self.0 {
            1 => PLUGINS[0],
            2 => PLUGINS[1],
            _ => PLUGINS[2],
        }
    }

    const fn runtimes(self) -> [&'static str; 4] {
        ["plugins", self.plugin(), "containerd", "runtimes"]
    }

    const fn default_name(self) -> [&'static str; 4] {
        [
            "plugins",
            self.plugin(),
            "containerd",
            "default_runtime_name",
        ]
    }
}

/// One file of a configuration.
struct File<'a> {
    path: &'a Path,
    toml: Toml<'a>,
    version: Version,
    /// Whether every containerd reads it.
    is_sure: bool,
}

impl File<'_> {
    fn default_name(&self) -> Option<&str> {
        let name = self.toml.get(&self.version.default_name());
        name.and_then(Item::as_str)
    }

    fn has_section(&self) -> bool {
        let section = self.toml.get(&["plugins", self.version.plugin()]);
        section.is_some()
    }
}

fn read<'a>(files: &'a [Source], new: &'a str) -> Result<Vec<File<'a>>, HandlerError> {
    let mut all: Vec<File<'a>> = Vec::new();
    for source in files {
        let text = source.text.as_deref().unwrap_or(new);
        let toml = Toml::parse(&source.path, text)?;
        let version = match all.first() {
            None => Version::of(&toml, &source.path)?,
            Some(main) => main.version.or_own(&toml),
        };
        let path = &source.path;
        all.push(File {
            path,
            toml,
            version,
            is_sure: source.is_sure,
        });
    }
    Ok(all)
}

/// The files' new texts; `files` begins with the one that containerd is given. `drop_in` is where a
/// file of ours would be imported from.
pub(crate) fn install(
    files: &[Source],
    drop_in: Option<&Path>,
    wanted: Wanted<'_>,
) -> Result<Vec<Edit>, HandlerError> {
    let new = format!("{MARK}{NEW}");
    let mut read = read(files, &new)?;
    if let Some(main) = read.first().filter(|main| main.version == Version(1)) {
        return Err(HandlerError::Version1(main.path.to_owned()));
    }
    let inherited = cgroup::inherited(&read);
    for file in &read {
        refuse_foreign(file, wanted.handler, |program| wanted.is_ours(program))?;
    }
    let version = read.first().map_or(Version(2), |main| main.version);
    // Plugins of an older file than the main one are read by the newest 2.x alone.
    let at = read
        .iter()
        .rposition(|file| file.is_sure && file.version == version && file.has_section());
    if let (None, Some(path)) = (at, drop_in) {
        let text = format!("{MARK}version = {}\n", version.0);
        let toml = Toml::parse(path, &text)?;
        let mut file = File {
            path,
            toml,
            version,
            is_sure: true,
        };
        add(&mut file, wanted, inherited)?;
        return Ok(vec![Edit::new(path, None, file.toml.text())]);
    }
    let at = at.unwrap_or(0);
    let (Some(file), Some(source)) = (read.get_mut(at), files.get(at)) else {
        return Ok(Vec::new());
    };
    let is_blank = source.text.is_some() && file.toml.is_empty();
    add(file, wanted, inherited)?;
    let mut text = file.toml.text();
    if is_blank {
        // A file without a version is of version 1.
        text = format!("{NEW}{text}");
    }
    Ok(vec![Edit::new(file.path, source.text.as_deref(), text)])
}

/// The files' new texts, and the program that the handler ran; none where there was no handler.
pub(crate) fn uninstall(
    files: &[Source],
    unwanted: Unwanted<'_>,
) -> Result<(Vec<Edit>, Option<PathBuf>), HandlerError> {
    let mut edits = Vec::new();
    let mut program = None;
    let mut read = read(files, "")?;
    let has_handler = |file: &File<'_>| {
        let entry = [&file.version.runtimes()[..], &[unwanted.handler]].concat();
        file.toml.get(&entry).is_some()
    };
    if read.iter().any(has_handler) {
        for file in &read {
            let key = file.version.default_name();
            refuse_default(file.path, &key, file.default_name(), unwanted.handler)?;
        }
    }
    for (file, source) in read.iter_mut().zip(files) {
        let Some(text) = source.text.as_deref() else {
            continue;
        };
        refuse_foreign(file, unwanted.handler, |program| unwanted.is_ours(program))?;
        let runtimes = file.version.runtimes();
        let entry = [&runtimes[..], &[unwanted.handler]].concat();
        let Some(found) = file.toml.get(&entry) else {
            continue;
        };
        program = binary(found).map(PathBuf::from).or(program);
        file.toml.remove(&entry);
        remove_added_default(file);
        let left = file.toml.text();
        let only_ours = left == format!("{MARK}version = {}\n", file.version.0);
        let after = (!only_ours).then_some(left);
        edits.push(Edit::maybe(file.path, Some(text), after));
    }
    Ok((edits, program))
}

/// The handlers that run a program of their own, by whatever name a file calls the plugin.
pub(crate) fn entries(files: &[Source]) -> Result<Vec<Handler>, HandlerError> {
    let mut found = Vec::new();
    for source in files {
        let toml = Toml::parse(&source.path, source.text.as_deref().unwrap_or_default())?;
        for plugin in PLUGINS {
            let runtimes = toml.get(&["plugins", plugin, "containerd", "runtimes"]);
            let runtimes = runtimes.and_then(Item::as_table_like);
            let entries = runtimes.into_iter().flat_map(|it| it.iter());
            found.extend(entries.filter_map(|(name, entry)| {
                let program = binary(entry)?;
                Some(Handler::new(&source.path, name, program))
            }));
        }
    }
    Ok(found)
}

fn refuse_foreign(
    file: &File<'_>,
    handler: &str,
    is_ours: impl Fn(&str) -> bool,
) -> Result<(), HandlerError> {
    let runtimes = file.version.runtimes();
    let keys = [&runtimes[..], &[handler]].concat();
    let Some(entry) = file.toml.get(&keys) else {
        return Ok(());
    };
    let Some(table) = entry.as_table_like() else {
        return Err(kind(file.path, &keys, "a table"));
    };
    let runtime_type = table.get("runtime_type").and_then(Item::as_str);
    let what = match (runtime_type, binary(entry)) {
        (Some(RUNTIME_TYPE), Some(program)) if is_ours(program) => return Ok(()),
        (Some(RUNTIME_TYPE), Some(program)) => format!("it runs {program}"),
        (Some(RUNTIME_TYPE), None) => {
            "it runs containerd's default, as it has no BinaryName".into()
        }
        (Some(other), _) => format!("its runtime_type is {other:?}"),
        (None, _) => "it has no runtime_type".into(),
    };
    Err(HandlerError::Foreign {
        path: file.path.to_owned(),
        handler: handler.to_owned(),
        what,
    })
}

fn options(entry: &Item) -> Option<&Item> {
    entry.as_table_like()?.get("options")
}

fn binary(entry: &Item) -> Option<&str> {
    let options = options(entry)?.as_table_like()?;
    options.get("BinaryName").and_then(Item::as_str)
}

fn add(
    file: &mut File<'_>,
    wanted: Wanted<'_>,
    inherited: Option<bool>,
) -> Result<(), HandlerError> {
    let runtimes = file.version.runtimes();
    let indent = siblings_indent(file);
    add_default(file)?;
    let keys = [&runtimes[..], &[wanted.handler]].concat();
    let is_new = file.toml.get(&keys).is_none();
    let entry = file.toml.table(&keys)?;
    if is_new {
        give_header(entry, &format!("\n{}", indent.header));
        set(entry, "runtime_type", RUNTIME_TYPE, &indent.keys);
    }
    let keys = [&keys[..], &["options"]].concat();
    let had_options = file.toml.get(&keys).is_some();
    let options = file.toml.table(&keys)?;
    if !had_options {
        give_header(options, &format!("\n{}", indent.keys));
    }
    set_if_other(options, "BinaryName", wanted.program, &indent.inner);
    let there = options
        .as_table_like()
        .and_then(|table| table.get("SystemdCgroup"));
    let there = there.and_then(Item::as_bool);
    let systemd_cgroup = wanted.systemd_cgroup.or(there).or(inherited);
    if let Some(wanted) = systemd_cgroup.filter(|wanted| there != Some(*wanted)) {
        set(options, "SystemdCgroup", wanted, &indent.inner);
    }
    Ok(())
}

fn set_if_other(item: &mut Item, key: &str, value: &str, indent: &str) {
    let table = item.as_table_like();
    let there = table
        .and_then(|table| table.get(key))
        .and_then(Item::as_str);
    if there != Some(value) {
        set(item, key, value, indent);
    }
}

fn siblings_indent(file: &File<'_>) -> Indent {
    let Some(runtimes) = file.toml.get(&file.version.runtimes()) else {
        return Indent::default();
    };
    let Some(runtimes) = runtimes.as_table_like() else {
        return Indent::default();
    };
    let last = || runtimes.iter().last().map(|(_, item)| item);
    let sibling = runtimes.get("runc").or_else(last);
    sibling.map_or_else(Indent::default, Indent::of)
}

/// Where no runtime is written down, there is containerd's own, `runc`; in 1.x only as long as none
/// is: `default_runtime_name` would lead nowhere, and the CRI plugin doesn't start.
fn add_default(file: &mut File<'_>) -> Result<(), HandlerError> {
    let runtimes = file.version.runtimes();
    let there = file.toml.get(&runtimes).and_then(Item::as_table_like);
    if file.version != Version(2) || there.is_some_and(|there| !there.is_empty()) {
        return Ok(());
    }
    let runc = file.toml.table(&[&runtimes[..], &["runc"]].concat())?;
    give_header(runc, &format!("\n{DEFAULT_RUNTIME}"));
    set(runc, "runtime_type", RUNTIME_TYPE, "");
    Ok(())
}

/// It goes with the last of the others: as long as there is one, `default_runtime_name` needs it.
fn remove_added_default(file: &mut File<'_>) {
    let runtimes = file.toml.get(&file.version.runtimes());
    if runtimes
        .and_then(Item::as_table_like)
        .is_some_and(|all| all.len() > 1)
    {
        return;
    }
    let runc = [&file.version.runtimes()[..], &["runc"]].concat();
    let Some(Item::Table(table)) = file.toml.get(&runc) else {
        return;
    };
    let prefix = table.decor().prefix().and_then(|prefix| prefix.as_str());
    let is_added = prefix.is_some_and(|prefix| prefix.trim().ends_with(DEFAULT_RUNTIME.trim()));
    if is_added && table.len() == 1 {
        file.toml.remove(&runc);
    }
}
