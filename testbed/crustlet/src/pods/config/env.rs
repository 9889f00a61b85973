//! The environment of a container, and the expansion of `$(VAR)`.

use k8s_openapi::api::core::v1::{Container, EnvVar, ObjectFieldSelector};

use super::{ConfigError, NodeInfo};
use crate::objects::Pod;

/// Variables and their values, in the order of the manifest. Each name occurs once.
pub(super) type Environment = Vec<(String, String)>;

/// Returns the environment of a container. A value may refer to earlier variables.
pub(super) fn environment(
    pod: &Pod,
    node: &NodeInfo,
    container: &Container,
) -> Result<Environment, ConfigError> {
    let mut environment = Environment::new();
    for variable in container.env.iter().flatten() {
        let env_error = |reason: &str| ConfigError::Env {
            container: container.name.clone(),
            name: variable.name.clone(),
            reason: reason.to_owned(),
        };
        if variable.name.is_empty() || variable.name.contains(['=', '\0']) {
            return Err(env_error("the name is empty or contains `=` or a NUL byte"));
        }
        let value =
            value(pod, node, variable, &environment).map_err(|reason| env_error(&reason))?;
        if value.contains('\0') {
            return Err(env_error("the value contains a NUL byte"));
        }
        let existing = environment
            .iter_mut()
            .find(|(name, _)| *name == variable.name);
        match existing {
            Some(existing) => existing.1 = value,
            None => environment.push((variable.name.clone(), value)),
        }
    }
    Ok(environment)
}

fn value(
    pod: &Pod,
    node: &NodeInfo,
    variable: &EnvVar,
    earlier: &Environment,
) -> Result<String, String> {
    let Some(source) = &variable.value_from else {
        let value = variable.value.as_deref().unwrap_or_default();
        return Ok(expand(value, earlier).text);
    };
    let reference = source.field_ref.as_ref();
    let reference = reference.ok_or("crustlet supports no valueFrom other than fieldRef")?;
    field(pod, node, reference).ok_or_else(|| {
        format!(
            "fieldRef {:?}: crustlet supports only metadata.name, .namespace, .uid, .labels['…'], .annotations['…'], \
             spec.nodeName and spec.serviceAccountName",
            reference.field_path
        )
    })
}

/// Returns a field of the downward API. `None` for fields that aren't supported, such as those that are known only once
/// the pod runs.
fn field(pod: &Pod, node: &NodeInfo, reference: &ObjectFieldSelector) -> Option<String> {
    let path = reference.field_path.as_str();
    let entry = |map: &Option<std::collections::BTreeMap<String, String>>, key: &str| {
        // The value of a missing key is empty.
        map.iter()
            .find_map(|map| map.get(key))
            .cloned()
            .unwrap_or_default()
    };
    if let Some((map, key)) = path
        .strip_suffix("']")
        .and_then(|prefix| prefix.split_once("['"))
    {
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

/// A text with its variables expanded.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Expanded {
    /// The text. References to missing variables stay unexpanded.
    pub(super) text: String,
    /// The first variable that is missing.
    pub(super) missing: Option<String>,
}

/// Replaces `$(VAR)` by the variable's value, and `$$` by `$`, as Kubernetes does.
pub(super) fn expand(text: &str, environment: &Environment) -> Expanded {
    let mut out = String::with_capacity(text.len());
    let mut missing = None;
    let mut rest = text;
    while let Some(start) = rest.find('$') {
        out.push_str(&rest[..start]);
        let after = &rest[start + 1..];
        let name = after
            .strip_prefix('(')
            .and_then(|inner| inner.split_once(')'));
        if let Some((name, after)) = name {
            let known = environment.iter().find(|(known, _)| known == name);
            let reference = &rest[start..=start + name.len() + 2];
            out.push_str(known.map_or(reference, |(_, value)| value));
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
