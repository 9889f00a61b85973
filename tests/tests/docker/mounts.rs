//! The ways in which docker gives a container a directory.

use std::fs;
use std::path::Path;

use runcrust_tests::node::utf8;
use runcrust_tests::refusal::unexpected_entries;
use runcrust_tests::{Engine as _, on_each_delegate};
use serde_json::Value;

use crate::scene::{Scene, volume};

/// Returns a `--mount` flag for a bind mount of a directory at `/data`.
fn bind(source: &Path, options: &str) -> String {
    format!(
        "--mount=type=bind,source={},target=/data,{options}",
        source.display()
    )
}

/// Returns the options of a mount in a `config.json`.
fn options_at(config: &Value, destination: &str) -> Vec<String> {
    let mounts = config["mounts"].as_array().unwrap();
    let mount = mounts
        .iter()
        .find(|mount| mount["destination"] == destination);
    let options = mount.unwrap()["options"].as_array().unwrap();
    let options = options.iter().map(|option| option.as_str().unwrap());
    options.map(str::to_owned).collect()
}

/// Creates a named volume that docker mounts.
#[track_caller]
fn create_named(scene: &Scene, name: &str, kind: &str, options: &str, device: &str) {
    let options = [("type", kind), ("o", options), ("device", device)]
        .map(|(key, value)| format!("--opt={key}={value}"));
    let options = options.each_ref().map(String::as_str);
    let _ = scene
        .docker
        .run(&[&["volume", "create"], &options[..], &[name]].concat())
        .success();
}

