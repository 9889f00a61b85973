//! Checks the kernel: its version, the mount API and the file systems that it can mount. The mount API is tried in a
//! mount namespace of its own. The lookup of a file system loads its module, as its first mount would.

use crust_blockfs::errno::Name;
use crust_state::Config;
use crust_state::check::Finding;
use crust_state::info::VolumeType;
use crust_volume::host_features::{
    HostFeaturesError, MountApiTrial, SET_GROUP_CALL, mountable_fstypes, try_mount_api,
};
use rustix::io::Errno;
use rustix::system::uname;

const KERNEL: &str = "kernel";

/// The oldest version that works: it has `mount_setattr`.
const MINIMUM_VERSION: (u32, u32) = (5, 12);

/// The oldest version with all calls: it has `MOVE_MOUNT_SET_GROUP`.
const RECOMMENDED_VERSION: (u32, u32) = (5, 15);

pub(super) fn check_version() -> Finding {
    let name = uname();
    judge_version(&name.release().to_string_lossy())
}

fn judge_version(release: &str) -> Finding {
    let found = format!("Linux {release}");
    let Some(version) = version(release) else {
        return Finding::warn(KERNEL, found, "make sure that the kernel is 5.12 or newer");
    };
    if version < MINIMUM_VERSION {
        let found = format!("{found} is older than 5.12: no volume can be mounted");
        return Finding::fail(
            KERNEL,
            found,
            "boot a newer kernel, preferably 5.15 or newer",
        );
    }
    if version < RECOMMENDED_VERSION {
        let found =
            format!("{found} is older than 5.15: runcrust needs an additional mount on the host");
        return Finding::warn(
            KERNEL,
            found,
            "boot 5.15 or newer to avoid the additional mount",
        );
    }
    Finding::pass(KERNEL, found)
}

/// Returns the first two numbers of a release such as `6.1.0-18-cloud-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

const MOUNT_API: &str = "mount API";

pub(super) fn check_mount_api() -> Finding {
    judge_mount_api(&try_mount_api())
}

fn judge_mount_api(trial: &MountApiTrial) -> Finding {
    let Some((call, errno)) = trial.failed else {
        return Finding::pass(MOUNT_API, trial.worked.join(", "));
    };
    let found = format!("{call}: {}", Name(errno));
    if call == SET_GROUP_CALL {
        let found = format!("{found}: runcrust needs an additional mount on the host");
        return Finding::warn(
            MOUNT_API,
            found,
            "boot Linux 5.15 or newer, or leave attach = \"auto\", which works without this call",
        );
    }
    let fix = match errno {
        Errno::PERM | Errno::ACCESS => {
            "run this with CAP_SYS_ADMIN on the node itself, and check that no seccomp profile or security module \
             refuses the call"
        }
        Errno::NOSYS => {
            "boot Linux 5.12 or newer, and check that no seccomp profile hides the call"
        }
        Errno::NOSPC => "raise /proc/sys/user/max_mnt_namespaces",
        _ => "look for the reason in the kernel's log (dmesg); this kernel can't mount volumes",
    };
    Finding::fail(MOUNT_API, found, fix)
}

const FILE_SYSTEMS: &str = "file systems";

pub(super) fn check_file_systems(config: &Config) -> Finding {
    let fstypes = config.fstypes.iter();
    let configured = fstypes.filter(|it| VolumeType::from_fstype(it) == VolumeType::Block);
    let configured: Vec<String> = configured.cloned().collect();
    judge_file_systems(&configured, mountable_fstypes(&configured))
}

fn judge_file_systems(
    configured: &[String],
    found: Result<Vec<String>, HostFeaturesError>,
) -> Finding {
    let found = match found {
        Ok(found) => found,
        Err(error) => return Finding::from_error(FILE_SYSTEMS, &error),
    };
    let missing: Vec<&str> = configured
        .iter()
        .filter(|fstype| !found.contains(fstype))
        .map(String::as_str)
        .collect();
    let fix = "install the kernel modules, or remove the file systems from `fstypes` in runcrust's configuration";
    if configured.is_empty() {
        return Finding::pass(FILE_SYSTEMS, "none is configured");
    }
    if found.is_empty() {
        let missing = format!("this kernel has none of {}", missing.join(", "));
        return Finding::fail(FILE_SYSTEMS, missing, fix);
    }
    let found = found.join(", ");
    if missing.is_empty() {
        return Finding::pass(FILE_SYSTEMS, found);
    }
    Finding::warn(
        FILE_SYSTEMS,
        format!("{found}; missing: {}", missing.join(", ")),
        fix,
    )
}

#[cfg(test)]
mod tests {
    use crust_state::check::CheckVerdict;

    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        for (release, expected) in [
            ("6.18.5", CheckVerdict::Pass),
            ("6.1.0-18-cloud-amd64", CheckVerdict::Pass),
            ("5.15.0", CheckVerdict::Pass),
            ("10.0", CheckVerdict::Pass),
            ("5.14.0-427.el9.x86_64", CheckVerdict::Warn),
            ("5.12-rc1", CheckVerdict::Warn),
            ("5.9.16", CheckVerdict::Fail),
            ("4.19.0", CheckVerdict::Fail),
            ("unknown", CheckVerdict::Warn),
        ] {
            assert_eq!(judge_version(release).verdict, expected, "{release}");
        }
    }

    #[test]
    fn only_set_group_is_optional() {
        for (failed, expected, expected_text) in [
            (None, CheckVerdict::Pass, "unshare, fsopen"),
            (
                Some((SET_GROUP_CALL, Errno::INVAL)),
                CheckVerdict::Warn,
                "(MOVE_MOUNT_SET_GROUP): EINVAL: runcrust needs an additional mount",
            ),
            (
                Some(("fsopen", Errno::PERM)),
                CheckVerdict::Fail,
                "fsopen: EPERM; hint: run this with CAP_SYS_ADMIN",
            ),
            (
                Some(("open_tree", Errno::NOSYS)),
                CheckVerdict::Fail,
                "open_tree: ENOSYS; hint: boot Linux 5.12",
            ),
        ] {
            let worked = vec!["unshare", "fsopen"];
            let finding = judge_mount_api(&MountApiTrial { worked, failed });
            assert_eq!(finding.verdict, expected, "{finding}");
            assert!(finding.to_string().contains(expected_text), "{finding}");
        }
    }

    #[test]
    fn missing_file_systems_are_reported() {
        let list =
            |names: &[&str]| -> Vec<String> { names.iter().map(|&name| name.to_owned()).collect() };
        let configured = list(&["ext4", "xfs"]);
        for (found, expected) in [
            (&["ext4", "xfs"][..], "pass  file systems: ext4, xfs"),
            (&["ext4"], "warn  file systems: ext4; missing: xfs; hint: "),
            (&[], "FAIL  file systems: this kernel has none of ext4, xfs"),
        ] {
            let line = judge_file_systems(&configured, Ok(list(found))).to_string();
            assert!(line.starts_with(expected), "{line}");
        }
        let errno = rustix::io::Errno::PERM;
        let call = "fsopen(\"ext4\")".to_owned();
        let finding = judge_file_systems(
            &configured,
            Err(HostFeaturesError::FileSystem { call, errno }),
        );
        assert_eq!(finding.verdict, CheckVerdict::Fail);
        assert!(finding.fix.contains("as root"), "{finding}");
    }
}
