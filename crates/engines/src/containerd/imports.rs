//! What `imports` names, by the rules of Go's `filepath`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use crate::error::HandlerError;
use crate::tables::{Toml, kind};

/// One of a file's `imports`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pattern {
    path: PathBuf,
    /// Whether each part of the path is a pattern: containerd takes a name for one if there is a `*`
    /// in it.
    is_glob: bool,
    /// containerd 1.x looks for a relative pattern from where it was started.
    is_sure: bool,
}

/// The patterns in a file that containerd finds at `path`.
pub(crate) fn patterns(path: &Path, text: &str) -> Result<Vec<Pattern>, HandlerError> {
    let toml = Toml::parse(path, text)?;
    let Some(imports) = toml.get(&["imports"]) else {
        return Ok(Vec::new());
    };
    let wrong = || kind(path, &["imports"], "a list of strings");
    let names = imports.as_array().ok_or_else(wrong)?.iter();
    let names = names.map(|value| value.as_str().ok_or_else(wrong));
    let directory = path.parent().unwrap_or(Path::new("/"));
    names
        .map(|name| {
            let name = name?;
            let is_glob = name.contains('*');
            Ok(Pattern {
                path: clean(&directory.join(name)),
                is_glob,
                is_sure: !is_glob || name.starts_with('/'),
            })
        })
        .collect()
}

/// Go's `filepath.Clean`, which looks at no links: two names of one file are one then.
fn clean(path: &Path) -> PathBuf {
    let mut clean = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::Normal(name) => clean.push(name),
            Component::ParentDir => {
                clean.pop();
            }
            _ => {}
        }
    }
    clean
}

impl Pattern {
    /// Whether every containerd finds the same files.
    pub(crate) const fn is_sure(&self) -> bool {
        self.is_sure
    }

    /// The files that it matches, in order: of a name, that one, even if it isn't there. `list` gives the names in a directory.
    pub(crate) fn files<E>(
        &self,
        list: impl Fn(&Path) -> Result<Vec<Vec<u8>>, E>,
    ) -> Result<Vec<PathBuf>, E> {
        let mut found = vec![PathBuf::from("/")];
        let mut is_matching = false;
        for part in self.parts() {
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

    /// Where a file of ours would be imported from, if it is one of a directory's files that are.
    pub(crate) fn drop_in(&self) -> Option<PathBuf> {
        let (directory, last) = (self.path.parent()?, self.path.file_name()?);
        let is_one_directorys = self.is_glob && !directory.iter().any(has_wildcards);
        if !self.is_sure || !is_one_directorys || !has_wildcards(last) {
            return None;
        }
        let made = String::from_utf8_lossy(last.as_bytes()).replacen('*', "runcrust", 1);
        let made = made.replace('*', "");
        let names = ["runcrust.toml", &made];
        let name = names
            .iter()
            .find(|name| matches(last.as_bytes(), name.as_bytes()))?;
        Some(directory.join(name))
    }

    fn parts(&self) -> impl Iterator<Item = &OsStr> {
        self.path.components().filter_map(|part| match part {
            Component::Normal(name) => Some(name),
            _ => None,
        })
    }
}

/// As Go's `filepath.Glob` sees it.
fn has_wildcards(name: &OsStr) -> bool {
    name.as_bytes().iter().any(|byte| b"*?[\\".contains(byte))
}

/// Go's `filepath.Match`, with a dot like any other letter.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    match pattern.split_first() {
        None => name.is_empty(),
        Some((b'*', rest)) => (0..=name.len()).any(|at| matches(rest, &name[at..])),
        Some((b'?', rest)) => !name.is_empty() && matches(rest, &name[1..]),
        Some((b'[', rest)) => {
            let Some((class, rest)) = class(rest) else {
                return false;
            };
            let Some((first, name)) = name.split_first() else {
                return false;
            };
            class.holds(*first) && matches(rest, name)
        }
        Some((b'\\', [escaped, rest @ ..])) => {
            name.first() == Some(escaped) && matches(rest, &name[1..])
        }
        Some((letter, rest)) => name.first() == Some(letter) && matches(rest, &name[1..]),
    }
}

