//! Volumes without a driver, and subPaths.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;

use crust_proto::csi::v1::NodeStageVolumeRequest;
use runcrust_tests::csi::{CsiVolume, DRIVER, filesystem};
use runcrust_tests::manifests::{CsiDriver, Pod};
use runcrust_tests::node::utf8;
use runcrust_tests::{host, on_each_delegate};

use crate::scene::{Scene, microvm};

/// Asserts that nothing is left of a pod where its volumes were.
#[track_caller]
fn assert_gone(scene: &Scene, pod: &Pod) {
    assert!(!scene.crustlet.pod_dir(&pod.uid()).exists());
    let mounts = host::mounts_below(scene.crustlet.root());
    assert_eq!(mounts, Vec::<std::path::PathBuf>::new());
}

on_each_delegate! {
    fn an_empty_dir_is_shared_and_removed_with_the_pod(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let work = "if test -e /out/first; then sleep 2147483647; fi; echo made > /out/first; exit 1";
        let pod = microvm("web").fs_group(2000).volume("scratch", "emptyDir: {}");
        let pod = pod.mount("scratch", "/in").mount_as("scratch", "/part", "subPath: a/b");
        let pod = pod.add_container("other", work, &[("scratch", "/out")]);
        scene.run(&pod);
        // The second container exits after its first run. It is restarted, and finds the file of its first run.
        scene.crustlet.wait("a container to be restarted", || {
            let status = scene.crustlet.pod("web")["status"].take();
            let all = status["containerStatuses"].as_array().cloned().unwrap_or_default();
            all.iter().any(|it| it["name"] == "other" && it["restartCount"] == 1 && it["ready"] == true)
        });
        let script = "cat /in/first; echo x > /part/file; cat /in/a/b/file; stat -c '%g %a' /in; stat -c %g /part/file";
        let container = scene.container_named(&pod, "app");
        assert_eq!(scene.cri().sh(&container, script), "made\nx\n2000 2777\n2000");
        let directory = scene.crustlet.pod_dir(&pod.uid()).join("volumes/kubernetes.io~empty-dir/scratch");
        assert_eq!(fs::read_to_string(directory.join("a/b/file")).unwrap(), "x\n");
        scene.end(&pod);
        assert_gone(&scene, &pod);
        scene.assert_nothing_left(&[]);
    }

    fn the_type_of_a_host_path_is_checked(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let data = scene.claim("data", "ext4");
        let at = |name: &str| scene.node.dir().join(name);
        fs::create_dir(at("there")).unwrap();
        fs::write(at("a-file"), "text").unwrap();
        let _listener = UnixListener::bind(at("socket")).unwrap();
        // The volume is attached as long as this pod runs.
        let owner = microvm("owner").deferred("data").mount("data", "/data");
        scene.run(&owner);
        let device = scene.csi.device(&data.volume.id);
        let mut pod = microvm("web");
        for (name, path, kind) in [
            ("directory", at("there").as_path(), "Directory"),
            ("made", &at("made/deep"), "DirectoryOrCreate"),
            ("file", &at("a-file"), "File"),
            ("new", &at("new"), "FileOrCreate"),
            ("socket", &at("socket"), "Socket"),
            ("character", "/dev/null".as_ref(), "CharDevice"),
            ("block", &device, "BlockDevice"),
            ("any", &at("a-file"), ""),
        ] {
            let source = format!("hostPath: {{path: {}, type: {kind:?}}}", utf8(path));
            pod = pod.volume(name, &source).mount(name, &format!("/v/{name}"));
        }
        let pod = pod.mount_as("directory", "/v/part", "subPath: part");
        scene.run(&pod);
        let script = "test -d /v/directory; test -d /v/made; cat /v/file; test -f /v/new; test -S /v/socket; \
            test -c /v/character; test -b /v/block; echo x > /v/part/file; cat /v/directory/part/file /v/any";
        assert_eq!(scene.sh(&pod, script), "textx\ntext");
        let mode = fs::metadata(at("made/deep")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o755);
        for (name, path, kind) in [
            ("no-directory", "a-file", "Directory"),
            ("no-file", "there", "File"),
            ("nothing", "nowhere", "Directory"),
            ("no-socket", "a-file", "Socket"),
        ] {
            let path = at(path);
            let source = format!("hostPath: {{path: {}, type: {kind}}}", utf8(&path));
            let wrong = microvm(name).volume("host", &source).mount("host", "/host");
            scene.apply_pod(&wrong);
            let message = format!("hostPath type check failed: {} is not a {kind}", path.display());
            scene.crustlet.wait_event_containing(&format!("pod/{name}"), "FailedMount", &message);
            scene.end(&wrong);
        }
        scene.end(&pod);
        assert_gone(&scene, &pod);
        assert_eq!(fs::read_to_string(at("there/part/file")).unwrap(), "x\n", "files on the host stay");
        scene.end(&owner);
        scene.assert_nothing_left(&[&data]);
    }

    /// Volumes in the spec of a pod exist as long as the pod. A new agent finds them.
    fn inline_volumes_end_with_their_pod(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let data = scene.claim("data", "ext4");
        scene.apply("driver", &[&CsiDriver::with("File").inline_volumes()]);
        scene.crustlet.wait("the driver to be known", || {
            let drivers = scene.crustlet.all("csidrivers");
            drivers.iter().any(|it| it["spec"]["podInfoOnMount"] == true)
        });
        let source = |more: &str, attributes: &str| {
            format!("csi: {{driver: {DRIVER}, {more}volumeAttributes: {{crust.dev/size: 64Mi{attributes}}}}}")
        };
        let pod = microvm("web").fs_group(2857).deferred("data").mount("data", "/data");
        let pod = pod.volume("plain", &source("", "")).mount("plain", "/plain");
        let pod = pod.volume("asked", &source("fsType: ext3, deferFSMount: true, ", "")).mount("asked", "/asked");
        let pod = pod.volume("own", &source("", ", crust.dev/defer: \"true\"")).mount_as("own", "/own", "subPath: a/b");
        scene.run(&pod);
        let uid = pod.uid();
        let inline = |name: &str| CsiVolume::inline(&uid, name, filesystem(""), &[]);
        let device = |name: &str| scene.csi.device(&inline(name).id);
        let mounts = |name: &str| host::mounts_of_device(&device(name));
        assert_eq!(host::mounts_below(&scene.target(&pod, "plain")), [scene.target(&pod, "plain")]);
        assert_eq!((mounts("plain").len(), scene.mount_info(&pod, "plain")), (1, None));
        for name in ["asked", "own"] {
            assert_eq!(mounts(name), Vec::<String>::new(), "{name}");
            let info = scene.mount_info(&pod, name).unwrap_or_else(|| panic!("{name} isn't staged"));
            assert_eq!(info["device"], utf8(&device(name)), "{info}");
        }
        assert_eq!(scene.crustlet.vol_data(&uid, "asked")["deferFSMount"], "true");
        let script = "for it in plain asked own; do echo $it > /$it/file; done; stat -c '%g %a' /plain /asked";
        assert_eq!(scene.sh(&pod, script), "2857 2775\n2857 2775");
        let staged: Vec<NodeStageVolumeRequest> = scene.relay.requests();
        assert_eq!(staged.len(), 1, "only the volume of the claim is staged");

        scene.crustlet.restart(&[]);
        scene.csi.restart(&[]);
        scene.crustlet.wait_pod("web", "Running");
        assert_eq!(scene.sh(&pod, "cat /plain/file /asked/file /own/file"), "plain\nasked\nown");
        scene.end(&pod);
        scene.assert_nothing_left(&[&data]);
        let left = scene.csi.leftovers();
        assert_eq!(left.len(), 2, "image and record of the claim's volume: {left:?}");
    }

    /// `subPathExpr` is expanded from the container's environment, for every mounter of a volume.
    fn a_sub_path_expr_is_expanded(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let (data, logs) = (scene.claim("data", "ext4"), scene.claim("logs", "xfs"));
        let part = "subPathExpr: $(POD)/$(PART)";
        let pod = microvm("web").deferred("data").claim("logs").volume("scratch", "emptyDir: {}");
        let pod = pod.variable("POD", "web-1").variable("PART", "a b");
        let pod = pod.mount_as("data", "/data", part).mount_as("logs", "/logs", part);
        let pod = pod.mount_as("scratch", "/scratch", part);
        scene.run(&pod);
        scene.assert_deferred(&pod, &data);
        assert_eq!(scene.mount_info(&pod, &logs.pv), None);
        let script = "for it in data logs scratch; do echo $it > /$it/file; cat /$it/file; done";
        assert_eq!(scene.sh(&pod, script), "data\nlogs\nscratch");
        scene.end(&pod);
        scene.assert_nothing_left(&[&data, &logs]);
        for (storage, expected) in [(&data, "data\n"), (&logs, "logs\n")] {
            let found = scene.inspect(storage, |root| fs::read_to_string(root.join("web-1/a b/file")).unwrap());
            assert_eq!(found, expected);
        }
        // A subPath that leads out of the volume is refused with a message.
        for (name, defer) in [("out-deferred", "deferFSMount: true"), ("out-plain", "")] {
            let wrong = microvm(name).claim_as("data", defer).variable("PART", "../..");
            let wrong = wrong.mount_as("data", "/data", "subPathExpr: $(PART)");
            scene.apply_pod(&wrong);
            scene.crustlet.wait("a refusal", || {
                let mut events = scene.crustlet.events().into_iter();
                events.any(|it| it.object == format!("pod/{name}") && it.kind == "Warning" && it.message.contains(".."))
            });
            scene.end(&wrong);
        }
        scene.assert_nothing_left(&[&data, &logs]);
    }

    /// The type of the subPath changes between two runs of the container. Each run binds the file or directory that
    /// exists at its start.
    fn a_sub_path_may_change_its_type_between_runs(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let script = "case $(cat /all/run 2>/dev/null || echo 0) in \
            0) test -d /part; rmdir /all/x; echo file > /all/x; echo 1 > /all/run; exit 1;; \
            1) test \"$(cat /part)\" = file; rm /all/x; mkdir /all/x; touch /all/x/inner; echo 2 > /all/run; exit 1;; \
            esac; test -e /part/inner; exec sleep 2147483647";
        let pod = microvm("web").volume("scratch", "emptyDir: {}").script(script);
        let pod = pod.mount("scratch", "/all").mount_as("scratch", "/part", "subPath: x");
        scene.run(&pod);
        scene.crustlet.wait("the third run to be ready", || {
            let status = scene.crustlet.pod("web")["status"].take();
            let app = &status["containerStatuses"][0];
            app["restartCount"] == 2 && app["ready"] == true
        });
        assert_eq!(scene.sh(&pod, "ls /part"), "inner");
        scene.end(&pod);
        assert_gone(&scene, &pod);
        scene.assert_nothing_left(&[]);
    }

    /// The subPath is looked up in the directory that the link points to.
    fn a_host_path_that_is_a_link_has_sub_paths(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let at = |name: &str| scene.node.dir().join(name);
        fs::create_dir_all(at("real/part")).unwrap();
        fs::write(at("real/part/file"), "there").unwrap();
        symlink("real", at("link")).unwrap();
        let source = format!("hostPath: {{path: {}}}", utf8(&at("link")));
        let pod = microvm("web").volume("host", &source).mount_as("host", "/part", "subPath: part");
        scene.run(&pod);
        assert_eq!(scene.sh(&pod, "cat /part/file"), "there");
        scene.end(&pod);
        assert_gone(&scene, &pod);
        assert!(at("real/part/file").exists());
        scene.assert_nothing_left(&[]);
    }
}
