//! Creates, in each of the ways that a volume comes to a container.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use runcrust_tests::container::end;
use runcrust_tests::volume::with_mounted;
use runcrust_tests::{Container, POD, Run};

use crate::row::{Begun, Row};
use crate::scene::{FIRST_ID, Scene};

/// What creates a container.
const CONTAINERS: &[&str] = &["runcrust", "crust-mount-hook publish"];

/// Of the pod's sandbox, which gets the volume.
pub(crate) const SANDBOX: Row = Row::new(
    &["runcrust", "crust-mount-hook sandbox"],
    |scene| {
        scene.stage();
        Begun::create(scene, scene.node.sandbox_bundle(POD))
    },
    with_an_app,
);

/// With a volume that has grown, which its file system doesn't know yet.
pub(crate) const SANDBOX_THAT_GROWS: Row = Row {
    fstype: "xfs",
    begin: |scene| {
        scene.stage();
        scene.grow();
        let _ = Run::of(&mut scene.resize_command()).success();
        Begun::create(scene, scene.node.sandbox_bundle(POD))
    },
    again: |begun, scene| {
        let containers = with_an_app(begun, scene);
        scene.assert_grown(&containers[0]);
        containers
    },
    ..SANDBOX
};

/// Of the first container in a sandbox that was there before the volume.
pub(crate) const FIRST: Row = Row::new(
    CONTAINERS,
    |scene| {
        let sandbox = scene.node.sandbox(POD);
        scene.stage();
        Begun::create(scene, scene.app_bundle(&sandbox)).in_sandbox(sandbox)
    },
    Begun::created_again,
)
.configured("sandbox = \"always\"");

/// Of a container in a sandbox that has the volume.
pub(crate) const SECOND: Row = Row::new(
    CONTAINERS,
    |scene| {
        scene.stage();
        let sandbox = scene.node.sandbox(POD);
        Begun::create(scene, scene.app_bundle(&sandbox)).in_sandbox(sandbox)
    },
    Begun::created_again,
);

/// The same two where the target path leads over a link: both entries' records are written.
pub(crate) const FIRST_LINKED: Row = FIRST.linked();
pub(crate) const SECOND_LINKED: Row = SECOND.linked();

/// Of a container without a sandbox.
pub(crate) const PLAIN: Row = Row::new(
    CONTAINERS,
    |scene| {
        scene.stage();
        Begun::create(scene, scene.plain_bundle())
    },
    Begun::created_again,
);

/// On a kernel without `MOVE_MOUNT_SET_GROUP`.
pub(crate) const FALLBACK: Row = PLAIN.configured("attach = \"bind\"");

/// In a user namespace that the delegate will make.
pub(crate) const USER_NAMESPACE: Row = Row {
    begin: |scene| {
        scene.stage();
        Begun::create(scene, scene.plain_bundle().user_namespace(FIRST_ID, None))
    },
    ..PLAIN
};

/// Where a hook mounts in the container.
pub(crate) const HOOKED: Row = Row {
    programs: &[
        "runcrust",
        "crust-mount-hook mount",
        "crust-mount-hook publish",
    ],
    ..PLAIN.configured("mount_mode = \"hook\"")
};

/// With two volumes.
pub(crate) const TWO: Row = Row {
    two: true,
    begin: |scene| {
        scene.stage();
        let bundle = scene.plain_bundle();
        Begun::create(scene, bundle.bind(scene.stage_second(), "/second", &[]))
    },
    again: |begun, scene| {
        let containers = begun.created_again(scene);
        let seen = containers[0].sh("cat /second/file; echo x >> /second/file");
        assert_eq!(seen, "x", "lines in the second volume");
        containers
    },
    ..PLAIN
};

/// With a subPath that isn't there, which is made in the volume.
pub(crate) const SUBPATH: Row = Row {
    begin: |scene| {
        // More than a umask leaves, and than fsGroup gives.
        let mode = Permissions::from_mode(0o777);
        with_mounted(scene.device.path(), |root| fs::set_permissions(root, mode)).expect("chmod");
        let subpath = scene.stage().join("sub/path");
        let bundle = scene.plain_bundle().bind(subpath, "/sub", &[]);
        Begun::create(scene, bundle)
    },
    again: |begun, scene| {
        let containers = begun.created_again(scene);
        let modes = containers[0].sh("stat -c '%a %g' /data /data/sub /data/sub/path /sub");
        let modes: Vec<&str> = modes.lines().collect();
        assert_eq!(modes, [modes[0]; 4], "whoever was killed");
        containers
    },
    ..PLAIN
};

/// Of a bundle whose config an earlier create has rewritten: it is brought back, and rewritten anew.
pub(crate) const AGAIN: Row = Row {
    begin: |scene| {
        scene.stage();
        Begun::create_again(scene, scene.plain_bundle())
    },
    ..PLAIN
};

/// Of such a bundle, whose volume is one no more: it is brought back, and that is all.
pub(crate) const AGAIN_WITHOUT: Row = Row {
    programs: &["runcrust"],
    begin: |scene| {
        scene.stage();
        let begun = Begun::create_again(scene, scene.plain_bundle());
        let _ = scene.unstage().success();
        begun
    },
    again: |begun, scene| {
        let without = begun.created_again(scene).remove(0);
        assert_eq!(
            without.sh("ls /data"),
            "",
            "the host's directory, as its caller wrote"
        );
        end([without]);
        scene.stage();
        vec![scene.node.run(&scene.plain_bundle())]
    },
    ..PLAIN.configured("unstaged = \"pass\"")
};

/// From a checkpoint. There is none, and so it fails in the delegate, to which it is a create. runc
/// ends what it can't restore as a container that has ended.
pub(crate) const RESTORE: Row = Row {
    programs: &["runcrust"],
    runc_alone: &["crust-mount-hook release"],
    begin: |scene| {
        let mut begun = (PLAIN.begin)(scene);
        let (container, _) = begun.container.as_ref().expect("a container");
        let images = scene.node.dir().subdir("images");
        let mut command = container.command(&["restore", "--detach", "--image-path"]);
        command.arg(images).arg("--bundle").arg(container.bundle());
        command.arg(container.id());
        begun.command = command;
        begun
    },
    ..PLAIN
};

/// Containers of a sandbox that is created again: one that has the volume, and it.
pub(crate) fn with_an_app(begun: Begun, scene: &Scene) -> Vec<Container> {
    let mut containers = begun.created_again(scene);
    let app = scene.app(&containers[0]);
    containers.insert(0, app);
    containers
}
