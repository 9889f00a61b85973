//! The admission policy, a file of rules. It is parsed strictly, because a mistake in the file would let the wrong
//! program mount volumes.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crust_blockfs::bounded;
use serde::Deserialize;
use serde_saphyr::Spanned;

use super::PostMountStep;

const API_VERSION: &str = "crustlet.crust.dev/v1alpha1";
const KIND: &str = "DeferPolicy";

/// The size limit of a policy file in bytes. It is enough for thousands of rules.
const MAX_FILE_SIZE: u64 = 1 << 20;

/// The rules of a policy. Without a policy, only the volumes with `deferFSMount` in the pod's manifest are deferred.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DeferPolicy {
    rules: Vec<DeferRule>,
}

/// A pair of storage and runtime class that can defer mounts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DeferRule {
    storage: StorageSelector,
    runtime_class: String,
    /// The post-mount steps that the pair supports.
    pub(super) post_mount: PostMountSupport,
}

/// The storage of a volume, in the form in which rules name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StorageSelector {
    /// The storage class of a claim.
    Class(String),
    /// The driver of an inline volume, or of a volume without a storage class.
    Driver(String),
}

impl fmt::Display for StorageSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Class(class) => write!(f, "storage class {class}"),
            Self::Driver(driver) => write!(f, "driver {driver}"),
        }
    }
}

/// The post-mount steps that a pair supports: the third part of KEP-2857's triple.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct PostMountSupport {
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

impl PostMountSupport {
    pub(super) fn has(&self, step: &PostMountStep) -> bool {
        match step {
            PostMountStep::FsGroup => self.fs_group,
            PostMountStep::FsGroupChangePolicy(policy) => {
                let mut supported = self.fs_group_change_policy.iter();
                supported.any(|supported| supported.as_str() == policy)
            }
            PostMountStep::SubPath => self.sub_path,
            PostMountStep::SeLinuxRelabel => self.se_linux_relabel,
        }
    }
}

