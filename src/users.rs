//! A volume's users, as they are told of.

use crust_state::Life;
use crust_state::record::{User, UserKind};
use serde::{Serialize as _, Serializer};
use serde_json::{Value, json};

pub(crate) fn object(user: &User) -> Value {
    json!({
        "kind": kind(user),
        "id": user.id,
        "sandbox": user.sandbox,
        "pod_uid": user.pod_uid,
        "pid": user.process.pid,
    })
}

/// The same of several, for a field.
pub(crate) fn objects<S: Serializer>(users: &[User], serializer: S) -> Result<S::Ok, S::Error> {
    let objects: Vec<Value> = users.iter().map(object).collect();
    objects.serialize(serializer)
}

/// As it is on record.
pub(crate) fn kind(user: &User) -> &'static str {
    match user.kind {
        UserKind::Sandbox => "sandbox",
        UserKind::Container => "container",
        UserKind::Pending => "pending",
    }
}

/// Whether it lives, and why that is so or can't be told.
pub(crate) fn life(life: &Life) -> (&'static str, String) {
    match life {
        Life::Lives => ("lives", String::new()),
        Life::Ended(end) => ("ended", end.to_string()),
        Life::Unknown(why) => ("unknown", why.clone()),
    }
}
