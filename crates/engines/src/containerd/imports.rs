//! Finds the files that `imports` names, by the rules of Go's `filepath`.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use toml_edit::Value;

use crate::config_file::EngineConfigFile;
use crate::error::{HandlerError, Result};
use crate::node_root::NodeRoot;
use crate::toml::{Toml, wrong_type};

/// The largest number of files in a configuration. Real ones have a handful.
const MAX_FILES: usize = 1000;

/// An element of `imports`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pattern {
    path: PathBuf,
    /// Whether it contains a `*`. containerd treats everything else as the name of a file.
    is_glob: bool,
    /// Whether every version of containerd finds the same files. containerd 1.x resolves a relative pattern in the
    /// directory that it was started in.
    is_always_read: bool,
}

/// Reads a file, the files that it imports, and those that they import.
pub(super) fn read(node: &NodeRoot, first: &Path) -> Result<Vec<EngineConfigFile>> {
    let mut files: Vec<EngineConfigFile> = Vec::new();
    let mut pending = VecDeque::from([(first.to_owned(), true)]);
    while let Some((path, is_always_read)) = pending.pop_front() {
        if let Some(known) = files.iter_mut().find(|file| file.path == path) {
            known.is_always_read |= is_always_read;
            continue;
        }
        if files.len() == MAX_FILES {
            return Err(HandlerError::Imports(first.to_owned(), MAX_FILES));
        }
        let file = node.read(&path)?;
        for pattern in patterns(&file)? {
            let found = pattern
                .files(|directory| node.names(directory))?
                .into_iter();
            pending.extend(found.map(|path| (path, is_always_read && pattern.is_always_read)));
        }
        files.push(EngineConfigFile {
            is_always_read,
            ..file
        });
    }
    Ok(files)
}

/// Returns a path at which a new file would be imported; `None` if there is no suitable pattern.
pub(super) fn drop_in(files: &[EngineConfigFile]) -> Result<Option<PathBuf>> {
    for file in files.iter().filter(|file| file.is_always_read) {
        if let Some(path) = patterns(file)?.iter().find_map(Pattern::drop_in) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

fn patterns(file: &EngineConfigFile) -> Result<Vec<Pattern>> {
    let toml = Toml::parse_file(file)?;
    let Some(imports) = toml.get(&["imports"]) else {
        return Ok(Vec::new());
    };
    let wrong = || wrong_type(&file.path, &["imports"], "a list of strings");
    let directory = file.path.parent().unwrap_or(Path::new("/"));
    let pattern = |value: &Value| {
        let name = value.as_str().ok_or_else(wrong)?;
        let is_glob = name.contains('*');
        Ok(Pattern {
            path: clean(&directory.join(name)),
            is_glob,
            is_always_read: !is_glob || name.starts_with('/'),
        })
    };
    let imports = imports.as_array().ok_or_else(wrong)?;
    imports.iter().map(pattern).collect()
}

/// Cleans a path like Go's `filepath.Clean`, without resolving links, so that a file isn't read under two names.
fn clean(path: &Path) -> PathBuf {
    let mut clean = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::Normal(name) => clean.push(name),
            Component::ParentDir => drop(clean.pop()),
            _ => {}
        }
    }
    clean
}

impl Pattern {
    /// Returns the files that match, in order. A name without a `*` is returned even if there is no such file. `list`
    /// returns the names in a directory.
    fn files<E>(&self, list: impl Fn(&Path) -> Result<Vec<Vec<u8>>, E>) -> Result<Vec<PathBuf>, E> {
        let mut found = vec![PathBuf::from("/")];
        let mut is_matching = false;
        for part in self.path.iter().skip(1) {
            is_matching |= self.is_glob && has_wildcards(part);
            if !is_matching {
                for path in &mut found {
                    path.push(part);
                }
                continue;
            }
            let mut below = Vec::new();
            for directory in found {
                let mut names = list(&directory)?;
                names.retain(|name| matches(part.as_bytes(), name));
                names.sort();
                below.extend(
                    names
                        .iter()
                        .map(|name| directory.join(OsStr::from_bytes(name))),
                );
            }
            found = below;
        }
        Ok(found)
    }

    /// Returns the path of a new file that every version of containerd would import; `None` unless the pattern matches
    /// files in a single directory.
    fn drop_in(&self) -> Option<PathBuf> {
        let (directory, last) = (self.path.parent()?, self.path.file_name()?);
        let is_one_directory = !directory.iter().any(has_wildcards);
        if !(self.is_glob && self.is_always_read && is_one_directory && has_wildcards(last)) {
            return None;
        }
        let filled = String::from_utf8_lossy(last.as_bytes()).replacen('*', "runcrust", 1);
        let names = ["runcrust.toml".to_owned(), filled.replace('*', "")];
        let mut names = names.iter();
        let name = names.find(|name| matches(last.as_bytes(), name.as_bytes()))?;
        Some(directory.join(name))
    }
}

