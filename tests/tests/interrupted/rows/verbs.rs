//! `runcrust crust …`.

use runcrust_tests::container::end;
use runcrust_tests::{Container, Run};

use crate::row::{Begun, Row};
use crate::scene::{POD, Scene};

/// What a verb is.
const PROGRAMS: &[&str] = &["runcrust"];

/// `stage`.
pub(crate) const STAGE: Row =
    Row::new(PROGRAMS, |scene| Begun::verb(scene.stage_command()), staged);

/// `stage`, where the target path leads over a link.
pub(crate) const STAGE_LINKED: Row = Row {
    linked: true,
    ..STAGE
};

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
pub(crate) const UNSTAGE_LINKED: Row = Row {
    linked: true,
    ..UNSTAGE
};

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

/// Staged again, the volume comes to a pod.
fn staged(_: Begun, scene: &Scene) -> Vec<Container> {
    scene.stage();
    let sandbox = scene.node.sandbox(POD);
    vec![scene.app(&sandbox), sandbox]
}
