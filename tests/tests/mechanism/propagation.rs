//! Mount propagation: mounts that a container shares with the host stay shared, but volumes are never shared.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use runcrust_tests::fault_injection::delay_at;
use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::steps::{self, Step};
use runcrust_tests::{
    Bundle, Container, Delegate, LoopDevice, MountWatcher, Node, POD, Run, StagedVolume, host,
    on_each_delegate, wait_until,
};
use serde_json::json;

use super::{create_at_once, end};

/// A directory that is a shared mount on the host, like kubelet's directories. Unmounted when dropped.
struct SharedMount<'a>(&'a Path);

impl<'a> SharedMount<'a> {
    fn new(path: &'a Path) -> Self {
        let _ = Run::capture(
            Command::new("mount")
                .args(["--bind", "--make-shared"])
                .args([path, path]),
        )
        .success();
        Self(path)
    }
}

impl Drop for SharedMount<'_> {
    fn drop(&mut self) {
        let _ = Run::capture(
            Command::new("umount")
                .args(["--recursive", "--lazy"])
                .arg(self.0),
        );
    }
}

/// Lets the container mount, like a privileged one.
fn can_mount(bundle: Bundle) -> Bundle {
    let mut bundle = bundle.all_capabilities();
    bundle.spec_mut()["linux"]
        .as_object_mut()
        .unwrap()
        .remove("seccomp");
    bundle
}

/// Returns the bundle of an app with the volume at `/data` and a Bidirectional mount of a directory at `/shared`.
fn with_bidirectional(volume: &StagedVolume, sandbox: &Container, directory: &Path) -> Bundle {
    let bundle = volume.app_bundle(sandbox);
    let bundle = bundle.bind(directory, "/shared", &["rbind", "rshared", "rw"]);
    let mut bundle = can_mount(bundle);
    bundle.spec_mut()["linux"]["rootfsPropagation"] = json!("rshared");
    bundle.write()
}

/// Mounts a tmpfs on the host at `inner` in a directory.
fn mount_inner_on_host(directory: &Path) {
    let inner = directory.join("inner");
    fs::create_dir(&inner).unwrap();
    let mut mount = Command::new("mount");
    let _ = Run::capture(mount.args(["-t", "tmpfs", "late"]).arg(inner)).success();
}

/// Mounts a tmpfs below the container's `/shared`, and returns whether it appears on the host.
fn reaches_the_host(container: &Container, directory: &Path) -> bool {
    let _ = container.sh("mkdir -p /shared/inner; mount -t tmpfs inner /shared/inner");
    let is_on_host = host::mounts_below(directory).contains(&directory.join("inner"));
    let _ = container.sh("umount /shared/inner");
    is_on_host
}

/// The two ways of keeping the attach directory's mounts out of the host's mount table.
const ATTACH: [&str; 2] = ["attach = \"group\"", "attach = \"bind\""];