/// Returns whether Go's `filepath.Glob` treats a name as a pattern.
fn has_wildcards(name: &OsStr) -> bool {
    name.as_bytes().iter().any(|byte| b"*?[\\".contains(byte))
}

/// Returns whether a name matches a pattern, as Go's `filepath.Match` does. A leading dot isn't special.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern, name) {
        ([], _) => name.is_empty(),
        ([b'*', rest @ ..], _) => (0..=name.len()).any(|at| matches(rest, &name[at..])),
        (_, []) => false,
        ([b'[', rest @ ..], [letter, name @ ..]) => {
            let Some(end) = rest.iter().position(|byte| *byte == b']') else {
                return false;
            };
            is_in_class(&rest[..end], *letter) && matches(&rest[end + 1..], name)
        }
        ([b'?', rest @ ..], [_, name @ ..]) => matches(rest, name),
        ([b'\\', escaped, rest @ ..], [letter, name @ ..]) => {
            escaped == letter && matches(rest, name)
        }
        ([byte, rest @ ..], [letter, name @ ..]) => byte == letter && matches(rest, name),
    }
}

/// Returns whether a letter is in `^a-z`, the inner part of `[^a-z]`.
fn is_in_class(class: &[u8], letter: u8) -> bool {
    let mut rest = class.strip_prefix(b"^").unwrap_or(class);
    let mut found = false;
    while let [first, tail @ ..] = rest {
        let (last, after) = match tail {
            [b'-', last, after @ ..] => (last, after),
            _ => (first, tail),
        };
        found |= (first..=last).contains(&&letter);
        rest = after;
    }
    found != class.starts_with(b"^")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(import: &str) -> Pattern {
        let text = format!("imports = [{import:?}]");
        let file = EngineConfigFile::new("/etc/containerd/config.toml", Some(text));
        patterns(&file).unwrap().remove(0)
    }

    #[test]
    fn patterns_match_as_in_go() {
        for (pattern, name, expected) in [
            ("*.toml", "a.toml", true),
            ("*.toml", ".a.toml", true),
            ("*.toml", "a.toml.bak", false),
            ("*", "", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("[0-9][0-9]-*.toml", "10-x.toml", true),
            ("[^a-c]*", "dx", true),
            ("[^a-c]*", "bx", false),
            ("[ab", "a", false),
            ("\\*", "*", true),
            ("\\*", "a", false),
        ] {
            let found = matches(pattern.as_bytes(), name.as_bytes());
            assert_eq!(found, expected, "{pattern} {name}");
        }
    }

    #[test]
    fn a_pattern_matches_in_each_directory_that_matches() {
        let list = |directory: &Path| {
            let names: &[&str] = match directory.to_str().unwrap() {
                "/etc/containerd" => &["b.d", "config.toml", "a.d"],
                "/etc/containerd/a.d" => &["2.toml", "1.toml", "README"],
                "/etc/containerd/b.d" => &["0.toml"],
                "/etc/x" => &["y"],
                _ => &[],
            };
            Ok::<_, ()>(names.iter().map(|name| name.as_bytes().to_vec()).collect())
        };
        for (imports, expected) in [
            (
                "/etc/containerd/[ab].d/*.toml",
                "a.d/1.toml a.d/2.toml b.d/0.toml",
            ),
            ("more.toml", "more.toml"),
            ("[ab].toml", "[ab].toml"),
            ("../containerd/./config.toml", "config.toml"),
            ("*/2.toml", "a.d/2.toml"),
            ("../x/*", "/etc/x/y"),
            ("/../x.toml", "/x.toml"),
        ] {
            let expected = expected
                .split(' ')
                .map(|name| Path::new("/etc/containerd").join(name));
            let found = pattern(imports).files(list).unwrap();
            assert_eq!(found, expected.collect::<Vec<_>>(), "{imports}");
        }
    }

    #[test]
    fn a_drop_in_is_imported_by_every_version_of_containerd() {
        for (import, expected) in [
            ("/etc/conf.d/*.toml", Some("/etc/conf.d/runcrust.toml")),
            ("/x/*", Some("/x/runcrust.toml")),
            ("/x/*.conf", Some("/x/runcrust.conf")),
            ("/x/10-*-y*.toml", Some("/x/10-runcrust-y.toml")),
            ("/x/one.toml", None),
            ("/x/*/one.toml", None),
            ("/x/*/*.toml", None),
            ("/x/[ab].d/*.toml", None),
            ("/x/?/*.toml", None),
            // containerd 1.x resolves a relative pattern in the directory that it was started in.
            ("conf.d/*.toml", None),
        ] {
            let found = pattern(import).drop_in();
            assert_eq!(found, expected.map(PathBuf::from), "{import}");
        }
    }
}
