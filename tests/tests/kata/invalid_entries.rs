//! Invalid entries in Kata's layout.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};

use runcrust_tests::refusal;
use runcrust_tests::{POD, on_each_delegate};

use super::*;

/// Texts that the expected error contains, and a function that damages the entry. The texts `INFO` and `ENTRY` stand
/// for the paths of the entry's `mountInfo.json` and of its directory.
type Case = (&'static [&'static str], fn(&StagedNode));

fn set(staged: &StagedNode, field: &str, value: Value) {
    let mut info = info(&staged.device);
    info[field] = value;
    staged.entry.write(&info.to_string());
}

const CASES: &[Case] = &[
    (&["INFO", "missing"], |it| {
        fs::remove_file(it.entry.info()).unwrap();
    }),
    (&["INFO", "JSON"], |it| it.entry.write("")),
    (&["INFO", "object"], |it| it.entry.write("[]")),
    (&["INFO", "`volume-type`", "spdkvol"], |it| {
        set(it, "volume-type", json!("spdkvol"));
    }),
    (&["INFO", "`device`"], |it| set(it, "device", json!(""))),
    // Kata's own driver stages an image file for the guest.
    (&["ENOTBLK", "losetup"], |it| {
        set(it, "device", json!(it.device.file()));
    }),
    (&["\"vfat\"", "fstypes"], |it| {
        set(it, "fstype", json!("vfat"));
    }),
    // An earlier version of Kata's driver staged the options of its own bind mount.
    (&["bind"], |it| set(it, "options", json!(["bind", "rw"]))),
    (&["INFO", "`metadata.fsGroup`", "wheel"], |it| {
        set(it, "metadata", json!({"fsGroup": "wheel"}));
    }),
    (&["INFO", "`metadata.encryptionKey`"], |it| {
        set(it, "metadata", json!({"encryptionKey": "k"}));
    }),
    (&["INFO", "`metadata.createFilesystem`"], |it| {
        set(it, "metadata", json!({"createFilesystem": "true"}));
    }),
    (&["INFO", "root"], |it| {
        chown(it.entry.info(), Some(1000), None).unwrap();
    }),
    (&["INFO", "written"], |it| {
        fs::set_permissions(it.entry.info(), Permissions::from_mode(0o620)).unwrap();
    }),
    (&["ENTRY", "written"], |it| {
        fs::set_permissions(it.entry.path(), Permissions::from_mode(0o707)).unwrap();
    }),
    (&["ENTRY", "root"], |it| {
        chown(it.entry.path(), Some(1000), None).unwrap();
    }),
    (&["INFO", "symbolic link"], |it| {
        let aside = it.node.dir().join("aside");
        // Copied, because the two may be on different file systems.
        fs::copy(it.entry.info(), &aside).unwrap();
        fs::remove_file(it.entry.info()).unwrap();
        symlink(&aside, it.entry.info()).unwrap();
    }),
    (&["ENTRY", "link"], |it| {
        let aside = it.node.dir().subdir("elsewhere");
        it.entry.remove();
        fs::write(aside.join("mountInfo.json"), info(&it.device).to_string()).unwrap();
        symlink(&aside, it.entry.path()).unwrap();
    }),
];

on_each_delegate! {
    fn an_invalid_entry_fails_the_create_with_a_reason(delegate: Delegate) {
        let staged = StagedNode::new(delegate, Value::Null);
        let sandbox = staged.node.sandbox(POD);
        let restore = || {
            if staged.entry.path().is_symlink() {
                fs::remove_file(staged.entry.path()).unwrap();
            } else {
                staged.entry.remove();
            }
            staged.entry.write(&info(&staged.device).to_string());
        };
        for (names, damage) in CASES {
            damage(&staged);
            let bundle = staged.node.app_bundle(&sandbox).bind(&staged.target, "/data", &[]);
            let refused = refusal::create_refused(&staged.node, &bundle.write()).naming_volume("pv-1");
            let (info, entry) = (staged.entry.info(), staged.entry.path());
            let fill = |name: &&str| {
                let name = name.replace("INFO", info.to_str().unwrap());
                name.replace("ENTRY", entry.to_str().unwrap())
            };
            let names: Vec<String> = names.iter().map(fill).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let _ = refused.containing(&names).message();
            restore();
        }
        let app = staged.node.app(&sandbox, &staged.target, "/data");
        let _ = app.sh("echo works > /data/file");
        assert_eq!(fs::read_dir(&staged.target).unwrap().count(), 0);
    }

    fn another_pods_volume_is_refused(delegate: Delegate) {
        let staged = StagedNode::new(delegate, Value::Null);
        let other = staged.node.target("pod-b", "pv-2");
        let device = staged.node.ext4();
        let _entry = KataEntry::add(&other, &info(&device));
        let sandbox = staged.node.sandbox(POD);
        let bundle = staged.node.app_bundle(&sandbox).bind(&other, "/data", &[]).write();
        let refused = refusal::create_refused(&staged.node, &bundle).naming_volume("pv-2");
        let _ = refused.containing(&["belongs to pod pod-b"]).message();
        assert!(device.is_free());
    }
}
