//! The policy: a file of rules, read strictly. With a wrong policy the wrong program would mount volumes.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crust_blockfs::bounded;
use serde::Deserialize;
use serde_saphyr::Spanned;

use super::PostMountStep;

const API_VERSION: &str = "crustlet.crust.dev/v1alpha1";
const KIND: &str = "DeferPolicy";

/// In bytes: some thousands of rules.
const LARGEST: u64 = 1 << 20;

/// The pairs of storage and runtime that can defer. Without rules only those volumes are deferred that pods name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Policy {
    rules: Vec<Rule>,
}

/// A pair that can, and what it can.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rule {
    storage: Storage,
    runtime_class: String,
    /// The steps after the mount that the two can do.
    pub(super) post_mount: PostMount,
}

/// The storage of a volume, as rules name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Storage {
    /// A claim's storage class.
    Class(String),
    /// The driver of an inline volume, or of a volume without a class.
    Driver(String),
}

impl fmt::Display for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Class(class) => write!(f, "storage class {class}"),
            Self::Driver(driver) => write!(f, "driver {driver}"),
        }
    }
}

/// The steps after the mount that a pair can do, which is the third part of KEP-2857's triple.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct PostMount {
    fs_group: bool,
    fs_group_change_policy: Vec<ChangePolicy>,
    sub_path: bool,
    se_linux_relabel: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
enum ChangePolicy {
    Always,
    OnRootMismatch,
}

impl ChangePolicy {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::OnRootMismatch => "OnRootMismatch",
        }
    }
}

impl PostMount {
    /// Whether it is among them.
    pub(super) fn has(&self, ask: &PostMountStep) -> bool {
        match ask {
            PostMountStep::FsGroup => self.fs_group,
            PostMountStep::FsGroupChangePolicy(policy) => {
                let mut known = self.fs_group_change_policy.iter();
                known.any(|it| it.as_str() == policy)
            }
            PostMountStep::SubPath => self.sub_path,
            PostMountStep::SeLinuxRelabel => self.se_linux_relabel,
        }
    }
}

