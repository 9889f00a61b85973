//! A pod on the command line, `logs` and `exec`.

use super::resource::{Resource, UnknownResource};
use crate::objects::Kind;

/// What is no pod.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum PodError {
    /// A kind of nothing.
    #[error(transparent)]
    Unknown(#[from] UnknownResource),
    /// Another kind.
    #[error("{0:?} isn't a pod, and nothing else has containers")]
    Other(String),
}

/// Of `web` or `pod/web`.
pub(super) fn name(word: &str) -> Result<&str, PodError> {
    let Some((kind, name)) = word.split_once('/') else {
        return Ok(word);
    };
    if kind.parse::<Resource>()? == Resource::Object(Kind::Pod) && !name.contains('/') {
        Ok(name)
    } else {
        Err(PodError::Other(word.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_named_with_its_kind_or_without() {
        assert_eq!(name("web"), Ok("web"));
        assert_eq!(name("pod/web"), Ok("web"));
        assert_eq!(name("po/web"), Ok("web"));
        for word in ["pvc/web", "pod/web/app"] {
            assert_eq!(name(word), Err(PodError::Other(word.to_owned())));
        }
        assert!(
            name("web/app")
                .unwrap_err()
                .to_string()
                .contains("pods (po)")
        );
    }
}
