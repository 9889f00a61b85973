//! Requirements on the matching of mounts to volumes.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use runcrust_tests::{Bundle, TestDir};
use serde_json::json;

use super::sources::{DIRECTORY, MATCHING, OVERVIEW, STOCK, SUBPATH};
use crate::requirement::{Group, deferred};
use crate::scene::{Pod, Scene, Volume, expect, files_below};

pub(super) const GROUP: Group = Group {
    name: "matching",
    requirements: &[
        deferred(
            "match-exact",
            OVERVIEW,
            "A mount whose source is a staged target path shows the volume's root.",
            exact,
        ),
        deferred(
            "match-spelling",
            DIRECTORY,
            "`//`, `/./` and a trailing `/` in a source make no difference.",
            spelling,
        ),
        deferred(
            "match-two-volumes",
            OVERVIEW,
            "Every mount is matched: a container has two volumes, each at its destination.",
            two_volumes,
        ),
        deferred(
            "match-subpath",
            OVERVIEW,
            "A source below a target path shows that directory of the volume.",
            subpath,
        ),
        deferred(
            "match-subpath-file",
            SUBPATH,
            "A subPath can be a file.",
            subpath_file,
        ),
        deferred(
            "match-subpath-missing",
            SUBPATH,
            "A subPath that the volume lacks is created in the volume, and not on the host.",
            subpath_missing,
        ),
        deferred(
            "match-subpath-missing-mode",
            SUBPATH,
            "A created subPath, and each directory created on the way, has the permissions of the volume's root.",
            subpath_missing_mode,
        )
        .should(),
        deferred(
            "match-subpath-link",
            SUBPATH,
            "Symbolic links inside the volume are followed on the way to a subPath.",
            subpath_link,
        ),
        deferred(
            "match-subpath-escape",
            SUBPATH,
            "A subPath that leads out of the volume fails the create.",
            subpath_escape,
        ),
        deferred(
            "match-link-given",
            DIRECTORY,
            "If the target path leads over a symbolic link, a source in the given spelling shows the volume.",
            link_given,
        ),
        deferred(
            "match-link-resolved",
            DIRECTORY,
            "If the target path leads over a symbolic link, a source in the resolved spelling shows the volume.",
            link_resolved,
        ),
        deferred(
            "match-other-pod",
            MATCHING,
            "A mount of another pod's volume fails the create of a container in this pod's sandbox.",
            other_pod,
        ),
        deferred(
            "match-unstaged",
            MATCHING,
            "The directory of a CSI volume that is neither staged nor mounted, and is empty, fails the create.",
            unstaged,
        )
        .should(),
        deferred(
            "match-stock-subpath",
            STOCK,
            "A stock kubelet's bind mount of a subPath of a staged volume shows the volume's directory.",
            stock_subpath,
        )
        .should(),
        deferred(
            "match-stock-elsewhere",
            STOCK,
            "A stock kubelet's bind mount with a staged volume's name, but of another directory, fails the create.",
            stock_elsewhere,
        )
        .should(),
        deferred(
            "match-crio",
            MATCHING,
            "A container with CRI-O's annotations, whose sandbox is not a container, has its volume.",
            crio,
        ),
        deferred(
            "match-crio-other-pod",
            MATCHING,
            "A mount of another pod's volume fails the create of a container with CRI-O's annotations.",
            crio_other_pod,
        ),
        deferred(
            "match-no-pod",
            MATCHING,
            "A bundle without a CRI runtime's annotations has its volume.",
            no_pod,
        )
        .should(),
    ],
};

/// Returns a volume with a marker file in a subdirectory.
fn volume_with_directory(scene: &Scene<'_>) -> Volume {
    scene.volume().with_data(|root| {
        fs::create_dir_all(root.join("some/directory")).expect("mkdir");
        fs::write(root.join("some/directory/below"), "below").expect("write");
    })
}

