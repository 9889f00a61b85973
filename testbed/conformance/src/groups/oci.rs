//! Requirements on everything for which no volume is staged: it works as with any OCI runtime.

use std::fs;
use std::path::Path;

use runcrust_tests::mounts;
use serde_json::json;

use super::sources::{MATCHING, OCI, STOCK};
use crate::requirement::{Group, ordinary};
use crate::scene::{Container, Scene, expect, files_below};

pub(super) const GROUP: Group = Group {
    name: "oci",
    requirements: &[
        ordinary(
            "oci-state",
            OCI,
            "state reports created, running and stopped, with id, bundle and pid; create writes the pid file.",
            state,
        ),
        ordinary(
            "oci-exec",
            OCI,
            "exec passes on the program's exit code and output.",
            exec,
        ),
        ordinary(
            "oci-errors",
            OCI,
            "A create without a bundle, and commands about unknown containers, exit with a code other than 0.",
            errors,
        ),
        ordinary(
            "oci-unknown-fields",
            OCI,
            "Unknown fields in config.json are not an error.",
            unknown_fields,
        ),
        ordinary(
            "oci-hooks",
            OCI,
            "The createRuntime hooks in the config are run.",
            hooks,
        ),
        ordinary(
            "oci-no-device",
            OCI,
            "A workload cannot read a block device that is not in its config, even with CAP_MKNOD.",
            no_device,
        ),
        ordinary(
            "oci-read-only-rootfs",
            OCI,
            "A missing mountpoint of a bind mount is created, also in a read-only rootfs.",
            read_only_rootfs,
        ),
        ordinary(
            "pass-bind",
            MATCHING,
            "A bind mount of a directory that is not a volume shows that directory, in the order of the mounts.",
            bind,
        ),
        ordinary(
            "pass-mounted-csi",
            MATCHING,
            "The directory of a CSI volume that its driver mounted on the host is passed through.",
            mounted_csi,
        ),
        ordinary(
            "pass-above-volume",
            MATCHING,
            "A directory above a staged target path is not a volume: it is passed through.",
            above_a_volume,
        ),
        ordinary(
            "pass-stock-subpath",
            STOCK,
            "A stock kubelet's bind mount of a subPath of another volume is passed through.",
            stock_subpath,
        ),
        ordinary(
            "pass-no-trace",
            MATCHING,
            "A pod without deferred volumes leaves nothing on the host.",
            no_trace,
        ),
    ],
};

fn state(scene: &Scene<'_>) {
    let bundle = scene.plain().write();
    let container = Container::new(scene.suite(), &bundle);
    expect("state before create", &container.state(), &None);
    let created = container.create();
    assert!(created.status.success(), "{created}");
    let state = container.state().unwrap_or_default();
    expect("status", &state["status"], &json!("created"));
    expect("id", &state["id"], &json!(container.id()));
    expect("bundle", &state["bundle"], &json!(bundle.path()));
    expect("pid", &state["pid"], &json!(container.pid()));
    let started = container.start();
    assert!(started.status.success(), "{started}");
    container.wait_for(&["running"]);
    let _ = container.kill("KILL");
    container.wait_for(&["stopped"]);
    let deleted = container.delete();
    assert!(deleted.status.success(), "{deleted}");
    expect("state after delete", &container.state(), &None);
}

fn exec(scene: &Scene<'_>) {
    let container = scene.run(scene.plain());
    let run = container.exec(&["/bin/sh", "-c", "echo out; echo err >&2; exit 7"]);
    expect("the exit code", &run.status.code(), &Some(7));
    expect("standard output", &&*run.stdout, &"out\n");
    expect("standard error", &run.stderr.contains("err"), &true);
}

fn errors(scene: &Scene<'_>) {
    let bundle = scene.plain().write();
    let unknown = Container::new(scene.suite(), &bundle);
    for command in ["state", "start", "delete"] {
        let run = unknown.call(&[command, unknown.id()]);
        assert!(!run.status.success(), "no failure: {run}");
    }
    let missing = scene.dir().join("missing");
    let missing = missing.to_str().expect("UTF-8");
    let run = unknown.call(&["create", "--bundle", missing, unknown.id()]);
    assert!(!run.status.success(), "no failure: {run}");
    expect("state after it", &unknown.state(), &None);
}

