//! What is done once, however often it was begun.

use runcrust_tests::container::end;
use runcrust_tests::process::kill_and_wait as kill;
use runcrust_tests::{POD, on_each_delegate, steps};

use crate::killed::steps_of;
use crate::rows::creates::FIRST;
use crate::scene::Scene;

on_each_delegate! {
    /// However far the first create came with its records, the data is live with the second one.
    fn fsgroup_is_applied_once_a_pod(delegate: Delegate) {
        let records = steps_of(delegate, &FIRST).into_iter().filter(|step| step.call == "renameat");
        for step in records {
            let scene = Scene::of(delegate, &FIRST);
            let mut begun = (FIRST.begin)(&scene);
            let _ = steps::kill_after(&begun.command, &step, |command| begun.spawn(command));
            begun.clear();
            let first = begun.sandbox.take().expect("a sandbox");
            let app = begun.created_again(&scene).remove(0);
            let _ = app.sh("chmod 600 /data/file");
            kill(first.pid());
            let second = scene.node.sandbox(POD);
            assert_eq!(app.sh("stat -c '%g %a' /data/file"), "4242 600", "killed after {step}");
            end([app, first, second]);
            scene.put_away();
        }
    }
}