/// The error of a policy that can't be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PolicyError {
    /// The file can't be read.
    #[error("read admission policy {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// The file isn't a valid policy.
    #[error("admission policy {}: {source}", path.display())]
    Contents { path: PathBuf, source: Box<Self> },
    /// The file isn't YAML, or a field is unknown, missing or of another type.
    #[error(
        "{0}; hint: write apiVersion, kind and rules in a policy; in a rule, write storageClassName or driver, runtimeClassName, and postMount with fsGroup, fsGroupChangePolicy, subPath and seLinuxRelabel"
    )]
    Yaml(String),
    /// The file is of another kind or version.
    #[error(
        "{api_version} {kind} is not a supported policy; hint: use apiVersion: {API_VERSION}, kind: {KIND}"
    )]
    Kind { api_version: String, kind: String },
    #[error("line {line}: {reason}")]
    Rule {
        /// The line at which the rule begins.
        line: u64,
        reason: String,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PolicyFile {
    api_version: String,
    kind: String,
    rules: Vec<Spanned<RuleEntry>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RuleEntry {
    storage_class_name: Option<String>,
    driver: Option<String>,
    runtime_class_name: String,
    #[serde(default)]
    post_mount: PostMountSupport,
}

impl RuleEntry {
    fn rule(self) -> Result<DeferRule, &'static str> {
        let storage = match (self.storage_class_name, self.driver) {
            (Some(class), None) if !class.is_empty() => StorageSelector::Class(class),
            (None, Some(driver)) if !driver.is_empty() => StorageSelector::Driver(driver),
            (Some(_), None) => {
                return Err(
                    "storageClassName is empty; hint: use driver for volumes without a storage class",
                );
            }
            (None, Some(_)) => return Err("driver is empty"),
            _ => {
                return Err(
                    "a rule needs either storageClassName or driver; hint: use driver for inline volumes and for volumes without a storage class",
                );
            }
        };
        if self.runtime_class_name.is_empty() {
            return Err(
                "runtimeClassName is empty; hint: set it to a RuntimeClass whose handler can mount the volumes",
            );
        }
        if !self.post_mount.fs_group && !self.post_mount.fs_group_change_policy.is_empty() {
            return Err("postMount has fsGroupChangePolicy without fsGroup: true");
        }
        Ok(DeferRule {
            storage,
            runtime_class: self.runtime_class_name,
            post_mount: self.post_mount,
        })
    }
}

impl DeferPolicy {
    /// Parses the text of a policy file.
    pub(crate) fn read(text: &str) -> Result<Self, PolicyError> {
        let file: PolicyFile = serde_saphyr::from_str(text)
            .map_err(|error| PolicyError::Yaml(error.without_snippet().to_string()))?;
        if (file.api_version.as_str(), file.kind.as_str()) != (API_VERSION, KIND) {
            return Err(PolicyError::Kind {
                api_version: file.api_version,
                kind: file.kind,
            });
        }
        let mut policy = Self::default();
        for Spanned {
            value, referenced, ..
        } in file.rules
        {
            let line = referenced.line();
            let rule_error = |reason: String| PolicyError::Rule { line, reason };
            let rule = value
                .rule()
                .map_err(|reason| rule_error(reason.to_owned()))?;
            if policy.rule(&rule.storage, &rule.runtime_class).is_some() {
                return Err(rule_error(format!(
                    "a rule for {} with runtime class {} already exists; hint: merge the two rules",
                    rule.storage, rule.runtime_class
                )));
            }
            policy.rules.push(rule);
        }
        Ok(policy)
    }

    /// Reads and parses a policy's file.
    pub(crate) fn load(path: &Path) -> Result<Self, PolicyError> {
        let path_of = || path.to_owned();
        let text =
            bounded::read_to_string(path, MAX_FILE_SIZE).map_err(|source| PolicyError::Read {
                path: path_of(),
                source,
            })?;
        Self::read(&text).map_err(|source| PolicyError::Contents {
            path: path_of(),
            source: Box::new(source),
        })
    }

    /// Returns the rule for a storage and a runtime class.
    pub(super) fn rule(
        &self,
        storage: &StorageSelector,
        runtime_class: &str,
    ) -> Option<&DeferRule> {
        let mut rules = self.rules.iter();
        rules.find(|rule| rule.storage == *storage && rule.runtime_class == runtime_class)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(rules: &str) -> String {
        format!("apiVersion: {API_VERSION}\nkind: {KIND}\nrules:\n{rules}\n")
    }

    #[test]
    fn a_rule_supports_only_the_steps_that_it_has() {
        let text = policy("- {driver: csi.example, runtimeClassName: crust}");
        let policy = DeferPolicy::read(&text).unwrap();
        let driver = StorageSelector::Driver("csi.example".to_owned());
        let rule = policy.rule(&driver, "crust").expect("a rule");
        assert_eq!(rule.post_mount, PostMountSupport::default());
        assert!(!rule.post_mount.has(&PostMountStep::SubPath));
        assert_eq!(policy.rule(&driver, "other"), None);
        let class = StorageSelector::Class("csi.example".to_owned());
        assert_eq!(policy.rule(&class, "crust"), None);
    }

    #[test]
    fn errors_have_the_line_and_a_hint() {
        let rule = "- storageClassName: fast\n  runtimeClassName: crust\n";
        let cases = [
            (
                policy(rule).replace("v1alpha1", "v2"),
                "apiVersion: crustlet.crust.dev/v1alpha1",
            ),
            (policy(&format!("{rule}  postMounts: {{}}")), "line 6"),
            (
                policy(&format!("{rule}  postMounts: {{}}")),
                "hint: write apiVersion, kind and rules",
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
                "line 4: a rule needs either storageClassName or driver",
            ),
            (
                policy("- runtimeClassName: crust"),
                "storageClassName or driver",
            ),
            (policy("- storageClassName: fast"), "runtimeClassName"),
            (
                policy("- {storageClassName: '', runtimeClassName: crust}"),
                "use driver for volumes",
            ),
            (
                policy(&format!("{rule}{rule}")),
                "line 6: a rule for storage class fast with runtime class crust already exists",
            ),
            ("rules: [".to_owned(), "line 1"),
        ];
        for (text, expected) in cases {
            let error = DeferPolicy::read(&text).expect_err(&text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn errors_name_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("policy.yaml");
        let error = DeferPolicy::load(&path).unwrap_err().to_string();
        assert!(error.contains("policy.yaml: No such file"), "{error}");
        std::fs::write(&path, "kind: Pod").unwrap();
        let error = DeferPolicy::load(&path).unwrap_err().to_string();
        assert!(error.contains("policy.yaml: "), "{error}");
        std::fs::write(&path, policy("  []")).unwrap();
        assert_eq!(DeferPolicy::load(&path).unwrap(), DeferPolicy::default());
    }
}
