//! `stats`.

use crust_blockfs::usage::{Amounts, Usage};
use crust_state::TargetPath;
use crust_volume::Context;
use serde_json::{Value, json};

use super::Failure;

pub(super) fn stats(context: &Context<'_>, target: &TargetPath) -> Result<Value, Failure> {
    let stats = crust_volume::stats(context, target)?;
    Ok(json!({
        "usage": stats.usage.map_or_else(Vec::new, entries),
        "volume_condition": {
            "abnormal": stats.condition.abnormal,
            "message": stats.condition.message,
        },
    }))
}

fn entries(usage: Usage) -> Vec<Value> {
    vec![entry("BYTES", usage.bytes), entry("INODES", usage.inodes)]
}

fn entry(unit: &str, amounts: Amounts) -> Value {
    json!({
        "unit": unit,
        "total": amounts.total,
        "used": amounts.used,
        "available": amounts.available,
    })
}
