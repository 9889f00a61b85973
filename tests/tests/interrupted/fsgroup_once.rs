//! Work that is done once for a pod, even if a first attempt was killed.

use runcrust_tests::container::end;
use runcrust_tests::process::kill_and_wait as kill;
use runcrust_tests::{POD, on_each_delegate, steps};

use crate::killed::steps_of;
use crate::rows::creates::FIRST;
use crate::scene::Scene;

on_each_delegate! {
    /// Whichever records the killed create has written, the second create must not change data in use.
    fn fsgroup_is_applied_once_for_a_pod(delegate: Delegate) {
        let records = steps_of(delegate, &FIRST).into_iter().filter(|step| step.call == "renameat");
        for step in records {
            let scene = Scene::for_row(delegate, &FIRST);
            let mut prepared = (FIRST.prepare)(&scene);
            let _ = steps::kill_after(&prepared.command, &step, |command| prepared.spawn(command));
            prepared.delete_like_shim();
            let first = prepared.sandbox.take().expect("a sandbox");
            let app = prepared.create_and_start(&scene).remove(0);
            let _ = app.sh("chmod 600 /data/file");
            kill(first.pid());
            let second = scene.node.sandbox(POD);
            assert_eq!(app.sh("stat -c '%g %a' /data/file"), "4242 600", "killed after {step}");
            end([app, first, second]);
            scene.unstage_and_assert_clean();
        }
    }
}
