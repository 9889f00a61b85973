//! Sources that lead to a volume by a path other than its target path, because an engine has bind-mounted it first, or
//! has made an overlay of it. Such a source shows the volume or is refused; no container gets the host's directory.

mod lookups;
mod unreachable;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use nix::mount::{MsFlags, mount};
use runcrust_tests::node::utf8;
use runcrust_tests::refusal::{self, unexpected_entries};
use runcrust_tests::volume::with_mounted;
use runcrust_tests::{Bundle, Delegate, Node, POD, StagedPair, mounts, on_each_delegate};
use serde_json::json;

on_each_delegate! {
    fn an_engines_bind_mount_of_a_volume_is_matched(delegate: Delegate) {
        let scene = StagedPair::new(delegate);
        let bind = scene.bind("bind", &scene.plain);
        scene.assert_serves(&bind, "volume");
        scene.assert_serves(&scene.bind("bind-of-a-bind", &bind), "volume");
        scene.assert_serves(&scene.bind("csi", &scene.csi), "volume");
        scene.assert_serves(&scene.bind("csi-sub", &scene.csi.join("sub")), "sub");
        scene.assert_serves(&scene.node.dir().join("csi/sub"), "sub");
        let kubelet = scene.bind("kubelet", &scene.node.handler().kubelet_dir());
        let through_bind = kubelet.join(scene.csi.strip_prefix(scene.node.handler().kubelet_dir()).unwrap());
        scene.assert_serves(&through_bind, "volume");
        scene.assert_serves(&through_bind.join("sub"), "sub");
        let link = scene.node.dir().join("link");
        symlink(&bind, &link).unwrap();
        scene.assert_serves(&link, "volume");
        // The target path is removed and created again.
        fs::remove_dir(scene.plain.join("sub")).unwrap();
        mounts::unmount(&scene.node.dir().join("bind-of-a-bind"));
        mounts::unmount(&bind);
        fs::remove_dir(&scene.plain).unwrap();
        fs::create_dir_all(scene.plain.join("sub")).unwrap();
        scene.assert_serves(&scene.bind("recreated", &scene.plain), "volume");
    }

    /// With crun the view is writable: crun clears the attributes that the container's mount does not name, also if the
    /// source is an engine's own bind mount.
    fn a_read_only_bind_gives_a_read_only_view(delegate: Delegate) {
        let scene = StagedPair::new(delegate);
        let bind = scene.bind("bind", &scene.plain);
        let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        mount(None::<&str>, &bind, None::<&str>, flags, None::<&str>).unwrap();
        let app = scene.node.run(&scene.bundle(&bind, &["rbind"]).write());
        let expected = match delegate {
            Delegate::Runc => "volume\nrefused",
            Delegate::Crun => "volume",
        };
        assert_eq!(app.sh("cat /data/mark; touch /data/x 2>/dev/null || echo refused"), expected);
    }

    fn sources_that_cannot_show_the_volume_are_refused(delegate: Delegate) {
        let scene = StagedPair::new(delegate);
        let (plain, dir) = (&scene.plain, scene.node.dir());
        let sub = plain.join("sub");
        for source in [sub.clone(), scene.bind("sub", &sub)] {
            scene.assert_refuses(scene.bundle(&source, &[]), &["match_roots", utf8(&source)]);
        }
        // Mounts like those that podman and buildah write for `:O`.
        let [upper, work] = ["upper", "work"].map(|name| dir.subdir(name));
        let bind = scene.bind("bind", plain);
        for lower in [plain, &bind, &sub] {
            for kind in ["overlay", "fuse-overlayfs"] {
                let options = [
                    format!("lowerdir={}", lower.display()),
                    format!("upperdir={},workdir={}", upper.display(), work.display()),
                ];
                let overlay = json!({"destination": "/data", "type": kind, "source": "overlay", "options": options});
                scene.assert_refuses(Bundle::plain(dir).mount(overlay), &[]);
            }
        }
        // A relative lower directory, which is relative to the bundle.
        let bundle = Bundle::plain(dir);
        let options = ["lowerdir=lower".to_owned(), format!("upperdir={},workdir={}", upper.display(), work.display())];
        let bundle = bundle.mount(json!({"destination": "/data", "type": "overlay", "source": "overlay", "options": options})).write();
        symlink(plain, bundle.path().join("lower")).unwrap();
        let refused = refusal::create_refused(&scene.node, &bundle).naming_volume(utf8(plain));
        let _ = refused.containing(&["overlay", "hint: "]).message();
        mounts::unmount(&bind);
        // The source of a bind mount was removed and created again.
        let bind = scene.bind("bind", plain);
        mounts::unmount(&dir.join("sub"));
        fs::remove_dir(&sub).unwrap();
        fs::remove_dir(plain).unwrap();
        fs::create_dir_all(&sub).unwrap();
        scene.assert_refuses(scene.bundle(&bind, &[]), &["has been removed since", utf8(plain)]);
    }

    fn an_engines_overlay_of_a_volume_is_refused(delegate: Delegate) {
        let scene = StagedPair::new(delegate);
        let dir = scene.node.dir();
        // An overlay's upper directory cannot be on an overlay. This machine's own directories may be on one.
        let memory = dir.subdir("memory");
        mounts::tmpfs(&memory);
        let [upper, work, merged] = ["upper", "work", "merged"].map(|name| memory.join(name));
        for path in [&upper, &work, &merged] {
            fs::create_dir(path).unwrap();
        }
        let options = format!(
            "lowerdir={},upperdir={},workdir={}",
            scene.plain.display(), upper.display(), work.display()
        );
        mount(Some("overlay"), &merged, Some("overlay"), MsFlags::empty(), Some(&*options)).unwrap();
        for source in [merged.clone(), merged.join("sub")] {
            scene.assert_refuses(scene.bundle(&source, &[]), &["overlay", utf8(&source)]);
        }
        // An overlay of other directories is passed through.
        mounts::unmount(&merged);
        let lower = memory.join("lower");
        fs::create_dir(&lower).unwrap();
        let options = options.replace(utf8(&scene.plain), utf8(&lower));
        mount(Some("overlay"), &merged, Some("overlay"), MsFlags::empty(), Some(&*options)).unwrap();
        let app = scene.node.run(&scene.bundle(&merged, &[]).write());
        let _ = app.sh("echo x > /data/file");
        assert!(upper.join("file").exists());
    }

    /// The index is missing after an upgrade from an early version, or if a driver writes the entries itself.
    fn without_an_index_every_source_is_looked_up(delegate: Delegate) {
        let scene = StagedPair::new(delegate);
        let index = scene.node.handler().state_dir().join("targets.json");
        fs::remove_file(&index).unwrap();
        let binds = [("plain", &scene.plain), ("csi", &scene.csi)].map(|(name, of)| scene.bind(name, of));
        for bind in &binds {
            scene.assert_serves(bind, "volume");
        }
        assert!(!index.exists(), "a create wrote the index");
        let _ = scene.node.handler().crust(&["gc"]).success();
        let text = fs::read_to_string(&index).unwrap();
        assert!(text.contains(utf8(&scene.plain)), "{text}");
        for bind in &binds {
            scene.assert_serves(bind, "volume");
        }
    }

    /// systemd-sysext mounts such an overlay over /usr; other programs do the same with /etc.
    fn an_overlay_over_its_own_lower_directory_is_passed_through(delegate: Delegate) {
        let scene = StagedPair::new(delegate);
        let memory = scene.node.dir().subdir("memory");
        mounts::tmpfs(&memory);
        let [lower, upper, work] = ["lower", "upper", "work"].map(|name| memory.join(name));
        for path in [&lower.join("inner"), &upper, &work] {
            fs::create_dir_all(path).unwrap();
        }
        let options = format!(
            "lowerdir={},upperdir={},workdir={}",
            lower.display(), upper.display(), work.display()
        );
        mount(Some("overlay"), &lower, Some("overlay"), MsFlags::empty(), Some(&*options)).unwrap();
        for (source, below) in [(&lower, ""), (&lower.join("inner"), "inner")] {
            for (volume, file) in [(None, "a"), (Some(&scene.csi), "b")] {
                let mut bundle = scene.bundle(source, &[]);
                if let Some(volume) = volume {
                    bundle = bundle.bind(volume, "/volume", &[]);
                }
                let app = scene.node.run(&bundle.write());
                let mark = if volume.is_some() { "cat /volume/mark" } else { "echo none" };
                let seen = app.sh(&format!("echo x > /data/{file}; {mark}"));
                assert_eq!(seen, if volume.is_some() { "volume" } else { "none" });
                assert!(upper.join(below).join(file).exists(), "{below} {file}");
            }
        }
        // An overlay of this overlay, which the delegate makes.
        let [view, work] = ["view", "work-of-view"].map(|name| memory.join(name));
        for path in [&view, &work] {
            fs::create_dir(path).unwrap();
        }
        let options = [
            format!("lowerdir={}", lower.display()),
            format!("upperdir={},workdir={}", view.display(), work.display()),
        ];
        let overlay = json!({"destination": "/data", "type": "overlay", "source": "overlay", "options": options});
        let app = scene.node.run(&Bundle::plain(scene.node.dir()).mount(overlay).write());
        let _ = app.sh("echo x > /data/file");
        assert!(view.join("file").exists());
    }

    fn sources_below_match_roots_are_matched(delegate: Delegate) {
        let node = Node::new(delegate);
        let root = node.dir().subdir("roots");
        drop(node);
        let node = Node::with(delegate, &format!("match_roots = [{root:?}]"));
        let device = node.ext4();
        with_mounted(device.path(), |at| {
            fs::create_dir(at.join("sub")).unwrap();
            fs::write(at.join("sub/mark"), "sub").unwrap();
        });
        let target = root.join("v");
        fs::create_dir_all(target.join("sub")).unwrap();
        let _ = node.try_stage(&target, device.path(), &[]).success();
        let bind = node.dir().subdir("bind");
        mounts::bind(&target.join("sub"), &bind);
        for source in [target.join("sub"), bind] {
            let app = node.run(&Bundle::plain(node.dir()).bind(&source, "/data", &[]).write());
            assert_eq!(app.sh("echo x > /data/file; cat /data/mark; rm /data/file"), "sub");
            assert_eq!(unexpected_entries(&target.join("sub")), <[String; 0]>::default());
        }
    }

    /// The pod is checked, whatever path leads to the volume.
    fn a_bind_of_another_pods_volume_is_refused(delegate: Delegate) {
        let scene = StagedPair::new(delegate);
        let bind = scene.bind("bind", &scene.csi);
        let sandbox = scene.node.sandbox("another-pod");
        let bundle = scene.node.app_bundle(&sandbox).bind(&bind, "/data", &[]).write();
        let refused = refusal::create_refused(&scene.node, &bundle).naming_volume("pv-1");
        let _ = refused.containing(&["hint: "]).message();
        let own = scene.node.sandbox(POD);
        let app = scene.node.app(&own, &bind, "/data");
        assert_eq!(app.sh("cat /data/mark"), "volume");
    }

    /// Node agents mount such directories to inspect kubelet's volumes.
    fn a_directory_above_volumes_is_passed_through(delegate: Delegate) {
        let scene = StagedPair::new(delegate);
        let above = scene.csi.parent().and_then(Path::parent).unwrap();
        let bind = scene.bind("bind", above);
        let records = scene.node.records();
        for source in [above, &bind, &scene.node.handler().kubelet_dir()] {
            let app = scene.node.run(&scene.bundle(source, &["rbind", "ro"]).write());
            assert_eq!(app.sh("find /data -name mark"), "");
        }
        assert_eq!(scene.node.records(), records, "a volume has a user");
    }
}
