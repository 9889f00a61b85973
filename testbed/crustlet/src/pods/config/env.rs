//! A container's environment, and `$(VAR)`.

use k8s_openapi::api::core::v1::{Container, EnvVar, ObjectFieldSelector};

use super::{ConfigError, NodeFacts};
use crate::objects::Pod;

/// Variables by name, in their order. Each name occurs once.
pub(super) type Environment = Vec<(String, String)>;

/// A container's. A value may name those before it.
pub(super) fn environment(
    pod: &Pod,
    node: &NodeFacts,
    container: &Container,
) -> Result<Environment, ConfigError> {
    let mut environment = Environment::new();
    for variable in container.env.iter().flatten() {
        let refused = |reason: &str| ConfigError::Env {
            container: container.name.clone(),
            name: variable.name.clone(),
            reason: reason.to_owned(),
        };
        if variable.name.is_empty() || variable.name.contains(['=', '\0']) {
            return Err(refused("it is no name of a variable"));
        }
        let value = value(pod, node, variable, &environment).map_err(|reason| refused(&reason))?;
        if value.contains('\0') {
            return Err(refused("it has a NUL in it"));
        }
        let before = environment
            .iter_mut()
            .find(|(name, _)| *name == variable.name);
        match before {
            Some(before) => before.1 = value,
            None => environment.push((variable.name.clone(), value)),
        }
    }
    Ok(environment)
}

fn value(
    pod: &Pod,
    node: &NodeFacts,
    variable: &EnvVar,
    before: &Environment,
) -> Result<String, String> {
    let Some(source) = &variable.value_from else {
        let value = variable.value.as_deref().unwrap_or_default();
        return Ok(expand(value, before).text);
    };
    let reference = source.field_ref.as_ref();
    let reference = reference.ok_or("valueFrom: there is fieldRef, and no other")?;
    field(pod, node, reference).ok_or_else(|| {
        format!(
            "fieldRef {:?}: crustlet has metadata.name, .namespace, .uid, .labels['…'], .annotations['…'], \
             spec.nodeName and spec.serviceAccountName",
            reference.field_path
        )
    })
}

/// The downward API, as far as it is known before the pod runs.
fn field(pod: &Pod, node: &NodeFacts, reference: &ObjectFieldSelector) -> Option<String> {
    let path = reference.field_path.as_str();
    let entry = |map: &Option<std::collections::BTreeMap<String, String>>, key: &str| {
        // One that isn't there is empty.
        map.iter()
            .find_map(|it| it.get(key))
            .cloned()
            .unwrap_or_default()
    };
    if let Some((map, key)) = path.strip_suffix("']").and_then(|it| it.split_once("['")) {
        return match map {
            "metadata.labels" => Some(entry(&pod.metadata.labels, key)),
            "metadata.annotations" => Some(entry(&pod.metadata.annotations, key)),
            _ => None,
        };
    }
    let text = match path {
        "metadata.name" => &pod.name.name,
        "metadata.namespace" => &pod.name.namespace,
        "metadata.uid" => &pod.uid,
        "spec.nodeName" => &node.name,
        "spec.serviceAccountName" => {
            let account = pod.spec.service_account_name.as_deref();
            return Some(account.unwrap_or("default").to_owned());
        }
        _ => return None,
    };
    Some(text.clone())
}

/// A text with its variables' values in it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Expanded {
    /// The text, in which references to missing variables stay as they were.
    pub(super) text: String,
    /// The first one that has none.
    pub(super) missing: Option<String>,
}

/// Puts values in the place of `$(VAR)`; `$$` is a `$` that begins none. As Kubernetes' own.
pub(super) fn expand(text: &str, environment: &Environment) -> Expanded {
    let mut out = String::with_capacity(text.len());
    let mut missing = None;
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        let name = after.strip_prefix('(').and_then(|it| it.split_once(')'));
        if let Some((name, after)) = name {
            let known = environment.iter().find(|(known, _)| known == name);
            let as_it_was = &rest[at..=at + name.len() + 2];
            out.push_str(known.map_or(as_it_was, |(_, value)| value));
            if known.is_none() {
                missing.get_or_insert_with(|| name.to_owned());
            }
            rest = after;
        } else {
            out.push('$');
            rest = after.strip_prefix('$').unwrap_or(after);
        }
    }
    out.push_str(rest);
    Expanded { text: out, missing }
}
