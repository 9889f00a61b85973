//! The parameters of a storage class: the driver's, and those that external-provisioner reads.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;

use crate::objects::Name;
use crate::objects::manifest::is_name;

/// Before the keys that aren't the driver's.
const PREFIX: &str = "csi.storage.k8s.io/";

/// The parameters of a class, for one claim.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Parameters {
    /// The driver's own.
    pub(super) own: BTreeMap<String, String>,
    /// `csi.storage.k8s.io/fstype`; empty is the driver's choice.
    pub(super) fs_type: String,
    /// For `CreateVolume` and `DeleteVolume`.
    pub(super) provisioner: Option<Name>,
    /// For `ControllerPublishVolume`.
    pub(super) controller_publish: Option<Name>,
    /// For `ControllerExpandVolume`.
    pub(super) controller_expand: Option<Name>,
    /// For `NodeStageVolume`.
    pub(super) node_stage: Option<Name>,
    /// For `NodePublishVolume`.
    pub(super) node_publish: Option<Name>,
    /// For `NodeExpandVolume`.
    pub(super) node_expand: Option<Name>,
}

/// The values that names of Secrets may refer to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tokens<'t> {
    /// `${pv.name}`
    pub(super) volume: &'t str,
    /// `${pvc.name}` and `${pvc.namespace}`
    pub(super) claim: &'t Name,
    /// `${pvc.annotations['key']}`
    pub(super) object: &'t PersistentVolumeClaim,
}

impl Tokens<'_> {
    /// With each `${…}` replaced. A namespace isn't made of what the claim's author chooses freely.
    fn resolve(&self, template: &str, is_namespace: bool) -> Result<String, String> {
        let mut text = String::new();
        let mut rest = template;
        while let Some((before, after)) = rest.split_once("${") {
            let unknown = || format!("{template:?} isn't to be resolved");
            let (token, after) = after.split_once('}').ok_or_else(unknown)?;
            text += before;
            text += match token {
                "pv.name" => self.volume,
                "pvc.namespace" => &self.claim.namespace,
                "pvc.name" if !is_namespace => &self.claim.name,
                _ if !is_namespace => self.annotation(token).ok_or_else(unknown)?,
                _ => return Err(unknown()),
            };
            rest = after;
        }
        text += rest;
        if is_name(&text) {
            Ok(text)
        } else {
            Err(format!("{template:?} comes to {text:?}, which is no name"))
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
    /// Reads the parameters of a class. Fails with the key that is wrong.
    pub(super) fn of(
        written: &BTreeMap<String, String>,
        tokens: Tokens<'_>,
    ) -> Result<Self, String> {
        let mut parameters = Self::default();
        let mut ours: BTreeMap<&str, &str> = BTreeMap::new();
        for (key, value) in written {
            match key.strip_prefix(PREFIX) {
                Some(key) => drop(ours.insert(key, value)),
                None => drop(parameters.own.insert(key.clone(), value.clone())),
            }
        }
        parameters.fs_type = ours.remove("fstype").map(str::to_owned).unwrap_or_default();
        // Where the others aren't said.
        let all = pair(&mut ours, "", tokens)?;
        for (secret, name) in [
            (&mut parameters.provisioner, "provisioner-"),
            (&mut parameters.controller_publish, "controller-publish-"),
            (&mut parameters.controller_expand, "controller-expand-"),
            (&mut parameters.node_stage, "node-stage-"),
            (&mut parameters.node_publish, "node-publish-"),
            (&mut parameters.node_expand, "node-expand-"),
        ] {
            *secret = pair(&mut ours, name, tokens)?.or_else(|| all.clone());
        }
        match ours.first_key_value() {
            Some((unknown, _)) => Err(format!("{PREFIX}{unknown}: no such parameter is known")),
            None => Ok(parameters),
        }
    }
}

/// A Secret, which is said by its name and its namespace.
fn pair(
    ours: &mut BTreeMap<&str, &str>,
    which: &str,
    tokens: Tokens<'_>,
) -> Result<Option<Name>, String> {
    let keys = ["name", "namespace"].map(|it| format!("{which}secret-{it}"));
    let [name, namespace] = [&keys[0], &keys[1]].map(|key| ours.remove(key.as_str()));
    let resolved = |key: &str, template, is_namespace| {
        let resolved = tokens.resolve(template, is_namespace);
        resolved.map_err(|why| format!("{PREFIX}{key}: {why}"))
    };
    match (name, namespace) {
        (None, None) => Ok(None),
        (Some(name), Some(namespace)) => Ok(Some(Name {
            namespace: resolved(&keys[1], namespace, true)?,
            name: resolved(&keys[0], name, false)?,
        })),
        (Some(_), None) => Err(format!("{PREFIX}{}: it is missing", keys[1])),
        (None, Some(_)) => Err(format!("{PREFIX}{}: it is missing", keys[0])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(written: &[(&str, &str)]) -> Result<Parameters, String> {
        let mut object = PersistentVolumeClaim::default();
        let annotations = [("team/key".to_owned(), "blue".to_owned())];
        object.metadata.annotations = Some(annotations.into());
        let claim = Name::new("shop", "data");
        let tokens = Tokens {
            volume: "pvc-1",
            claim: &claim,
            object: &object,
        };
        let written = written.iter();
        let written = written.map(|&(key, value)| (key.to_owned(), value.to_owned()));
        Parameters::of(&written.collect(), tokens)
    }

    #[test]
    fn what_has_the_prefix_is_not_the_drivers() {
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
            own: [("type".to_owned(), "fast".to_owned())].into(),
            fs_type: "xfs".to_owned(),
            provisioner: Some(Name::new("shop", "data-pvc-1")),
            node_stage: Some(Name::new("keys", "x-blue")),
            ..Parameters::default()
        };
        assert_eq!(found, Ok(expected));
    }

    #[test]
    fn one_secret_may_be_for_all() {
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
    fn what_cannot_be_used_names_its_key() {
        const NAME: &str = "csi.storage.k8s.io/node-stage-secret-name";
        const NAMESPACE: &str = "csi.storage.k8s.io/node-stage-secret-namespace";
        let cases: [(&[(&str, &str)], &str); 8] = [
            (
                &[("csi.storage.k8s.io/typo", "")],
                "csi.storage.k8s.io/typo: no such",
            ),
            (&[(NAME, "a")], "node-stage-secret-namespace: it is missing"),
            (&[(NAMESPACE, "a")], "node-stage-secret-name: it is missing"),
            (
                &[(NAME, "a"), (NAMESPACE, "${pvc.name}")],
                "namespace: \"${pvc.name}\" isn't to be resolved",
            ),
            (
                &[(NAME, "${x}"), (NAMESPACE, "a")],
                "\"${x}\" isn't to be resolved",
            ),
            (
                &[(NAME, "${pv.name"), (NAMESPACE, "a")],
                "isn't to be resolved",
            ),
            (
                &[(NAME, "${pvc.annotations['no']}"), (NAMESPACE, "a")],
                "isn't to be resolved",
            ),
            (
                &[(NAME, "A_${pv.name}"), (NAMESPACE, "a")],
                "comes to \"A_pvc-1\"",
            ),
        ];
        for (written, told) in cases {
            let error = parameters(written).expect_err(told);
            assert!(error.contains(told), "{written:?}: {error}");
        }
    }
}
