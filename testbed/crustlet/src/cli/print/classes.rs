//! The tables of storage classes, runtime classes, drivers and secrets. The columns are kubectl's.

use std::time::SystemTime;

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::api::storage::v1::{CSIDriver, StorageClass};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use super::cells::{UNSET, name, text_or};
use super::{Column, KindTable, Row, typed};
use crate::cli::age;

pub(super) const STORAGE_CLASSES: KindTable = KindTable {
    columns: &[
        ("NAME", Column::Always),
        ("PROVISIONER", Column::Always),
        ("RECLAIMPOLICY", Column::Always),
        ("VOLUMEBINDINGMODE", Column::Always),
        ("ALLOWVOLUMEEXPANSION", Column::Always),
        ("AGE", Column::Always),
    ],
    rows: storage_class,
};

pub(super) const RUNTIME_CLASSES: KindTable = KindTable {
    columns: &[
        ("NAME", Column::Always),
        ("HANDLER", Column::Always),
        ("AGE", Column::Always),
    ],
    rows: runtime_class,
};

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

pub(super) const SECRETS: KindTable = KindTable {
    columns: &[
        ("NAME", Column::Always),
        ("TYPE", Column::Always),
        ("DATA", Column::Always),
        ("AGE", Column::Always),
    ],
    rows: secret,
};

fn age(now: SystemTime, metadata: &ObjectMeta) -> String {
    age::since(now, metadata.creation_timestamp.as_ref())
}

fn bool_or(value: Option<bool>, default: bool) -> String {
    value.unwrap_or(default).to_string()
}

fn storage_class(document: &Value, now: SystemTime) -> Result<Vec<Row>, serde_json::Error> {
    let class: StorageClass = typed(document)?;
    let annotations = class.metadata.annotations.as_ref();
    let is_true = |key: &str| {
        let value = annotations.and_then(|annotations| annotations.get(key));
        value.is_some_and(|value| value == "true")
    };
    let is_default = is_true("storageclass.kubernetes.io/is-default-class")
        || is_true("storageclass.beta.kubernetes.io/is-default-class");
    let suffix = if is_default { " (default)" } else { "" };
    Ok(vec![vec![
        name(&class.metadata) + suffix,
        class.provisioner.clone(),
        text_or(class.reclaim_policy.as_deref(), "Delete"),
        text_or(class.volume_binding_mode.as_deref(), "Immediate"),
        bool_or(class.allow_volume_expansion, false),
        age(now, &class.metadata),
    ]])
}

fn runtime_class(document: &Value, now: SystemTime) -> Result<Vec<Row>, serde_json::Error> {
    let class: RuntimeClass = typed(document)?;
    let age = age(now, &class.metadata);
    Ok(vec![vec![name(&class.metadata), class.handler, age]])
}

fn driver(document: &Value, now: SystemTime) -> Result<Vec<Row>, serde_json::Error> {
    let driver: CSIDriver = typed(document)?;
    let spec = driver.spec;
    let audiences = spec.token_requests.map(|requests| {
        let audiences = requests.into_iter().map(|request| request.audience);
        audiences.collect::<Vec<_>>().join(",")
    });
    let modes = spec.volume_lifecycle_modes.unwrap_or_default().join(",");
    Ok(vec![vec![
        name(&driver.metadata),
        bool_or(spec.attach_required, true),
        bool_or(spec.pod_info_on_mount, false),
        bool_or(spec.storage_capacity, false),
        audiences.unwrap_or_else(|| UNSET.to_owned()),
        bool_or(spec.requires_republish, false),
        text_or(Some(&modes), "Persistent"),
        age(now, &driver.metadata),
    ]])
}

fn secret(document: &Value, now: SystemTime) -> Result<Vec<Row>, serde_json::Error> {
    let secret: Secret = typed(document)?;
    // An API server moves `stringData` into `data`.
    let (data, string_data) = (secret.data, secret.string_data);
    let mut keys: Vec<String> = data.unwrap_or_default().into_keys().collect();
    keys.extend(string_data.unwrap_or_default().into_keys());
    keys.sort();
    keys.dedup();
    Ok(vec![vec![
        name(&secret.metadata),
        text_or(secret.type_.as_deref(), "Opaque"),
        keys.len().to_string(),
        age(now, &secret.metadata),
    ]])
}
