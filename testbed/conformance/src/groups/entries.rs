//! Requirements on damaged and forged entries. The create of the sandbox or of the container may fail, until the entry
//! is staged again. A container with the host's directory, or with the volume mounted in another way than staged, is a
//! failure.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;

use runcrust_tests::cleanup::Cleanup;
use serde_json::{Value, json};

use super::sources::{DIRECTORY, INFO, OVERVIEW};
use crate::requirement::{Group, Prerequisite, deferred};
use crate::scene::{Entry, Pod, Scene, Volume, expect};

pub(super) const GROUP: Group = Group {
    name: "entries",
    requirements: &[
        deferred(
            "info-kep-only",
            OVERVIEW,
            "The KEP's own fields suffice: volume-type, device, fstype, metadata.fsGroup.",
            kep_only,
        ),
        deferred(
            "info-unknown-fields",
            INFO,
            "Unknown fields, and unknown files beside mountInfo.json, are tolerated.",
            unknown_fields,
        ),
        deferred(
            "info-spellings",
            INFO,
            "`volume_type` and `fs_type` are accepted, too, and `directvol` means a block volume.",
            spellings,
        )
        .should(),
        deferred(
            "info-missing",
            DIRECTORY,
            "An entry without mountInfo.json fails the create.",
            |scene| fails_while_damaged(scene, |entry| fs::remove_file(entry.info()).expect("rm")),
        ),
        deferred(
            "info-not-json",
            DIRECTORY,
            "A mountInfo.json that is not JSON fails the create.",
            |scene| fails_while_damaged(scene, |entry| write(entry, b"device: /dev/loop0\n")),
        ),
        deferred(
            "info-truncated",
            DIRECTORY,
            "A truncated mountInfo.json fails the create.",
            |scene| {
                fails_while_damaged(scene, |entry| {
                    let bytes = read(entry);
                    write(entry, &bytes[..bytes.len() / 2]);
                });
            },
        ),
        deferred(
            "info-not-object",
            INFO,
            "A mountInfo.json that is not an object fails the create.",
            |scene| fails_while_damaged(scene, |entry| write(entry, b"[]")),
        ),
        deferred(
            "info-version",
            INFO,
            "An unknown version fails the create.",
            |scene| fails_with(scene, &json!({"version": 2})),
        ),
        deferred(
            "info-volume-type",
            INFO,
            "An unknown volume type fails the create.",
            |scene| fails_with(scene, &json!({"volume-type": "blok"})),
        ),
        deferred(
            "info-no-device",
            INFO,
            "A missing device fails the create.",
            |scene| fails_with(scene, &json!({"device": null})),
        ),
        deferred(
            "info-device-type",
            INFO,
            "A device that is not a string fails the create.",
            |scene| fails_with(scene, &json!({"device": 7})),
        ),
        deferred(
            "info-device-gone",
            INFO,
            "A device that does not exist fails the create.",
            |scene| fails_with(scene, &json!({"device": "/dev/conformance-has-no-such"})),
        ),
        deferred(
            "info-device-link",
            INFO,
            "A device can be a symbolic link, as in /dev/disk/by-id.",
            device_link,
        ),
        deferred(
            "info-device-other",
            INFO,
            "A device that is not a block device fails the create.",
            |scene| fails_with(scene, &json!({"device": "/dev/null"})),
        ),
        deferred(
            "info-no-fstype",
            INFO,
            "A missing file system type fails the create.",
            |scene| fails_with(scene, &json!({"fstype": null})),
        ),
        deferred(
            "info-fstype-unknown",
            INFO,
            "An unknown file system type fails the create.",
            |scene| fails_with(scene, &json!({"fstype": "nosuchfs"})),
        ),
        deferred(
            "info-fstype-wrong",
            INFO,
            "A file system type other than that on the device fails the create.",
            |scene| fails_with(scene, &json!({"fstype": "xfs"})),
        ),
        deferred(
            "info-options-type",
            INFO,
            "Options that are not a list fail the create.",
            |scene| fails_with(scene, &json!({"options": "noatime"})),
        ),
        deferred(
            "info-option-bind",
            INFO,
            "The option `bind` fails the create.",
            |scene| fails_with(scene, &json!({"options": ["bind", "rw"]})),
        ),
        deferred(
            "info-metadata-type",
            INFO,
            "Metadata that is not an object fails the create.",
            |scene| fails_with(scene, &json!({"metadata": "x"})),
        ),
        deferred(
            "info-fsgroup",
            INFO,
            "An fsGroup that is not a gid fails the create.",
            |scene| fails_with(scene, &json!({"metadata": {"fsGroup": "staff"}})),
        ),
        deferred(
            "info-fsgroup-negative",
            INFO,
            "A negative fsGroup fails the create.",
            |scene| fails_with(scene, &json!({"metadata": {"fsGroup": "-1"}})),
        ),
        deferred(
            "info-policy",
            INFO,
            "An unknown fsGroupChangePolicy fails the create.",
            |scene| {
                fails_with(
                    scene,
                    &json!({"metadata": {"fsGroup": "2000", "fsGroupChangePolicy": "Sometimes"}}),
                );
            },
        ),
        deferred(
            "info-access-mode",
            INFO,
            "An unknown access mode fails the create.",
            |scene| fails_with(scene, &json!({"metadata": {"accessMode": "RWOP"}})),
        )
        .should(),
        deferred(
            "info-target-path",
            INFO,
            "The target path of another volume in the metadata fails the create.",
            |scene| {
                fails_with(
                    scene,
                    &json!({"metadata": {"targetPath": "/elsewhere/mount"}}),
                );
            },
        )
        .should(),
        deferred(
            "info-link",
            DIRECTORY,
            "A mountInfo.json that is a symbolic link fails the create.",
            |scene| {
                fails_while_damaged(scene, |entry| {
                    let aside = entry.path().join("aside");
                    fs::rename(entry.info(), &aside).expect("mv");
                    symlink(&aside, entry.info()).expect("ln -s");
                });
            },
        ),
        deferred(
            "info-owner",
            DIRECTORY,
            "A mountInfo.json that root does not own fails the create.",
            |scene| {
                fails_while_damaged(scene, |entry| {
                    chown(entry.info(), Some(1000), None).expect("chown");
                });
            },
        ),
        deferred(
            "info-mode",
            DIRECTORY,
            "A mountInfo.json that its group or others can write to fails the create.",
            |scene| {
                for mode in [0o620, 0o602] {
                    fails_while_damaged(scene, |entry| chmod(&entry.info(), mode));
                }
            },
        ),
        deferred(
            "info-too-large",
            DIRECTORY,
            "A mountInfo.json larger than 64 KiB fails the create.",
            |scene| {
                fails_while_damaged(scene, |entry| {
                    let mut bytes = read(entry);
                    bytes.resize(64 * 1024 + 1, b' ');
                    write(entry, &bytes);
                });
            },
        ),
        deferred(
            "entry-mode",
            DIRECTORY,
            "An entry that its group or others can write to fails the create.",
            |scene| {
                for mode in [0o720, 0o702] {
                    fails_while_damaged(scene, |entry| chmod(entry.path(), mode));
                }
            },
        ),
        deferred(
            "entry-owner",
            DIRECTORY,
            "An entry that root does not own fails the create.",
            |scene| {
                fails_while_damaged(scene, |entry| {
                    chown(entry.path(), Some(1000), None).expect("chown");
                });
            },
        ),
        deferred(
            "crust-directory-mode",
            DIRECTORY,
            "A crust directory that its group or others can write to fails the create.",
            |scene| {
                for mode in [0o720, 0o702] {
                    fails_while_directory_damaged(scene, |root| chmod(root, mode));
                }
            },
        )
        .needs(Prerequisite::UnusedCrustDirectory)
        .alone(),
        deferred(
            "crust-directory-owner",
            DIRECTORY,
            "A crust directory that root does not own fails the create.",
            |scene| {
                fails_while_directory_damaged(scene, |root| {
                    chown(root, Some(1000), None).expect("chown");
                });
            },
        )
        .needs(Prerequisite::UnusedCrustDirectory)
        .alone(),
        deferred(
            "entry-half-staged",
            DIRECTORY,
            "If the target path leads over a symbolic link, the resolved path's entry alone fails the create.",
            half_staged,
        ),
    ],
};

