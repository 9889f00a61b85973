//! podman: `[engine.runtimes]`, as `containers.conf(5)` has it.

use toml_edit::{Array, Item, Value};

use crate::drop_in::DropIn;
use crate::edit::{MARK, Source};
use crate::entry::Wanted;
use crate::error::HandlerError;
use crate::tables::{Indent, Toml, give_header, set};

const RUNTIMES: [&str; 2] = ["engine", "runtimes"];

pub(crate) const PODMAN: DropIn = DropIn {
    runtimes: &RUNTIMES,
    default: &["engine", "runtime"],
    programs,
    form: "a list of programs",
    foreign: |programs| format!("it runs {programs:?}"),
    write,
    tidy,
};

/// podman runs the first of a list that exists.
fn programs(entry: &Item) -> Option<Vec<&str>> {
    let programs = entry.as_array()?.iter();
    Some(programs.filter_map(|value| value.as_str()).collect())
}

fn write(
    toml: &mut Toml<'_>,
    source: &Source,
    wanted: Wanted<'_>,
    there: Option<&str>,
) -> Result<(), HandlerError> {
    if there == Some(wanted.program) {
        return Ok(());
    }
    let is_new = toml.get(&RUNTIMES).is_none();
    let runtimes = toml.table(&RUNTIMES)?;
    if is_new {
        let mark = source.text.as_deref().map_or("", |_| MARK);
        give_header(runtimes, &format!("\n{mark}"));
    }
    let programs: Array = [wanted.program].into_iter().collect();
    let indent = Indent::of(runtimes).keys;
    set(runtimes, wanted.handler, programs, &indent);
    Ok(())
}

fn tidy(toml: &mut Toml<'_>, is_our_file: bool) {
    if is_our_table(toml.get(&RUNTIMES), is_our_file) {
        toml.remove(&RUNTIMES);
    }
}

/// An empty table that [`write()`] made.
fn is_our_table(item: Option<&Item>, is_our_file: bool) -> bool {
    let table = match item {
        Some(Item::Table(table)) => table,
        Some(Item::Value(Value::InlineTable(table))) => return table.is_empty(),
        _ => return false,
    };
    let prefix = table.decor().prefix().and_then(|prefix| prefix.as_str());
    let is_marked = prefix.is_some_and(|prefix| prefix.trim().ends_with(MARK.trim()));
    table.is_empty() && (is_marked || is_our_file)
}

#[cfg(test)]
mod tests;
