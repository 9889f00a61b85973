//! The location of a volume: the server, the share, and the directory below it. A `StorageClass` and a `PersistentVolume` have
//! the same keys as with csi-driver-nfs.

use std::collections::HashMap;

use crust_nfs::Share;

use crate::capability::{CHANGE_POLICY_KEY, DEFER_KEY, Parameters, SIDECAR_PREFIX, is_own_key};
use crate::field_error::FieldError;

const SERVER_KEY: &str = "server";
const SHARE_KEY: &str = "share";
const SUB_DIR_KEY: &str = "subDir";

/// CSI's limit on the length of a volume id in bytes.
const MAX_ID_BYTES: usize = 128;

/// Separates the share from the directory in a volume id.
const SEPARATOR: char = '#';

/// The variables in the `subDir` of a `StorageClass`, which are those of csi-driver-nfs, and the keys that
/// csi-provisioner passes for them with `--extra-create-metadata`.
const VARIABLES: [(&str, &str); 3] = [
    (PV_NAME, "csi.storage.k8s.io/pv/name"),
    (CLAIM_NAME, "csi.storage.k8s.io/pvc/name"),
    (CLAIM_NAMESPACE, "csi.storage.k8s.io/pvc/namespace"),
];
const PV_NAME: &str = "${pv.metadata.name}";
const CLAIM_NAME: &str = "${pvc.metadata.name}";
const CLAIM_NAMESPACE: &str = "${pvc.metadata.namespace}";

/// The parameters of a `StorageClass`, or the attributes of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ShareParameters {
    share: Share,
    /// A directory below the share, which can have variables in a `StorageClass`.
    sub_dir: Option<String>,
    /// The keys that both drivers have.
    pub(super) common: Parameters,
}

impl ShareParameters {
    /// Reads the parameters of a `StorageClass`.
    pub(super) fn from_storage_class(keys: &HashMap<String, String>) -> Result<Self, FieldError> {
        Self::read("parameters", keys, |key| key.starts_with(SIDECAR_PREFIX))
    }

    /// Reads a volume's context, in which other components may have keys with a prefix. A key without one is meant for
    /// this driver: with a misspelled `subDir`, the pod would get the whole share.
    pub(super) fn from_volume_context(keys: &HashMap<String, String>) -> Result<Self, FieldError> {
        Self::read("volume_context", keys, |key| key.contains('/'))
    }

    fn read(
        field: &'static str,
        keys: &HashMap<String, String>,
        is_others: impl Fn(&str) -> bool,
    ) -> Result<Self, FieldError> {
        let (mut server, mut share, mut sub_dir) = (None, None, None);
        let mut common = HashMap::new();
        for (key, value) in keys {
            // csi-driver-nfs ignores the case of keys.
            let slot = match key {
                key if key.eq_ignore_ascii_case(SERVER_KEY) => &mut server,
                key if key.eq_ignore_ascii_case(SHARE_KEY) => &mut share,
                key if key.eq_ignore_ascii_case(SUB_DIR_KEY) => &mut sub_dir,
                key if is_own_key(key) => {
                    common.insert(key.clone(), value.clone());
                    continue;
                }
                key if is_others(key) => continue,
                unknown => {
                    let reason = format!(
                        "unknown key {unknown:?}; hint: use {SERVER_KEY}, {SHARE_KEY}, {SUB_DIR_KEY}, {DEFER_KEY} or \
                         {CHANGE_POLICY_KEY}"
                    );
                    return Err(FieldError::new(field, reason));
                }
            };
            if slot.replace(value.trim()).is_some() {
                return Err(FieldError::new(field, format!("{key}: is given twice")));
            }
        }
        let required = |key: &str, value: Option<&str>| {
            let value = value.filter(|value| !value.is_empty()).map(str::to_owned);
            value.ok_or_else(|| {
                let reason = format!(
                    "{key} is required; hint: set it in the parameters of the StorageClass, or in the volumeAttributes \
                     of the PersistentVolume"
                );
                FieldError::new(field, reason)
            })
        };
        let (server, share) = (required(SERVER_KEY, server)?, required(SHARE_KEY, share)?);
        let sub_dir = sub_dir.filter(|it| !it.is_empty()).map(str::to_owned);
        Ok(Self {
            share: parse_share(field, &server, &share)?,
            sub_dir,
            common: Parameters::read(field, &common)?,
        })
    }

    /// Returns the directory that a pod gets.
    pub(super) fn mounted_share(&self) -> Result<Share, FieldError> {
        let Some(sub_dir) = &self.sub_dir else {
            return Ok(self.share.clone());
        };
        let share = format!("{}/{sub_dir}", self.share).parse();
        share.map_err(|error| sub_dir_error("volume_context", error))
    }

