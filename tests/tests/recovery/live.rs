//! Whoever lives is never touched, whatever comes and goes meanwhile.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use runcrust_tests::container::end;
use runcrust_tests::gc::gc;
use runcrust_tests::{Node, POD, on_each_delegate};

use crate::OTHER_POD;

/// Of each delegate.
const PODS: usize = 4;

on_each_delegate! {
    fn pods_start_and_stop_while_gc_runs_again_and_again(delegate: Delegate) {
        let node = Node::new(delegate);
        let (device, others) = (node.ext4(), node.ext4());
        let stays = node.stage(OTHER_POD, "pv-2", &others, &[]);
        let living = node.sandbox(OTHER_POD);
        let app = node.app(&living, &stays, "/data");
        let done = AtomicBool::new(false);
        let (said, times) = thread::scope(|scope| {
            let collecting = scope.spawn(|| {
                let (mut said, mut times) = (Vec::new(), 0);
                while !done.load(Ordering::Relaxed) {
                    let now = gc(&node, &[]);
                    said.extend(now.removed);
                    times += 1;
                }
                (said, times)
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
        let of_the_living = said.iter().filter(|it| it.to_string().contains(OTHER_POD));
        assert_eq!(of_the_living.count(), 0, "{said:?}");
        assert_eq!(app.sh("echo on > /data/file; cat /data/file"), "on");
        end([app, living]);
        node.unstage_all(&[&stays]);
    }
}
