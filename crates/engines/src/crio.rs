//! CRI-O: `[crio.runtime.runtimes.<handler>]`, as `crio.conf(5)` has it.

use toml_edit::Item;

use crate::drop_in::DropIn;
use crate::edit::Source;
use crate::entry::Wanted;
use crate::error::HandlerError;
use crate::tables::{Toml, give_header, set};

const RUNTIMES: [&str; 3] = ["crio", "runtime", "runtimes"];

pub(crate) const CRIO: DropIn = DropIn {
    runtimes: &RUNTIMES,
    default: &["crio", "runtime", "default_runtime"],
    programs,
    form: "a table",
    foreign: |programs| match programs {
        [program, ..] => format!("its runtime_path is {program:?}"),
        [] => "it has no runtime_path".into(),
    },
    write,
    tidy: |_, _, _| (),
};

fn programs(entry: &Item) -> Option<Vec<&str>> {
    let program = entry.as_table_like()?.get("runtime_path");
    Some(program.and_then(Item::as_str).into_iter().collect())
}

fn write(
    toml: &mut Toml<'_>,
    _source: &Source,
    _others: &[Source],
    wanted: Wanted<'_>,
    there: Option<&str>,
) -> Result<(), HandlerError> {
    let entry = toml.table(&[&RUNTIMES[..], &[wanted.handler]].concat())?;
    if there.is_none() {
        give_header(entry, "\n");
    }
    if there != Some(wanted.program) {
        set(entry, "runtime_path", wanted.program, "");
    }
    if there.is_none() {
        // CRI-O's own default is /run/<handler>, and /run/crust is the crust directory.
        let root = format!("/run/runcrust-{}", wanted.handler);
        set(entry, "runtime_root", root, "");
        set(entry, "runtime_type", "oci", "");
    }
    Ok(())
}

#[cfg(test)]
mod tests;
