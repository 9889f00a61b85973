//! The cgroup driver that a new handler gets: what the node's other runtimes do, for kubelet is set to
//! the same.

use toml_edit::Item;

use super::{File, options};

/// `SystemdCgroup` of the node's default runtime, or else of `runc`, or else of any; of the last file
/// that says it, which is the one that counts.
pub(super) fn inherited(files: &[File<'_>]) -> Option<bool> {
    let name = files.iter().rev().find_map(File::default_name);
    let name = name.unwrap_or("runc");
    files.iter().rev().find_map(|file| in_file(file, name))
}

fn in_file(file: &File<'_>, default: &str) -> Option<bool> {
    let [plugins, plugin, containerd, _] = file.version.runtimes();
    let section = file.toml.get(&[plugins, plugin, containerd])?;
    let runtimes = file.toml.get(&file.version.runtimes());
    let runtimes = runtimes.and_then(Item::as_table_like);
    let of = |name: &str| flag(runtimes?.get(name)?);
    // To containerd 1.x a default runtime that is a table goes before one that is a name.
    let table = section
        .as_table_like()
        .and_then(|it| it.get("default_runtime"));
    let table = table.filter(|table| has_type(table)).and_then(flag);
    let any = || runtimes?.iter().find_map(|(_, runtime)| flag(runtime));
    table
        .or_else(|| of(default))
        .or_else(|| of("runc"))
        .or_else(any)
}

fn has_type(runtime: &Item) -> bool {
    let runtime_type = runtime
        .as_table_like()
        .and_then(|it| it.get("runtime_type"));
    runtime_type
        .and_then(Item::as_str)
        .is_some_and(|it| !it.is_empty())
}

fn flag(runtime: &Item) -> Option<bool> {
    let options = options(runtime)?.as_table_like()?;
    options.get("SystemdCgroup").and_then(Item::as_bool)
}
