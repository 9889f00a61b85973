//! A node whose kernel has no NFS client.

use std::path::Path;

use runcrust_tests::{Node, POD, host, on_each_delegate};

on_each_delegate! {
    /// In the guest the kernel has a client, and the same volume is accepted.
    fn a_share_is_only_staged_if_the_kernel_has_a_client(delegate: Delegate) {
        let node = Node::new(delegate);
        for fstype in ["nfs4", "nfs"] {
            let target = node.target(POD, &format!("pv-{fstype}"));
            let staged = node.try_stage_as(fstype, &target, Path::new("srv.example.com:/a b"), &[]);
            let doctor = node.handler().crust(&["doctor"]).stdout;
            if host::kernel_mounts(fstype) {
                let _ = staged.success();
                assert!(doctor.contains("NFS client"), "{doctor}");
                continue;
            }
            let error = staged.failure().stderr;
            for part in ["UNIMPLEMENTED", "this kernel has no", fstype, "srv.example.com:/a b", "hint"] {
                assert!(error.contains(part), "{part:?} isn't in: {error}");
            }
            assert!(doctor.contains("this kernel has no NFS client"), "{doctor}");
        }
    }
}
