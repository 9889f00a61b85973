//! The parameters of a storage class: those of the driver, and those that external-provisioner reads.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;

use crate::objects::Name;
use crate::objects::manifest::is_name;

/// The prefix of the parameters that aren't passed to the driver.
const PREFIX: &str = "csi.storage.k8s.io/";

/// The parameters of a storage class, resolved for one claim.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Parameters {
    /// The parameters that are passed to the driver.
    pub(super) for_driver: BTreeMap<String, String>,
    /// `csi.storage.k8s.io/fstype`. Empty means the driver's default.
    pub(super) fs_type: String,
    /// The Secret for `CreateVolume` and `DeleteVolume`.
    pub(super) provisioner: Option<Name>,
    /// The Secret for `ControllerPublishVolume`.
    pub(super) controller_publish: Option<Name>,
    /// The Secret for `ControllerExpandVolume`.
    pub(super) controller_expand: Option<Name>,
    /// The Secret for `NodeStageVolume`.
    pub(super) node_stage: Option<Name>,
    /// The Secret for `NodePublishVolume`.
    pub(super) node_publish: Option<Name>,
    /// The Secret for `NodeExpandVolume`.
    pub(super) node_expand: Option<Name>,
}

/// The values that may be inserted into the names of Secrets.
#[derive(Debug, Clone, Copy)]
pub(super) struct TemplateValues<'t> {
    /// The value of `${pv.name}`.
    pub(super) volume: &'t str,
    /// The values of `${pvc.name}` and `${pvc.namespace}`.
    pub(super) claim: &'t Name,
    /// The claim with the values of `${pvc.annotations['key']}`.
    pub(super) object: &'t PersistentVolumeClaim,
}

impl TemplateValues<'_> {
    /// Replaces each `${…}`. A namespace must not contain values that the claim's author chooses freely.
    fn resolve(&self, template: &str, is_namespace: bool) -> Result<String, String> {
        let mut text = String::new();
        let mut rest = template;
        while let Some((before, after)) = rest.split_once("${") {
            let unresolved = || format!("{template:?} can't be resolved");
            let (token, after) = after.split_once('}').ok_or_else(unresolved)?;
            text += before;
            text += match token {
                "pv.name" => self.volume,
                "pvc.namespace" => &self.claim.namespace,
                "pvc.name" if !is_namespace => &self.claim.name,
                _ if !is_namespace => self.annotation(token).ok_or_else(unresolved)?,
                _ => return Err(unresolved()),
            };
            rest = after;
        }
        text += rest;
        if is_name(&text) {
            Ok(text)
        } else {
            Err(format!(
                "{template:?} resolves to {text:?}, which is not a valid name"
            ))
        }
    }

    fn annotation(&self, token: &str) -> Option<&str> {
        let key = token.strip_prefix("pvc.annotations['")?;
        let key = key.strip_suffix("']")?;
        let annotations = self.object.metadata.annotations.as_ref()?;
        annotations.get(key).map(String::as_str)
    }
}

impl Parameters {
    /// Reads the parameters of a storage class. The error names the invalid parameter.
    pub(super) fn parse(
        entries: &BTreeMap<String, String>,
        template_values: TemplateValues<'_>,
    ) -> Result<Self, String> {
        let mut parameters = Self::default();
        let mut prefixed: BTreeMap<&str, &str> = BTreeMap::new();
        for (key, value) in entries {
            match key.strip_prefix(PREFIX) {
                Some(key) => drop(prefixed.insert(key, value)),
                None => drop(parameters.for_driver.insert(key.clone(), value.clone())),
            }
        }
        parameters.fs_type = prefixed
            .remove("fstype")
            .map(str::to_owned)
            .unwrap_or_default();
        // This Secret is the default for calls without a Secret of their own.
        let default = secret_name(&mut prefixed, "", template_values)?;
        for (secret, name) in [
            (&mut parameters.provisioner, "provisioner-"),
            (&mut parameters.controller_publish, "controller-publish-"),
            (&mut parameters.controller_expand, "controller-expand-"),
            (&mut parameters.node_stage, "node-stage-"),
            (&mut parameters.node_publish, "node-publish-"),
            (&mut parameters.node_expand, "node-expand-"),
        ] {
            *secret =
                secret_name(&mut prefixed, name, template_values)?.or_else(|| default.clone());
        }
        match prefixed.first_key_value() {
            Some((unknown, _)) => Err(format!("{PREFIX}{unknown}: the parameter is unknown")),
            None => Ok(parameters),
        }
    }
}

