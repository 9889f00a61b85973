//! Pods' table.

use std::time::SystemTime;

use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use super::cells::{NONE, name, or};
use super::{Kinds, Row, Shown, status, typed};
use crate::cli::age;

/// kubectl's columns; but the runtime class is there where nodes that were nominated and gates would be: what
/// schedules and what waits for these is no part of a node.
pub(super) const PODS: Kinds = Kinds {
    columns: &[
        ("NAME", Shown::Always),
        ("READY", Shown::Always),
        ("STATUS", Shown::Always),
        ("RESTARTS", Shown::Always),
        ("AGE", Shown::Always),
        ("IP", Shown::Wide),
        ("NODE", Shown::Wide),
        ("RUNTIMECLASS", Shown::Wide),
    ],
    rows,
};

fn rows(document: &Value, now: SystemTime) -> Result<Vec<Row>, serde_json::Error> {
    let pod: Pod = typed(document)?;
    let summary = status::of(&pod, now);
    let spec = pod.spec.as_ref();
    let status = pod.status.as_ref();
    let ip = status.and_then(|it| it.pod_ips.as_ref()?.first()?.ip.as_str().into());
    let ip = ip.or_else(|| status.and_then(|it| it.pod_ip.as_deref()));
    Ok(vec![vec![
        name(&pod.metadata),
        summary.ready,
        summary.status,
        summary.restarts,
        age::since(now, pod.metadata.creation_timestamp.as_ref()),
        or(ip, NONE),
        or(spec.and_then(|it| it.node_name.as_deref()), NONE),
        or(spec.and_then(|it| it.runtime_class_name.as_deref()), NONE),
    ]])
}
