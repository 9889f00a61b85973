//! podman: `[engine.runtimes]` and what it is told that they support, as `containers.conf(5)` has it.

pub(crate) mod support;

use toml_edit::{Array, Item, Value};

use self::support::LISTS;
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
    others: &[Source],
    wanted: Wanted<'_>,
    there: Option<&str>,
) -> Result<(), HandlerError> {
    for list in &LISTS {
        list.write(toml, source, others, wanted)?;
    }
    if there == Some(wanted.program) {
        return Ok(());
    }
    write_entry(toml, source, wanted)
}

fn write_entry(
    toml: &mut Toml<'_>,
    source: &Source,
    wanted: Wanted<'_>,
) -> Result<(), HandlerError> {
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

fn tidy(toml: &mut Toml<'_>, handler: &str, is_our_file: bool) {
    for list in &LISTS {
        list.take_back(toml, handler);
    }
    if is_our_table(toml.get(&RUNTIMES), is_our_file) {
        toml.remove(&RUNTIMES);
    }
    support::tidy(toml, is_our_file);
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