fn unknown_fields(scene: &Scene<'_>) {
    let mut bundle = scene.plain();
    let spec = bundle.spec_mut();
    spec["org.example"] = json!({"of": "nobody"});
    spec["linux"]["org.example"] = json!([1, 2, 3]);
    spec["process"]["org.example"] = json!("x");
    expect("its output", &&*scene.run(bundle).sh("echo runs"), &"runs");
}

fn hooks(scene: &Scene<'_>) {
    let ran = scene.dir().join("ran");
    let mut bundle = scene.plain();
    bundle.spec_mut()["hooks"]["createRuntime"] = json!([{
        "path": "/bin/sh",
        "args": ["sh", "-c", format!("cat > {}", ran.display())],
    }]);
    let container = scene.run(bundle);
    let state = fs::read_to_string(&ran).unwrap_or_default();
    assert!(
        state.contains(container.id()),
        "the hook's standard input was {state:?}"
    );
}

fn no_device(scene: &Scene<'_>) {
    let volume = scene.volume();
    let container = scene.run(scene.plain().all_capabilities());
    let number = volume.device().number().replace(':', " ");
    let script = format!("mknod /raw b {number} && dd if=/raw of=/dev/null count=1");
    let run = container.exec(&["/bin/sh", "-c", &script]);
    assert!(!run.status.success(), "the raw device was read: {run}");
}

fn read_only_rootfs(scene: &Scene<'_>) {
    let source = scene.dir().subdir("plain");
    let bundle = scene.plain().bind(&source, "/missing/here", &[]);
    let container = scene.run(bundle.readonly_rootfs());
    let _ = container.sh("echo x > /missing/here/file");
    expect("on the host", &files_below(&source).len(), &1);
    let rootfs = container.exec(&["/bin/touch", "/x"]);
    assert!(!rootfs.status.success(), "the rootfs can be written to");
}

/// Asserts that a file written through the container's mount is in this directory on the host.
#[track_caller]
fn assert_shows_host_directory(container: &Container, at: &str, directory: &Path) {
    let _ = container.sh(&format!("echo written > {at}/file"));
    let seen = fs::read_to_string(directory.join("file")).map_err(|error| error.to_string());
    let what = format!("{}/file on the host", directory.display());
    expect(&what, &seen, &Ok("written\n".to_owned()));
}

fn bind(scene: &Scene<'_>) {
    let pod = scene.pod();
    let outer = pod.directory("volumes/kubernetes.io~empty-dir/cache");
    let inner = scene.dir().subdir("inner");
    let bundle = pod.bundle_with(&outer).bind(&inner, "/data/inner", &[]);
    let app = scene.run(bundle);
    assert_shows_host_directory(&app, "/data", &outer);
    assert_shows_host_directory(&app, "/data/inner", &inner);
}

fn mounted_csi(scene: &Scene<'_>) {
    let pod = scene.pod();
    let target = pod.target("pv-1");
    let staging = scene.dir().subdir("staging");
    mounts::bind(&staging, &target);
    assert_shows_host_directory(&pod.app(&target), "/data", &staging);
}

fn above_a_volume(scene: &Scene<'_>) {
    let volume = scene.volume();
    let pod = scene.pod();
    let target = pod.stage(&volume.info());
    let volumes = target.ancestors().nth(3).expect("volumes");
    fs::write(volumes.join("host"), "the host's").expect("write");
    let app = pod.app(volumes);
    expect("the file there", &&*app.sh("cat /data/host"), &"the host's");
    assert_shows_host_directory(&app, "/data", volumes);
}

fn stock_subpath(scene: &Scene<'_>) {
    let pod = scene.pod();
    let cache = pod.directory("volumes/kubernetes.io~empty-dir/cache");
    let source = pod.stock_subpath("cache", &cache, "db");
    assert_shows_host_directory(&pod.app(&source), "/data", &cache.join("db"));
}

fn no_trace(scene: &Scene<'_>) {
    let pod = scene.pod();
    let directory = scene.dir().subdir("plain");
    let app = pod.app(&directory);
    let ids = [app.id().to_owned(), pod.sandbox().id().to_owned()];
    pod.end([app]);
    let files = files_below(&scene.suite().crust_root);
    let mentions = |name: &str| {
        let mut words = ids.iter().map(String::as_str).chain([pod.uid()]);
        words.any(|word| name.contains(word))
    };
    let left: Vec<_> = files
        .iter()
        .filter(|file| {
            let content = fs::read(file).unwrap_or_default();
            mentions(&file.display().to_string()) || mentions(&String::from_utf8_lossy(&content))
        })
        .collect();
    assert!(left.is_empty(), "files left: {left:?}");
}
