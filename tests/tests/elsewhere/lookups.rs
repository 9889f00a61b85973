//! Sources that lead to a volume in ways that a lookup easily misses. No container may get the host's directory.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::mount::{MsFlags, mount};
use runcrust_tests::node::utf8;
use runcrust_tests::refusal::{self, unexpected_entries};
use runcrust_tests::volume::with_mounted;
use runcrust_tests::{
    Automount, Bundle, Delegate, LoopDevice, Node, POD, StagedPair, mounts, on_each_delegate,
};
use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create,
    fsconfig_set_string, fsmount, fsopen, move_mount,
};
use serde_json::json;

/// Returns a node with a directory of the test in `match_roots`.
fn with_match_root(delegate: Delegate, extra: &str) -> (Node, PathBuf) {
    let node = Node::with(delegate, "");
    let root = node.dir().subdir("roots");
    node.handler()
        .reconfigure(&format!("match_roots = [{root:?}]\n{extra}"));
    (node, root)
}

/// Creates a device with a marker file in its root and in `sub`.
fn with_markers(node: &Node) -> LoopDevice {
    let device = node.ext4();
    with_mounted(device.path(), |root| {
        fs::create_dir(root.join("sub")).unwrap();
        fs::write(root.join("mark"), "volume\n").unwrap();
        fs::write(root.join("sub/mark"), "sub\n").unwrap();
    });
    device
}

/// Wraps a command so that it can have at most this many open files.
fn with_files(command: &Command, files: usize) -> Command {
    let mut limited = Command::new("/bin/sh");
    limited.args(["-c", "ulimit -n \"$0\" && exec \"$@\"", &files.to_string()]);
    limited.arg(command.get_program()).args(command.get_args());
    limited.env_clear();
    for (name, value) in command.get_envs() {
        limited.env(name, value.expect("a command that removes no variable"));
    }
    limited
}

