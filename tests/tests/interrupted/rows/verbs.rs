//! Subcommands of `runcrust crust`.

use std::fs;

use runcrust_tests::container::{end, kill_and_remove_bundles};
use runcrust_tests::{Container, POD, Run};

use crate::row::{Prepared, Row};
use crate::scene::Scene;

/// The programs that run a subcommand.
const PROGRAMS: &[&str] = &["runcrust"];

/// `stage`.
pub(crate) const STAGE: Row = Row::new(
    PROGRAMS,
    |scene| Prepared::subcommand(scene.stage_command()),
    stage_and_use,
);

/// `stage` with a target path that leads over a link.
pub(crate) const STAGE_LINKED: Row = STAGE.behind_a_link();

/// `unstage` of a volume that was used.
pub(crate) const UNSTAGE: Row = Row::new(
    PROGRAMS,
    |scene| {
        scene.stage();
        let sandbox = scene.node.sandbox(POD);
        let app = scene.app(&sandbox);
        end([app, sandbox]);
        Prepared::subcommand(scene.unstage_command())
    },
    |prepared, scene| {
        let _ = scene.unstage().success();
        stage_and_use(prepared, scene)
    },
);

/// `unstage` with a target path that leads over a link.
pub(crate) const UNSTAGE_LINKED: Row = UNSTAGE.behind_a_link();

/// `resize` of a volume that is not mounted.
pub(crate) const RESIZE: Row = Row {
    fstype: "xfs",
    ..Row::new(
        PROGRAMS,
        |scene| {
            scene.stage();
            scene.grow();
            Prepared::subcommand(scene.resize_command())
        },
        |_, scene| {
            let _ = Run::capture(&mut scene.resize_command()).success();
            let sandbox = scene.node.sandbox(POD);
            let app = scene.app(&sandbox);
            scene.assert_grown(&app);
            vec![app, sandbox]
        },
    )
};

/// `publish` in a running sandbox.
pub(crate) const PUBLISH: Row = Row::new(
    PROGRAMS,
    |scene| {
        let sandbox = scene.node.sandbox(POD);
        Prepared::subcommand(scene.publish_command(&sandbox)).in_sandbox(sandbox)
    },
    |prepared, scene| {
        let sandbox = prepared.sandbox.expect("a sandbox");
        let _ = Run::capture(&mut scene.publish_command(&sandbox)).success();
        vec![scene.app(&sandbox), sandbox]
    },
)
.configured("sandbox = \"always\"");

/// `gc` after a pod was killed and its directories removed. Another pod's volume is staged.
pub(crate) const GC: Row = Row::new(
    PROGRAMS,
    |scene| {
        let target = scene.stage();
        scene.stage_for_another_pod();
        let sandbox = scene.node.sandbox(POD);
        let app = scene.app(&sandbox);
        kill_and_remove_bundles(&[&app, &sandbox]);
        scene.wait_until_free();
        fs::remove_dir_all(target).expect("its target directory");
        let mut prepared = Prepared::subcommand(scene.gc_command());
        prepared.vanished = vec![app, sandbox];
        prepared
    },
    |prepared, scene| {
        scene.assert_works_for_another_staged_pod();
        stage_and_use(prepared, scene)
    },
);

/// Stages the volume, and runs a pod with it. Returns the app first.
fn stage_and_use(_: Prepared, scene: &Scene) -> Vec<Container> {
    scene.stage();
    let sandbox = scene.node.sandbox(POD);
    vec![scene.app(&sandbox), sandbox]
}
