//! The calls of a CSI driver and of kubelet for one volume, from the stage to the unstage.

use std::fs;

use crust_proto::v1::volume_usage::Unit;
use runcrust_tests::container::end;
use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::ops::stage_request;
use runcrust_tests::volume::{fsck, with_mounted};
use runcrust_tests::{Node, Ops, POD, on_each_delegate, wait_until};
use tonic::Code;

use crate::expect_error;

on_each_delegate! {
    fn a_pod_uses_a_volume_from_stage_to_unstage(delegate: Delegate) {
        let node = Node::trusted(delegate, "");
        let ops = Ops::with(&node, "reconcile_interval = 1");
        let device = node.ext4();
        let target = node.target(POD, "pv-1");
        let mut request = stage_request(&target, &device);
        request.volume_supplemental_group = "4242".into();
        ops.stage(request.clone()).unwrap();
        let error = expect_error(ops.stats(&target), Code::FailedPrecondition);
        assert!(error.starts_with("volume pv-1: it isn't mounted yet"), "{error}");

        let sandbox = node.sandbox(POD);
        let app = node.app(&sandbox, &target, "/data");
        assert_eq!(app.sh("echo hello > /data/file; stat -c '%g %a' /data"), "4242 2775");
        ops.stage(request).expect("kubelet publishes again after its own restart");

        let stats = ops.stats(&target).unwrap();
        let condition = stats.volume_condition.clone().unwrap();
        assert!(!condition.abnormal, "{condition:?}");
        let bytes = stats.usage.iter().find(|usage| usage.unit() == Unit::Bytes).unwrap();
        let df = app.sh("df -P -k /data | tail -n 1");
        let df: Vec<i64> = df.split_whitespace().filter_map(|field| field.parse().ok()).collect();
        assert_eq!(df, [bytes.total / 1024, bytes.used / 1024, bytes.available / 1024], "{stats:?}");
        assert!(stats.usage.iter().any(|usage| usage.unit() == Unit::Inodes && usage.total > 0));

        let error = expect_error(ops.unstage(&target), Code::FailedPrecondition);
        assert!(error.contains(sandbox.id()), "{error}");
        end([app, sandbox]);
        ops.unstage(&target).unwrap();
        ops.unstage(&target).expect("the repeated call");
        assert!(device.is_free());
        wait_until("the records that delete left to be removed", WAIT_TIMEOUT, || node.records().is_empty());
        fsck("ext4", device.path());
        assert_eq!(with_mounted(device.path(), |root| fs::read(root.join("file")).unwrap()), b"hello\n");
        expect_error(ops.stats(&target), Code::NotFound);
        let log = ops.log();
        let command = fs::read_to_string("/proc/self/comm").unwrap();
        let named = format!(
            "method=crust.v1.Runtime/RuntimeStageVolume uid=0 pid={} command={:?} volume={target:?}}}",
            std::process::id(),
            command.trim_end()
        );
        assert!(log.lines().any(|line| line.contains(" INFO ") && line.contains(&named)), "no line with {named} in {log}");
    }
}
