//! A volume keeps its identity when calls name its directory by different paths.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::thread;

use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::{Bundle, Container, Delegate, LoopDevice, Node, Run, refusal};
use serde_json::Value;

use crate::output::{assert_done, assert_error};

/// A node with a directory, and two symbolic links to its parent.
struct Scene {
    node: Node,
    real: PathBuf,
    links: [PathBuf; 2],
}

impl Scene {
    fn new() -> Self {
        let node = Node::new(Delegate::Runc);
        let real = node.dir().subdir("real");
        let links = ["l1", "l2"].map(|name| node.dir().join(name));
        for link in &links {
            symlink(&real, link).unwrap();
        }
        let [real, one, two] = [&real, &links[0], &links[1]].map(|path| path.join("a"));
        fs::create_dir_all(real.join("sub")).unwrap();
        Self {
            node,
            real,
            links: [one, two],
        }
    }

    /// Returns pairs of paths of the directory: the path to stage the volume by, and the path to name it by later.
    fn pairs(&self) -> Vec<(PathBuf, PathBuf)> {
        let (real, [one, two]) = (self.real.clone(), self.links.clone());
        let through_proc = |path: &Path| Path::new("/proc/self/root").join(&utf8(path)[1..]);
        vec![
            (real.clone(), one.clone()),
            (one.clone(), real),
            (one.clone(), two),
            (one.clone(), through_proc(&one)),
        ]
    }

    /// Returns the files of all entries, by path.
    fn entries(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut files = BTreeMap::new();
        for entry in fs::read_dir(self.node.handler().crust_root()).unwrap() {
            for file in fs::read_dir(entry.unwrap().path()).unwrap() {
                let path = file.unwrap().path();
                files.insert(path.clone(), fs::read(path).unwrap());
            }
        }
        files
    }

    fn stage(&self, target: &Path, device: &LoopDevice) -> Run {
        self.node.try_stage(target, device.path(), &[])
    }

    /// Runs a script in a container with the volume. The mount's source is resolved, as containerd does. Returns the
    /// output.
    fn run(&self, script: &str) -> String {
        let bundle = Bundle::plain(self.node.dir()).bind(&self.real, "/data", &[]);
        let app = self.node.run(&bundle.write());
        let output = app.sh(script);
        end_and_remove_bundle(&app);
        output
    }
}

/// Ends a container and removes its bundle, so that the next unstage removes its record.
fn end_and_remove_bundle(app: &Container) {
    app.end();
    fs::remove_dir_all(app.bundle()).unwrap();
}

/// Returns the device in each entry.
fn devices(entries: &BTreeMap<PathBuf, Vec<u8>>) -> Vec<String> {
    let infos = entries
        .iter()
        .filter(|(path, _)| path.ends_with("mountInfo.json"));
    let device = |(_, bytes): (_, &Vec<u8>)| {
        let info: Value = serde_json::from_slice(bytes).unwrap();
        info["device"].as_str().unwrap().to_owned()
    };
    infos.map(device).collect()
}

#[test]
fn a_volume_in_use_is_kept_under_every_path() {
    let scene = Scene::new();
    let (device, other) = (scene.node.ext4(), scene.node.ext4());
    for (staged, named) in scene.pairs() {
        let case = format!("{} named {}", staged.display(), named.display());
        assert_done(scene.stage(&staged, &device));
        let bundle = Bundle::plain(scene.node.dir()).bind(&scene.real, "/data", &[]);
        let app = scene.node.run(&bundle.write());
        assert_eq!(
            app.sh("echo on > /data/file; cat /data/file"),
            "on",
            "{case}"
        );
        let before = scene.entries();
        assert_error(
            scene.stage(&named, &other),
            "FAILED_PRECONDITION",
            &[app.id(), utf8(other.path())],
        );
        assert_done(scene.stage(&named, &device));
        assert_error(
            scene.node.unstage(&named),
            "FAILED_PRECONDITION",
            &[app.id()],
        );
        assert_eq!(scene.entries(), before, "{case}");
        let _ = scene.node.stats(&named).success();
        let _ = scene.node.resize(&named, 0, 0).success();
        let inspected = scene.node.handler().crust(&["inspect", utf8(&named)]);
        assert!(inspected.success().stdout.contains(utf8(&staged)), "{case}");
        assert_eq!(app.sh("cat /data/file"), "on", "{case}");
        end_and_remove_bundle(&app);

        scene.node.assert_released();
        device.wait_until_free(WAIT_TIMEOUT);
        assert_done(scene.stage(&named, &other));
        let devices = devices(&scene.entries());
        assert!(
            !devices.is_empty() && devices.iter().all(|it| it == utf8(other.path())),
            "{case}: {devices:?}"
        );
        assert_eq!(scene.run("ls /data"), "lost+found", "{case}");
        other.wait_until_free(WAIT_TIMEOUT);
        assert_done(scene.node.unstage(&named));
        scene.node.assert_nothing_left();
    }
}

