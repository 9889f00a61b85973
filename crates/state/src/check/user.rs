//! Who looks.

use super::Finding;
use crate::privilege::in_user_namespace;

const WHAT: &str = "user";

/// Whether this is root on the node.
#[must_use]
pub fn user() -> Finding {
    judge(rustix::process::geteuid().as_raw(), in_user_namespace())
}

fn judge(user: u32, in_user_namespace: bool) -> Finding {
    match (user, in_user_namespace) {
        (0, false) => Finding::pass(WHAT, "root"),
        (0, true) => Finding::fail(
            WHAT,
            "root of a user namespace, who can mount no device",
            "start it as root on the node itself; in a pod, without hostUsers: false",
        ),
        (user, _) => Finding::fail(
            WHAT,
            format!("uid {user} isn't root"),
            "start it as root; a rootless caller's containers get no volumes",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Verdict;

    #[test]
    fn only_root_on_the_node_is_root() {
        for (user, in_user_namespace, expected) in [
            (0, false, Verdict::Pass),
            (0, true, Verdict::Fail),
            (1000, false, Verdict::Fail),
            (1000, true, Verdict::Fail),
        ] {
            let finding = judge(user, in_user_namespace);
            assert_eq!(finding.verdict, expected, "{finding}");
        }
        let line = judge(1000, false).to_string();
        assert!(line.contains("uid 1000 isn't root"), "{line}");
    }
}
