//! `resize`.

use std::ffi::OsString;

use clap::value_parser;
use crust_blockfs::resize::Limits;
use crust_volume::Context;
use serde_json::{Value, json};

use super::{Failure, target};

/// The largest number that CSI can say.
const MAX: u64 = i64::MAX as u64;

#[derive(Debug, clap::Args)]
pub(super) struct ResizeArgs {
    /// `target_path` of CSI `NodePublishVolume`
    target_path: OsString,
    /// How large the volume has to be at least (`required_bytes`); 0 is no limit
    #[arg(allow_negative_numbers = true, value_parser = value_parser!(u64).range(..=MAX))]
    min_bytes: u64,
    /// How large it may be at most (`limit_bytes`); 0 is no limit
    #[arg(allow_negative_numbers = true, value_parser = value_parser!(u64).range(..=MAX))]
    max_bytes: u64,
}

pub(super) fn resize(context: &Context<'_>, arguments: ResizeArgs) -> Result<Value, Failure> {
    let target = target(arguments.target_path)?;
    let limits = Limits::new(arguments.min_bytes, arguments.max_bytes).map_err(Failure::invalid)?;
    let bytes = crust_volume::resize(context, &target, limits)?;
    Ok(json!({"capacity_bytes": bytes}))
}
