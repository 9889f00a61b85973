//! Kubelet's rules of fsGroup, which are the runtime's where it mounts.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::Path;

use serde_json::{Value, json};

use super::sources::FSGROUP;
use crate::requirement::{Group, deferred};
use crate::scene::{Scene, Volume, expect};

pub(super) const GROUP: Group = Group {
    name: "fsgroup",
    requirements: &[
        deferred(
            "fsgroup-always",
            FSGROUP,
            "Every entry of the volume gets the group.",
            |scene| becomes(scene, &always(), GROUPS_CHANGED),
        ),
        deferred(
            "fsgroup-modes",
            FSGROUP,
            "Files get mode | 0660 and keep their setuid bit, directories get mode | 02770.",
            |scene| becomes(scene, &always(), MODES_CHANGED),
        ),
        deferred(
            "fsgroup-default-policy",
            FSGROUP,
            "Without a policy it is Always.",
            |scene| becomes(scene, &json!({"fsGroup": "2000"}), GROUPS_CHANGED),
        ),
        deferred("fsgroup-zero", FSGROUP, "\"0\" is a group.", |scene| {
            let changed = &[(".", "0 2775"), ("file", "0 660")];
            becomes(scene, &json!({"fsGroup": "0"}), changed);
        }),
        deferred(
            "fsgroup-none",
            FSGROUP,
            "Without fsGroup nothing is changed.",
            |scene| becomes(scene, &json!({}), UNCHANGED),
        ),
        deferred(
            "fsgroup-links",
            FSGROUP,
            "A link gets the group itself; what it leads to, outside of the volume, is left as it is.",
            links,
        ),
        deferred(
            "fsgroup-on-root-mismatch",
            FSGROUP,
            "OnRootMismatch leaves a volume alone whose root has the group, all of 0770 and setgid.",
            root_matches,
        ),
        deferred(
            "fsgroup-on-root-mismatch-applies",
            FSGROUP,
            "OnRootMismatch is Always where the root lacks the group, a permission or setgid.",
            root_mismatches,
        ),
        deferred(
            "fsgroup-read-only",
            FSGROUP,
            "A read-only volume is left as it is.",
            |scene| {
                let metadata = json!({"fsGroup": "2000", "readOnly": true});
                becomes(scene, &metadata, UNCHANGED);
            },
        ),
        deferred(
            "fsgroup-new-files",
            FSGROUP,
            "What is made later in the volume's directories has the group.",
            new_files,
        ),
        deferred(
            "fsgroup-once",
            FSGROUP,
            "It isn't applied again for a second container: the data is live.",
            once,
        )
        .should(),
    ],
};

const MISMATCH: &str = "OnRootMismatch";

/// Groups and modes of the entries that [`volume`] makes.
type Entries = &'static [(&'static str, &'static str)];

const UNCHANGED: Entries = &[
    (".", "7 755"),
    ("file", "7 600"),
    ("program", "7 4711"),
    ("directory", "7 700"),
    ("directory/file", "7 0"),
    ("pipe", "7 600"),
];
const GROUPS_CHANGED: Entries = &[
    (".", "2000 2775"),
    ("file", "2000 660"),
    ("directory", "2000 2770"),
    ("directory/file", "2000 660"),
    ("pipe", "2000 660"),
];
const MODES_CHANGED: Entries = &[("program", "2000 4771"), ("directory", "2000 2770")];

fn always() -> Value {
    json!({"fsGroup": "2000", "fsGroupChangePolicy": "Always"})
}

fn set(path: &Path, group: u32, mode: u32) {
    lchown(path, None, Some(group)).expect("chown");
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("chmod");
}

