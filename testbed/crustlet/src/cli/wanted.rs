//! `KIND`, `KIND NAME…` and `KIND/NAME…`: which objects a command line is about.

use super::resource::{Resource, UnknownResource};

/// Objects of a command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wanted {
    /// All of a kind.
    All(Resource),
    /// Those of a kind.
    Named(Resource, Vec<String>),
    /// Those, of several kinds.
    Mixed(Vec<(Resource, String)>),
}

/// Words that name no objects.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum WantedError {
    /// No kind.
    #[error(transparent)]
    Unknown(#[from] UnknownResource),
    /// Some words have a kind before a slash, and others don't.
    #[error("{0:?} isn't as the other words are; hint: KIND NAME..., or KIND/NAME...")]
    Mixed(String),
    /// More or less around a slash than two words.
    #[error("{0:?} isn't KIND/NAME")]
    Slash(String),
}

/// What the words name. There is one at least.
pub(super) fn wanted(words: &[String]) -> Result<Wanted, WantedError> {
    let (first, rest) = words.split_first().map_or(("", words), |(a, b)| (a, b));
    if first.contains('/') {
        let (resource, _) = one(first)?;
        let named: Vec<_> = words
            .iter()
            .map(|word| one(word))
            .collect::<Result<_, _>>()?;
        if named.iter().any(|(other, _)| *other != resource) {
            return Ok(Wanted::Mixed(named));
        }
        let words = named.into_iter().map(|(_, name)| name);
        return Ok(Wanted::Named(resource, words.collect()));
    }
    let resource: Resource = first.parse()?;
    if let Some(word) = rest.iter().find(|word| word.contains('/')) {
        return Err(WantedError::Mixed(word.clone()));
    }
    Ok(match rest {
        [] => Wanted::All(resource),
        names => Wanted::Named(resource, names.to_vec()),
    })
}

fn one(word: &str) -> Result<(Resource, String), WantedError> {
    let Some((kind, name)) = word.split_once('/') else {
        return Err(WantedError::Mixed(word.to_owned()));
    };
    if name.is_empty() || name.contains('/') {
        return Err(WantedError::Slash(word.to_owned()));
    }
    Ok((kind.parse()?, name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::Kind;

    const POD: Resource = Resource::Object(Kind::Pod);
    const CLAIM: Resource = Resource::Object(Kind::PersistentVolumeClaim);

    fn of(line: &str) -> Result<Wanted, WantedError> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        wanted(&words)
    }

    #[test]
    fn a_line_names_all_of_a_kind_or_some_objects() {
        let pods = |names: &[&str]| {
            let names = names.iter().map(|&it| it.to_owned());
            Ok(Wanted::Named(POD, names.collect()))
        };
        assert_eq!(of("pods"), Ok(Wanted::All(POD)));
        assert_eq!(of("pod web"), pods(&["web"]));
        assert_eq!(of("po a b"), pods(&["a", "b"]));
        assert_eq!(of("pod/a pods/b"), pods(&["a", "b"]));
        let mixed = vec![(POD, "a".to_owned()), (CLAIM, "b".to_owned())];
        assert_eq!(of("pod/a pvc/b"), Ok(Wanted::Mixed(mixed)));
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
