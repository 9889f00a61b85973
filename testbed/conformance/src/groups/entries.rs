//! Requirements on damaged and forged entries. Any create of the pod may fail until the entry is staged anew. A
//! container with the host's directory, or with the volume mounted in another way than was asked for, isn't right.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;

use runcrust_tests::cleanup::Cleanup;
use serde_json::{Value, json};

use super::sources::{DIRECTORY, INFO, OVERVIEW};
use crate::requirement::{Group, Need, deferred};
use crate::scene::{Entry, Pod, Scene, Volume, expect};

pub(super) const GROUP: Group = Group {
    name: "entries",
    requirements: &[
        deferred(
            "info-kep-only",
            OVERVIEW,
            "The KEP's own fields are enough: volume-type, device, fstype, metadata.fsGroup.",
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
            "`volume_type` and `fs_type` are read as well, and `directvol` is a block volume.",
            spellings,
        )
        .should(),
        deferred(
            "info-missing",
            DIRECTORY,
            "An entry without mountInfo.json fails the create.",
            |scene| spoilt(scene, |entry| fs::remove_file(entry.info()).expect("rm")),
        ),
        deferred(
            "info-not-json",
            DIRECTORY,
            "A mountInfo.json that isn't JSON fails the create.",
            |scene| spoilt(scene, |entry| write(entry, b"device: /dev/loop0\n")),
        ),
        deferred(
            "info-truncated",
            DIRECTORY,
            "A mountInfo.json that was cut off fails the create.",
            |scene| {
                spoilt(scene, |entry| {
                    let bytes = read(entry);
                    write(entry, &bytes[..bytes.len() / 2]);
                });
            },
        ),
        deferred(
            "info-not-object",
            INFO,
            "A mountInfo.json that is no object fails the create.",
            |scene| spoilt(scene, |entry| write(entry, b"[]")),
        ),
        deferred(
            "info-version",
            INFO,
            "An unknown version fails the create.",
            |scene| refused(scene, &json!({"version": 2})),
        ),
        deferred(
            "info-volume-type",
            INFO,
            "An unknown volume type fails the create.",
            |scene| refused(scene, &json!({"volume-type": "blok"})),
        ),
        deferred(
            "info-no-device",
            INFO,
            "A missing device fails the create.",
            |scene| refused(scene, &json!({"device": null})),
        ),
        deferred(
            "info-device-type",
            INFO,
            "A device that is no string fails the create.",
            |scene| refused(scene, &json!({"device": 7})),
        ),
        deferred(
            "info-device-gone",
            INFO,
            "A device that isn't there fails the create.",
            |scene| refused(scene, &json!({"device": "/dev/conformance-has-no-such"})),
        ),
        deferred(
            "info-device-link",
            INFO,
            "A device can be a link to one, as those in /dev/disk/by-id are.",
            device_link,
        ),
        deferred(
            "info-device-other",
            INFO,
            "A device that is no block device fails the create.",
            |scene| refused(scene, &json!({"device": "/dev/null"})),
        ),
        deferred(
            "info-no-fstype",
            INFO,
            "A missing file system fails the create.",
            |scene| refused(scene, &json!({"fstype": null})),
        ),
        deferred(
            "info-fstype-unknown",
            INFO,
            "An unknown file system fails the create.",
            |scene| refused(scene, &json!({"fstype": "nosuchfs"})),
        ),
        deferred(
            "info-fstype-wrong",
            INFO,
            "Another file system than the one on the device fails the create.",
            |scene| refused(scene, &json!({"fstype": "xfs"})),
        ),
        deferred(
            "info-options-type",
            INFO,
            "Options that are no list fail the create.",
            |scene| refused(scene, &json!({"options": "noatime"})),
        ),
        deferred(
            "info-option-bind",
            INFO,
            "The option bind fails the create.",
            |scene| refused(scene, &json!({"options": ["bind", "rw"]})),
        ),
        deferred(
            "info-metadata-type",
            INFO,
            "Metadata that is no object fails the create.",
            |scene| refused(scene, &json!({"metadata": "x"})),
        ),
        deferred(
            "info-fsgroup",
            INFO,
            "An fsGroup that is no gid fails the create.",
            |scene| refused(scene, &json!({"metadata": {"fsGroup": "staff"}})),
        ),
        deferred(
            "info-fsgroup-negative",
            INFO,
            "A negative fsGroup fails the create.",
            |scene| refused(scene, &json!({"metadata": {"fsGroup": "-1"}})),
        ),
        deferred(
            "info-policy",
            INFO,
            "An unknown fsGroupChangePolicy fails the create.",
            |scene| {
                refused(
                    scene,
                    &json!({"metadata": {"fsGroup": "2000", "fsGroupChangePolicy": "Sometimes"}}),
                );
            },
        ),
        deferred(
            "info-access-mode",
            INFO,
            "An unknown access mode fails the create.",
            |scene| refused(scene, &json!({"metadata": {"accessMode": "RWOP"}})),
        )
        .should(),
        deferred(
            "info-target-path",
            INFO,
            "Another volume's target path in the metadata fails the create.",
            |scene| {
                refused(
                    scene,
                    &json!({"metadata": {"targetPath": "/elsewhere/mount"}}),
                );
            },
        )
        .should(),
        deferred(
            "info-link",
            DIRECTORY,
            "A mountInfo.json that is a link fails the create.",
            |scene| {
                spoilt(scene, |entry| {
                    let aside = entry.path().join("aside");
                    fs::rename(entry.info(), &aside).expect("mv");
                    symlink(&aside, entry.info()).expect("ln -s");
                });
            },
        ),
        deferred(
            "info-owner",
            DIRECTORY,
            "A mountInfo.json that isn't root's fails the create.",
            |scene| {
                spoilt(scene, |entry| {
                    chown(entry.info(), Some(1000), None).expect("chown");
                });
            },
        ),
        deferred(
            "info-mode",
            DIRECTORY,
            "A mountInfo.json that its group or others can write fails the create.",
            |scene| {
                for mode in [0o620, 0o602] {
                    spoilt(scene, |entry| chmod(&entry.info(), mode));
                }
            },
        ),
        deferred(
            "info-too-large",
            DIRECTORY,
            "A mountInfo.json of more than 64 KiB fails the create.",
            |scene| {
                spoilt(scene, |entry| {
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
                    spoilt(scene, |entry| chmod(entry.path(), mode));
                }
            },
        ),
        deferred(
            "entry-owner",
            DIRECTORY,
            "An entry that isn't root's fails the create.",
            |scene| {
                spoilt(scene, |entry| {
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
                    crust_directory(scene, |root| chmod(root, mode));
                }
            },
        )
        .needs(Need::UnusedCrustDirectory)
        .alone(),
        deferred(
            "crust-directory-owner",
            DIRECTORY,
            "A crust directory that isn't root's fails the create.",
            |scene| {
                crust_directory(scene, |root| {
                    chown(root, Some(1000), None).expect("chown");
                });
            },
        )
        .needs(Need::UnusedCrustDirectory)
        .alone(),
        deferred(
            "entry-half-staged",
            DIRECTORY,
            "Where the target path leads over a link, the resolved path's entry alone fails the create.",
            half_staged,
        ),
    ],
};

/// No app of a pod comes to be while its entry is spoilt, and one does when it is staged anew.
#[track_caller]
fn spoilt(scene: &Scene<'_>, spoil: impl FnOnce(&Entry)) {
    let volume = scene.volume();
    let pod = scene.pod();
    let target = pod.stage(&volume.info());
    pod.entry(&target, spoil);
    is_refused(&pod, &volume, &target);
}

/// The same with these fields in `mountInfo.json`; `null` is one that is missing.
#[track_caller]
fn refused(scene: &Scene<'_>, fields: &Value) {
    let volume = scene.volume();
    let mut info = volume.staged(fields);
    if let Some(fields) = info.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    let pod = scene.pod();
    let target = pod.stage(&info);
    is_refused(&pod, &volume, &target);
}

#[track_caller]
fn is_refused(pod: &Pod<'_>, volume: &Volume, target: &Path) {
    let _ = pod.refuses(target);
    assert!(volume.is_free(), "the volume is mounted somewhere");
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

/// The app has the volume, whatever the spelling.
#[track_caller]
fn works(scene: &Scene<'_>, volume: &Volume, info: &Value) {
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
    works(scene, &volume, &info);
}

fn unknown_fields(scene: &Scene<'_>) {
    let volume = scene.volume();
    let pod = scene.pod();
    let metadata = json!({"fsGroup": "2000", "org.example": {"of": "nobody"}});
    let info = volume.staged(&json!({"metadata": metadata, "org.example": [1, 2, 3]}));
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
        works(scene, &volume, &info);
    }
}

fn device_link(scene: &Scene<'_>) {
    let volume = scene.volume();
    let link = scene.dir().join("by-id");
    symlink(volume.device().path(), &link).expect("ln -s");
    works(scene, &volume, &volume.staged(&json!({"device": link})));
}

/// No app of a pod comes to be while the crust directory itself is spoilt.
#[track_caller]
fn crust_directory(scene: &Scene<'_>, spoil: impl FnOnce(&Path)) {
    let volume = scene.volume();
    let pod = scene.pod();
    let target = pod.stage(&volume.info());
    let root = &scene.suite().crust_root;
    let mended = as_it_is(root);
    spoil(root);
    let _ = pod.refuses(&target);
    drop(mended);
    assert!(volume.is_free(), "the volume is mounted somewhere");
    let _app = pod.app_with(&volume, &target);
}

/// Dropped, it gives a file the owner and the mode back that it has now.
fn as_it_is(path: &Path) -> Cleanup {
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