on_each_delegate! {
    fn a_bidirectional_mount_of_the_container_reaches_the_host(delegate: Delegate) {
        for attach in ATTACH {
            let volume = StagedVolume::on(Node::with(delegate, attach), &[]);
            let directory = volume.dir().subdir("shared");
            let _shared = SharedMount::new(&directory);
            let watcher = MountWatcher::start(volume.device.path());
            let sandbox = volume.sandbox();
            let app = volume.run(&with_bidirectional(&volume, &sandbox, &directory));
            let _ = app.sh("echo x > /data/file");
            assert!(reaches_the_host(&app, &directory), "{attach}");
            watcher.assert_never_mounted();
            end([app, sandbox]);
            volume.device.wait_until_free(WAIT_TIMEOUT);
        }
    }

    fn a_bidirectional_mount_next_to_the_attach_directory_works(delegate: Delegate) {
        for attach in ATTACH {
            let volume = StagedVolume::on(Node::with(delegate, attach), &[]);
            // The shared directory is on the mount that also holds the attach directory. That mount is private for a
            // moment.
            let state = volume.dir().subdir("run");
            let _shared = SharedMount::new(&state);
            let directory = state.join("beside");
            fs::create_dir(&directory).unwrap();
            let sandbox = volume.sandbox();
            let app = volume.run(&with_bidirectional(&volume, &sandbox, &directory));
            let _ = app.sh("echo x > /data/file");
            assert!(reaches_the_host(&app, &directory), "{attach}");
            end([app, sandbox]);
            volume.device.wait_until_free(WAIT_TIMEOUT);
        }
    }

    fn a_later_mount_on_the_host_reaches_the_container(delegate: Delegate) {
        for attach in ATTACH {
            let volume = StagedVolume::on(Node::with(delegate, attach), &[]);
            let directory = volume.dir().subdir("shared");
            let shared = SharedMount::new(&directory);
            let sandbox = volume.sandbox();
            let to_container = ["rbind", "rslave", "rw"];
            let mut bundle = volume.app_bundle(&sandbox).bind(&directory, "/shared", &to_container);
            bundle.spec_mut()["linux"]["rootfsPropagation"] = json!("rslave");
            let app = volume.run(&bundle.write());
            mount_inner_on_host(&directory);
            wait_until("the mount to reach the container", WAIT_TIMEOUT, || {
                app.sh("grep -c ' /shared/inner ' /proc/self/mountinfo || true") == "1"
            });
            drop(shared);
            end([app, sandbox]);
        }
    }

    fn a_host_mount_stays_out_of_a_private_bind(delegate: Delegate) {
        for attach in ATTACH {
            let volume = StagedVolume::on(Node::with(delegate, attach), &[]);
            let directory = volume.dir().subdir("shared");
            let _shared = SharedMount::new(&directory);
            let sandbox = volume.sandbox();
            // The slave mount in the same namespace shows that the host's mount has arrived.
            let mut bundle = volume.app_bundle(&sandbox);
            bundle.spec_mut()["linux"]["rootfsPropagation"] = json!("rslave");
            let bundle = bundle.bind(&directory, "/private", &["rbind", "rprivate"]);
            let app = volume.run(&bundle.bind(&directory, "/slave", &["rbind", "rslave"]).write());
            mount_inner_on_host(&directory);
            let seen = || app.sh("cut -d ' ' -f 5 /proc/self/mountinfo | grep /inner || true");
            wait_until("the mount to reach /slave", WAIT_TIMEOUT, || seen().contains("/slave/inner"));
            assert_eq!(seen(), "/slave/inner", "{attach}");
            end([app, sandbox]);
        }
    }

    fn volumes_stay_in_the_pod_with_any_rootfs_propagation(delegate: Delegate) {
        for propagation in ["private", "rprivate", "slave", "rslave", "shared", "rshared"] {
            let volume = StagedVolume::new(delegate);
            let watcher = MountWatcher::start(volume.device.path());
            let mut sandbox = volume.sandbox_bundle(POD);
            sandbox.spec_mut()["linux"]["rootfsPropagation"] = json!(propagation);
            let sandbox = volume.run(&sandbox.write());
            let mut bundle = volume.app_bundle(&sandbox);
            bundle.spec_mut()["linux"]["rootfsPropagation"] = json!(propagation);
            let app = volume.run(&bundle.write());
            let _ = app.sh("echo x > /data/file");
            let mut plain = volume.plain_bundle();
            plain.spec_mut()["linux"]["rootfsPropagation"] = json!(propagation);
            let plain = volume.run(&plain.write());
            assert_eq!(plain.sh("cat /data/file"), "x", "{propagation}");
            watcher.assert_never_mounted();
            end([plain, app, sandbox]);
            volume.device.wait_until_free(WAIT_TIMEOUT);
            let leaked = host::mounts_below(&volume.handler().state_dir());
            assert_eq!(leaked, Vec::<std::path::PathBuf>::new(), "{propagation}");
        }
    }

    /// crun sets the sandbox's propagation after its hooks, so it could make the volume shared again.
    fn a_mount_in_a_volume_stays_in_its_container(delegate: Delegate) {
        let volume = StagedVolume::new(delegate);
        let mut sandbox = volume.sandbox_bundle(POD);
        sandbox.spec_mut()["linux"]["rootfsPropagation"] = json!("rshared");
        let sandbox = volume.run(&sandbox.write());
        let apps = [(); 2].map(|()| {
            let mut bundle = can_mount(volume.node.app_bundle(&sandbox).bind(&volume.target, "/data", &["rbind"]));
            bundle.spec_mut()["linux"]["rootfsPropagation"] = json!("rshared");
            volume.run(&bundle.write())
        });
        let _ = apps[0].sh("mkdir /data/inner; mount -t tmpfs inner /data/inner; touch /data/inner/x");
        assert_eq!(apps[1].sh("ls /data/inner | wc -l"), "0");
        assert_eq!(volume.app(&sandbox).sh("ls /data/inner | wc -l"), "0");
    }

    fn a_volume_below_a_mount_shared_with_the_host_is_refused(delegate: Delegate) {
        for (with_sandbox, attach) in [(true, ATTACH[0]), (false, ATTACH[0]), (false, ATTACH[1])] {
            let volume = StagedVolume::on(Node::with(delegate, attach), &[]);
            let directory = volume.dir().subdir("shared");
            fs::create_dir(directory.join("volume")).unwrap();
            let _shared = SharedMount::new(&directory);
            let watcher = MountWatcher::start(volume.device.path());
            let sandbox = volume.sandbox();
            let bundle = |place: &str| {
                let bundle = if with_sandbox { volume.node.app_bundle(&sandbox) } else { Bundle::plain(volume.dir()) };
                let bidirectional = ["rbind", "rshared", "rw"];
                let mut bundle = bundle.bind(&directory, "/shared", &bidirectional).bind(&volume.target, place, &[]);
                bundle.spec_mut()["linux"]["rootfsPropagation"] = json!("rshared");
                bundle.write()
            };
            let app = volume.container(&bundle("/shared/volume"));
            let sentence = app.expect_refusal();
            let expected = "volume pv-1: /shared/volume is below /shared, a mount that the container shares with the host";
            assert!(sentence.starts_with(expected), "{sentence}");

            // A link in the image can also lead below the shared mount.
            let linked = bundle("/link");
            symlink("shared/volume", linked.rootfs().join("link")).unwrap();
            let app = volume.container(&linked);
            let sentence = app.expect_refusal();
            assert!(sentence.starts_with("volume pv-1: /link is below /shared, "), "{sentence}");
            watcher.assert_never_mounted();
            drop(app);
            end([sandbox]);
            volume.device.wait_until_free(WAIT_TIMEOUT);
            let _ = volume.unstage().success();
            drop(AttachMount::new(&volume));
        }
    }

    /// The copies on the host can only be found after the delegate has mounted. Each copy is then unmounted.
    fn copies_through_a_link_into_a_shared_mount_are_unmounted(delegate: Delegate) {
        for option in [None, Some("rprivate")] {
            let led = LinkIntoShared::new(delegate);
            let options: Vec<&str> = ["rbind", "rw"].into_iter().chain(option).collect();
            led.assert_create_fails(["a", "b"], &options);
            led.unstage();
        }
    }

    /// The upper volume hides the lower one, whose mountpoint then belongs to the upper volume.
    fn copies_of_overlapping_volumes_are_both_unmounted(delegate: Delegate) {
        for (inner, makes) in [
            ("a", "true"),
            ("a/inner", "true"),
            ("a/inner", "ln -s elsewhere /data/inner"),
            ("a/inner/deep", "touch /data/inner"),
        ] {
            let led = LinkIntoShared::new(delegate);
            let bundle = Bundle::plain(led.node.dir()).bind(&led.targets[1], "/data", &[]);
            let first = led.node.run(&bundle.write());
            let _ = first.sh(makes);
            end([first]);
            led.assert_create_fails([inner, "a"], &["rbind", "rw"]);
            led.unstage();
        }
    }

    /// Unmounting the copy would unmount the other program's mount, too.
    fn a_copy_with_another_mount_on_it_stays(delegate: Delegate) {
        let led = LinkIntoShared::new(delegate);
        let places = ["a", "b"];
        let directory = led.directory(places);
        let shared = SharedMount::new(&directory);
        let container = led.container(&directory, places, &["rbind", "rprivate", "rw"]);
        let place = directory.join("a");
        let mut is_mounted = false;
        let hook_begins = |step: &Step| {
            if step.program == "crust-mount-hook publish" && !is_mounted {
                let mut mount = Command::new("mount");
                let _ = Run::capture(mount.args(["-t", "tmpfs", "others"]).arg(&place)).success();
                fs::write(place.join("file"), "another program's").unwrap();
                is_mounted = true;
            }
            false
        };
        let ended = steps::kill_when(&container.create_command(), hook_begins, |it| container.spawn(it));
        assert!(!ended.success && is_mounted);
        assert_eq!(fs::read_to_string(place.join("file")).unwrap(), "another program's");
        let [a, b] = &led.devices;
        assert_ne!(a.host_mounts(), Vec::<String>::new());
        assert_eq!(b.host_mounts(), Vec::<String>::new(), "the other volume's copy is gone");
        if delegate == Delegate::Runc {
            let sentence = container.last_log_error().unwrap();
            let expected = format!("volume pv-1: it is mounted on the host too, at {}", place.display());
            assert!(sentence.contains(&expected), "{sentence}");
        }
        drop(container);
        drop(shared);
        led.unstage();
    }

    fn an_earlier_mount_of_the_device_on_the_host_stays(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        let directory = volume.dir().subdir("shared");
        let _shared = SharedMount::new(&directory);
        let mine = directory.join("mine");
        fs::create_dir(&mine).unwrap();
        let mut mount = Command::new("mount");
        let _ = Run::capture(mount.arg(volume.device.path()).arg(&mine)).success();
        let before = volume.device.host_mounts();
        let mut bundle = volume.app_bundle(&sandbox);
        bundle.spec_mut()["linux"]["rootfsPropagation"] = json!("rshared");
        let app = volume.run(&bundle.write());
        let _ = app.sh("echo x > /data/file");
        assert_eq!(volume.device.host_mounts(), before);
        assert_eq!(fs::read_to_string(mine.join("file")).unwrap(), "x\n");
        end([app, sandbox]);
    }

    /// Container engines add such mounts next to a Bidirectional mount.
    fn a_volume_below_a_private_mount_of_the_container_works(delegate: Delegate) {
        let volume = StagedVolume::new(delegate);
        let watcher = MountWatcher::start(volume.device.path());
        let tmpfs = json!({"destination": "/run", "type": "tmpfs", "source": "tmpfs", "options": ["rw", "nosuid"]});
        let mut bundle = Bundle::plain(volume.dir())
            .mount(tmpfs)
            .bind(&volume.target, "/run/data", &["rbind", "rw"])
            .bind(volume.target.join("sub"), "/run/data/inner", &["rbind", "rw"]);
        bundle.spec_mut()["linux"]["rootfsPropagation"] = json!("rshared");
        let container = volume.run(&bundle.write());
        let _ = container.sh("echo x > /run/data/inner/file");
        assert_eq!(container.sh("cat /run/data/inner/file"), "x");
        watcher.assert_never_mounted();
    }

    fn a_volume_with_shared_propagation_is_refused(delegate: Delegate) {
        for mode in ["bind", "hook"] {
            let volume = StagedVolume::on(Node::with(delegate, &format!("mount_mode = {mode:?}")), &[]);
            let bundle = Bundle::plain(volume.dir()).bind(&volume.target, "/data", &["rbind", "rshared"]);
            let container = volume.container(&bundle.write());
            let sentence = container.expect_refusal();
            assert!(sentence.starts_with("volume pv-1: its mount is to be shared with the host"), "{sentence}");
        }
    }

    fn a_container_without_a_mount_namespace_is_refused(delegate: Delegate) {
        let volume = StagedVolume::new(delegate);
        let watcher = MountWatcher::start(volume.device.path());
        let without = |mut bundle: Bundle| {
            let namespaces = bundle.spec_mut()["linux"]["namespaces"].as_array_mut().unwrap();
            namespaces.retain(|namespace| namespace["type"] != "mount");
            bundle.write()
        };
        for bundle in [
            without(volume.plain_bundle()),
            without(volume.sandbox_bundle(POD)),
        ] {
            let container = volume.container(&bundle);
            let sentence = container.expect_refusal();
            assert!(sentence.starts_with("volume pv-1: without a mount namespace of its own"), "{sentence}");
        }
        watcher.assert_never_mounted();
    }

    fn the_fallback_leaves_one_private_attach_mount(delegate: Delegate) {
        let volume = StagedVolume::on(Node::with(delegate, "attach = \"bind\""), &[]);
        let sandbox = volume.sandbox();
        let apps: Vec<Container> = (0..3).map(|_| volume.app(&sandbox)).collect();
        let attach = AttachMount::new(&volume);
        attach.assert_once_and_private();
        assert_eq!(fs::read_dir(&attach.0).unwrap().count(), 0);
        end(apps);
    }

    fn two_concurrent_first_creates_mount_attach_once(delegate: Delegate) {
        let volume = StagedVolume::on(Node::with(delegate, "attach = \"bind\""), &[]);
        let sandbox = volume.sandbox();
        let attach = AttachMount::new(&volume);
        let bundles = [(); 2].map(|()| volume.app_bundle(&sandbox).write());
        // Delays each create so long that the other create also sees the directory unmounted.
        let slowly = |create: Command| delay_at(&create, "move_mount", Duration::from_secs(1));
        let apps = create_at_once(&volume, bundles, slowly);
        attach.assert_once_and_private();
        end(apps);
    }

    fn a_killed_first_create_leaves_a_usable_attach_directory(delegate: Delegate) {
        for (call, nth) in [("open_tree", 1), ("move_mount", 1), ("mount_setattr", 1)] {
            let volume = StagedVolume::on(Node::with(delegate, "attach = \"bind\""), &[]);
            let sandbox = volume.sandbox();
            let attach = AttachMount::new(&volume);
            let bundle = volume.app_bundle(&sandbox).write();
            let killed = volume.container(&bundle);
            let step = Step::new("runcrust", call, nth);
            let ended = steps::kill_after(&killed.create_command(), &step, |it| killed.spawn(it));
            assert!(ended.killed, "{call} {nth}");
            drop(killed);
            let app = volume.run(&bundle);
            attach.assert_once_and_private();
            end([app]);
        }
    }
}

