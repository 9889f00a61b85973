//! The checks of the user and of its capabilities.

use runcrust_tests::Delegate;

use crate::scene::{CHECKS, doctor_by, well_configured};

#[test]
fn missing_capabilities_are_failures_or_warnings() {
    let node = well_configured(Delegate::Runc);
    let without = |names: &str| doctor_by(&node, "setpriv", &[&format!("--bounding-set={names}")]);
    let report = without("-sys_admin");
    report.assert(
        "capabilities",
        "fail",
        "without CAP_SYS_ADMIN no volume can be mounted",
    );
    report.assert("mount API", "fail", "unshare(CLONE_NEWNS): EPERM");
    report.assert("file systems", "fail", "EPERM");
    let report = without("-sys_chroot");
    report.assert("capabilities", "fail", "without CAP_SYS_CHROOT no");
    let report = without("-sys_resource");
    report.assert(
        "capabilities",
        "warn",
        "without CAP_SYS_RESOURCE ext4 and ext3 can't grow",
    );
    assert!(report.succeeded, "a warning set the exit code: {report:?}");
    let report = without("-chown,-fsetid");
    report.assert("capabilities", "warn", "CAP_CHOWN, CAP_FSETID");
}

#[test]
fn a_user_other_than_root_is_a_failure() {
    let node = well_configured(Delegate::Runc);
    let report = doctor_by(&node, "setpriv", &["--reuid=1000", "--clear-groups"]);
    report.assert("user", "fail", "uid 1000 isn't root");
    report.assert("capabilities", "fail", "CAP_SYS_ADMIN");
    for check in CHECKS {
        let is_reported = report.findings.iter().any(|it| it.check == check);
        assert!(is_reported, "{check} is missing in {report:?}");
    }
    let report = doctor_by(&node, "unshare", &["--user", "--map-root-user"]);
    report.assert("user", "fail", "root of a user namespace");
}
