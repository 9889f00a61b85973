//! The objects that a command line selects: `KIND`, `KIND NAME…` or `KIND/NAME…`.

use super::resource::{Resource, UnknownResource};

/// Objects of a command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Selection {
    /// All of a kind.
    All(Resource),
    /// Some of a kind, by name.
    Named(Resource, Vec<String>),
    /// Some of several kinds.
    Mixed(Vec<(Resource, String)>),
}

/// Words that name no objects.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum SelectionError {
    /// There is no such kind.
    #[error(transparent)]
    Unknown(#[from] UnknownResource),
    /// Some words have a kind before a slash, and others don't.
    #[error("{0:?} isn't as the other words are; hint: KIND NAME..., or KIND/NAME...")]
    Mixed(String),
    /// More or less around a slash than two words.
    #[error("{0:?} isn't KIND/NAME")]
    Slash(String),
}

/// Returns the objects that words select. There must be one word at least.
pub(super) fn select(words: &[String]) -> Result<Selection, SelectionError> {
    let (first, rest) = words.split_first().map_or(("", words), |(a, b)| (a, b));
    if first.contains('/') {
        let (resource, _) = one(first)?;
        let named: Vec<_> = words
            .iter()
            .map(|word| one(word))
            .collect::<Result<_, _>>()?;
        if named.iter().any(|(other, _)| *other != resource) {
            return Ok(Selection::Mixed(named));
        }
        let words = named.into_iter().map(|(_, name)| name);
        return Ok(Selection::Named(resource, words.collect()));
    }
    let resource: Resource = first.parse()?;
    if let Some(word) = rest.iter().find(|word| word.contains('/')) {
        return Err(SelectionError::Mixed(word.clone()));
    }
    Ok(match rest {
        [] => Selection::All(resource),
        names => Selection::Named(resource, names.to_vec()),
    })
}

fn one(word: &str) -> Result<(Resource, String), SelectionError> {
    let Some((kind, name)) = word.split_once('/') else {
        return Err(SelectionError::Mixed(word.to_owned()));
    };
    if name.is_empty() || name.contains('/') {
        return Err(SelectionError::Slash(word.to_owned()));
    }
    Ok((kind.parse()?, name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::Kind;

    const POD: Resource = Resource::Object(Kind::Pod);
    const CLAIM: Resource = Resource::Object(Kind::PersistentVolumeClaim);

    fn of(line: &str) -> Result<Selection, SelectionError> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        select(&words)
    }

    #[test]
    fn a_line_names_all_of_a_kind_or_some_objects() {
        let pods = |names: &[&str]| {
            let names = names.iter().map(|&it| it.to_owned());
            Ok(Selection::Named(POD, names.collect()))
        };
        assert_eq!(of("pods"), Ok(Selection::All(POD)));
        assert_eq!(of("pod web"), pods(&["web"]));
        assert_eq!(of("po a b"), pods(&["a", "b"]));
        assert_eq!(of("pod/a pods/b"), pods(&["a", "b"]));
        let mixed = vec![(POD, "a".to_owned()), (CLAIM, "b".to_owned())];
        assert_eq!(of("pod/a pvc/b"), Ok(Selection::Mixed(mixed)));
    }

    #[test]
    fn a_line_that_names_none_says_why() {
        for (line, told) in [
            ("", "\"\" is nothing that crustlet knows"),
            ("node", "\"node\" is nothing"),
            ("node/a", "\"node\" is nothing"),
            ("pod a pvc/b", "\"pvc/b\" isn't as the other words are"),
            ("pod/a b", "\"b\" isn't as the other words are"),
            ("pod/", "\"pod/\" isn't KIND/NAME"),
            ("pod/a/b", "\"pod/a/b\" isn't KIND/NAME"),
        ] {
            let error = of(line).unwrap_err().to_string();
            assert!(error.contains(told), "{line}: {error}");
        }
    }
}
