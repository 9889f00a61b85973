//! A volume's users, as verbs tell of them.

use crust_state::Life;
use crust_state::record::{User, UserKind};
use serde_json::{Value, json};

pub(super) fn object(user: &User) -> Value {
    json!({
        "kind": kind(user),
        "id": user.id,
        "sandbox": user.sandbox,
        "pod_uid": user.pod_uid,
        "pid": user.process.pid,
    })
}

/// As it is on record.
pub(super) fn kind(user: &User) -> &'static str {
    match user.kind {
        UserKind::Sandbox => "sandbox",
        UserKind::Container => "container",
        UserKind::Pending => "pending",
    }
}

/// Whether it lives, and why that is so or can't be told.
pub(super) fn life(life: &Life) -> (&'static str, String) {
    match life {
        Life::Lives => ("lives", String::new()),
        Life::Ended(end) => ("ended", end.to_string()),
        Life::Unknown(why) => ("unknown", why.clone()),
    }
}