/// A node with two volumes, and a container that mounts them through a link into a directory shared with the host.
struct LinkIntoShared {
    delegate: Delegate,
    node: Node,
    devices: [LoopDevice; 2],
    targets: [PathBuf; 2],
}

impl LinkIntoShared {
    fn new(delegate: Delegate) -> Self {
        let node = Node::new(delegate);
        let devices = [node.ext4(), node.ext4()];
        let stage = |name, device| node.stage(POD, name, device, &[]);
        Self {
            targets: [stage("pv-1", &devices[0]), stage("pv-2", &devices[1])],
            devices,
            node,
            delegate,
        }
    }

    /// Creates the directory that becomes [`SharedMount`], with mountpoints for the volumes.
    fn directory(&self, places: [&str; 2]) -> PathBuf {
        let directory = self.node.dir().subdir("shared");
        for place in places {
            fs::create_dir_all(directory.join(place)).unwrap();
        }
        directory
    }

    /// Returns a container with the volumes at `places` of the directory. In the config their destinations are below a
    /// private mount. A link in that mount leads to the directory, which is a shared mount.
    fn container(&self, directory: &Path, places: [&str; 2], options: &[&str]) -> Container {
        let node = &self.node;
        let private = node.dir().subdir("private");
        symlink("../shared", private.join("link")).unwrap();
        let mut bundle = Bundle::plain(node.dir())
            .bind(directory, "/shared", &["rbind", "rshared", "rw"])
            .bind(&private, "/private", &["rbind", "rprivate", "rw"]);
        for (target, place) in self.targets.iter().zip(places) {
            bundle = bundle.bind(target, &format!("/private/link/{place}"), options);
        }
        bundle.spec_mut()["linux"]["rootfsPropagation"] = json!("rshared");
        node.container(&bundle.write())
    }

