//! docker: `runtimes` of `daemon.json`.

use serde_json::json;

use crate::config_file::EngineConfigFile;
#[cfg(test)]
use crate::engine::Samples;
use crate::engine::{Engine, EngineInfo, FileEdit, HandlerSpec, Runtime};
use crate::error::{HandlerError, Result};
use crate::json::EditableObject;
use crate::service::Service;
use crate::toml::{split_bom, wrong_type};

const RUNTIMES: &str = "runtimes";
const DEFAULT: &str = "default-runtime";

#[derive(Debug)]
pub(crate) struct Docker;

impl Engine for Docker {
    fn info(&self) -> EngineInfo {
        EngineInfo {
            name: "docker",
            title: "docker",
            file: "/etc/docker/daemon.json",
            // dockerd reloads its runtimes on SIGHUP.
            service: Some(Service {
                unit: "docker.service",
                reloads: true,
            }),
            has_systemd_cgroup: false,
            merges_entries: false,
        }
    }

    fn runtimes(&self, file: &EngineConfigFile) -> Result<Vec<Runtime>> {
        let mut found = Vec::new();
        // Go's decoder merges objects with the same name.
        let root = parse(file, text(file))?;
        for (_, runtimes) in root.objects().filter(|member| member.0 == RUNTIMES) {
            let runtimes = runtimes.as_ref().map(EditableObject::objects);
            found.extend(runtimes.into_iter().flatten().map(|(name, entry)| {
                let program = entry.as_ref().and_then(|entry| entry.string("path"));
                let mismatch = match (&entry, &program) {
                    (None, _) => Some("it isn't an object"),
                    (_, None) => Some("it has no `path`"),
                    _ => None,
                };
                Runtime::new(name, program, mismatch.map(str::to_owned))
            }));
        }
        Ok(found)
    }

    fn defaults(&self, file: &EngineConfigFile) -> Result<Vec<(String, String)>> {
        let name = parse(file, text(file))?.string(DEFAULT);
        let default = name.map(|name| (DEFAULT.to_owned(), name));
        Ok(default.into_iter().collect())
    }

    fn install(&self, files: &[EngineConfigFile], spec: &HandlerSpec<'_>) -> Result<FileEdit> {
        let file = &files[0];
        let text = &text_with_runtimes(file)?;
        let root = parse(file, text)?;
        let entry = json!({"path": spec.program});
        let new = match root.object(RUNTIMES) {
            None => root.with(RUNTIMES, &json!({spec.name: entry})),
            Some(runtimes) => match runtimes.object(spec.name) {
                None => runtimes.with(spec.name, &entry),
                Some(old) => old.with("path", &entry["path"]),
            },
        };
        let (bom, _) = split_bom(file.text());
        Ok(FileEdit::new(&file.path, format!("{bom}{new}")))
    }

    fn uninstall(&self, file: &EngineConfigFile, handler: &str) -> Result<Option<String>> {
        let mut left = text_with_runtimes(file)?;
        loop {
            let root = parse(file, &left)?;
            let named = root.objects().filter(|member| member.0 == RUNTIMES);
            let all: Vec<_> = named.filter_map(|member| member.1).collect();
            let Some(runtimes) = all.iter().rfind(|runtimes| runtimes.get(handler).is_some())
            else {
                break;
            };
            // The last runtime is removed together with the object.
            left = if all.len() == 1 && runtimes.len() == 1 {
                root.without(RUNTIMES)
            } else {
                runtimes.without(handler)
            };
        }
        let (bom, _) = split_bom(file.text());
        Ok(Some(format!("{bom}{left}")))
    }

    /// Notes that a reload isn't enough. dockerd keeps its runtimes on a reload if the file sets none (`reloadPlatform`
    /// in moby's `daemon/reload_unix.go`).
    fn removal_notes(&self, _files: &[EngineConfigFile], left: &[Option<String>]) -> Vec<String> {
        let sets_runtimes = |text: &String| {
            let root = EditableObject::parse(split_bom(text).1);
            matches!(root, Ok(Some(root)) if root.object(RUNTIMES).is_some())
        };
        if left.iter().flatten().all(sets_runtimes) {
            return Vec::new();
        }
        let note = "a running dockerd offers the runtime until it is restarted: a reload doesn't change its runtimes \
                    if the file has no \"runtimes\"";
        vec![note.to_owned()]
    }

    #[cfg(test)]
    fn samples(&self) -> Samples {
        Samples {
            foreign: &[
                (
                    "{\"runtimes\": {\"crust\": {\"path\": \"/usr/bin/crun\"}}}",
                    "it runs /usr/bin/crun",
                ),
                (
                    "{\"runtimes\": {\"crust\": {\"runtimeType\": \"x\"}}}",
                    "it has no `path`",
                ),
                ("{\"runtimes\": {\"crust\": 1}}", "it isn't an object"),
            ],
            default: "{\"default-runtime\": \"crust\"}",
            kept: &[
                "{}\n",
                "{\n  \"exec-opts\": [\"native.cgroupdriver=systemd\"],\n  \"log-level\": \"warn\"\n}\n",
                "{\"debug\":true}",
                "{\n\t\"runtimes\": {\n\t\t\"kata\": { \"runtimeType\": \"io.containerd.kata.v2\" }\n\t},\n\t\"x\": 1\n}",
                "{\r\n  \"debug\": true\r\n}\r\n",
                "{ \"a\": 1, \"b\": 1.50 }",
                "{\"runtimes\":{\"a\":{}},\"runtimes\":{\"b\":{}}}",
                "\u{feff}{\"debug\":true}",
            ],
            outdated: &[
                "{\"runtimes\": {\"crust\": {\"runtimeArgs\": [\"-x\"], \"path\": \"/opt/runcrust\"}}}",
            ],
            refused: &[
                ("{\n  \"debug\": tru\n}", "daemon.json:3: "),
                ("{\n  // comment\n}", "daemon.json:2: "),
                ("[]", "the file isn't an object"),
                ("{\"runtimes\": []}", "runtimes isn't an object"),
            ],
        }
    }
}