/// Asserts that an app container with this source sees the volume's `some/directory` at `/data`.
#[track_caller]
fn assert_shows_subpath(scene: &Scene<'_>, pod: &Pod<'_>, source: &Path) {
    let app = scene.run(pod.bundle_with(source));
    expect(
        "the subPath's file",
        &&*app.exec(&["/bin/cat", "/data/below"]).stdout,
        &"below",
    );
}

fn exact(scene: &Scene<'_>) {
    let volume = scene.volume();
    let pod = scene.pod();
    let target = pod.stage(&volume.info());
    let _app = pod.app_with(&volume, &target);
}

fn spelling(scene: &Scene<'_>) {
    let volume = scene.volume();
    let pod = scene.pod();
    let target = pod.stage(&volume.info());
    let odd = target
        .display()
        .to_string()
        .replace("/volumes/", "//volumes/./");
    let _app = pod.app_with(&volume, &PathBuf::from(odd + "/"));
}

fn two_volumes(scene: &Scene<'_>) {
    let (one, two) = (scene.volume(), scene.volume());
    let pod = scene.pod();
    let first = pod.stage_as("pv-1", &one.info());
    let second = pod.stage_as("pv-2", &two.info());
    let app = scene.run(pod.bundle_with(&first).bind(&second, "/other", &[]));
    one.assert_shown_at(&app, "/data");
    two.assert_shown_at(&app, "/other");
}

fn subpath(scene: &Scene<'_>) {
    let volume = volume_with_directory(scene);
    let pod = scene.pod();
    let target = pod.stage(&volume.info());
    assert_shows_subpath(scene, &pod, &target.join("some/directory"));
}

fn subpath_file(scene: &Scene<'_>) {
    let volume = volume_with_directory(scene);
    let pod = scene.pod();
    let target = pod.stage(&volume.info());
    let source = target.join("some/directory/below");
    let app = scene.run(pod.bundle_binding(&source, "/etc/below"));
    expect("the file", &&*app.sh("cat /etc/below"), &"below");
}

fn subpath_missing(scene: &Scene<'_>) {
    let volume = scene.volume();
    let pod = scene.pod();
    let target = pod.stage(&volume.info());
    let app = pod.app(&target.join("made/for/it"));
    let _ = app.sh("echo inside > /data/file");
    expect("on the host", &files_below(&target), &Vec::new());
    pod.end([app]);
    scene.wait("the device free", || volume.is_free());
    volume.assert_file("made/for/it/file", "inside\n");
}

fn subpath_missing_mode(scene: &Scene<'_>) {
    let mode = Permissions::from_mode(0o757);
    let volume = scene.volume().with_data(|root| {
        fs::set_permissions(root, mode).expect("chmod");
    });
    let pod = scene.pod();
    let target = pod.stage(&volume.info());
    let _app = pod.app(&target.join("made/for/it"));
    let whole = pod.app_with(&volume, &target);
    expect(
        "the modes",
        &&*whole.sh("cd /data; echo $(stat -c %a made made/for made/for/it)"),
        &"757 757 757",
    );
}

fn subpath_link(scene: &Scene<'_>) {
    let volume = volume_with_directory(scene).with_data(|root| {
        symlink("some", root.join("link")).expect("ln -s");
    });
    let pod = scene.pod();
    let target = pod.stage(&volume.info());
    assert_shows_subpath(scene, &pod, &target.join("link/directory"));
}

fn subpath_escape(scene: &Scene<'_>) {
    let outside = scene.dir().subdir("outside");
    let volume = volume_with_directory(scene).with_data(|root| {
        symlink(&outside, root.join("absolute")).expect("ln -s");
        symlink("../../..", root.join("relative")).expect("ln -s");
    });
    let pod = scene.pod();
    let target = pod.stage(&volume.info());
    for link in ["absolute", "relative"] {
        let _ = pod.refuses(&target.join(link));
    }
    assert_shows_subpath(scene, &pod, &target.join("some/directory"));
}

fn link_given(scene: &Scene<'_>) {
    let volume = scene.volume();
    let pod = Pod::behind_a_link(scene);
    let target = pod.stage(&volume.info());
    let _app = pod.app_with(&volume, &target);
}