    /// Returns the place of a new volume with this name. `metadata` has csi-provisioner's keys.
    pub(super) fn new_volume(
        &self,
        name: &str,
        metadata: &HashMap<String, String>,
    ) -> Result<ProvisionedVolume, FieldError> {
        let template = self.sub_dir.as_deref().unwrap_or(PV_NAME);
        let invalid = |reason: String| sub_dir_error("parameters", reason);
        let has = |variable| template.contains(variable);
        let is_unique = has(PV_NAME) || (has(CLAIM_NAME) && has(CLAIM_NAMESPACE));
        if !is_unique {
            return Err(invalid(format!(
                "{template:?} is the same for several volumes, and each would be deleted with any of them; hint: add \
                 {PV_NAME}, or {CLAIM_NAMESPACE} and {CLAIM_NAME}"
            )));
        }
        let mut sub_dir = template.to_owned();
        for (variable, key) in VARIABLES.iter().filter(|(variable, _)| has(variable)) {
            // csi-provisioner uses the name of the PersistentVolume as the name of the volume.
            let own_name = (*variable == PV_NAME).then_some(name);
            let value = metadata.get(*key).map(String::as_str).or(own_name);
            let value = value.ok_or_else(|| {
                invalid(format!(
                    "the value of {variable} is unknown; hint: start csi-provisioner with --extra-create-metadata"
                ))
            })?;
            if value.contains(['/', '$']) {
                return Err(invalid(format!(
                    "{variable} is {value:?}, which can't be the name of a directory"
                )));
            }
            sub_dir = sub_dir.replace(variable, value);
        }
        if sub_dir.contains("${") {
            let known = VARIABLES.map(|(variable, _)| variable).join(", ");
            return Err(invalid(format!(
                "{template:?} has an unknown variable; hint: use one of {known}"
            )));
        }
        let id = format!("{}{SEPARATOR}{sub_dir}", self.share);
        if id.len() > MAX_ID_BYTES {
            return Err(invalid(format!(
                "the volume's id would be {id:?}, which has more than {MAX_ID_BYTES} bytes; hint: shorten the name of \
                 the server, or the path of the share or of subDir"
            )));
        }
        ProvisionedVolume::parse(&id).map_err(|error| invalid(error.to_string()))
    }
}

/// Returns the error of a `subDir`.
fn sub_dir_error(field: &'static str, reason: impl std::fmt::Display) -> FieldError {
    FieldError::new(field, format!("{SUB_DIR_KEY}: {reason}"))
}

fn parse_share(field: &'static str, server: &str, share: &str) -> Result<Share, FieldError> {
    if !share.starts_with('/') {
        let reason = format!(
            "{SHARE_KEY}: {share:?} isn't an absolute path; hint: use the path of the export on the server, such as /export"
        );
        return Err(FieldError::new(field, reason));
    }
    let is_ipv6 = server.contains(':') && !server.starts_with('[');
    let host = if is_ipv6 {
        format!("[{server}]")
    } else {
        server.to_owned()
    };
    let parsed = format!("{host}:{share}").parse();
    parsed.map_err(|error| FieldError::new(field, format!("{SERVER_KEY}, {SHARE_KEY}: {error}")))
}

/// The place of a volume that the driver created. It is written as the volume's id, because a deletion only gets that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProvisionedVolume {
    /// The share below which the volume's directory is.
    pub(super) share: Share,
    /// The names of the directories that lead from the share to the volume's own. There is at least one.
    pub(super) directory: Vec<String>,
}

/// The reason why a text isn't the id of a volume that the driver created.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ParseIdError {
    #[error("{0:?} isn't SERVER:/PATH#DIRECTORY")]
    Form(String),
    #[error("the directory {0:?} has a component . or .., or none at all")]
    Directory(String),
}

impl ProvisionedVolume {
    /// Parses the id of a volume.
    pub(super) fn parse(id: &str) -> Result<Self, ParseIdError> {
        let form = || ParseIdError::Form(id.to_owned());
        let (share, directory) = id.split_once(SEPARATOR).ok_or_else(form)?;
        let share = share.parse().map_err(|_| form())?;
        if directory.contains([SEPARATOR, '\0']) {
            return Err(form());
        }
        let names = directory.split('/').filter(|name| !name.is_empty());
        let names: Vec<String> = names.map(str::to_owned).collect();
        if names.is_empty() || names.iter().any(|name| matches!(name.as_str(), "." | "..")) {
            return Err(ParseIdError::Directory(directory.to_owned()));
        }
        Ok(Self {
            share,
            directory: names,
        })
    }

    /// Returns the volume's id.
    pub(super) fn id(&self) -> String {
        format!("{}{SEPARATOR}{}", self.share, self.directory.join("/"))
    }