struct Class<'a> {
    letters: &'a [u8],
    is_negated: bool,
}

/// `[^a-z]`, from after the bracket.
fn class(pattern: &[u8]) -> Option<(Class<'_>, &[u8])> {
    let is_negated = pattern.first() == Some(&b'^');
    let letters = pattern.strip_prefix(b"^").unwrap_or(pattern);
    let end = letters.iter().position(|letter| *letter == b']')?;
    let (letters, rest) = (&letters[..end], &letters[end + 1..]);
    Some((
        Class {
            letters,
            is_negated,
        },
        rest,
    ))
}

impl Class<'_> {
    fn holds(&self, letter: u8) -> bool {
        let mut rest = self.letters;
        let mut found = false;
        while let Some((first, tail)) = rest.split_first() {
            rest = tail;
            let last = match tail {
                [b'-', last, tail @ ..] => {
                    rest = tail;
                    last
                }
                _ => first,
            };
            found |= (first..=last).contains(&&letter);
        }
        found != self.is_negated
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_gos_do() {
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
            assert_eq!(
                matches(pattern.as_bytes(), name.as_bytes()),
                expected,
                "{pattern} {name}"
            );
        }
    }

    #[test]
    fn what_is_no_list_of_names_is_told() {
        for imports in ["'x'", "['x', 1]", "{}", "[['x']]"] {
            let text = format!("imports = {imports}");
            let error = patterns(Path::new("/etc/x.toml"), &text).unwrap_err();
            let words = "/etc/x.toml: imports isn't a list of strings";
            assert!(error.to_string().starts_with(words), "{error}");
        }
    }

    fn of(imports: &str) -> Vec<Pattern> {
        patterns(Path::new("/etc/containerd/config.toml"), imports).unwrap()
    }

    #[test]
    fn a_pattern_is_found_below_each_directory_it_matches() {
        let patterns =
            of("imports = ['/etc/containerd/[ab].d/*.toml', 'more.toml', '../x/*', '*/2.toml']");
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
        let files: Vec<_> = patterns
            .iter()
            .flat_map(|it| it.files(list).unwrap())
            .collect();
        let expected = [
            "/etc/containerd/a.d/1.toml",
            "/etc/containerd/a.d/2.toml",
            "/etc/containerd/b.d/0.toml",
            "/etc/containerd/more.toml",
            "/etc/x/y",
            // Of the directories that there are, this one has such a file.
            "/etc/containerd/a.d/2.toml",
        ];
        assert_eq!(files, expected.map(PathBuf::from));
    }

    #[test]
    fn a_name_without_a_star_is_no_pattern_and_each_file_has_one_name() {
        let patterns = of("imports = ['[ab].toml', '../containerd/./config.toml', '/../x.toml']");
        let none = |_: &Path| -> Result<Vec<Vec<u8>>, ()> { panic!("nothing to look for") };
        let files: Vec<_> = patterns
            .iter()
            .flat_map(|it| it.files(none).unwrap())
            .collect();
        let expected = [
            "/etc/containerd/[ab].toml",
            "/etc/containerd/config.toml",
            "/x.toml",
        ];
        assert_eq!(files, expected.map(PathBuf::from));
    }

    #[test]
    fn a_drop_in_is_one_that_is_sure_to_be_imported() {
        for (pattern, expected) in [
            (
                "/etc/containerd/conf.d/*.toml",
                Some("/etc/containerd/conf.d/runcrust.toml"),
            ),
            ("/x/*", Some("/x/runcrust.toml")),
            ("/x/*.conf", Some("/x/runcrust.conf")),
            ("/x/10-*-y*.toml", Some("/x/10-runcrust-y.toml")),
            ("/x/one.toml", None),
            ("/x/*/one.toml", None),
            ("/x/*/*.toml", None),
            ("/x/[ab].d/*.toml", None),
            ("/x/?/*.toml", None),
            // Of containerd 1.x nobody knows where from.
            ("conf.d/*.toml", None),
        ] {
            let patterns = of(&format!("imports = [{pattern:?}]"));
            assert_eq!(
                patterns[0].drop_in(),
                expected.map(PathBuf::from),
                "{pattern}"
            );
        }
    }
}
