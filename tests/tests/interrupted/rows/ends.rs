//! Deletes, in which a hook releases the container's or the sandbox's volumes.

use super::creates::with_app;
use crate::row::{Prepared, Row};
use runcrust_tests::POD;

/// The delete of a container in a sandbox that keeps running.
pub(crate) const CONTAINER: Row = Row::new(
    &["runcrust", "crust-mount-hook release"],
    |scene| {
        scene.stage();
        let sandbox = scene.node.sandbox(POD);
        Prepared::delete(scene, scene.app_bundle(&sandbox)).in_sandbox(sandbox)
    },
    Prepared::create_and_start,
);

/// [`CONTAINER`] with a target path that leads over a link.
pub(crate) const CONTAINER_LINKED: Row = CONTAINER.behind_a_link();

/// The delete of a container without a sandbox.
pub(crate) const STANDALONE: Row = Row::new(
    &["runcrust", "crust-mount-hook release"],
    |scene| {
        scene.stage();
        Prepared::delete(scene, scene.plain_bundle())
    },
    Prepared::create_and_start,
);

/// The delete of a sandbox.
pub(crate) const SANDBOX: Row = Row::new(
    &["runcrust", "crust-mount-hook release-sandbox"],
    |scene| {
        scene.stage();
        Prepared::delete(scene, scene.node.sandbox_bundle(POD))
    },
    with_app,
);
