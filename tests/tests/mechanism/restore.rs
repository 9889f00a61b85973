//! `checkpoint` and `restore` of a container with a volume.

use std::path::Path;
use std::process::Command;

use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::{
    Bundle, Container, Delegate, Node, Run, StagedVolume, on_each_delegate, wait_until,
};

use super::end;

fn restore(container: &Container, images: &Path) -> Command {
    let mut command = container.command(&["restore", "--detach", "--image-path"]);
    command.arg(images).arg("--bundle").arg(container.bundle());
    command
        .arg("--pid-file")
        .arg(container.bundle().join("init.pid"));
    command.arg(container.id());
    command
}

on_each_delegate! {
    fn a_restore_that_the_delegate_fails_frees_the_volume(delegate: Delegate) {
        let volume = StagedVolume::new(delegate);
        let bundle = volume.plain_bundle().write();
        let container = volume.container(&bundle);
        let nothing = volume.dir().subdir("images");
        // The directory has no images, so the delegate fails.
        let failed = container.create_with(restore(&container, &nothing)).failure();
        let log = container.last_log_error().unwrap_or_default();
        assert!(!log.contains("volume pv-1") && !failed.stderr.contains("volume pv-1"), "{failed} {log}");
        let attached = volume.handler().state_dir().join("attach");
        let sources = bundle.config()["mounts"].to_string();
        assert!(sources.contains(attached.to_str().unwrap()), "{sources}");
        volume.device.wait_until_free(WAIT_TIMEOUT);
        let _ = volume.unstage().success();
    }
}

#[test]
fn a_restore_in_hook_mode_is_refused_unchanged() {
    let volume = StagedVolume::on(super::hook::node(Delegate::Runc), &[]);
    let bundle = volume.plain_bundle().write();
    let before = bundle.config_bytes();
    let container = volume.container(&bundle);
    let images = volume.dir().subdir("images");
    let _ = container
        .create_with(restore(&container, &images))
        .failure();
    let error = container.last_log_error().expect("an error in the log");
    assert!(
        error.starts_with("volume pv-1: no hook runs in a container that is restored"),
        "{error}"
    );
    assert_eq!(bundle.config_bytes(), before, "the config was changed");
}

/// Runs a container of this bundle with the volume at `/data`, checkpoints and deletes it, calls `after_delete`, and
/// restores it.
#[track_caller]
fn checkpoint_and_restore(
    node: &Node,
    bundle: Bundle,
    target: &Path,
    after_delete: impl FnOnce(),
) -> Container {
    // criu cannot save descriptors of files outside of the container.
    let script = "exec </dev/null >/dev/null 2>&1
        i=0; while :; do i=$((i+1)); echo $i > /data/count; sleep 0.1; done";
    let bundle = bundle.bind(target, "/data", &[]).script(script);
    let container = node.run(&bundle.write());
    let count = || {
        container
            .sh("cat /data/count || :")
            .parse::<u64>()
            .unwrap_or(0)
    };
    wait_until("the container to count", WAIT_TIMEOUT, || count() > 3);
    let images = node.dir().subdir("images");
    let checkpoint = [
        "checkpoint",
        "--image-path",
        images.to_str().unwrap(),
        container.id(),
    ];
    let _ = Run::capture(&mut container.command(&checkpoint)).success();
    let _ = container.delete_force();
    after_delete();
    let _ = container
        .create_with(restore(&container, &images))
        .success();
    let before = count();
    wait_until("the container to count on", WAIT_TIMEOUT, || {
        count() > before + 3
    });
    container
}

/// Tested only with runc: Debian 12's crun is built without criu, and Debian 13's needs libcriu.so.2, which the guest
/// lacks.
#[test]
#[ignore = "needs criu and a kernel that supports it; runs in the guest: make vm-test"]
fn a_restored_container_has_its_volume() {
    let volume = StagedVolume::new(Delegate::Runc);
    let container =
        checkpoint_and_restore(&volume, Bundle::plain(volume.dir()), &volume.target, || {
            volume.device.wait_until_free(WAIT_TIMEOUT);
        });
    let _ = volume.stats().success();
    let _ = volume.unstage().failure();
    end([container]);
    volume.device.wait_until_free(WAIT_TIMEOUT);
    let _ = volume.unstage().success();
}

#[test]
#[ignore = "needs criu and a kernel that supports it; runs in the guest: make vm-test"]
fn a_restored_app_has_its_pods_volume() {
    let (volume, sandbox) = StagedVolume::with_sandbox(Delegate::Runc);
    let other = volume.app(&sandbox);
    let app = checkpoint_and_restore(
        &volume,
        volume.node.app_bundle(&sandbox),
        &volume.target,
        || {},
    );
    let _ = app.sh("echo x > /data/file");
    assert_eq!(
        other.sh("cat /data/file"),
        "x",
        "the app does not use the sandbox's mount"
    );
    end([other, sandbox]);
    let refused = volume.unstage().failure();
    assert!(refused.stderr.contains(app.id()), "{refused}");
    end([app]);
    volume.device.wait_until_free(WAIT_TIMEOUT);
    let _ = volume.unstage().success();
}
