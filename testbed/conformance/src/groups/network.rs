//! Requirements on network volumes, on a share that the caller provides (`SHARE`). Each check has a directory of its own
//! on the share, which a pod of the runtime makes and removes, because the suite doesn't mount the share itself.

use serde_json::{Value, json};

use super::sources::{API, CLI, INFO, OVERVIEW, SECOND, SUBPATH};
use crate::requirement::{Group, network};
use crate::scene::{Container, Pod, Scene, assert_error, expect, json_output};

pub(super) const GROUP: Group = Group {
    name: "network",
    requirements: &[
        network(
            "network-mount",
            INFO,
            "A share is mounted in the containers, and its files outlive the pod.",
            mounted,
        ),
        network(
            "network-never-on-host",
            OVERVIEW,
            "The share is not in the host's mount table while a pod uses it.",
            never_on_the_host,
        ),
        network(
            "network-one-superblock",
            SECOND,
            "Containers of a pod share one file system.",
            one_superblock,
        ),
        network(
            "network-second-pod",
            SECOND,
            "A second pod has the share at the same time.",
            second_pod,
        ),
        network(
            "network-single-writer",
            SECOND,
            "A SINGLE_NODE_SINGLE_WRITER share is refused for a second pod until the first has ended.",
            single_writer,
        ),
        network(
            "network-subpath",
            SUBPATH,
            "A subPath that the share lacks is created in the share.",
            subpath,
        ),
        network(
            "network-fs-group",
            INFO,
            "metadata.fsGroup owns the files of the share, as far as the server permits it.",
            fs_group,
        ),
        network(
            "network-read-only",
            INFO,
            "metadata.readOnly makes the share read-only.",
            read_only,
        ),
        network(
            "network-options",
            INFO,
            "Options of nfs(5) and attributes are in force.",
            options,
        ),
        network(
            "network-option-unknown",
            INFO,
            "An option that nfs(5) does not know fails the create.",
            unknown_option,
        ),
        network(
            "network-other-host",
            INFO,
            "An option that names another host fails the create.",
            other_host,
        ),
        network(
            "network-credentials",
            API,
            "A file system that needs a password, such as cifs, fails the create.",
            credentials,
        ),
        network(
            "network-stats",
            CLI,
            "`crust stats` reports the usage of the share in BYTES, in INODES if the server counts them, and a normal condition.",
            stats,
        ),
        network(
            "network-resize",
            CLI,
            "`crust resize` of a share fails with UNIMPLEMENTED.",
            resize,
        )
        .should(),
    ],
};

/// A directory on the share.
struct ShareDirectory<'s> {
    scene: &'s Scene<'s>,
    name: String,
}

impl<'s> ShareDirectory<'s> {
    #[track_caller]
    fn new(scene: &'s Scene<'s>) -> Self {
        let directory = Self {
            name: format!("conformance-{}", scene.pod().uid()),
            scene,
        };
        directory.on_the_share("mkdir");
        directory
    }

    /// Runs a command with the directory in a container that has the whole share.
    #[track_caller]
    fn on_the_share(&self, command: &str) {
        let pod = self.scene.pod();
        let target = pod.stage(&info(self.scene.suite().share(), &json!({})));
        let app = pod.app(&target);
        assert_mounted(&app);
        let _ = app.sh(&format!("{command} /data/{}", self.name));
        pod.end([app]);
    }

    fn info(&self) -> Value {
        self.info_with(&json!({}))
    }

    /// Returns the `mountInfo.json` with these top-level fields set.
    fn info_with(&self, fields: &Value) -> Value {
        info(
            &format!("{}/{}", self.scene.suite().share(), self.name),
            fields,
        )
    }

    fn end(self) {
        self.on_the_share("rm -r");
    }
}

fn info(share: &str, fields: &Value) -> Value {
    let mut info = json!({
        "version": 1,
        "volume-type": "network",
        "device": share,
        "fstype": "nfs",
        "metadata": {},
    });
    for (key, value) in fields.as_object().expect("an object") {
        info[key] = value.clone();
    }
    info
}