on_each_delegate! {
    #[ignore = "needs docker; runs in another Debian: make engines"]
    fn a_volume_works_with_each_kind_of_mount(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let Scene { docker, target, .. } = &scene;
        // docker requires that a source exists.
        let sub = target.join("sub");
        fs::create_dir(&sub).unwrap();
        let _ = docker.start_container("one", &[&scene.volume()]).success();
        let _ = docker.sh("one", "echo volume > /data/mark; mkdir /data/sub; echo sub > /data/sub/mark");
        create_named(&scene, "named", "none", "bind", utf8(target));
        let at_data = "source=named,target=/data";
        // A volume's mount is private and has no mounts below it, so a container's mount table shows neither `rslave`
        // nor whether `ro` is recursive. The delegate's configuration does.
        let rows: [(&[&str], &str, &str); 16] = [
            (&["--volumes-from=one"], "volume", "rprivate"),
            (&["--volumes-from=one:ro"], "volume", "rro"),
            (&["--read-only", &scene.volume()], "volume", "rprivate"),
            (&[&volume(target, ":ro")], "volume", "rro"),
            (&[&volume(target, ":rslave")], "volume", "rslave"),
            (&[&bind(target, "readonly")], "volume", "rro"),
            (&[&bind(target, "readonly,bind-recursive=readonly,bind-propagation=rprivate")], "volume", "rro"),
            (&[&bind(target, "readonly,bind-recursive=writable")], "volume", "ro"),
            (&[&bind(target, "bind-recursive=disabled")], "volume", "bind"),
            (&["--privileged", &scene.volume()], "volume", "rprivate"),
            (&["--user=5:6", "--group-add=4242", "--cap-drop=ALL", &scene.volume()], "volume", "rprivate"),
            (&[&volume(&sub, "")], "sub", "rprivate"),
            (&["--volume=named:/data"], "volume", "rbind"),
            (&["--volume=named:/data:ro"], "volume", "rro"),
            (&[&format!("--mount=type=volume,{at_data},volume-subpath=sub")], "sub", "rbind"),
            (&[&format!("--mount=type=volume,{at_data},volume-subpath=sub,readonly")], "sub", "rro"),
        ];
        let script = "cat /data/mark; if echo x > /data/new; then rm /data/new; echo written; else echo refused; fi";
        for (flags, mark, option) in rows {
            let _ = docker.start_container("row", flags).success();
            let options = options_at(&docker.config("row"), "/data");
            assert!(options.iter().any(|found| found == option), "{flags:?}: {options:?}");
            let written = if ["ro", "rro"].contains(&option) { "refused" } else { "written" };
            assert_eq!(docker.sh("row", script), format!("{mark}\n{written}"), "{flags:?}");
            docker.remove(&["row"]);
            assert_eq!(unexpected_entries(target).len(), 1, "more than sub: {flags:?}");
            assert_eq!(unexpected_entries(&sub), <[String; 0]>::default(), "{flags:?}");
        }
        let _ = docker.run(&["volume", "rm", "named"]).success();
        scene.end(&["one"]);
    }

    /// Otherwise a container would write to the node's disk, or to a layer of docker's.
    #[ignore = "needs docker; runs in another Debian: make engines"]
    fn mounts_that_cannot_show_the_volume_are_refused(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let Scene { docker, node, target, .. } = &scene;
        let dir = node.dir();
        let plain = dir.subdir("staged");
        let device = node.ext4();
        let _ = node.try_stage(&plain, device.path(), &[]).success();
        let sub = plain.join("sub");
        fs::create_dir(&sub).unwrap();
        let listed = docker.output_of(&[&volume(&plain, "")], "echo x > /data/file; ls /data");
        assert_eq!(listed, "file\nlost+found\n", "the target path itself works");
        create_named(&scene, "named", "none", "bind", utf8(&plain));
        // An overlay's upper directory cannot be on an overlay; these are on a tmpfs.
        let [upper, work] = ["upper", "work"].map(|name| dir.subdir(name));
        let layers = format!("lowerdir={},upperdir={},workdir={}", target.display(), upper.display(), work.display());
        create_named(&scene, "overlay", "overlay", &layers, "overlay");
        let rows: [(&str, &[&str]); 4] = [
            ("--volume=overlay:/data", &["volume pv-1", "overlay"]),
            ("--mount=type=volume,source=named,target=/data,volume-subpath=sub", &["match_roots", utf8(&plain)]),
            (&volume(&sub, ""), &["match_roots", utf8(&plain)]),
            (&volume(target, ":rshared"), &["volume pv-1", "Bidirectional"]),
        ];
        for (flag, words) in rows {
            let refused = docker.start_container("one", &[flag]).failure();
            for word in words.iter().chain(&["hint: "]) {
                assert!(refused.stderr.contains(word), "{word}: {refused}");
            }
            docker.remove(&["one"]);
            for directory in [target, &sub, &upper] {
                assert_eq!(unexpected_entries(directory), <[String; 0]>::default());
            }
        }
        let _ = docker.run(&["volume", "rm", "named", "overlay"]).success();
        let _ = node.unstage(&plain).success();
        scene.end(&[]);
    }

    /// Tests `docker cp` and the copy of an image's files into a new volume. For neither of them does the daemon call
    /// the runtime first.
    #[ignore = "needs docker; runs in another Debian: make engines"]
    fn files_that_docker_copies_land_in_the_hosts_directory(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let Scene { docker, node, target, .. } = &scene;
        let file = node.dir().join("file");
        fs::write(&file, "copied\n").unwrap();
        let abnormal = || node.stats(target).success().stdout.contains("\"abnormal\":true");

        let _ = docker.start_container("one", &[&scene.volume()]).success();
        let _ = docker.run(&["cp", utf8(&file), "one:/data/in"]).success();
        assert_eq!(unexpected_entries(target).len(), 1);
        assert_eq!(docker.sh("one", "ls /data"), "lost+found");
        assert!(abnormal());
        fs::remove_file(target.join("in")).unwrap();
        assert!(!abnormal());

        // The image has files at the mountpoint of a new volume.
        let _ = docker.start_container("maker", &[]).success();
        let _ = docker.sh("maker", "mkdir /data; echo image > /data/of-the-image");
        let _ = docker.run(&["commit", "maker", "with-data"]).success();
        create_named(&scene, "named", "none", "bind", utf8(target));
        let listed = docker.output_of_image("with-data", &["--volume=named:/data"], "ls /data");
        assert_eq!(listed, "lost+found\n");
        assert!(abnormal());
        fs::remove_file(target.join("of-the-image")).unwrap();
        let _ = docker.run(&["volume", "rm", "named"]).success();
        scene.end(&["one", "maker"]);
    }
}
