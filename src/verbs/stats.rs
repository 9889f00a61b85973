//! `stats`.

use crust_mount::usage::Amounts;
use crust_mount::volume::{self, Context};
use crust_state::TargetPath;
use serde_json::{Value, json};

use super::Failure;

pub(super) fn stats(context: &Context<'_>, target: &TargetPath) -> Result<Value, Failure> {
    let stats = volume::stats(context, target)?;
    Ok(json!({
        "usage": [entry("BYTES", stats.usage.bytes), entry("INODES", stats.usage.inodes)],
        "volume_condition": {
            "abnormal": stats.condition.abnormal,
            "message": stats.condition.message,
        },
    }))
}

fn entry(unit: &str, amounts: Amounts) -> Value {
    json!({
        "unit": unit,
        "total": amounts.total,
        "used": amounts.used,
        "available": amounts.available,
    })
}