/// Returns the Secret that a pair of parameters names.
fn secret_name(
    prefixed: &mut BTreeMap<&str, &str>,
    prefix: &str,
    template_values: TemplateValues<'_>,
) -> Result<Option<Name>, String> {
    let keys = ["name", "namespace"].map(|part| format!("{prefix}secret-{part}"));
    let [name, namespace] = [&keys[0], &keys[1]].map(|key| prefixed.remove(key.as_str()));
    let resolved = |key: &str, template, is_namespace| {
        let resolved = template_values.resolve(template, is_namespace);
        resolved.map_err(|reason| format!("{PREFIX}{key}: {reason}"))
    };
    match (name, namespace) {
        (None, None) => Ok(None),
        (Some(name), Some(namespace)) => Ok(Some(Name {
            namespace: resolved(&keys[1], namespace, true)?,
            name: resolved(&keys[0], name, false)?,
        })),
        (Some(_), None) => Err(format!("{PREFIX}{}: the parameter is missing", keys[1])),
        (None, Some(_)) => Err(format!("{PREFIX}{}: the parameter is missing", keys[0])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(entries: &[(&str, &str)]) -> Result<Parameters, String> {
        let mut object = PersistentVolumeClaim::default();
        let annotations = [("team/key".to_owned(), "blue".to_owned())];
        object.metadata.annotations = Some(annotations.into());
        let claim = Name::new("shop", "data");
        let template_values = TemplateValues {
            volume: "pvc-1",
            claim: &claim,
            object: &object,
        };
        let entries = entries.iter();
        let entries = entries.map(|&(key, value)| (key.to_owned(), value.to_owned()));
        Parameters::parse(&entries.collect(), template_values)
    }

    #[test]
    fn prefixed_parameters_are_not_passed_to_the_driver() {
        let found = parameters(&[
            ("type", "fast"),
            ("csi.storage.k8s.io/fstype", "xfs"),
            (
                "csi.storage.k8s.io/provisioner-secret-name",
                "${pvc.name}-${pv.name}",
            ),
            (
                "csi.storage.k8s.io/provisioner-secret-namespace",
                "${pvc.namespace}",
            ),
            (
                "csi.storage.k8s.io/node-stage-secret-name",
                "x-${pvc.annotations['team/key']}",
            ),
            ("csi.storage.k8s.io/node-stage-secret-namespace", "keys"),
        ]);
        let expected = Parameters {
            for_driver: [("type".to_owned(), "fast".to_owned())].into(),
            fs_type: "xfs".to_owned(),
            provisioner: Some(Name::new("shop", "data-pvc-1")),
            node_stage: Some(Name::new("keys", "x-blue")),
            ..Parameters::default()
        };
        assert_eq!(found, Ok(expected));
    }

    #[test]
    fn one_secret_may_be_the_default_for_all_calls() {
        let found = parameters(&[
            ("csi.storage.k8s.io/secret-name", "all"),
            ("csi.storage.k8s.io/secret-namespace", "keys"),
            ("csi.storage.k8s.io/node-expand-secret-name", "own"),
            ("csi.storage.k8s.io/node-expand-secret-namespace", "keys"),
        ])
        .unwrap();
        assert_eq!(found.node_publish, Some(Name::new("keys", "all")));
        assert_eq!(found.provisioner, Some(Name::new("keys", "all")));
        assert_eq!(found.node_expand, Some(Name::new("keys", "own")));
    }

    #[test]
    fn errors_name_the_invalid_parameter() {
        const NAME: &str = "csi.storage.k8s.io/node-stage-secret-name";
        const NAMESPACE: &str = "csi.storage.k8s.io/node-stage-secret-namespace";
        let cases: [(&[(&str, &str)], &str); 8] = [
            (
                &[("csi.storage.k8s.io/typo", "")],
                "csi.storage.k8s.io/typo: the parameter is unknown",
            ),
            (
                &[(NAME, "a")],
                "node-stage-secret-namespace: the parameter is missing",
            ),
            (
                &[(NAMESPACE, "a")],
                "node-stage-secret-name: the parameter is missing",
            ),
            (
                &[(NAME, "a"), (NAMESPACE, "${pvc.name}")],
                "namespace: \"${pvc.name}\" can't be resolved",
            ),
            (
                &[(NAME, "${x}"), (NAMESPACE, "a")],
                "\"${x}\" can't be resolved",
            ),
            (
                &[(NAME, "${pv.name"), (NAMESPACE, "a")],
                "can't be resolved",
            ),
            (
                &[(NAME, "${pvc.annotations['no']}"), (NAMESPACE, "a")],
                "can't be resolved",
            ),
            (
                &[(NAME, "A_${pv.name}"), (NAMESPACE, "a")],
                "resolves to \"A_pvc-1\"",
            ),
        ];
        for (entries, expected) in cases {
            let error = parameters(entries).expect_err(expected);
            assert!(error.contains(expected), "{entries:?}: {error}");
        }
    }
}
