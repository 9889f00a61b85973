//! The tables of objects that an administrator writes: classes, drivers, secrets.

use std::time::SystemTime;

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::api::storage::v1::{CSIDriver, StorageClass};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use super::cells::{UNSET, name, or};
use super::{Column, KindTable, Row, typed};
use crate::cli::age;

/// kubectl's columns.
pub(super) const STORAGE: KindTable = KindTable {
    columns: &[
        ("NAME", Column::Always),
        ("PROVISIONER", Column::Always),
        ("RECLAIMPOLICY", Column::Always),
        ("VOLUMEBINDINGMODE", Column::Always),
        ("ALLOWVOLUMEEXPANSION", Column::Always),
        ("AGE", Column::Always),
    ],
    rows: storage,
};

/// kubectl's columns.
pub(super) const RUNTIME: KindTable = KindTable {
    columns: &[
        ("NAME", Column::Always),
        ("HANDLER", Column::Always),
        ("AGE", Column::Always),
    ],
    rows: runtime,
};

/// kubectl's columns.
pub(super) const DRIVERS: KindTable = KindTable {
    columns: &[
        ("NAME", Column::Always),
        ("ATTACHREQUIRED", Column::Always),
        ("PODINFOONMOUNT", Column::Always),
        ("STORAGECAPACITY", Column::Always),
        ("TOKENREQUESTS", Column::Always),
        ("REQUIRESREPUBLISH", Column::Always),
        ("MODES", Column::Always),
        ("AGE", Column::Always),
    ],
    rows: driver,
};

/// kubectl's columns.
pub(super) const SECRETS: KindTable = KindTable {
    columns: &[
        ("NAME", Column::Always),
        ("TYPE", Column::Always),
        ("DATA", Column::Always),
        ("AGE", Column::Always),
    ],
    rows: secret,
};

fn since(now: SystemTime, metadata: &ObjectMeta) -> String {
    age::since(now, metadata.creation_timestamp.as_ref())
}

fn is(value: Option<bool>, otherwise: bool) -> String {
    value.unwrap_or(otherwise).to_string()
}

fn storage(document: &Value, now: SystemTime) -> Result<Vec<Row>, serde_json::Error> {
    let class: StorageClass = typed(document)?;
    let annotations = class.metadata.annotations.as_ref();
    let says = |key: &str| {
        let value = annotations.and_then(|it| it.get(key));
        value.is_some_and(|value| value == "true")
    };
    let is_default = says("storageclass.kubernetes.io/is-default-class")
        || says("storageclass.beta.kubernetes.io/is-default-class");
    let mark = if is_default { " (default)" } else { "" };
    Ok(vec![vec![
        name(&class.metadata) + mark,
        class.provisioner.clone(),
        or(class.reclaim_policy.as_deref(), "Delete"),
        or(class.volume_binding_mode.as_deref(), "Immediate"),
        is(class.allow_volume_expansion, false),
        since(now, &class.metadata),
    ]])
}

fn runtime(document: &Value, now: SystemTime) -> Result<Vec<Row>, serde_json::Error> {
    let class: RuntimeClass = typed(document)?;
    let age = since(now, &class.metadata);
    Ok(vec![vec![name(&class.metadata), class.handler, age]])
}

fn driver(document: &Value, now: SystemTime) -> Result<Vec<Row>, serde_json::Error> {
    let driver: CSIDriver = typed(document)?;
    let spec = driver.spec;
    let audiences = spec.token_requests.map(|requests| {
        let audiences = requests.into_iter().map(|it| it.audience);
        audiences.collect::<Vec<_>>().join(",")
    });
    let modes = spec.volume_lifecycle_modes.unwrap_or_default().join(",");
    Ok(vec![vec![
        name(&driver.metadata),
        is(spec.attach_required, true),
        is(spec.pod_info_on_mount, false),
        is(spec.storage_capacity, false),
        audiences.unwrap_or_else(|| UNSET.to_owned()),
        is(spec.requires_republish, false),
        or(Some(&modes), "Persistent"),
        since(now, &driver.metadata),
    ]])
}

fn secret(document: &Value, now: SystemTime) -> Result<Vec<Row>, serde_json::Error> {
    let secret: Secret = typed(document)?;
    // An API server moves the one into the other.
    let (data, texts) = (secret.data, secret.string_data);
    let mut keys: Vec<String> = data.unwrap_or_default().into_keys().collect();
    keys.extend(texts.unwrap_or_default().into_keys());
    keys.sort();
    keys.dedup();
    Ok(vec![vec![
        name(&secret.metadata),
        or(secret.type_.as_deref(), "Opaque"),
        keys.len().to_string(),
        since(now, &secret.metadata),
    ]])
}