/// Returns the text that dockerd decodes. dockerd skips a byte order mark, and treats an empty file as `{}`
/// (`getConflictFreeConfiguration`).
fn text(file: &EngineConfigFile) -> &str {
    let (_, text) = split_bom(file.text());
    if text.trim().is_empty() { "{}\n" } else { text }
}

/// Returns the text with an empty object for `"runtimes": null`, which Go's decoder ignores.
fn text_with_runtimes(file: &EngineConfigFile) -> Result<String> {
    let text = text(file);
    let root = parse(file, text)?;
    match root.get(RUNTIMES) {
        Some("null") => Ok(root.with(RUNTIMES, &json!({}))),
        Some(_) if root.object(RUNTIMES).is_none() => {
            Err(wrong_type(&file.path, &[RUNTIMES], "an object"))
        }
        _ => Ok(text.to_owned()),
    }
}

fn parse<'a>(file: &EngineConfigFile, text: &'a str) -> Result<EditableObject<'a>> {
    let object = EditableObject::parse(text).map_err(|error| {
        let message = error.to_string();
        let message = message.split(" at line ").next().unwrap_or(&message);
        HandlerError::Syntax(file.path.clone(), error.line(), message.to_owned())
    })?;
    object.ok_or_else(|| wrong_type(&file.path, &[], "an object"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzzing::PROGRAM;
    use crate::handler::tests::{install_into, uninstall_from};

    #[test]
    fn the_runtime_is_added_in_the_format_of_the_file() {
        let entry = format!("{{\"crust\":{{\"path\":\"{PROGRAM}\"}}}}");
        let lines = |start: &str, unit: &str| {
            let path = format!("{unit}{unit}{unit}\"path\": \"{PROGRAM}\"\n{unit}{unit}}}");
            format!(
                "{start}{unit}\"runtimes\": {{\n{unit}{unit}\"crust\": {{\n{path}\n{unit}}}\n}}"
            )
        };
        for (text, expected) in [
            ("{}\n", lines("{\n", "    ") + "\n"),
            ("{\n  \"a\": 1\n}", lines("{\n  \"a\": 1,\n", "  ")),
            (
                "{\r\n\t\"a\": 1\r\n}",
                lines("{\n\t\"a\": 1,\n", "\t").replace('\n', "\r\n"),
            ),
            ("{\"a\":1}", format!("{{\"a\":1,\"runtimes\":{entry}}}")),
            (
                "{ \"a\": 1.50 }",
                format!("{{ \"a\": 1.50, \"runtimes\":{entry} }}"),
            ),
            (
                "{\"runtimes\": null, \"b\": 2}",
                format!("{{\"runtimes\": {entry}, \"b\": 2}}"),
            ),
        ] {
            assert_eq!(install_into(&Docker, Some(text)), expected);
        }
        for empty in ["", "\n"] {
            let once = install_into(&Docker, Some(empty));
            assert_eq!(once, install_into(&Docker, Some("{}\n")));
        }
    }

    #[test]
    fn a_runtime_is_removed_at_any_position_among_others() {
        let entry = format!("\"crust\": {{\"path\": \"{PROGRAM}\"}}");
        for (text, expected) in [
            (
                format!("{{\"runtimes\": {{{entry}, \"b\": {{}}}}}}"),
                "{\"runtimes\": {\"b\": {}}}",
            ),
            (
                format!("{{\"runtimes\": {{\"a\": {{}}, {entry}, \"b\": {{}}}}}}"),
                "{\"runtimes\": {\"a\": {}, \"b\": {}}}",
            ),
            (
                format!("{{\"runtimes\": {{{entry}}}, \"x\": 1}}"),
                "{\"x\": 1}",
            ),
            (
                format!("\u{feff}{{\"runtimes\": {{{entry}}}}}"),
                "\u{feff}{}",
            ),
            (
                format!("{{\"runtimes\": {{{entry}}}, \"runtimes\": {{\"b\": {{}}}}}}"),
                "{\"runtimes\": {}, \"runtimes\": {\"b\": {}}}",
            ),
        ] {
            assert_eq!(uninstall_from(&Docker, &text).as_deref(), Some(expected));
        }
        for text in ["{\"runtimes\": {}}", "{\"runtimes\": null}", "\u{feff}"] {
            assert_eq!(uninstall_from(&Docker, text).as_deref(), Some(text));
        }
    }

    #[test]
    fn a_note_says_if_a_reload_does_not_remove_the_runtime() {
        let notes = |text: &str| Docker.removal_notes(&[], &[Some(text.to_owned())]).len();
        let other = "{\"runtimes\": {\"kata\": {\"runtimeType\": \"k\"}}}";
        let counts = [notes("{}"), notes("\u{feff}{ \"a\": 1 }"), notes(other)];
        assert_eq!(counts, [1, 1, 0]);
        assert!(Docker.removal_notes(&[], &[]).is_empty());
    }
}