/// Asserts that a pod's app container cannot be created while its entry is damaged, but can be created after the volume
/// is staged again.
#[track_caller]
fn fails_while_damaged(scene: &Scene<'_>, spoil: impl FnOnce(&Entry)) {
    let volume = scene.volume();
    let pod = scene.pod();
    let target = pod.stage(&volume.info());
    pod.entry(&target, spoil);
    assert_refused_until_restaged(&pod, &volume, &target);
}

/// Asserts the same as [`fails_while_damaged`] with these fields in `mountInfo.json`. A field that is `null` is left
/// out.
#[track_caller]
fn fails_with(scene: &Scene<'_>, fields: &Value) {
    let volume = scene.volume();
    let mut info = volume.info_with(fields);
    if let Some(fields) = info.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    let pod = scene.pod();
    let target = pod.stage(&info);
    assert_refused_until_restaged(&pod, &volume, &target);
}

#[track_caller]
fn assert_refused_until_restaged(pod: &Pod<'_>, volume: &Volume, target: &Path) {
    let _ = pod.refuses(target);
    assert!(volume.is_free(), "the volume is mounted");
    let _ = pod.stage(&volume.info());
    let _app = pod.app_with(volume, target);
}

fn read(entry: &Entry) -> Vec<u8> {
    fs::read(entry.info()).expect("mountInfo.json")
}

