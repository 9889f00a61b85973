//! Formats the users of a volume as JSON and for tables.

use crust_state::ProcessState;
use crust_state::record::{User, UserKind};
use serde::{Serialize as _, Serializer};
use serde_json::{Value, json};

pub(crate) fn user_json(user: &User) -> Value {
    json!({
        "kind": kind_name(user),
        "id": user.id,
        "sandbox": user.sandbox,
        "pod_uid": user.pod_uid,
        "pid": user.process.pid,
    })
}

/// Serializes users as a list of [`user_json`] objects, for `#[serde(serialize_with)]`.
pub(crate) fn serialize_users<S: Serializer>(
    users: &[User],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let objects: Vec<Value> = users.iter().map(user_json).collect();
    objects.serialize(serializer)
}

/// Returns the name of a user's kind as in records.
pub(crate) fn kind_name(user: &User) -> &'static str {
    match user.kind {
        UserKind::Sandbox => "sandbox",
        UserKind::Container => "container",
        UserKind::Pending => "pending",
    }
}

/// Returns a user's id for a table.
///
/// An id of 64 hex digits, which engines assign, is shortened to 12 as in `crictl ps` and `docker ps`, or to as many as
/// are needed to distinguish it from the ids of `all`. Other ids are returned unchanged.
pub(crate) fn short_id<'a>(user: &'a User, all: &[&User]) -> &'a str {
    const SHORT_ID_LENGTH: usize = 12;
    let id = user.id.as_str();
    if id.len() != 64 || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return id;
    }
    let is_unique = |length: &usize| {
        let mut others = all.iter().filter(|other| other.id != id);
        !others.any(|other| other.id.starts_with(&id[..*length]))
    };
    let length = (SHORT_ID_LENGTH..id.len()).find(is_unique);
    &id[..length.unwrap_or(id.len())]
}

/// Returns the state of a process (`lives`, `ended` or `unknown`), and the reason for it. The reason is empty for a
/// live process.
pub(crate) fn describe_process_state(state: &ProcessState) -> (&'static str, String) {
    match state {
        ProcessState::Alive => ("lives", String::new()),
        ProcessState::Ended(end) => ("ended", end.to_string()),
        ProcessState::Unknown(reason) => ("unknown", reason.clone()),
    }
}

#[cfg(test)]
mod tests {
    use crust_state::Process;

    use super::*;

    #[test]
    fn ids_are_shortened_as_long_as_they_stay_unique() {
        let user = |id: &str| User {
            kind: UserKind::Container,
            id: id.to_owned(),
            sandbox: "s".to_owned(),
            pod_uid: "p".to_owned(),
            process: Process::current().unwrap(),
            mounts: Vec::new(),
            other_mounts: Vec::new(),
        };
        let (one, two) = ("0123456789abcdef".repeat(4), "0123456789abcd00".repeat(4));
        let ids = [
            &*one,
            &*two,
            &"f".repeat(64),
            "web-0",
            &"g".repeat(64),
            "ffffffffffffffff",
        ];
        let users: Vec<User> = ids.iter().map(|id| user(id)).collect();
        let all: Vec<&User> = users.iter().collect();
        let short: Vec<&str> = users.iter().map(|user| short_id(user, &all)).collect();
        let expected = [
            "0123456789abcde",
            "0123456789abcd0",
            &"f".repeat(17),
            ids[3],
            ids[4],
            ids[5],
        ];
        assert_eq!(short, expected);
        assert_eq!(short_id(&users[0], &all[..1]), "0123456789ab");
        // A sandbox can be in the list several times: it uses many volumes.
        assert_eq!(short_id(&users[0], &[&users[0], &users[0]]), "0123456789ab");
    }
}