/// With entries that all have another group, and modes that have to change.
fn volume(scene: &Scene<'_>) -> Volume {
    scene.volume().and(|root| {
        fs::create_dir(root.join("directory")).expect("mkdir");
        for file in ["file", "program", "directory/file"] {
            fs::write(root.join(file), "").expect("write");
        }
        nix::unistd::mkfifo(&root.join("pipe"), nix::sys::stat::Mode::S_IRWXU).expect("mkfifo");
        for (path, entry) in UNCHANGED {
            let (group, mode) = entry.split_once(' ').expect("a group and a mode");
            let mode = u32::from_str_radix(mode, 8).expect("octal");
            set(&root.join(path), group.parse().expect("a gid"), mode);
        }
    })
}

/// Asserts the group and mode of entries, as the container sees them.
#[track_caller]
fn becomes(scene: &Scene<'_>, metadata: &Value, entries: Entries) {
    let volume = volume(scene);
    let pod = scene.pod();
    let target = pod.stage(&volume.with(metadata));
    let app = pod.app_with(&volume, &target);
    for (path, wanted) in entries {
        let seen = app.sh(&format!("stat -c '%g %a' /data/{path}"));
        expect(&format!("group and mode of {path}"), &&*seen, wanted);
    }
}

fn links(scene: &Scene<'_>) {
    let outside = scene.dir().subdir("outside");
    let file = outside.join("file");
    fs::write(&file, "not the volume's").expect("write");
    set(&file, 0, 0o600);
    let volume = scene.volume().and(|root| {
        symlink(&file, root.join("to-a-file")).expect("ln -s");
        symlink(&outside, root.join("to-a-directory")).expect("ln -s");
    });
    let pod = scene.pod();
    let target = pod.stage(&volume.with(&always()));
    let app = pod.app_with(&volume, &target);
    for link in ["to-a-file", "to-a-directory"] {
        let seen = app.sh(&format!("stat -c %g /data/{link}"));
        expect(&format!("the group of {link} itself"), &&*seen, &"2000");
    }
    for path in [&file, &outside] {
        let info = fs::metadata(path).expect("stat");
        expect("the group outside", &info.gid(), &0);
    }
    let mode = fs::metadata(&file).expect("stat").mode() & 0o7777;
    expect("the mode outside", &mode, &0o600);
}

/// Asserts what `OnRootMismatch` does to a file in a volume with such a root.
#[track_caller]
fn with_root(scene: &Scene<'_>, group: u32, mode: u32) -> String {
    let volume = volume(scene).and(|root| set(root, group, mode));
    let pod = scene.pod();
    let metadata = json!({"fsGroup": "2000", "fsGroupChangePolicy": MISMATCH});
    let target = pod.stage(&volume.with(&metadata));
    let app = pod.app_with(&volume, &target);
    app.sh("stat -c '%g %a' /data/file")
}

fn root_matches(scene: &Scene<'_>) {
    for mode in [0o2770, 0o2777] {
        expect("the file", &&*with_root(scene, 2000, mode), &"7 600");
    }
}

fn root_mismatches(scene: &Scene<'_>) {
    for (group, mode) in [(7, 0o2770), (2000, 0o0770), (2000, 0o2750)] {
        let what = format!("the file, with a root of {group} {mode:o}");
        expect(&what, &&*with_root(scene, group, mode), &"2000 660");
    }
}

fn new_files(scene: &Scene<'_>) {
    let volume = volume(scene);
    let pod = scene.pod();
    let target = pod.stage(&volume.with(&always()));
    let app = pod.app_with(&volume, &target);
    let seen = app.sh("echo x > /data/directory/new; stat -c %g /data/directory/new");
    expect("the new file's group", &&*seen, &"2000");
}

fn once(scene: &Scene<'_>) {
    let volume = volume(scene);
    let pod = scene.pod();
    let target = pod.stage(&volume.with(&always()));
    let first = pod.app_with(&volume, &target);
    let _ = first.sh("chgrp 7 /data/file; chmod 600 /data/file");
    let second = pod.app_with(&volume, &target);
    let seen = second.sh("stat -c '%g %a' /data/file");
    expect("what the first one made of it", &&*seen, &"7 600");
}