/// Mounts an overlay with one lower directory, whose name may contain any characters. If the kernel supports
/// `lowerdir+` (Linux 6.8), the name is passed as a single option; otherwise it is escaped.
fn overlay(lower: &Path, upper: &Path, work: &Path, at: &Path) {
    let mount_by_fsconfig = || {
        let fs = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_set_string(&fs, "lowerdir+", lower)?;
        fsconfig_set_string(&fs, "upperdir", upper)?;
        fsconfig_set_string(&fs, "workdir", work)?;
        fsconfig_create(&fs)?;
        let mount = fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
        move_mount(&mount, "", CWD, at, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
    };
    match mount_by_fsconfig() {
        Err(Errno::INVAL) => {}
        done => return done.unwrap(),
    }
    let lower = utf8(lower).replace('\\', "\\\\").replace(',', "\\,");
    let options = format!(
        "lowerdir={lower},upperdir={},workdir={}",
        utf8(upper),
        utf8(work)
    );
    let kind = Some("overlay");
    mount(kind, at, kind, MsFlags::empty(), Some(&*options)).unwrap();
}

on_each_delegate! {
    fn a_create_short_of_descriptors_never_binds_the_host(delegate: Delegate) {
        let (node, root) = with_match_root(delegate, "");
        let device = with_markers(&node);
        let targets: Vec<PathBuf> = (0..30).map(|number| root.join(format!("v{number}"))).collect();
        for target in &targets {
            fs::create_dir_all(target.join("sub")).unwrap();
            let _ = node.try_stage(target, device.path(), &[]).success();
        }
        let bind = node.dir().subdir("bind");
        let of = targets[29].join("sub");
        mounts::bind(&of, &bind);
        let link = node.dir().join("link");
        symlink(&of, &link).unwrap();
        let mut created = 0;
        for source in [&bind, &link] {
            for files in [5, 6, 7, 8, 10, 14, 20, 30, 1000] {
                let bundle = Bundle::plain(node.dir()).bind(source, "/data", &[]);
                let container = node.container(&bundle.write());
                let create = with_files(&container.create_command(), files);
                let run = container.create_with(create);
                if run.status.success() {
                    let _ = container.start().success();
                    assert_eq!(container.sh("cat /data/mark; touch /data/x; rm /data/x"), "sub");
                    container.end();
                    created += 1;
                }
                assert_eq!(unexpected_entries(&of), <[String; 0]>::default(), "{files} files: {run}");
            }
        }
        assert!(created >= 2, "only {created} were created");
    }

    /// A stock kubelet makes such a bind mount of a hostPath's subPath.
    fn kubelets_bind_of_a_host_path_is_matched(delegate: Delegate) {
        let scene = StagedPair::new(delegate);
        let binds = scene.node.handler().kubelet_dir().join("pods/u9/volume-subpaths/host/app");
        let bind = |number: usize, of: &Path| {
            let at = binds.join(number.to_string());
            fs::create_dir_all(&at).unwrap();
            mounts::bind(of, &at);
            at
        };
        let sub = bind(0, &scene.plain.join("sub"));
        scene.assert_refuses(scene.bundle(&sub, &[]), &["match_roots", utf8(&sub)]);
        scene.assert_serves(&bind(1, &scene.plain), "volume");
        scene.assert_serves(&bind(2, &scene.csi), "volume");
        scene.assert_serves(&bind(3, &scene.csi.join("sub")), "sub");
        // In another pod the source is refused.
        let sandbox = scene.node.sandbox("another-pod");
        let source = bind(4, &scene.csi.join("sub"));
        let bundle = scene.node.app_bundle(&sandbox).bind(&source, "/data", &[]).write();
        let _ = refusal::create_refused(&scene.node, &bundle).naming_volume("pv-1").message();
        scene.assert_nothing_on_the_host();
    }

    fn an_overlay_of_a_directory_with_a_special_name_is_refused(delegate: Delegate) {
        let node = Node::new(delegate);
        let device = with_markers(&node);
        let memory = node.dir().subdir("memory");
        mounts::tmpfs(&memory);
        for (number, name) in ["a,b", r"a\b", r"a\,b c"].into_iter().enumerate() {
            let base = memory.join(number.to_string());
            let [target, upper, work, at] = [name, "upper", "work", "at"].map(|name| base.join(name));
            for path in [&target, &upper, &work, &at] {
                fs::create_dir_all(path).unwrap();
            }
            let _ = node.try_stage(&target, device.path(), &[]).success();
            overlay(&target, &upper, &work, &at);
            let bundle = Bundle::plain(node.dir()).bind(&at, "/data", &[]).write();
            let _ = refusal::create_refused(&node, &bundle).containing(&["overlay", "hint: "]).message();
            assert_eq!(unexpected_entries(&upper), <[String; 0]>::default(), "{name}");
        }
    }

    /// runc cleans a relative source textually, but the kernel follows the link first.
    fn dots_after_a_link_are_refused_if_they_may_name_a_volume(delegate: Delegate) {
        let node = Node::new(delegate);
        let device = with_markers(&node);
        let other = node.dir().subdir("other");
        fs::create_dir(other.join("dir")).unwrap();
        for (staged, is_in_bundle) in [("by-text", true), ("by-link", false)] {
            for is_relative in [true, false] {
                let bundle = Bundle::plain(node.dir());
                let directory = bundle.path().to_owned();
                let source = Path::new("link/..").join(staged);
                let source = if is_relative { source } else { directory.join(source) };
                let bundle = bundle.mount(json!({
                    "destination": "/data", "type": "bind", "source": source, "options": ["rbind"]
                })).write();
                symlink(other.join("dir"), directory.join("link")).unwrap();
                let places = [directory.join(staged), other.join(staged)];
                for place in &places {
                    fs::create_dir_all(place).unwrap();
                }
                let target = if is_in_bundle { &places[0] } else { &places[1] };
                let _ = node.try_stage(target, device.path(), &[]).success();
                let refused = refusal::create_refused(&node, &bundle);
                let _ = refused.containing(&["`..`", utf8(target), "hint: "]).message();
                assert_eq!(unexpected_entries(target), <[String; 0]>::default());
                let _ = node.unstage(target).success();
            }
        }
    }

    /// The volumes also have a path of the same form in the directory that was bind-mounted.
    fn a_volume_below_a_bind_mounted_kubelet_directory_is_found(delegate: Delegate) {
        let node = Node::with(delegate, "unstaged = \"pass\"");
        let real = node.dir().subdir("real-kubelet");
        let kubelet = node.handler().kubelet_dir();
        fs::create_dir_all(&kubelet).unwrap();
        mounts::bind(&real, &kubelet);
        let device = with_markers(&node);
        let target = node.stage(POD, "pv-1", &device, &[]);
        fs::create_dir(target.join("sub")).unwrap();
        let other = real.join(target.strip_prefix(&kubelet).unwrap());
        for (source, mark) in [(other.clone(), "volume"), (other.join("sub"), "sub")] {
            let app = node.run(&Bundle::plain(node.dir()).bind(&source, "/data", &[]).write());
            assert_eq!(app.sh("cat /data/mark; touch /data/x; rm /data/x"), mark);
            assert_eq!(unexpected_entries(&target.join("sub")), <[String; 0]>::default());
        }
        assert_eq!(unexpected_entries(&target).len(), 1, "more than sub");
    }

    fn the_innermost_of_nested_volumes_is_matched(delegate: Delegate) {
        for is_inner_first in [false, true] {
            let (node, root) = with_match_root(delegate, "");
            let (outer, inner) = (root.join("y"), root.join("y/b"));
            fs::create_dir_all(inner.join("sub")).unwrap();
            let devices = [node.ext4(), with_markers(&node)];
            let mut volumes = [(&outer, &devices[0]), (&inner, &devices[1])];
            if is_inner_first {
                volumes.reverse();
            }
            for (target, device) in volumes {
                let _ = node.try_stage(target, device.path(), &[]).success();
            }
            let bind = node.dir().subdir("bind");
            mounts::bind(&inner.join("sub"), &bind);
            let app = node.run(&Bundle::plain(node.dir()).bind(&bind, "/data", &[]).write());
            assert_eq!(app.sh("cat /data/mark"), "sub");
        }
    }

    /// The index describes the file systems at the time of the stage.
    fn a_target_path_on_a_file_system_mounted_later_is_found(delegate: Delegate) {
        let node = Node::new(delegate);
        let device = with_markers(&node);
        let mountpoint = node.dir().subdir("late");
        let target = mountpoint.join("vol");
        let _ = node.try_stage(&target, device.path(), &[]).success();
        mounts::tmpfs(&mountpoint);
        fs::create_dir(&target).unwrap();
        let bind = node.dir().subdir("bind");
        mounts::bind(&target, &bind);
        let app = node.run(&Bundle::plain(node.dir()).bind(&bind, "/data", &[]).write());
        assert_eq!(app.sh("cat /data/mark; touch /data/x; rm /data/x"), "volume");
        assert_eq!(unexpected_entries(&target), <[String; 0]>::default());
    }

    /// Other sources are not affected by a broken or lost entry.
    fn a_volume_without_a_valid_entry_is_refused_by_every_path(delegate: Delegate) {
        let scene = StagedPair::new(delegate);
        let (node, entry) = (&scene.node, scene.node.entry(&scene.csi));
        let info = entry.join("mountInfo.json");
        let staged = fs::read_to_string(&info).unwrap();
        let sub = scene.csi.join("sub");
        let volumes = [
            scene.csi.clone(),
            sub.clone(),
            scene.bind("volume", &scene.csi),
            scene.bind("sub-of-volume", &sub),
            scene.node.dir().join("volume/sub"),
        ];
        let ordinary = node.dir().subdir("ordinary");
        fs::write(ordinary.join("mark"), "ordinary\n").unwrap();
        let empty = node.handler().kubelet_dir();
        let empty = empty.join("pods/u9/volumes/kubernetes.io~empty-dir/cache");
        fs::create_dir_all(&empty).unwrap();
        let others = [scene.bind("bind", &ordinary), scene.bind("empty", &empty)];
        let open = |path: &Path| fs::set_permissions(path, Permissions::from_mode(0o757)).unwrap();
        let change = |field: &str, value: serde_json::Value| {
            let mut changed: serde_json::Value = serde_json::from_str(&staged).unwrap();
            changed[field] = value;
            fs::write(&info, changed.to_string()).unwrap();
        };
        let damages: [&dyn Fn(); 8] = [
            &|| change("version", json!(2)),
            &|| change("fstype", json!("no/type")),
            &|| fs::write(&info, "{").unwrap(),
            &|| open(&info),
            &|| open(&entry),
            &|| {
                fs::remove_file(&info).unwrap();
                fs::create_dir(&info).unwrap();
            },
            &|| fs::remove_dir_all(&entry).unwrap(),
            &|| symlink("nowhere", &entry).unwrap(),
        ];
        for (number, damage) in damages.iter().enumerate() {
            damage();
            for source in &volumes {
                let bundle = scene.bundle(source, &[]).write();
                let refused = refusal::create_refused(node, &bundle).naming_volume("pv-1");
                let sentence = refused.message();
                assert_eq!(unexpected_entries(&sub), <[String; 0]>::default(), "{number}: {sentence}");
            }
            let app = node.run(&scene.bundle(&others[0], &[]).write());
            assert_eq!(app.sh("cat /data/mark"), "ordinary", "{number}");
            let app = node.run(&scene.bundle(&others[1], &[]).write());
            let _ = app.sh("echo x > /data/file; rm /data/file");
        }
    }

    fn another_file_system_below_a_target_path_is_refused(delegate: Delegate) {
        let scene = StagedPair::new(delegate);
        let below = scene.plain.join("sub");
        mounts::tmpfs(&below);
        scene.assert_refuses(scene.bundle(&below, &[]), &["something else is mounted", utf8(&below)]);
    }

    /// The automount is like that of a systemd mount unit with `x-systemd.automount` and `bind`. The delegate's bind
    /// mount triggers it.
    fn an_automount_of_a_volume_is_matched(delegate: Delegate) {
        let scene = StagedPair::new(delegate);
        let other = scene.node.dir().subdir("other");
        fs::write(other.join("mark"), "other\n").unwrap();
        for (name, content, mark) in [
            ("plain", &scene.plain, "volume"),
            ("csi-sub", &scene.csi.join("sub"), "sub"),
            ("ordinary", &other, "other"),
        ] {
            let at = scene.node.dir().subdir(name);
            let automount = Automount::new(content, &at);
            let container = scene.node.container(&scene.bundle(&at, &[]).write());
            // A process in the automount's own process group does not trigger it.
            let mut create = container.create_command();
            create.process_group(0);
            let _ = container.create_with(create).success();
            let _ = container.start().success();
            assert_eq!(container.sh("cat /data/mark; echo x > /data/x; rm /data/x"), mark);
            container.end();
            drop(automount);
            scene.assert_nothing_on_the_host();
        }
    }
}