/// If the volume were lost, a source below its directory would be passed through, and show the host's directory.
#[test]
fn a_failed_stage_keeps_the_volume_under_other_paths() {
    let scene = Scene::new();
    let device = scene.node.ext4();
    for (staged, named) in scene.pairs() {
        assert_done(scene.stage(&staged, &device));
        let missing = scene.node.dir().join("no-such-device");
        let run = scene.node.try_stage(&named, &missing, &[]);
        assert_error(run, "INVALID_ARGUMENT", &[utf8(&missing)]);
        for below in [&scene.real, &scene.links[0], &scene.links[1]] {
            let bundle = Bundle::plain(scene.node.dir()).bind(below.join("sub"), "/data", &[]);
            let refused = refusal::create_refused(&scene.node, &bundle.write());
            let _ = refused.containing(&["match_roots"]).message();
        }
        assert_done(scene.node.unstage(&staged));
        scene.node.assert_nothing_left();
    }
}

/// Two links lead to two directories with a volume each; then one link is changed to lead to the other's directory.
#[test]
fn a_changed_link_gives_no_volume_the_entry_of_another() {
    let scene = Scene::new();
    let (device, other) = (scene.node.ext4(), scene.node.ext4());
    let [one, two] = &scene.links;
    let elsewhere = scene.node.dir().subdir("elsewhere");
    fs::create_dir(elsewhere.join("a")).unwrap();
    let relink = |to: &Path| {
        let link = two.parent().unwrap();
        fs::remove_file(link).unwrap();
        symlink(to, link).unwrap();
    };
    relink(&elsewhere);
    assert_done(scene.stage(one, &device));
    assert_done(scene.stage(two, &other));
    relink(scene.real.parent().unwrap());
    let first = |entries: BTreeMap<PathBuf, Vec<u8>>| -> BTreeMap<PathBuf, Vec<u8>> {
        let mine = [one, &scene.real].map(|path| scene.node.entry(path));
        let is_mine = |path: &PathBuf| mine.iter().any(|entry| path.starts_with(entry));
        entries
            .into_iter()
            .filter(|(path, _)| is_mine(path))
            .collect()
    };
    let before = first(scene.entries());
    let run = scene.stage(two, &other);
    assert_error(run, "FAILED_PRECONDITION", &[utf8(one), utf8(two)]);
    assert_eq!(first(scene.entries()), before);
    assert_done(scene.node.unstage(two));
    assert_eq!(first(scene.entries()), before);
    assert_eq!(scene.run("ls /data"), "lost+found");
    device.wait_until_free(WAIT_TIMEOUT);
    // Now the second link is a path of the first volume.
    assert_done(scene.node.unstage(two));
    assert!(first(scene.entries()).is_empty());
}

#[test]
fn concurrent_calls_by_several_paths_are_serialized() {
    let scene = Scene::new();
    let device = scene.node.ext4();
    let [one, two] = &scene.links;
    let paths = [&scene.real, one, two];
    for round in 0..3 {
        thread::scope(|scope| {
            for (index, path) in paths.into_iter().chain(paths).enumerate() {
                let (scene, device) = (&scene, &device);
                let option = format!("commit={}", 1 + index);
                scope.spawn(move || {
                    if round % 2 == 1 && index % 3 == 0 {
                        assert_done(scene.node.unstage(path));
                    }
                    assert_done(
                        scene
                            .node
                            .try_stage(path, device.path(), &["--option", &option]),
                    );
                });
            }
        });
        let listed = scene.node.handler().crust(&["list", "--json"]).success();
        let listed: Value = serde_json::from_str(&listed.stdout).unwrap();
        let volumes = listed["volumes"].as_array().unwrap();
        let states: Vec<&Value> = volumes.iter().map(|it| &it["state"]).collect();
        assert_eq!(states, ["staged"], "{listed:#}");
        assert_eq!(scene.run("ls /data"), "lost+found");
        device.wait_until_free(WAIT_TIMEOUT);
        assert_done(scene.node.unstage(paths[round % 3]));
        scene.node.assert_nothing_left();
    }
}
