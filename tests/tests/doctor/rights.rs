//! What this process may do.

use runcrust_tests::Delegate;

use crate::scene::{CHECKS, doctor_by, in_order};

#[test]
fn root_without_capabilities() {
    let node = in_order(Delegate::Runc);
    let without = |names: &str| doctor_by(&node, "setpriv", &[&format!("--bounding-set={names}")]);
    let told = without("-sys_admin");
    told.assert(
        "capabilities",
        "fail",
        "without CAP_SYS_ADMIN no volume can be mounted",
    );
    told.assert("mount API", "fail", "unshare(CLONE_NEWNS): EPERM");
    told.assert("file systems", "fail", "EPERM");
    let told = without("-sys_chroot");
    told.assert("capabilities", "fail", "without CAP_SYS_CHROOT no");
    let told = without("-sys_resource");
    told.assert(
        "capabilities",
        "warn",
        "without CAP_SYS_RESOURCE ext4 and ext3 can't grow",
    );
    assert!(told.succeeded, "a warning is no failure: {told:?}");
    let told = without("-chown,-fsetid");
    told.assert("capabilities", "warn", "CAP_CHOWN, CAP_FSETID");
}

#[test]
fn somebody_else_than_root() {
    let node = in_order(Delegate::Runc);
    let told = doctor_by(&node, "setpriv", &["--reuid=1000", "--clear-groups"]);
    told.assert("user", "fail", "uid 1000 isn't root");
    told.assert("capabilities", "fail", "CAP_SYS_ADMIN");
    for check in CHECKS {
        let is_told = told.findings.iter().any(|it| it.check == check);
        assert!(is_told, "{check} isn't in {told:?}");
    }
    let told = doctor_by(&node, "unshare", &["--user", "--map-root-user"]);
    told.assert("user", "fail", "root of a user namespace");
}