fn mounted(scene: &Scene<'_>) {
    let directory = ShareDirectory::new(scene);
    for line in ["first\n", "first\nsecond\n"] {
        let pod = scene.pod();
        let target = pod.stage(&directory.info());
        let app = pod.app(&target);
        let mounted = app.sh("grep ' /data ' /proc/mounts");
        let fstype = mounted.split(' ').nth(2).unwrap_or_default();
        assert!(fstype.starts_with("nfs"), "its type is {fstype:?}");
        let word = line.lines().next_back().expect("a line");
        let _ = app.sh(&format!("echo {word} >> /data/file"));
        expect(
            "the file",
            &app.sh("cat /data/file"),
            &line.trim_end().to_owned(),
        );
        pod.end([app]);
    }
    directory.end();
}

fn never_on_the_host(scene: &Scene<'_>) {
    let directory = ShareDirectory::new(scene);
    let pod = scene.pod();
    let target = pod.stage(&directory.info());
    let app = pod.app(&target);
    let source = format!("/{} ", directory.name);
    let lines = runcrust_tests::host::mounts()
        .into_iter()
        .map(|mount| mount.line);
    let found: Vec<String> = lines.filter(|line| line.contains(&source)).collect();
    assert!(found.is_empty(), "the host has {found:?}");
    pod.end([app]);
    directory.end();
}

fn one_superblock(scene: &Scene<'_>) {
    let directory = ShareDirectory::new(scene);
    let pod = scene.pod();
    let target = pod.stage(&directory.info());
    let (one, two) = (pod.app(&target), pod.app(&target));
    let number = |app: &Container| app.sh("stat -c %d /data");
    expect(
        "the second container's superblock",
        &number(&two),
        &number(&one),
    );
    let _ = one.sh("echo written > /data/file");
    expect("the file", &two.sh("cat /data/file"), &"written".to_owned());
    pod.end([one, two]);
    directory.end();
}

fn second_pod(scene: &Scene<'_>) {
    let directory = ShareDirectory::new(scene);
    let (pod, other) = (scene.pod(), scene.pod());
    let (target, other_target) = (pod.stage(&directory.info()), other.stage(&directory.info()));
    let (one, two) = (pod.app(&target), other.app(&other_target));
    let _ = one.sh("echo written > /data/file");
    expect("the file", &two.sh("cat /data/file"), &"written".to_owned());
    pod.end([one]);
    expect(
        "the file after the first pod",
        &two.sh("cat /data/file"),
        &"written".to_owned(),
    );
    other.end([two]);
    directory.end();
}

fn single_writer(scene: &Scene<'_>) {
    let directory = ShareDirectory::new(scene);
    let info =
        directory.info_with(&json!({"metadata": {"accessMode": "SINGLE_NODE_SINGLE_WRITER"}}));
    let (pod, other) = (scene.pod(), scene.pod());
    let target = pod.stage(&info);
    let one = pod.app(&target);
    let other_target = other.stage(&info);
    let _ = other.refuses(&other_target);
    pod.end([one]);
    let two = other.app(&other_target);
    assert_mounted(&two);
    other.end([two]);
    directory.end();
}

fn subpath(scene: &Scene<'_>) {
    let directory = ShareDirectory::new(scene);
    let pod = scene.pod();
    let target = pod.stage(&directory.info());
    let part = pod.app(&target.join("new/deep"));
    let _ = part.sh("echo written > /data/file");
    let whole = pod.app(&target);
    expect(
        "the file",
        &whole.sh("cat /data/new/deep/file"),
        &"written".to_owned(),
    );
    pod.end([part, whole]);
    directory.end();
}

fn fs_group(scene: &Scene<'_>) {
    let directory = ShareDirectory::new(scene);
    let (pod, app, _) = run(scene, &directory);
    let _ = app.sh("mkdir /data/directory && touch /data/directory/file");
    pod.end([app]);
    let pod = scene.pod();
    let target = pod.stage(&directory.info_with(&json!({"metadata": {"fsGroup": "2000"}})));
    let app = pod.app(&target);
    assert_mounted(&app);
    expect(
        "the groups",
        &app.sh("stat -c %g /data /data/directory /data/directory/file"),
        &"2000\n2000\n2000".to_owned(),
    );
    pod.end([app]);
    directory.end();
}

