//! Recognises rewritten configs, and undoes the rewrite.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Result, anyhow};
use crust_state::Config;
use crust_state::bundle::{BundleRecord, RemovedMount, ReplacedSource};
use crust_volume::sandbox::SANDBOX_CRUST_DIR;
use oci_spec::runtime::Hook;

use super::PROGRAM;
use crate::oci::{ArrayPath, DESTINATION, Document, Edit, SOURCE};

/// Returns whether an earlier create has rewritten the config. The bundle is then being created a second time. Parts of
/// a config that can't be parsed don't count.
pub(crate) fn is_rewritten(document: &Document<'_>, is_sandbox: bool, config: &Config) -> bool {
    let attach = config.attach_directory();
    let is_attached = |source: &str| Path::new(source).starts_with(&attach);
    document.has_mount(SOURCE, is_attached) || is_marked(document, is_sandbox)
}

/// Returns whether a config has other marks of a rewrite than its mounts' sources: the hook that mounts volumes or, in
/// a sandbox, the mount of `/.crust`.
pub(crate) fn is_marked(document: &Document<'_>, is_sandbox: bool) -> bool {
    let hooks = document.array(ArrayPath::CreateContainerHooks);
    let hooks = hooks.unwrap_or_default();
    hooks.into_iter().any(is_mount_hook)
        || (is_sandbox
            && document.has_mount(DESTINATION, |destination| destination == SANDBOX_CRUST_DIR))
}

/// Returns whether a hook is `crust-mount-hook mount`.
fn is_mount_hook(hook: &str) -> bool {
    let hook: Option<Hook> = serde_json::from_str(hook).ok();
    let arguments = hook.as_ref().and_then(|hook| hook.args().as_deref());
    matches!(arguments, Some([name, verb, ..]) if name == PROGRAM && verb == "mount")
}

pub(crate) fn undo(
    document: &Document<'_>,
    record: &BundleRecord,
    config: &Config,
) -> Result<Vec<Edit>> {
    let mut edits = Vec::new();
    let sources = record.sources.iter();
    let sources: HashMap<&str, &ReplacedSource> = sources
        .map(|replaced| (&*replaced.attached, replaced))
        .collect();
    for mount in document.mounts()? {
        let Some(source) = mount.source.as_deref() else {
            continue;
        };
        if !Path::new(source).starts_with(config.attach_directory()) {
            continue;
        }
        let replaced = sources.get(source);
        let replaced = replaced.filter(|replaced| replaced.destination == mount.destination);
        let replaced = replaced.ok_or_else(|| unknown_source(source, &mount.destination))?;
        let index = mount.index;
        edits.push(match &replaced.mount {
            Some(json) => Edit::ReplaceMountJson {
                index,
                json: json.clone(),
            },
            None => Edit::ReplaceMountSourceJson {
                index,
                json: replaced.original.clone(),
            },
        });
    }
    for array in ArrayPath::ALL {
        let mut added: Vec<&serde_json::Value> = record
            .added
            .iter()
            .filter(|added| added.array == array.name())
            .map(|added| &added.element)
            .collect();
        // The rewrite added its elements at the end, so of two equal elements the later one is removed.
        for (index, element) in document.array(array)?.iter().enumerate().rev() {
            let Ok(value) = serde_json::from_str::<serde_json::Value>(element) else {
                continue;
            };
            if let Some(position) = added.iter().position(|added| **added == value) {
                added.swap_remove(position);
                edits.push(Edit::Remove { array, index });
            }
        }
    }
    // The remaining mounts have kept their order. The removed ones are inserted between them.
    let mut removed: Vec<&RemovedMount> = record.removed.iter().collect();
    removed.sort_by_key(|mount| mount.index);
    for (earlier, mount) in removed.into_iter().enumerate() {
        edits.push(Edit::Insert {
            array: ArrayPath::Mounts,
            before: mount.index.saturating_sub(earlier),
            json: mount.json.clone(),
        });
    }
    Ok(edits)
}

/// Returns the error for a mount whose source is in the attach directory, but whose original source isn't recorded.
fn unknown_source(source: &str, destination: &str) -> anyhow::Error {
    anyhow!(
        "mount {destination}: its source {source} was written by an earlier create of this bundle, but the record of \
         that create is missing; hint: regenerate the bundle's config.json, or recreate the pod"
    )
}
