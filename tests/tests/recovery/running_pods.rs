//! `gc` never affects running pods, while other pods start and stop.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use runcrust_tests::container::end;
use runcrust_tests::gc::gc;
use runcrust_tests::{Node, POD, on_each_delegate};

use crate::OTHER_POD;

/// The number of pods that start and stop.
const PODS: usize = 4;

on_each_delegate! {
    fn running_pods_survive_gc_while_others_start_and_stop(delegate: Delegate) {
        let node = Node::new(delegate);
        let (device, others) = (node.ext4(), node.ext4());
        let stays = node.stage(OTHER_POD, "pv-2", &others, &[]);
        let living = node.sandbox(OTHER_POD);
        let app = node.app(&living, &stays, "/data");
        let done = AtomicBool::new(false);
        let (removed, times) = thread::scope(|scope| {
            let collecting = scope.spawn(|| {
                let (mut removed, mut times) = (Vec::new(), 0);
                while !done.load(Ordering::Relaxed) {
                    let report = gc(&node, &[]);
                    removed.extend(report.removed);
                    times += 1;
                }
                (removed, times)
            });
            for round in 0..PODS {
                let target = node.stage(POD, "pv-1", &device, &[]);
                let sandbox = node.sandbox(POD);
                let apps = [node.app(&sandbox, &target, "/data"), node.app(&sandbox, &target, "/data")];
                let _ = apps[0].sh(&format!("echo {round} >> /data/file"));
                assert_eq!(apps[1].sh("wc -l < /data/file"), (round + 1).to_string());
                let _ = node.stats(&target).success();
                let _ = node.unstage(&target).failure();
                end(apps);
                end([sandbox]);
                let _ = node.unstage(&target).success();
            }
            done.store(true, Ordering::Relaxed);
            collecting.join().expect("gc")
        });
        assert!(times > PODS, "{times}");
        let of_running_pod = removed.iter().filter(|it| it.to_string().contains(OTHER_POD));
        assert_eq!(of_running_pod.count(), 0, "{removed:?}");
        assert_eq!(app.sh("echo on > /data/file; cat /data/file"), "on");
        end([app, living]);
        node.unstage_all(&[&stays]);
    }
}
