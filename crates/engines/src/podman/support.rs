//! podman's lists of what runtimes support: `engine.runtime_supports_json` and
//! `engine.runtime_supports_nocgroups`.
//!
//! podman looks a runtime up in them by its name in `engine.runtimes`, or by the last part of the path
//! that `--runtime` gave (`newConmonOCIRuntime` in libpod). Without the first, errors are read as text;
//! without the second, `--cgroups=disabled` and `--cgroups=no-conmon` containers are refused. A list that
//! a file sets replaces podman's default and that of the files before it, so a new one repeats them.
//! podman 4.7 can append to a list instead (`{append=true}`), but older ones fail to start at that.

use std::path::Path;

use toml_edit::{Array, Item, RawString, Value};

use super::RUNTIMES;
use crate::edit::{MARK, Source};
use crate::entry::Wanted;
use crate::error::HandlerError;
use crate::tables::{Indent, Toml, give_header, kind, set};

/// A list of runtimes.
#[derive(Debug)]
pub(crate) struct List {
    pub(crate) key: &'static str,
    /// podman's own, of every version since 4.3.
    pub(crate) default: &'static [&'static str],
    /// Whether a handler is to be in it.
    is_wanted: fn(&Wanted<'_>) -> bool,
}

const NO_CGROUPS: List = List {
    key: "runtime_supports_nocgroups",
    default: &["crun", "krun"],
    // podman calls the runtime with `--cgroup-manager disabled`, which runc doesn't know.
    is_wanted: |wanted| wanted.is_crun,
};

/// The lists of podman that an installation adds to. `runtime_supports_kvm` isn't among them: it is for
/// runtimes that start a virtual machine.
pub(crate) const LISTS: [List; 3] = [
    List {
        key: "runtime_supports_json",
        default: &["crun", "runc", "kata", "runsc", "youki", "krun"],
        // runcrust writes the log that podman asks for, and so do both delegates.
        is_wanted: |_| true,
    },
    NO_CGROUPS,
    // The name that podman reads, up to 5.8 at least: the one above is the manual page's.
    List {
        key: "runtime_supports_nocgroup",
        ..NO_CGROUPS
    },
];

const FORM: &str = "a list of names";

impl List {
    const fn keys(&self) -> [&'static str; 2] {
        ["engine", self.key]
    }