fn read_only(scene: &Scene<'_>) {
    let directory = ShareDirectory::new(scene);
    let pod = scene.pod();
    let target = pod.stage(&directory.info_with(&json!({"metadata": {"readOnly": true}})));
    let app = pod.app(&target);
    assert_mounted(&app);
    let touched = app.exec(&["/bin/touch", "/data/file"]);
    assert!(!touched.status.success(), "a file was created");
    pod.end([app]);
    directory.end();
}

fn options(scene: &Scene<'_>) {
    let directory = ShareDirectory::new(scene);
    let pod = scene.pod();
    let options = json!({"options": ["soft", "nosuid", "_netdev"]});
    let target = pod.stage(&directory.info_with(&options));
    let app = pod.app(&target);
    let mounted = app.sh("grep ' /data ' /proc/mounts");
    let shown: Vec<&str> = mounted.split([' ', ',']).collect();
    for option in ["soft", "nosuid"] {
        assert!(shown.contains(&option), "{option} is not in: {mounted}");
    }
    pod.end([app]);
    directory.end();
}

fn unknown_option(scene: &Scene<'_>) {
    assert_refused(scene, &json!({"options": ["no-such-option"]}));
}

fn other_host(scene: &Scene<'_>) {
    assert_refused(scene, &json!({"options": ["addr=192.0.2.1"]}));
}

fn credentials(scene: &Scene<'_>) {
    assert_refused(scene, &json!({"fstype": "cifs"}));
}

/// Asserts that a container is refused with these fields of `mountInfo.json`, and works without them.
#[track_caller]
fn assert_refused(scene: &Scene<'_>, fields: &Value) {
    let directory = ShareDirectory::new(scene);
    let pod = scene.pod();
    let target = pod.stage(&directory.info_with(fields));
    let _ = pod.refuses(&target);
    let target = pod.stage(&directory.info());
    let app = pod.app(&target);
    assert_mounted(&app);
    pod.end([app]);
    directory.end();
}

fn stats(scene: &Scene<'_>) {
    let directory = ShareDirectory::new(scene);
    let (pod, app, target) = run(scene, &directory);
    let stats = json_output(&pod.cli(&target).stats(&target));
    let usage = stats["usage"].as_array().cloned().unwrap_or_default();
    let total = |unit: &str| {
        let found = usage.iter().find(|usage| usage["unit"] == unit);
        found.and_then(|usage| usage["total"].as_u64())
    };
    assert!(total("BYTES") > Some(0), "no total in BYTES: {stats}");
    if app.sh("stat -f -c %c /data") != "0" {
        assert!(total("INODES") > Some(0), "no total in INODES: {stats}");
    }
    expect(
        "abnormal",
        &stats["volume_condition"]["abnormal"],
        &json!(false),
    );
    pod.end([app]);
    directory.end();
}

fn resize(scene: &Scene<'_>) {
    let directory = ShareDirectory::new(scene);
    let (pod, app, target) = run(scene, &directory);
    assert_error(
        &pod.cli(&target).resize(&target, 1 << 30, 0),
        "UNIMPLEMENTED",
    );
    pod.end([app]);
    directory.end();
}

#[track_caller]
fn run<'s>(
    scene: &'s Scene<'s>,
    directory: &ShareDirectory<'_>,
) -> (Pod<'s>, Container, std::path::PathBuf) {
    let pod = scene.pod();
    let target = pod.stage(&directory.info());
    let app = pod.app(&target);
    assert_mounted(&app);
    (pod, app, target)
}

/// Asserts that the container has a share at `/data`.
#[track_caller]
fn assert_mounted(app: &Container) {
    let mounted = app.sh("grep ' /data ' /proc/mounts");
    assert!(mounted.contains(" nfs"), "it has no share: {mounted}");
}