    /// Returns the volume's context, without the keys that both drivers have.
    pub(super) fn context(&self) -> HashMap<String, String> {
        let pairs = [
            (SERVER_KEY, self.share.host().to_owned()),
            (SHARE_KEY, self.share.path().to_owned()),
            (SUB_DIR_KEY, self.directory.join("/")),
        ];
        pairs.map(|(key, value)| (key.to_owned(), value)).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(pairs: &[(&str, &str)]) -> HashMap<String, String> {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        pairs.iter().map(owned).collect()
    }

    fn class(pairs: &[(&str, &str)]) -> Result<ShareParameters, String> {
        ShareParameters::from_storage_class(&keys(pairs)).map_err(|error| error.to_string())
    }

    fn mounted(pairs: &[(&str, &str)]) -> Result<String, String> {
        let read = ShareParameters::from_volume_context(&keys(pairs));
        let share = read.and_then(|read| read.mounted_share());
        share
            .map(|share| share.to_string())
            .map_err(|error| error.to_string())
    }

    const SERVER: (&str, &str) = ("server", "Files.example.com");
    const SHARE: (&str, &str) = ("share", "/export/");

    #[test]
    fn attributes_name_a_directory() {
        for (attributes, expected) in [
            (&[SERVER, SHARE][..], "files.example.com:/export"),
            (
                &[SERVER, SHARE, ("subDir", "a/b")],
                "files.example.com:/export/a/b",
            ),
            (
                &[SERVER, SHARE, ("subdir", "/a/")],
                "files.example.com:/export/a",
            ),
            (&[("SERVER", "fe80::1"), SHARE], "[fe80::1]:/export"),
            (&[("server", "[::1]"), ("share", "/")], "[::1]:/"),
            (
                &[SERVER, SHARE, ("storage.kubernetes.io/x", "y")],
                "files.example.com:/export",
            ),
        ] {
            assert_eq!(mounted(attributes).as_deref(), Ok(expected));
        }
    }

    #[test]
    fn invalid_attributes_are_named() {
        for (attributes, words) in [
            (&[SHARE][..], "server is required; hint: "),
            (&[SERVER], "share is required; hint: "),
            (&[SERVER, ("share", "")], "share is required; hint: "),
            (
                &[SERVER, ("share", "export")],
                "isn't an absolute path; hint: ",
            ),
            (&[("server", "a b"), SHARE], "no host name has"),
            (&[SERVER, SHARE, ("subDir", "../x")], "subDir: "),
            (
                &[SERVER, SHARE, ("sub_dir", "x")],
                "unknown key \"sub_dir\"; hint: ",
            ),
            (
                &[SERVER, SHARE, ("crust.dev/defer", "yes")],
                "crust.dev/defer: ",
            ),
            (&[SERVER, ("Server", "x"), SHARE], "is given twice"),
        ] {
            let error = mounted(attributes).unwrap_err();
            assert!(error.starts_with("volume_context: "), "{error}");
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn a_new_volume_has_a_directory_of_its_own() {
        let metadata = keys(&[
            ("csi.storage.k8s.io/pvc/name", "data"),
            ("csi.storage.k8s.io/pvc/namespace", "team"),
            ("csi.storage.k8s.io/pv/name", "pvc-1"),
        ]);
        for (sub_dir, expected) in [
            ("", "files.example.com:/export#pvc-1"),
            (
                "k8s/${pv.metadata.name}",
                "files.example.com:/export#k8s/pvc-1",
            ),
            (
                "${pvc.metadata.namespace}/${pvc.metadata.name}",
                "files.example.com:/export#team/data",
            ),
        ] {
            let parameters = class(&[SERVER, SHARE, ("subDir", sub_dir)]).unwrap();
            let volume = parameters.new_volume("pvc-1", &metadata).unwrap();
            assert_eq!(volume.id(), expected);
            assert_eq!(ProvisionedVolume::parse(expected), Ok(volume.clone()));
            let context = ShareParameters::from_volume_context(&volume.context()).unwrap();
            let mounted = context.mounted_share().unwrap().to_string();
            assert_eq!(mounted, expected.replace('#', "/"));
        }
    }

    #[test]
    fn a_directory_that_volumes_would_share_is_refused() {
        let long = format!("{}${{pv.metadata.name}}", "a".repeat(128));
        for (sub_dir, name, words) in [
            ("fixed", "pvc-1", "the same for several volumes"),
            (
                "${pvc.metadata.name}",
                "pvc-1",
                "the same for several volumes",
            ),
            ("${pv.metadata.name}/${pod}", "pvc-1", "unknown variable"),
            (
                "${pvc.metadata.name}-${pvc.metadata.namespace}",
                "pvc-1",
                "--extra-create-metadata",
            ),
            ("", "a/b", "can't be the name of a directory"),
            ("", "..", "component"),
            ("", "a#b", "isn't SERVER:/PATH#DIRECTORY"),
            (&long, "pvc-1", "128 bytes"),
        ] {
            let parameters = class(&[SERVER, SHARE, ("subDir", sub_dir)]).unwrap();
            let error = parameters.new_volume(name, &HashMap::new());
            let error = error.unwrap_err().to_string();
            assert!(error.starts_with("parameters: subDir: "), "{error}");
            assert!(error.contains(words), "{sub_dir}: {error}");
        }
    }

    #[test]
    fn an_id_names_a_directory_below_the_share() {
        for id in [
            "srv:/a",
            "a#b",
            "srv:/a#",
            "srv:/a#/",
            "srv:/a#..",
            "srv:/a#b/../..",
            "srv:/a#b#c",
        ] {
            assert!(ProvisionedVolume::parse(id).is_err(), "{id}");
        }
    }
}