/// A policy can't be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PolicyError {
    /// It can't be read.
    #[error("read admission policy {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The file can't be parsed.
    #[error("admission policy {}: {source}", path.display())]
    Contents {
        /// The file.
        path: PathBuf,
        /// The error.
        source: Box<Self>,
    },
    /// It is no YAML, or has fields that no policy has.
    #[error(
        "{0}; hint: a policy is apiVersion, kind and rules; a rule is storageClassName or driver, runtimeClassName, and postMount with fsGroup, fsGroupChangePolicy, subPath and seLinuxRelabel"
    )]
    Yaml(String),
    /// Something else.
    #[error("{api_version} {kind} is no policy; hint: apiVersion: {API_VERSION}, kind: {KIND}")]
    Kind {
        /// `apiVersion`
        api_version: String,
        /// `kind`
        kind: String,
    },
    /// A rule.
    #[error("line {line}: {reason}")]
    Rule {
        /// The line at which it begins.
        line: u64,
        /// The flaw.
        reason: String,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Written {
    api_version: String,
    kind: String,
    rules: Vec<Spanned<WrittenRule>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WrittenRule {
    storage_class_name: Option<String>,
    driver: Option<String>,
    runtime_class_name: String,
    #[serde(default)]
    post_mount: PostMount,
}

impl WrittenRule {
    fn rule(self) -> Result<Rule, &'static str> {
        let storage = match (self.storage_class_name, self.driver) {
            (Some(class), None) if !class.is_empty() => Storage::Class(class),
            (None, Some(driver)) if !driver.is_empty() => Storage::Driver(driver),
            (Some(_), None) => {
                return Err(
                    "storageClassName is empty; hint: volumes without a class have a rule by driver",
                );
            }
            (None, Some(_)) => return Err("driver is empty"),
            _ => {
                return Err(
                    "it has to have storageClassName or driver, and not both; hint: driver is for inline volumes, and for volumes without a class",
                );
            }
        };
        if self.runtime_class_name.is_empty() {
            return Err(
                "runtimeClassName is empty; hint: the runtime that can mount is a RuntimeClass's",
            );
        }
        if !self.post_mount.fs_group && !self.post_mount.fs_group_change_policy.is_empty() {
            return Err("postMount has fsGroupChangePolicy without fsGroup: true");
        }
        Ok(Rule {
            storage,
            runtime_class: self.runtime_class_name,
            post_mount: self.post_mount,
        })
    }
}

impl Policy {
    /// Reads a policy.
    pub(crate) fn read(text: &str) -> Result<Self, PolicyError> {
        let written: Written = serde_saphyr::from_str(text)
            .map_err(|error| PolicyError::Yaml(error.without_snippet().to_string()))?;
        if (written.api_version.as_str(), written.kind.as_str()) != (API_VERSION, KIND) {
            return Err(PolicyError::Kind {
                api_version: written.api_version,
                kind: written.kind,
            });
        }
        let mut policy = Self::default();
        for Spanned {
            value, referenced, ..
        } in written.rules
        {
            let line = referenced.line();
            let refused = |reason: String| PolicyError::Rule { line, reason };
            let rule = value.rule().map_err(|reason| refused(reason.to_owned()))?;
            if policy.rule(&rule.storage, &rule.runtime_class).is_some() {
                return Err(refused(format!(
                    "there is a rule of {} with runtime class {} already; hint: one rule a pair",
                    rule.storage, rule.runtime_class
                )));
            }
            policy.rules.push(rule);
        }
        Ok(policy)
    }

    /// Reads a policy's file.
    pub(crate) fn load(path: &Path) -> Result<Self, PolicyError> {
        let path_of = || path.to_owned();
        let text = bounded::read_to_string(path, LARGEST).map_err(|source| PolicyError::Read {
            path: path_of(),
            source,
        })?;
        Self::read(&text).map_err(|source| PolicyError::Contents {
            path: path_of(),
            source: Box::new(source),
        })
    }

    /// The rule of a pair.
    pub(super) fn rule(&self, storage: &Storage, runtime_class: &str) -> Option<&Rule> {
        let mut rules = self.rules.iter();
        rules.find(|it| it.storage == *storage && it.runtime_class == runtime_class)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(rules: &str) -> String {
        format!("apiVersion: {API_VERSION}\nkind: {KIND}\nrules:\n{rules}\n")
    }

    #[test]
    fn a_rule_has_no_more_than_it_says() {
        let text = policy("- {driver: csi.example, runtimeClassName: crust}");
        let policy = Policy::read(&text).unwrap();
        let driver = Storage::Driver("csi.example".to_owned());
        let rule = policy.rule(&driver, "crust").expect("a rule");
        assert_eq!(rule.post_mount, PostMount::default());
        assert!(!rule.post_mount.has(&PostMountStep::SubPath));
        assert_eq!(policy.rule(&driver, "other"), None);
        let class = Storage::Class("csi.example".to_owned());
        assert_eq!(policy.rule(&class, "crust"), None);
    }

    #[test]
    fn what_is_no_policy_says_where_and_what_one_is() {
        let rule = "- storageClassName: fast\n  runtimeClassName: crust\n";
        let cases = [
            (
                policy(rule).replace("v1alpha1", "v2"),
                "apiVersion: crustlet.crust.dev/v1alpha1",
            ),
            (policy(&format!("{rule}  postMounts: {{}}")), "line 6"),
            (
                policy(&format!("{rule}  postMounts: {{}}")),
                "hint: a policy is",
            ),
            (
                policy(&format!("{rule}  postMount: {{fsgroup: true}}")),
                "fsgroup",
            ),
            (
                policy(&format!(
                    "{rule}  postMount: {{fsGroup: true, fsGroupChangePolicy: [Never]}}"
                )),
                "Never",
            ),
            (
                policy(&format!(
                    "{rule}  postMount: {{fsGroupChangePolicy: [Always]}}"
                )),
                "without fsGroup: true",
            ),
            (
                policy(&format!("{rule}  driver: csi.example")),
                "line 4: it has to have storageClassName or driver",
            ),
            (
                policy("- runtimeClassName: crust"),
                "storageClassName or driver",
            ),
            (policy("- storageClassName: fast"), "runtimeClassName"),
            (
                policy("- {storageClassName: '', runtimeClassName: crust}"),
                "a rule by driver",
            ),
            (
                policy(&format!("{rule}{rule}")),
                "line 6: there is a rule of storage class fast with runtime class crust already",
            ),
            ("rules: [".to_owned(), "line 1"),
        ];
        for (text, told) in cases {
            let error = Policy::read(&text).expect_err(&text).to_string();
            assert!(error.contains(told), "{text}: {error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn an_error_names_the_file() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("policy.yaml");
        let error = Policy::load(&path).unwrap_err().to_string();
        assert!(error.contains("policy.yaml: No such file"), "{error}");
        std::fs::write(&path, "kind: Pod").unwrap();
        let error = Policy::load(&path).unwrap_err().to_string();
        assert!(error.contains("policy.yaml: "), "{error}");
        std::fs::write(&path, policy("  []")).unwrap();
        assert_eq!(Policy::load(&path).unwrap(), Policy::default());
    }
}
