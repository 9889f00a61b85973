//! `runcrust crust …`.

use std::fs;

use runcrust_tests::container::{end, kill_and_remove_bundles};
use runcrust_tests::{Container, POD, Run};

use crate::row::{Begun, Row};
use crate::scene::Scene;

/// What a verb is.
const PROGRAMS: &[&str] = &["runcrust"];

/// `stage`.
pub(crate) const STAGE: Row =
    Row::new(PROGRAMS, |scene| Begun::verb(scene.stage_command()), staged);

/// `stage`, where the target path leads over a link.
pub(crate) const STAGE_LINKED: Row = STAGE.linked();

/// `unstage` of a volume that was used.
pub(crate) const UNSTAGE: Row = Row::new(
    PROGRAMS,
    |scene| {
        scene.stage();
        let sandbox = scene.node.sandbox(POD);
        let app = scene.app(&sandbox);
        end([app, sandbox]);
        Begun::verb(scene.unstage_command())
    },
    |begun, scene| {
        let _ = scene.unstage().success();
        staged(begun, scene)
    },
);

/// `unstage`, where the target path leads over a link.
pub(crate) const UNSTAGE_LINKED: Row = UNSTAGE.linked();

/// `resize` of a volume that nobody has mounted.
pub(crate) const RESIZE: Row = Row {
    fstype: "xfs",
    ..Row::new(
        PROGRAMS,
        |scene| {
            scene.stage();
            scene.grow();
            Begun::verb(scene.resize_command())
        },
        |_, scene| {
            let _ = Run::of(&mut scene.resize_command()).success();
            let sandbox = scene.node.sandbox(POD);
            let app = scene.app(&sandbox);
            scene.assert_grown(&app);
            vec![app, sandbox]
        },
    )
};

/// `publish` in a sandbox that runs.
pub(crate) const PUBLISH: Row = Row::new(
    PROGRAMS,
    |scene| {
        let sandbox = scene.node.sandbox(POD);
        Begun::verb(scene.publish_command(&sandbox)).in_sandbox(sandbox)
    },
    |begun, scene| {
        let sandbox = begun.sandbox.expect("a sandbox");
        let _ = Run::of(&mut scene.publish_command(&sandbox)).success();
        vec![scene.app(&sandbox), sandbox]
    },
)
.configured("sandbox = \"always\"");

/// `gc` of all that a pod leaves which vanishes with its directory. Another pod's volume is staged.
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
        let mut begun = Begun::verb(scene.gc_command());
        begun.vanished = vec![app, sandbox];
        begun
    },
    |begun, scene| {
        scene.assert_works_for_another_pod_as_staged();
        staged(begun, scene)
    },
);

/// Staged again, the volume comes to a pod.
fn staged(_: Begun, scene: &Scene) -> Vec<Container> {
    scene.stage();
    let sandbox = scene.node.sandbox(POD);
    vec![scene.app(&sandbox), sandbox]
}
