//! Shares over crust_ops' two interfaces, and containers without a pod.

use std::fs;
use std::time::Instant;

use crust_proto::runtime::v1alpha1::{
    RuntimeExpandVolumeRequest, RuntimeGetVolumeStatsRequest, RuntimePublishVolumeRequest,
};
use crust_proto::v1::{VolumeType, volume_type};
use runcrust_tests::container::end;
use runcrust_tests::gc::gc;
use runcrust_tests::nfs_server::NfsServer;
use runcrust_tests::node::utf8;
use runcrust_tests::ops::stage_request_of;
use runcrust_tests::{Bundle, Node, Ops, POD, on_each_delegate};
use tonic::Code;

use crate::servers::TIMEOUT;
use crate::shares::stage;

on_each_delegate! {
    #[ignore = "needs NFS; runs in the guest: make vm-test"]
    fn crust_ops_stages_reports_and_unstages_a_share(delegate: Delegate) {
        let (node, ops) = Ops::with_node(delegate);
        let server = NfsServer::start(node.dir());
        let target = node.target(POD, "pv-1");
        let mut request = stage_request_of(&target, server.share().as_ref(), "nfs4");
        request.volume_type = Some(VolumeType { r#type: volume_type::Type::Network.into() });
        request.volume_supplemental_group = "2000".into();
        ops.stage(request.clone()).unwrap();
        ops.stage(request.clone()).expect("the repeated call");
        let sandbox = node.sandbox(POD);
        let app = node.app(&sandbox, &target, "/data");
        assert_eq!(app.sh("stat -c %g /data"), "2000");
        ops.stage(request.clone()).expect("a call for a volume in use");
        request.mount_flags = vec!["soft".to_owned()];
        let refused = ops.stage(request).unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
        let stats = ops.stats(&target).unwrap();
        assert!(stats.usage[0].total > 0 && !stats.volume_condition.unwrap().abnormal);
        let refused = ops.expand(&target, 1 << 30, 0).unwrap_err();
        assert_eq!(refused.code(), Code::Unimplemented, "{refused}");
        let refused = ops.unstage(&target).unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
        server.block();
        assert!(ops.stats(&target).unwrap().volume_condition.unwrap().abnormal);
        end([app, sandbox]);
        ops.unstage(&target).unwrap();
        // crust_ops leaves the records of bundles to its timer, which runs what `gc` runs.
        gc(&node, &[]);
        node.assert_nothing_left();
    }

    #[ignore = "needs NFS; runs in the guest: make vm-test"]
    fn a_share_is_published_to_a_running_sandbox(delegate: Delegate) {
        let node = Node::trusted(delegate, "sandbox = \"always\"");
        let ops = Ops::start(&node);
        let server = NfsServer::start(node.dir());
        let target = node.target(POD, "pv-1");
        let sandbox = node.sandbox(POD);
        let (id, share) = (sandbox.id().to_owned(), server.share());
        let request = RuntimePublishVolumeRequest {
            sandbox_id: id.clone(),
            host_volume_id: share.clone(),
            host_target_path: utf8(&target).to_owned(),
            file_system: "nfs4".to_owned(),
            fsgroup_gid: Some(2000),
            ..RuntimePublishVolumeRequest::default()
        };
        ops.crust(|mut client| async move { client.runtime_publish_volume(request).await }).unwrap();
        assert!(sandbox.sh("cat /proc/mounts").contains(&share));
        let app = node.app(&sandbox, &target, "/data");
        assert_eq!(app.sh("stat -c %g /data"), "2000");
        let request = RuntimeGetVolumeStatsRequest { sandbox_id: id.clone(), host_volume_id: share.clone() };
        let stats = ops.crust(|mut client| async move { client.runtime_get_volume_stats(request).await });
        assert!(stats.unwrap().usage[0].total > 0);
        let request = RuntimeExpandVolumeRequest { sandbox_id: id, host_volume_id: share, required_bytes: 1 << 30 };
        let refused = ops.crust(|mut client| async move { client.runtime_expand_volume(request).await }).unwrap_err();
        assert_eq!(refused.code(), Code::Unimplemented, "{refused}");
        server.block();
        let started = Instant::now();
        end([app, sandbox]);
        assert!(started.elapsed() < TIMEOUT, "the end waited for the server");
        ops.unstage(&target).unwrap();
        // crust_ops leaves the records of bundles to its timer, which runs what `gc` runs.
        gc(&node, &[]);
        node.assert_nothing_left();
    }

    #[ignore = "needs NFS; runs in the guest: make vm-test"]
    fn a_share_is_refused_with_mount_mode_hook(delegate: Delegate) {
        let node = Node::with(delegate, "mount_mode = \"hook\"");
        let server = NfsServer::start(node.dir());
        let target = stage(&node, "pv-1", "nfs4", &server.share(), &[]);
        let bundle = Bundle::plain(node.dir()).bind(&target, "/data", &[]).write();
        let refused = node.container(&bundle).expect_refusal();
        assert!(refused.contains("pv-1") && refused.contains("remove mount_mode"), "{refused}");
        node.unstage_all(&[&target]);
    }

    #[ignore = "needs NFS; runs in the guest: make vm-test"]
    fn containers_without_a_pod_have_the_share(delegate: Delegate) {
        let node = Node::new(delegate);
        let server = NfsServer::start(node.dir());
        let target = stage(&node, "pv-1", "nfs", &server.share(), &["--fs-group", "2000"]);
        let run = || node.run(&Bundle::plain(node.dir()).bind(&target, "/data", &[]).write());
        let (one, two) = (run(), run());
        let _ = one.sh("echo hello > /data/file");
        assert_eq!(two.sh("cat /data/file; stat -c %g /data"), "hello\n2000");
        let _ = node.stats(&target).success();
        assert_eq!(fs::read_dir(&target).unwrap().count(), 0);
        server.block();
        let started = Instant::now();
        end([one, two]);
        assert!(started.elapsed() < TIMEOUT, "the end waited for the server");
        node.unstage_all(&[&target]);
    }
}