    /// Adds the handler to the list in `source`, or removes it where its delegate can't do that.
    pub(super) fn write(
        &self,
        toml: &mut Toml<'_>,
        source: &Source,
        others: &[Source],
        wanted: Wanted<'_>,
    ) -> Result<(), HandlerError> {
        let is_wanted = (self.is_wanted)(&wanted);
        match toml.get(&self.keys()) {
            None => {
                let mut names = self.before(source, others)?;
                if is_wanted && !names.iter().any(|it| it == wanted.handler) {
                    names.push(wanted.handler.to_owned());
                    self.make(toml, source, names)?;
                }
            }
            Some(list) => {
                let names = self.names(list, &source.path)?;
                match (is_wanted, names.contains(&wanted.handler)) {
                    (true, false) => {
                        toml.with_array(&self.keys(), |list| push(list, wanted.handler));
                    }
                    (false, true) => self.take_back(toml, wanted.handler),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Removes the handler from the list, and a list that [`Self::make`] made with its last handler.
    pub(super) fn take_back(&self, toml: &mut Toml<'_>, handler: &str) {
        toml.with_array(&self.keys(), |list| remove(list, handler));
        if self.is_done_with(toml) {
            toml.remove(&self.keys());
        }
    }

    /// Returns whether [`Self::make`] made the list and no handler of this file is left in it.
    fn is_done_with(&self, toml: &Toml<'_>) -> bool {
        let list = toml.get(&self.keys()).and_then(Item::as_array);
        let Some(first) = list.and_then(|list| list.get(0)) else {
            return false;
        };
        let names = list.into_iter().flatten().filter_map(Value::as_str);
        let mut added = names.filter(|name| !self.default.contains(name));
        let has_handler = added.any(|name| toml.get(&[&RUNTIMES[..], &[name]].concat()).is_some());
        is_marked(first) && !has_handler
    }

    /// Returns the files that podman reads after the first and that set the list without the handler:
    /// theirs counts.
    fn overrides<'a>(
        &self,
        files: &'a [Source],
        wanted: &Wanted<'_>,
    ) -> Result<Vec<&'a Path>, HandlerError> {
        let Some((source, others)) = files.split_first().filter(|_| (self.is_wanted)(wanted))
        else {
            return Ok(Vec::new());
        };
        let mut found = Vec::new();
        for file in others
            .iter()
            .filter(|it| rank(&it.path) > rank(&source.path))
        {
            let toml = Toml::parse(&file.path, file.text.as_deref().unwrap_or_default())?;
            if let Some(list) = toml.get(&self.keys())
                && !appends(list)
                && !self.names(list, &file.path)?.contains(&wanted.handler)
            {
                found.push(file.path.as_path());
            }
        }
        Ok(found)
    }

    fn make(
        &self,
        toml: &mut Toml<'_>,
        source: &Source,
        names: Vec<String>,
    ) -> Result<(), HandlerError> {
        let engine = toml.table(&["engine"])?;
        if matches!(engine, Item::Table(table) if table.is_implicit()) {
            let prefix = match source.text.as_deref() {
                None => "\n".to_owned(),
                // A file that begins with the mark is all ours: this one's header may come first.
                Some(text) if text.starts_with(MARK) => MARK.to_owned(),
                Some(_) => format!("\n{MARK}"),
            };
            give_header(engine, &prefix);
        }
        let mut list: Array = names.into_iter().collect();
        list.fmt();
        let indent = Indent::of(engine).keys;
        if let Some(first) = list.get_mut(0) {
            // Inside of the list, where a comment can stand in every form of a table.
            first
                .decor_mut()
                .set_prefix(format!("\n{indent}  {MARK}{indent}  "));
        }
        list.set_trailing(format!("\n{indent}"));
        set(engine, self.key, list, &indent);
        Ok(())
    }

    /// Returns the names that the list has by the files that podman reads before `source`.
    fn before(&self, source: &Source, others: &[Source]) -> Result<Vec<String>, HandlerError> {
        let mut earlier: Vec<&Source> = others.iter().collect();
        earlier.retain(|other| rank(&other.path) < rank(&source.path));
        earlier.sort_by_key(|other| rank(&other.path));
        let mut names: Vec<String> = self.default.iter().map(|&it| it.to_owned()).collect();
        for file in earlier {
            let toml = Toml::parse(&file.path, file.text.as_deref().unwrap_or_default())?;
            let Some(list) = toml.get(&self.keys()) else {
                continue;
            };
            let said = self.names(list, &file.path)?;
            if !appends(list) {
                names.clear();
            }
            names.extend(said.into_iter().map(str::to_owned));
        }
        Ok(names)
    }

    fn names<'a>(&self, list: &'a Item, path: &Path) -> Result<Vec<&'a str>, HandlerError> {
        let wrong = || kind(path, &self.keys(), FORM);
        let list = list.as_array().ok_or_else(wrong)?;
        Ok(list.iter().filter_map(Value::as_str).collect())
    }
}

/// Returns what an operator has to do by hand.
pub(crate) fn notes(files: &[Source], wanted: Wanted<'_>) -> Result<Vec<String>, HandlerError> {
    let mut notes = Vec::new();
    for list in &LISTS {
        for path in list.overrides(files, &wanted)? {
            notes.push(format!(
                "{} sets {} too, and podman reads it later: add {:?} to that list",
                path.display(),
                list.key,
                wanted.handler
            ));
        }
    }
    Ok(notes)
}