fn write(entry: &Entry, bytes: &[u8]) {
    fs::write(entry.info(), bytes).expect("write mountInfo.json");
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("chmod");
}

/// Asserts that the app container has the volume when it is staged with exactly this `mountInfo.json`.
#[track_caller]
fn assert_shown_when_staged_with(scene: &Scene<'_>, volume: &Volume, info: &Value) {
    let pod = scene.pod();
    let target = pod.stage_exactly("pv-1", info);
    let _app = pod.app_with(volume, &target);
}

fn kep_only(scene: &Scene<'_>) {
    let volume = scene.volume();
    let info = json!({
        "volume-type": "block",
        "device": volume.device().path(),
        "fstype": "ext4",
        "metadata": {"fsGroup": "2000"},
    });
    assert_shown_when_staged_with(scene, &volume, &info);
}

fn unknown_fields(scene: &Scene<'_>) {
    let volume = scene.volume();
    let pod = scene.pod();
    let metadata = json!({"fsGroup": "2000", "org.example": {"of": "nobody"}});
    let info = volume.info_with(&json!({"metadata": metadata, "org.example": [1, 2, 3]}));
    let target = pod.stage(&info);
    pod.entry(&target, |entry| {
        fs::write(entry.path().join("org.example"), "nobody's").expect("write");
    });
    let app = pod.app_with(&volume, &target);
    expect("the volume's group", &&*app.sh("stat -c %g /data"), &"2000");
}

fn spellings(scene: &Scene<'_>) {
    let volume = scene.volume();
    for volume_type in ["block", "directvol"] {
        let info = json!({
            "volume_type": volume_type,
            "device": volume.device().path(),
            "fs_type": "ext4",
        });
        assert_shown_when_staged_with(scene, &volume, &info);
    }
}

fn device_link(scene: &Scene<'_>) {
    let volume = scene.volume();
    let link = scene.dir().join("by-id");
    symlink(volume.device().path(), &link).expect("ln -s");
    assert_shown_when_staged_with(scene, &volume, &volume.info_with(&json!({"device": link})));
}

/// Asserts that a pod's app container cannot be created while the crust directory itself is damaged.
#[track_caller]
fn fails_while_directory_damaged(scene: &Scene<'_>, spoil: impl FnOnce(&Path)) {
    let volume = scene.volume();
    let pod = scene.pod();
    let target = pod.stage(&volume.info());
    let root = &scene.suite().crust_root;
    let restored = restore_on_drop(root);
    spoil(root);
    let _ = pod.refuses(&target);
    drop(restored);
    assert!(volume.is_free(), "the volume is mounted");
    let _app = pod.app_with(&volume, &target);
}

/// Returns a guard that restores the present owner and mode of a file.
fn restore_on_drop(path: &Path) -> Cleanup {
    let path = path.to_owned();
    let now = path.metadata().expect("stat");
    Cleanup::register(move || {
        let owned = chown(&path, Some(now.uid()), Some(now.gid()));
        let done = owned.and_then(|()| fs::set_permissions(&path, now.permissions()));
        let failed = done.err();
        failed.map_or(Vec::new(), |error| {
            vec![format!("{}: {error}", path.display())]
        })
    })
}

fn half_staged(scene: &Scene<'_>) {
    let volume = scene.volume();
    let pod = Pod::behind_a_link(scene);
    let target = pod.stage(&volume.info());
    pod.entry(&target, |entry| {
        fs::remove_dir_all(entry.path()).expect("rm -r");
    });
    let resolved = target.canonicalize().expect("a directory");
    for source in [&resolved, &target] {
        let _ = pod.refuses(source);
    }
    let _ = pod.stage(&volume.info());
    for source in [&resolved, &target] {
        let _app = pod.app_with(&volume, source);
    }
}
