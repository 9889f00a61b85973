//! Deletes: a hook releases what has ended.

use super::creates::with_an_app;
use crate::row::{Begun, Row};
use runcrust_tests::POD;

/// Of a container in a sandbox, which goes on.
pub(crate) const APP: Row = Row::new(
    &["runcrust", "crust-mount-hook release"],
    |scene| {
        scene.stage();
        let sandbox = scene.node.sandbox(POD);
        Begun::delete(scene, scene.app_bundle(&sandbox)).in_sandbox(sandbox)
    },
    Begun::created_again,
);

/// The same where the target path leads over a link.
pub(crate) const APP_LINKED: Row = APP.linked();

/// Of the last container without a sandbox.
pub(crate) const PLAIN: Row = Row::new(
    &["runcrust", "crust-mount-hook release"],
    |scene| {
        scene.stage();
        Begun::delete(scene, scene.plain_bundle())
    },
    Begun::created_again,
);

/// Of a sandbox.
pub(crate) const SANDBOX: Row = Row::new(
    &["runcrust", "crust-mount-hook release-sandbox"],
    |scene| {
        scene.stage();
        Begun::delete(scene, scene.node.sandbox_bundle(POD))
    },
    with_an_app,
);