    /// Creates the container, and asserts that this fails and leaves no mount of the volumes on the host.
    fn assert_create_fails(&self, places: [&str; 2], options: &[&str]) {
        let directory = self.directory(places);
        let _shared = SharedMount::new(&directory);
        let failed = self
            .container(&directory, places, options)
            .create()
            .failure();
        // crun does not pass on the standard error of a hook.
        let is_named = |volume: &str| {
            failed
                .stderr
                .contains(&format!("volume {volume}: it was mounted on the host too"))
        };
        let named = ["pv-1", "pv-2"].map(is_named);
        assert_eq!(named, [self.delegate == Delegate::Runc; 2], "{failed}");
        for device in &self.devices {
            assert_eq!(
                device.host_mounts(),
                Vec::<String>::new(),
                "{places:?} {options:?}"
            );
        }
    }

    /// Unstages the volumes, which shows that nothing uses them any more.
    fn unstage(self) {
        for (device, target) in self.devices.iter().zip(&self.targets) {
            device.wait_until_free(WAIT_TIMEOUT);
            let _ = self.node.unstage(target).success();
        }
    }
}

/// A node's attach directory, mounted on itself with `attach = "bind"`. Unmounted when dropped.
struct AttachMount(PathBuf);

impl AttachMount {
    fn new(node: &Node) -> Self {
        Self(node.handler().state_dir().join("attach"))
    }

    #[track_caller]
    fn assert_once_and_private(&self) {
        let mounts = host::mounts().into_iter();
        let attached: Vec<_> = mounts.filter(|mount| mount.point == self.0).collect();
        let [mount] = attached.as_slice() else {
            panic!("not exactly one mount: {attached:?}");
        };
        assert!(!mount.line.contains("shared:"), "{}", mount.line);
        assert_eq!(host::mounts_below(&self.0), std::slice::from_ref(&self.0));
    }
}

impl Drop for AttachMount {
    fn drop(&mut self) {
        let mut umount = Command::new("umount");
        let _ = Run::capture(umount.args(["--recursive", "--lazy"]).arg(&self.0));
    }
}
