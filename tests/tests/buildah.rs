//! buildah with runcrust as its runtime. Each step of a build is a separate container, for which buildah binds
//! the volumes in a directory of its own first.

use std::fs;

use runcrust_tests::refusal::unexpected_entries;
use runcrust_tests::{Buildah, Runtime, StagedPair, on_each_delegate};

fn buildah(scene: &StagedPair) -> Buildah {
    Buildah::new(scene.node.dir(), &scene.node.handler().runtime())
}

on_each_delegate! {
    fn steps_have_their_volumes(delegate: Delegate) {
        let scene = StagedPair::new(delegate);
        let buildah = buildah(&scene);
        let container = buildah.container(&[]);
        let (csi, plain, sub) = (&scene.csi, &scene.plain, &scene.csi.join("sub"));
        for (flag, output) in [
            (format!("--volume={}:/data", plain.display()), "volume\nwritten\n"),
            (format!("--volume={}:/data", csi.display()), "volume\nwritten\n"),
            (format!("--volume={}:/data:ro", csi.display()), "volume\nrefused\n"),
            (format!("--mount=type=bind,source={},destination=/data,readonly", csi.display()), "volume\nrefused\n"),
            (format!("--volume={}:/data", sub.display()), "sub\nwritten\n"),
        ] {
            let run = buildah.step(&container, &[&flag], StagedPair::PROBE_SCRIPT).success();
            assert_eq!(run.stdout, output, "{run}");
            scene.assert_nothing_on_the_host();
        }
        scene.end();
    }

    fn a_step_with_an_unsupported_volume_fails(delegate: Delegate) {
        let scene = StagedPair::new(delegate);
        let buildah = buildah(&scene);
        let container = buildah.container(&[]);
        for (source, options, word) in [
            (&scene.plain.join("sub"), "", "match_roots"),
            (&scene.plain, ":O", "overlay"),
            (&scene.csi.join("sub"), ":O", "overlay"),
        ] {
            let flag = format!("--volume={}:/data{options}", source.display());
            let run = buildah.step(&container, &[&flag], StagedPair::PROBE_SCRIPT).failure();
            run.assert_contains(&["volume ", word, "hint: "]);
            assert_eq!(run.stdout, "", "{run}");
            scene.assert_nothing_on_the_host();
        }
        scene.end();
    }

    fn an_image_has_its_steps_files_and_no_volume_data(delegate: Delegate) {
        let scene = StagedPair::new(delegate);
        let buildah = buildah(&scene);
        let volume = format!("--volume={}:/data", scene.csi.display());
        let steps = [
            "echo built > /data/file; ls /data > /first",
            "mv /data/file /data/moved; cat /data/moved > /second; rm /data/moved",
        ];
        let failed = buildah.build("image", &[&format!("{volume}:O")], &steps).failure();
        failed.assert_contains(&["volume pv-1: ", "overlay", "hint: "]);
        let _ = buildah.build("image", &[&volume], &steps).success();
        let image = buildah.mount("image");
        for (file, content) in [("first", "file\nlost+found\nmark\nsub\n"), ("second", "built\n")] {
            assert_eq!(fs::read_to_string(image.join(file)).unwrap(), content, "{file}");
        }
        assert_eq!(unexpected_entries(&image.join("data")), <[String; 0]>::default());
        scene.end();
    }

    fn a_step_in_a_user_namespace_sees_its_own_ids(delegate: Delegate) {
        let scene = StagedPair::new(delegate);
        let buildah = buildah(&scene);
        let map = "0:600000:65536";
        let container = buildah.container(&["--userns-uid-map", map, "--userns-gid-map", map]);
        let volume = format!("--volume={}:/data", scene.csi.display());
        let script = "echo x > /data/file; chown 5:6 /data/file; stat -c %u:%g /data /data/file; rm /data/file; cat /proc/self/uid_map";
        let run = buildah.step(&container, &[&volume], script).success();
        let words: Vec<&str> = run.stdout.split_whitespace().collect();
        assert_eq!(words, ["0:0", "5:6", "0", "600000", "65536"], "{run}");
        scene.end();
    }

    /// The mounts are sorted, because buildah's own mounts come in any order.
    fn steps_without_volumes_run_as_with_the_bare_delegate(delegate: Delegate) {
        let scene = StagedPair::new(delegate);
        let node = &scene.node;
        let records = node.records();
        let ordinary = node.dir().subdir("ordinary");
        let volume = format!("--volume={}:/data", ordinary.display());
        let script = "id; ulimit -n; cut -d' ' -f2- /proc/self/mounts | sort; ls /proc/self/fd; echo x >> /data/file; wc -l /data/file; echo err >&2; exit 7";
        let [bare, ours] = [Runtime::bare(delegate), node.handler().runtime()].map(|runtime| {
            let buildah = Buildah::new(node.dir(), &runtime);
            fs::write(ordinary.join("file"), "").unwrap();
            let run = buildah.step(&buildah.container(&[]), &[&volume], script);
            (run.status.code(), run.stdout)
        });
        assert!(bare.1.ends_with("1 /data/file\n"), "{bare:?}");
        assert_eq!(ours, bare);
        assert_eq!(node.records(), records);
        scene.end();
    }
}
