//! Creates, for each way in which a container gets its volume.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use runcrust_tests::container::end;
use runcrust_tests::volume::with_mounted;
use runcrust_tests::{Container, POD, Run};

use crate::row::{Prepared, Row};
use crate::scene::{FIRST_ID, Scene};

/// The programs that create a container.
const CONTAINERS: &[&str] = &["runcrust", "crust-mount-hook publish"];

/// The create of the pod's sandbox, which mounts the volume.
pub(crate) const SANDBOX: Row = Row::new(
    &["runcrust", "crust-mount-hook sandbox"],
    |scene| {
        scene.stage();
        Prepared::create(scene, scene.node.sandbox_bundle(POD))
    },
    with_app,
);

/// A create with a pending resize.
pub(crate) const SANDBOX_THAT_GROWS: Row = Row {
    fstype: "xfs",
    prepare: |scene| {
        scene.stage();
        scene.grow();
        let _ = Run::capture(&mut scene.resize_command()).success();
        Prepared::create(scene, scene.node.sandbox_bundle(POD))
    },
    repeat: |prepared, scene| {
        let containers = with_app(prepared, scene);
        scene.assert_grown(&containers[0]);
        containers
    },
    ..SANDBOX
};

/// The create of the first container with the volume, in a sandbox that was started before the volume was staged.
pub(crate) const FIRST: Row = Row::new(
    CONTAINERS,
    |scene| {
        let sandbox = scene.node.sandbox(POD);
        scene.stage();
        Prepared::create(scene, scene.app_bundle(&sandbox)).in_sandbox(sandbox)
    },
    Prepared::create_and_start,
)
.configured("sandbox = \"always\"");

/// The create of a container in a sandbox that has the volume mounted.
pub(crate) const LATER: Row = Row::new(
    CONTAINERS,
    |scene| {
        scene.stage();
        let sandbox = scene.node.sandbox(POD);
        Prepared::create(scene, scene.app_bundle(&sandbox)).in_sandbox(sandbox)
    },
    Prepared::create_and_start,
);

/// [`FIRST`] and [`LATER`] with a target path that leads over a link: the records of both entries are written.
pub(crate) const FIRST_LINKED: Row = FIRST.behind_a_link();
pub(crate) const LATER_LINKED: Row = LATER.behind_a_link();

/// The create of a container without a sandbox.
pub(crate) const STANDALONE: Row = Row::new(
    CONTAINERS,
    |scene| {
        scene.stage();
        Prepared::create(scene, scene.plain_bundle())
    },
    Prepared::create_and_start,
);

/// A create as on a kernel without `MOVE_MOUNT_SET_GROUP`.
pub(crate) const FALLBACK: Row = STANDALONE.configured("attach = \"bind\"");

/// A create in a user namespace, which the delegate makes.
pub(crate) const USER_NAMESPACE: Row = Row {
    prepare: |scene| {
        scene.stage();
        Prepared::create(scene, scene.plain_bundle().user_namespace(FIRST_ID, None))
    },
    ..STANDALONE
};

/// A create in which a hook mounts the volume.
pub(crate) const HOOK_MOUNTS: Row = Row {
    programs: &[
        "runcrust",
        "crust-mount-hook mount",
        "crust-mount-hook publish",
    ],
    ..STANDALONE.configured("mount_mode = \"hook\"")
};

/// A create with two volumes.
pub(crate) const TWO_VOLUMES: Row = Row {
    has_second_volume: true,
    prepare: |scene| {
        scene.stage();
        let bundle = scene.plain_bundle();
        Prepared::create(scene, bundle.bind(scene.stage_second(), "/second", &[]))
    },
    repeat: |prepared, scene| {
        let containers = prepared.create_and_start(scene);
        let seen = containers[0].sh("cat /second/file; echo x >> /second/file");
        assert_eq!(seen, "x", "content of the second volume");
        containers
    },
    ..STANDALONE
};

/// A create with a missing subPath, which is created in the volume.
pub(crate) const SUBPATH: Row = Row {
    prepare: |scene| {
        // More permissions than a umask leaves, and than fsGroup sets.
        let mode = Permissions::from_mode(0o777);
        with_mounted(scene.device.path(), |root| fs::set_permissions(root, mode)).expect("chmod");
        let subpath = scene.stage().join("sub/path");
        let bundle = scene.plain_bundle().bind(subpath, "/sub", &[]);
        Prepared::create(scene, bundle)
    },
    repeat: |prepared, scene| {
        let containers = prepared.create_and_start(scene);
        let modes = containers[0].sh("stat -c '%a %g' /data /data/sub /data/sub/path /sub");
        let modes: Vec<&str> = modes.lines().collect();
        assert_eq!(modes, [modes[0]; 4], "different modes");
        containers
    },
    ..STANDALONE
};

/// The create of a bundle whose config an earlier create has rewritten: the config is restored, and rewritten again.
pub(crate) const SECOND_CREATE: Row = Row {
    prepare: |scene| {
        scene.stage();
        Prepared::second_create(scene, scene.plain_bundle())
    },
    ..STANDALONE
};

/// [`SECOND_CREATE`] for a volume that is not staged any more: the config is only restored.
pub(crate) const RESTORED_CONFIG: Row = Row {
    programs: &["runcrust"],
    prepare: |scene| {
        scene.stage();
        let prepared = Prepared::second_create(scene, scene.plain_bundle());
        let _ = scene.unstage().success();
        prepared
    },
    repeat: |prepared, scene| {
        let without = prepared.create_and_start(scene).remove(0);
        assert_eq!(without.sh("ls /data"), "", "not the host's directory");
        end([without]);
        scene.stage();
        vec![scene.node.run(&scene.plain_bundle())]
    },
    ..STANDALONE.configured("unstaged = \"pass\"")
};

/// A restore, which runcrust treats like a create. There is no checkpoint, so the restore fails in the delegate. After
/// that failure runc runs the hooks of a container that has ended.
pub(crate) const RESTORE: Row = Row {
    programs: &["runcrust"],
    runc_alone: &["crust-mount-hook release"],
    prepare: |scene| {
        let mut prepared = (STANDALONE.prepare)(scene);
        let (container, _) = prepared.container.as_ref().expect("a container");
        let images = scene.node.dir().subdir("images");
        let mut command = container.command(&["restore", "--detach", "--image-path"]);
        command.arg(images).arg("--bundle").arg(container.bundle());
        command.arg(container.id());
        prepared.command = command;
        prepared
    },
    ..STANDALONE
};

/// Creates and starts the sandbox, and an app in it with the volume. Returns the app first.
pub(crate) fn with_app(prepared: Prepared, scene: &Scene) -> Vec<Container> {
    let mut containers = prepared.create_and_start(scene);
    let app = scene.app(&containers[0]);
    containers.insert(0, app);
    containers
}