/// Removes the header that [`List::make`] gave `engine`, where nothing is below it any more.
pub(super) fn tidy(toml: &mut Toml<'_>, is_our_file: bool) {
    let Some(Item::Table(engine)) = toml.get(&["engine"]) else {
        return;
    };
    let prefix = engine.decor().prefix().and_then(|prefix| prefix.as_str());
    let is_marked = prefix.is_some_and(|prefix| prefix.trim().ends_with(MARK.trim()));
    let has_values = engine.iter().any(|(_, item)| item.is_value());
    if has_values || !(is_marked || is_our_file) || engine.is_implicit() {
        return;
    }
    if engine.is_empty() {
        toml.remove(&["engine"]);
    } else if let Ok(Item::Table(engine)) = toml.table(&["engine"]) {
        engine.set_implicit(true);
    }
}

/// Returns a file's place in the order in which podman reads its files (containers.conf(5)): the vendor's, the operator's,
/// and what is in the operator's directory by its names.
fn rank(path: &Path) -> (u8, &Path) {
    let is_drop_in = path
        .parent()
        .is_some_and(|parent| parent.ends_with("containers.conf.d"));
    let place = match (is_drop_in, path.starts_with("/usr")) {
        (true, _) => 2,
        (false, false) => 1,
        (false, true) => 0,
    };
    (place, path)
}

/// `["a", {append=true}]`
fn appends(list: &Item) -> bool {
    let tables = list.as_array().into_iter().flatten();
    let mut words = tables.filter_map(|value| value.as_inline_table()?.get("append")?.as_bool());
    words.any(|word| word)
}

fn is_marked(first: &Value) -> bool {
    let prefix = first.decor().prefix().and_then(|prefix| prefix.as_str());
    prefix.is_some_and(|prefix| prefix.contains(MARK.trim()))
}

/// Adds a name. Blanks before the list's end stay there.
fn push(list: &mut Array, name: &str) {
    let end = list.len();
    let before = end.checked_sub(1).and_then(|at| list.get_mut(at));
    let blank = before.and_then(|value| {
        let suffix = value.decor().suffix().and_then(RawString::as_str)?;
        let suffix = Some(suffix).filter(|it| it.trim().is_empty())?.to_owned();
        value.decor_mut().set_suffix("");
        Some(suffix)
    });
    list.push(name);
    if let (Some(blank), Some(added)) = (blank, list.get_mut(end)) {
        added.decor_mut().set_suffix(blank);
    }
}

/// Removes a name. Comments around it stay, and so does what stands before the list's end.
fn remove(list: &mut Array, name: &str) {
    let position = |list: &Array| list.iter().position(|it| it.as_str() == Some(name));
    while let Some(at) = position(list) {
        let removed = list.remove(at);
        let [prefix, suffix] = [removed.decor().prefix(), removed.decor().suffix()]
            .map(|it| it.and_then(RawString::as_str).unwrap_or_default());
        let comments = if prefix.contains('#') { prefix } else { "" };
        let around = format!("{comments}{suffix}");
        if around.is_empty() {
            continue;
        }
        if let Some(next) = list.get_mut(at) {
            // Blanks before a comma aren't missed.
            if around.contains('#') {
                let prefix = next.decor().prefix().and_then(RawString::as_str);
                let prefix = around + prefix.unwrap_or_default();
                next.decor_mut().set_prefix(prefix);
            }
        } else if let Some(last) = at.checked_sub(1).and_then(|at| list.get_mut(at))
            && !suffix.is_empty()
        {
            let own = last.decor().suffix().and_then(RawString::as_str);
            let suffix = own.unwrap_or_default().to_owned() + &around;
            last.decor_mut().set_suffix(suffix);
        } else {
            let trailing = around + list.trailing().as_str().unwrap_or_default();
            list.set_trailing(trailing);
        }
    }
}