fn link_resolved(scene: &Scene<'_>) {
    let volume = volume_with_directory(scene);
    let pod = Pod::behind_a_link(scene);
    let target = pod.stage(&volume.info());
    let resolved = target.canonicalize().expect("a directory");
    let _app = pod.app_with(&volume, &resolved);
    assert_shows_subpath(scene, &pod, &resolved.join("some/directory"));
}

fn other_pod(scene: &Scene<'_>) {
    let (volume, own_volume) = (scene.volume(), scene.volume());
    let (pod, other) = (scene.pod(), scene.pod());
    let target = other.stage(&volume.info());
    // The pod's right to its own volume must not extend to another pod's.
    let own_target = pod.stage(&own_volume.info());
    let _ = pod.sandbox();
    let _ = pod.refuses(&target);
    let _app = pod.app_with(&own_volume, &own_target);
    let _other_app = other.app_with(&volume, &target);
}

fn unstaged(scene: &Scene<'_>) {
    let volume = scene.volume();
    let pod = scene.pod();
    let _ = pod.refuses(&pod.target("pv-1"));
    // The runtime may require that a volume is staged before the sandbox: use another pod.
    let next = scene.pod();
    let target = next.stage(&volume.info());
    let _app = next.app_with(&volume, &target);
}

fn stock_subpath(scene: &Scene<'_>) {
    let volume = volume_with_directory(scene);
    let pod = scene.pod();
    let target = pod.stage(&volume.info());
    let source = pod.stock_subpath("pv-1", &target, "some/directory");
    assert_shows_subpath(scene, &pod, &source);
}

fn stock_elsewhere(scene: &Scene<'_>) {
    let volume = volume_with_directory(scene);
    let pod = scene.pod();
    let target = pod.stage(&volume.info());
    let elsewhere = scene.dir().subdir("elsewhere");
    let source = pod.stock_subpath("pv-1", &elsewhere, "db");
    let _ = pod.refuses(&source);
    let source = pod.stock_subpath("pv-1", &target, "some/directory");
    assert_shows_subpath(scene, &pod, &source);
}

/// Returns a container's bundle as CRI-O writes it. The sandbox that it names need not exist.
fn crio_bundle(scene: &Scene<'_>, uid: &str, source: &Path) -> Bundle {
    let labels = json!({"io.kubernetes.pod.uid": uid, "io.kubernetes.container.name": "app"});
    scene
        .plain()
        .bind(source, "/data", &[])
        .annotation("io.kubernetes.cri-o.ContainerType", "container")
        .annotation("io.kubernetes.cri-o.SandboxID", &sandbox_id(scene.dir()))
        .annotation("io.kubernetes.cri-o.Labels", &labels.to_string())
        .annotation("io.kubernetes.pod.uid", uid)
}

/// Returns an id that no sandbox has.
fn sandbox_id(dir: &TestDir) -> String {
    let name = dir.path().file_name().expect("a name");
    format!("{}-sandbox", name.to_str().expect("UTF-8"))
}

fn crio(scene: &Scene<'_>) {
    let volume = scene.volume();
    let pod = scene.pod();
    let target = pod.stage(&volume.info());
    let app = scene.run(crio_bundle(scene, pod.uid(), &target));
    volume.assert_shown_at(&app, "/data");
}

fn crio_other_pod(scene: &Scene<'_>) {
    let volume = scene.volume();
    let (pod, other) = (scene.pod(), scene.pod());
    let target = other.stage(&volume.info());
    let _ = scene.refuses(crio_bundle(scene, pod.uid(), &target));
    let app = scene.run(crio_bundle(scene, other.uid(), &target));
    volume.assert_shown_at(&app, "/data");
}

fn no_pod(scene: &Scene<'_>) {
    let volume = scene.volume();
    let pod = scene.pod();
    let target = pod.stage(&volume.info());
    let container = scene.run(scene.plain().bind(&target, "/data", &[]));
    volume.assert_shown_at(&container, "/data");
}
