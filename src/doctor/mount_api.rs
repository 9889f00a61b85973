//! Whether the mount API works, by trying it where nobody sees it.

use crust_blockfs::errno::Name;
use crust_state::check::Finding;
use crust_volume::capabilities::{MountApiTrial, SET_GROUP, try_mount_api};
use rustix::io::Errno;

const WHAT: &str = "mount API";

pub(super) fn check() -> Finding {
    judge(&try_mount_api())
}

fn judge(trial: &MountApiTrial) -> Finding {
    let Some((call, errno)) = trial.failed else {
        return Finding::pass(WHAT, trial.worked.join(", "));
    };
    let found = format!("{call}: {}", Name(errno));
    if call == SET_GROUP {
        let found = format!("{found}: one mount more is on the host");
        return Finding::warn(
            WHAT,
            found,
            "Linux 5.15 has it; attach = \"auto\" does without",
        );
    }
    let fix = match errno {
        Errno::PERM | Errno::ACCESS => {
            "CAP_SYS_ADMIN is needed on the node itself; does a seccomp profile or a security module \
             refuse the call?"
        }
        Errno::NOSYS => "boot Linux 5.12 or newer; does a seccomp profile hide the call?",
        Errno::NOSPC => "raise /proc/sys/user/max_mnt_namespaces",
        _ => "this kernel can't mount volumes",
    };
    Finding::fail(WHAT, found, fix)
}

#[cfg(test)]
mod tests {
    use crust_state::check::Verdict;

    use super::*;

    #[test]
    fn only_the_last_call_can_be_done_without() {
        for (failed, expected, words) in [
            (None, Verdict::Pass, "unshare, fsopen"),
            (
                Some((SET_GROUP, Errno::INVAL)),
                Verdict::Warn,
                "(MOVE_MOUNT_SET_GROUP): EINVAL: one mount more",
            ),
            (
                Some(("fsopen", Errno::PERM)),
                Verdict::Fail,
                "fsopen: EPERM; hint: CAP_SYS_ADMIN",
            ),
            (
                Some(("open_tree", Errno::NOSYS)),
                Verdict::Fail,
                "open_tree: ENOSYS; hint: boot Linux 5.12",
            ),
        ] {
            let worked = vec!["unshare", "fsopen"];
            let finding = judge(&MountApiTrial { worked, failed });
            assert_eq!(finding.verdict, expected, "{finding}");
            assert!(finding.to_string().contains(words), "{finding}");
        }
    }
}
