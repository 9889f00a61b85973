//! The objects that the arguments select: `KIND`, `KIND NAME…` or `KIND/NAME…`.

use super::resource::{Resource, UnknownResource};

/// The objects that the arguments select.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Selection {
    /// All objects of a kind.
    All(Resource),
    /// Objects of one kind, by name.
    Named(Resource, Vec<String>),
    /// Objects of several kinds, by name.
    Mixed(Vec<(Resource, String)>),
}

/// The error of arguments that don't select objects.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum SelectionError {
    #[error(transparent)]
    Unknown(#[from] UnknownResource),
    /// Some arguments are `KIND/NAME`, and others aren't.
    #[error(
        "{0:?}: KIND NAME and KIND/NAME cannot be mixed; hint: use either KIND NAME... or KIND/NAME..."
    )]
    Mixed(String),
    #[error("{0:?} is not KIND/NAME")]
    InvalidReference(String),
}

/// Parses the arguments. There must be at least one.
pub(super) fn select(words: &[String]) -> Result<Selection, SelectionError> {
    let (first, rest) = words
        .split_first()
        .map_or(("", words), |(first, rest)| (first, rest));
    if first.contains('/') {
        let (resource, _) = parse_reference(first)?;
        let named: Vec<_> = words
            .iter()
            .map(|word| parse_reference(word))
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

/// Parses `KIND/NAME`.
fn parse_reference(word: &str) -> Result<(Resource, String), SelectionError> {
    let Some((kind, name)) = word.split_once('/') else {
        return Err(SelectionError::Mixed(word.to_owned()));
    };
    if name.is_empty() || name.contains('/') {
        return Err(SelectionError::InvalidReference(word.to_owned()));
    }
    Ok((kind.parse()?, name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::Kind;

    const POD: Resource = Resource::Object(Kind::Pod);
    const CLAIM: Resource = Resource::Object(Kind::PersistentVolumeClaim);

    fn parse(line: &str) -> Result<Selection, SelectionError> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        select(&words)
    }

    #[test]
    fn arguments_select_a_kind_or_objects() {
        let pods = |names: &[&str]| {
            let names = names.iter().map(|&name| name.to_owned());
            Ok(Selection::Named(POD, names.collect()))
        };
        assert_eq!(parse("pods"), Ok(Selection::All(POD)));
        assert_eq!(parse("pod web"), pods(&["web"]));
        assert_eq!(parse("po a b"), pods(&["a", "b"]));
        assert_eq!(parse("pod/a pods/b"), pods(&["a", "b"]));
        let mixed = vec![(POD, "a".to_owned()), (CLAIM, "b".to_owned())];
        assert_eq!(parse("pod/a pvc/b"), Ok(Selection::Mixed(mixed)));
    }

    #[test]
    fn an_invalid_selection_is_refused() {
        for (line, expected) in [
            ("", "unknown resource type \"\""),
            ("node", "unknown resource type \"node\""),
            ("node/a", "unknown resource type \"node\""),
            (
                "pod a pvc/b",
                "\"pvc/b\": KIND NAME and KIND/NAME cannot be mixed",
            ),
            ("pod/a b", "\"b\": KIND NAME and KIND/NAME cannot be mixed"),
            ("pod/", "\"pod/\" is not KIND/NAME"),
            ("pod/a/b", "\"pod/a/b\" is not KIND/NAME"),
        ] {
            let error = parse(line).unwrap_err().to_string();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
