//! Requirements on fsGroup: kubelet's rules, which the runtime applies because it mounts the volume.

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
            "Every file of the volume gets the group.",
            |scene| assert_entries(scene, &always_metadata(), GROUPS_CHANGED),
        ),
        deferred(
            "fsgroup-modes",
            FSGROUP,
            "Files get mode | 0660 and keep their setuid bit, directories get mode | 02770.",
            |scene| assert_entries(scene, &always_metadata(), MODES_CHANGED),
        ),
        deferred(
            "fsgroup-default-policy",
            FSGROUP,
            "The default policy is Always.",
            |scene| assert_entries(scene, &json!({"fsGroup": "2000"}), GROUPS_CHANGED),
        ),
        deferred(
            "fsgroup-zero",
            FSGROUP,
            "The group \"0\" is applied.",
            |scene| {
                let changed = &[(".", "0 2775"), ("file", "0 660")];
                assert_entries(scene, &json!({"fsGroup": "0"}), changed);
            },
        ),
        deferred(
            "fsgroup-none",
            FSGROUP,
            "Without fsGroup nothing is changed.",
            |scene| assert_entries(scene, &json!({}), UNCHANGED),
        ),
        deferred(
            "fsgroup-links",
            FSGROUP,
            "A symbolic link gets the group itself; its destination outside of the volume is unchanged.",
            links,
        ),
        deferred(
            "fsgroup-on-root-mismatch",
            FSGROUP,
            "OnRootMismatch changes nothing in a volume whose root has the group, mode 0770 and setgid.",
            root_matches,
        ),
        deferred(
            "fsgroup-on-root-mismatch-applies",
            FSGROUP,
            "OnRootMismatch works like Always if the root lacks the group, a permission or setgid.",
            root_mismatches,
        ),
        deferred(
            "fsgroup-read-only",
            FSGROUP,
            "A read-only volume is unchanged.",
            |scene| {
                let metadata = json!({"fsGroup": "2000", "readOnly": true});
                assert_entries(scene, &metadata, UNCHANGED);
            },
        ),
        deferred(
            "fsgroup-new-files",
            FSGROUP,
            "A file created later in one of the volume's directories gets the group.",
            new_files,
        ),
        deferred(
            "fsgroup-once",
            FSGROUP,
            "fsGroup is not applied again for a second container, which would change files in use.",
            applies_once,
        )
        .should(),
    ],
};

const MISMATCH: &str = "OnRootMismatch";

/// Groups and modes of files in the volume of [`volume`].
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

fn always_metadata() -> Value {
    json!({"fsGroup": "2000", "fsGroupChangePolicy": "Always"})
}

fn set_group_and_mode(path: &Path, group: u32, mode: u32) {
    lchown(path, None, Some(group)).expect("chown");
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("chmod");
}

/// Returns a volume whose files all have another group, and modes that have to change.
fn volume(scene: &Scene<'_>) -> Volume {
    scene.volume().with_data(|root| {
        fs::create_dir(root.join("directory")).expect("mkdir");
        for file in ["file", "program", "directory/file"] {
            fs::write(root.join(file), "").expect("write");
        }
        nix::unistd::mkfifo(&root.join("pipe"), nix::sys::stat::Mode::S_IRWXU).expect("mkfifo");
        for (path, entry) in UNCHANGED {
            let (group, mode) = entry.split_once(' ').expect("a group and a mode");
            let mode = u32::from_str_radix(mode, 8).expect("octal");
            set_group_and_mode(&root.join(path), group.parse().expect("a gid"), mode);
        }
    })
}

/// Asserts the groups and modes of files, as the container sees them.
#[track_caller]
fn assert_entries(scene: &Scene<'_>, metadata: &Value, entries: Entries) {
    let volume = volume(scene);
    let pod = scene.pod();
    let target = pod.stage(&volume.with_metadata(metadata));
    let app = pod.app_with(&volume, &target);
    for (path, expected) in entries {
        let seen = app.sh(&format!("stat -c '%g %a' /data/{path}"));
        expect(&format!("group and mode of {path}"), &&*seen, expected);
    }
}

fn links(scene: &Scene<'_>) {
    let outside = scene.dir().subdir("outside");
    let file = outside.join("file");
    fs::write(&file, "not the volume's").expect("write");
    set_group_and_mode(&file, 0, 0o600);
    let volume = scene.volume().with_data(|root| {
        symlink(&file, root.join("to-a-file")).expect("ln -s");
        symlink(&outside, root.join("to-a-directory")).expect("ln -s");
    });
    let pod = scene.pod();
    let target = pod.stage(&volume.with_metadata(&always_metadata()));
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

/// Returns the group and mode of a file after `OnRootMismatch` on a volume whose root has this group and mode.
#[track_caller]
fn apply_on_root_mismatch(scene: &Scene<'_>, group: u32, mode: u32) -> String {
    let volume = volume(scene).with_data(|root| set_group_and_mode(root, group, mode));
    let pod = scene.pod();
    let metadata = json!({"fsGroup": "2000", "fsGroupChangePolicy": MISMATCH});
    let target = pod.stage(&volume.with_metadata(&metadata));
    let app = pod.app_with(&volume, &target);
    app.sh("stat -c '%g %a' /data/file")
}

fn root_matches(scene: &Scene<'_>) {
    for mode in [0o2770, 0o2777] {
        expect(
            "the file",
            &&*apply_on_root_mismatch(scene, 2000, mode),
            &"7 600",
        );
    }
}

fn root_mismatches(scene: &Scene<'_>) {
    for (group, mode) in [(7, 0o2770), (2000, 0o0770), (2000, 0o2750)] {
        let what = format!("the file, with a root of {group} {mode:o}");
        expect(
            &what,
            &&*apply_on_root_mismatch(scene, group, mode),
            &"2000 660",
        );
    }
}

fn new_files(scene: &Scene<'_>) {
    let volume = volume(scene);
    let pod = scene.pod();
    let target = pod.stage(&volume.with_metadata(&always_metadata()));
    let app = pod.app_with(&volume, &target);
    let seen = app.sh("echo x > /data/directory/new; stat -c %g /data/directory/new");
    expect("the new file's group", &&*seen, &"2000");
}

fn applies_once(scene: &Scene<'_>) {
    let volume = volume(scene);
    let pod = scene.pod();
    let target = pod.stage(&volume.with_metadata(&always_metadata()));
    let first = pod.app_with(&volume, &target);
    let _ = first.sh("chgrp 7 /data/file; chmod 600 /data/file");
    let second = pod.app_with(&volume, &target);
    let seen = second.sh("stat -c '%g %a' /data/file");
    expect("the file changed by the first", &&*seen, &"7 600");
}
