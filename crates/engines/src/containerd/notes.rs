//! What an operator should know besides.

use toml_edit::Item;

use super::{File, PLUGINS, cgroup, read};
use crate::edit::Source;
use crate::entry::Wanted;
use crate::error::HandlerError;

/// Of the files as they are.
pub(crate) fn notes(files: &[Source], wanted: Wanted<'_>) -> Result<Vec<String>, HandlerError> {
    let read = read(files, "")?;
    let notes = [disabled(&read), unsure(&read), driver(&read, wanted)];
    let mut told = missing(files);
    told.extend(notes.into_iter().flatten());
    Ok(told)
}

/// What is to be imported and isn't there: containerd doesn't start then.
pub(crate) fn missing(files: &[Source]) -> Vec<String> {
    let imported = files.iter().skip(1);
    let missing = imported.filter(|source| source.text.is_none());
    let told = missing.map(|source| {
        format!(
            "{} is imported, and isn't there: containerd doesn't start; hint: put it there, or take it \
             out of `imports`",
            source.path.display()
        )
    });
    told.collect()
}

fn disabled(files: &[File<'_>]) -> Option<String> {
    let main = files.first()?.path.display();
    files.iter().find_map(|file| {
        let off = file
            .toml
            .get(&["disabled_plugins"])
            .and_then(Item::as_array);
        let mut off = off?.iter().filter_map(|value| value.as_str());
        let plugin = off.find(|plugin| PLUGINS.contains(plugin))?;
        let file = file.path.display();
        Some(format!(
            "{file} disables plugin {plugin}: Kubernetes reaches no handler of {main}"
        ))
    })
}

fn unsure(files: &[File<'_>]) -> Option<String> {
    let file = files
        .iter()
        .find(|file| !file.is_sure && file.has_section())?;
    Some(format!(
        "{} is imported by a relative pattern, which containerd 1.x looks for from where it was \
         started: the handler isn't added there; hint: make the pattern absolute",
        file.path.display()
    ))
}

fn driver(files: &[File<'_>], wanted: Wanted<'_>) -> Option<String> {
    if wanted.systemd_cgroup.or(cgroup::inherited(files)).is_some() {
        return None;
    }
    let handler = wanted.handler;
    Some(format!(
        "no runtime says SystemdCgroup, so that of {handler} is containerd's default, false; hint: \
         --systemd-cgroup true where kubelet's cgroup driver is systemd"
    ))
}
