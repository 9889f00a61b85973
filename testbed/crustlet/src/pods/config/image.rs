//! When a container's image is pulled.

use k8s_openapi::api::core::v1::Container;

/// `imagePullPolicy`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PullPolicy {
    /// Before each start.
    Always,
    /// Unless it is there.
    IfNotPresent,
    /// It is there.
    Never,
}

impl PullPolicy {
    /// A container's; where it doesn't say, it is as the API server would have it by the image's tag.
    pub(crate) fn of(container: &Container) -> Self {
        match container.image_pull_policy.as_deref() {
            Some("Always") => Self::Always,
            Some("Never") => Self::Never,
            Some("IfNotPresent") => Self::IfNotPresent,
            _ if is_latest(container.image.as_deref().unwrap_or_default()) => Self::Always,
            _ => Self::IfNotPresent,
        }
    }
}

/// Whether a name means another image each day; without a tag and a digest it is `latest`.
fn is_latest(image: &str) -> bool {
    let (name, digest) = image
        .split_once('@')
        .map_or((image, None), |(name, digest)| (name, Some(digest)));
    // What is before it may be a registry with a port.
    let (_, last) = name.rsplit_once('/').unwrap_or(("", name));
    match last.rsplit_once(':') {
        Some((_, tag)) => tag == "latest",
        None => digest.is_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_said_goes_by_the_tag() {
        let digest = format!("app@sha256:{}", "0".repeat(64));
        for (image, said, expected) in [
            ("app", None, PullPolicy::Always),
            ("app:latest", None, PullPolicy::Always),
            ("app:1", None, PullPolicy::IfNotPresent),
            ("registry:5000/app", None, PullPolicy::Always),
            ("registry:5000/app:1", None, PullPolicy::IfNotPresent),
            (&digest, None, PullPolicy::IfNotPresent),
            ("app", Some("Never"), PullPolicy::Never),
            ("app", Some("IfNotPresent"), PullPolicy::IfNotPresent),
            ("app:1", Some("Always"), PullPolicy::Always),
        ] {
            let container = Container {
                image: Some(image.to_owned()),
                image_pull_policy: said.map(str::to_owned),
                ..Container::default()
            };
            assert_eq!(PullPolicy::of(&container), expected, "{image} {said:?}");
        }
    }
}
