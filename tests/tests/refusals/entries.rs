//! Invalid entries of the crust directory.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use runcrust_tests::{LoopDevice, Node};
use serde_json::{Value, json};

/// A valid entry of a staged volume, which tests damage and restore.
pub(crate) struct Entry {
    /// `<crust root>/<digest>`.
    pub(crate) path: PathBuf,
    /// A path beside the crust directory.
    aside: PathBuf,
    /// A device without a file system.
    blank: PathBuf,
    files: Vec<(OsString, Vec<u8>)>,
}

impl Entry {
    /// Reads the valid entry.
    pub(crate) fn read(node: &Node, target: &Path, blank: &LoopDevice) -> Self {
        let path = node.entry(target);
        let files = fs::read_dir(&path).expect("an entry").map(|file| {
            let file = file.expect("a file of the entry");
            (file.file_name(), fs::read(file.path()).expect("its bytes"))
        });
        Self {
            files: files.collect(),
            aside: node.dir().join("aside"),
            blank: blank.path().to_owned(),
            path,
        }
    }

    pub(crate) fn info(&self) -> PathBuf {
        self.path.join("mountInfo.json")
    }

    /// Writes the valid entry again, whatever was done to it.
    pub(crate) fn restore(&self) {
        for path in [&self.path, &self.aside] {
            if path.is_dir() && !path.is_symlink() {
                fs::remove_dir_all(path).expect("rm -r");
            } else if path.is_symlink() || path.exists() {
                fs::remove_file(path).expect("rm");
            }
        }
        DirBuilder::new()
            .mode(0o700)
            .create(&self.path)
            .expect("mkdir");
        for (name, bytes) in &self.files {
            let file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(self.path.join(name));
            file.and_then(|mut file| file.write_all(bytes))
                .expect("write");
        }
    }

    fn write(&self, bytes: impl AsRef<[u8]>) {
        fs::write(self.info(), bytes).expect("write mountInfo.json");
    }

    /// Sets a field, also in `metadata.…`. `null` removes it.
    pub(crate) fn set(&self, field: &str, value: Value) {
        let mut document: Value =
            serde_json::from_slice(&fs::read(self.info()).expect("mountInfo.json")).expect("JSON");
        let (place, key) = match field.split_once('.') {
            Some((outer, key)) => (&mut document[outer], key),
            None => (&mut document, field),
        };
        if value.is_null() {
            place.as_object_mut().expect("an object").remove(key);
        } else {
            place[key] = value;
        }
        self.write(document.to_string());
    }
}

/// The moment at which an invalid entry is detected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DetectedWhen {
    /// When the entry is read. A sandbox with the volume is refused, too.
    Read,
    /// When the volume's device is opened. A sandbox with the volume is refused, too. A container is not refused if its
    /// volume is already mounted, because the path to the device is then not needed.
    Opened,
    /// Only when the kernel mounts the volume.
    Mounted,
}

/// A way to damage an entry.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) detected: DetectedWhen,
    /// Texts in the expected error. `{entry}` and `{info}` stand for the entry's paths.
    pub(crate) names: &'static [&'static str],
    pub(crate) damage: fn(&Entry),
}

impl Case {
    /// Returns [`Self::names`] with the entry's paths.
    pub(crate) fn expected(&self, entry: &Entry) -> Vec<String> {
        let info = entry.info();
        let paths = [("{entry}", &entry.path), ("{info}", &info)];
        let fill = |text: &&str| {
            paths
                .iter()
                .fold((*text).to_owned(), |text, (placeholder, path)| {
                    text.replace(placeholder, path.to_str().expect("UTF-8"))
                })
        };
        self.names.iter().map(fill).collect()
    }
}

macro_rules! cases {
    ($($detected:ident $name:literal $names:expr, $entry:ident => $damage:expr;)+) => {
        pub(crate) const CASES: &[Case] = &[$(Case {
            name: $name,
            detected: DetectedWhen::$detected,
            names: &$names,
            damage: |$entry| { $damage; },
        }),+];
    };
}

cases! {
    Read "no mountInfo.json" ["{info}", "missing"],
        e => fs::remove_file(e.info()).expect("rm");
    Read "empty" ["{info}", "JSON"], e => e.write("");
    Read "truncated" ["{info}", "JSON"], e => {
        let bytes = fs::read(e.info()).expect("read");
        e.write(&bytes[..bytes.len() / 2]);
    };
    Read "not JSON" ["{info}", "JSON"], e => e.write("device: /dev/loop0\n");
    Read "not UTF-8" ["{info}"], e => e.write(b"{\"device\":\"\xff\"}");
    Read "an array" ["{info}", "object"], e => e.write("[]");
    Read "version 2" ["{info}", "`version`", "2"], e => e.set("version", json!(2));
    Read "an unknown type" ["{info}", "`volume-type`", "\"blok\""],
        e => e.set("volume-type", json!("blok"));
    Read "two types" ["{info}", "`volume-type`", "`volume_type`"],
        e => e.set("volume_type", json!("network"));
    Read "a network volume" ["network"], e => {
        e.set("volume-type", json!("network"));
        e.set("device", json!("srv:/export"));
    };
    Read "no device" ["{info}", "`device`", "missing"], e => e.set("device", Value::Null);
    Read "a relative device" ["{info}", "`device`", "\"loop0\""],
        e => e.set("device", json!("loop0"));
    Opened "a missing device" ["/dev/runcrust-has-no-such", "ENOENT"],
        e => e.set("device", json!("/dev/runcrust-has-no-such"));
    Opened "a character device" ["/dev/null", "ENOTBLK"], e => e.set("device", json!("/dev/null"));
    Opened "an image file" ["{info}", "ENOTBLK"], e => e.set("device", json!(e.info()));
    Read "a file system that is not allowed" ["\"vfat\"", "fstypes"],
        e => e.set("fstype", json!("vfat"));
    Read "an invalid name of a file system" ["{info}", "`fstype`"], e => e.set("fstype", json!("../ext4"));
    Mounted "another file system" ["/dev/loop", "holds ext", "not xfs"],
        e => e.set("fstype", json!("xfs"));
    Mounted "no file system" ["/dev/loop", "ext4", "no file system"],
        e => {
            e.set("device", json!(e.blank));
            e.set("metadata.diskSeq", Value::Null);
        };
    Read "an invalid disk sequence number" ["{info}", "`metadata.diskSeq`", "\"-1\""],
        e => e.set("metadata.diskSeq", json!("-1"));
    Mounted "an unknown option" ["fsconfig", "no_such_option"],
        e => e.set("options", json!(["no_such_option"]));
    Mounted "an invalid value of an option" ["fsconfig", "commit=soon"],
        e => e.set("options", json!(["commit=soon"]));
    Read "options that are not a list" ["{info}", "`options`"], e => e.set("options", json!("ro"));
    Read "bind" ["bind"], e => e.set("options", json!(["bind", "rw"]));
    Read "a secret" ["password"], e => e.set("options", json!(["password=hunter2"]));
    // An earlier version accepted this.
    Read "a second device" ["journal_path", "second device"],
        e => e.set("options", json!(["journal_path=/dev/sda"]));
    Read "an invalid gid" ["{info}", "`metadata.fsGroup`", "\"-1\""],
        e => e.set("metadata.fsGroup", json!("-1"));
    Read "a gid that is not a string" ["{info}", "`metadata.fsGroup`", "string"],
        e => e.set("metadata.fsGroup", json!(100));
    Read "an unknown policy" ["{info}", "`metadata.fsGroupChangePolicy`", "\"Sometimes\""],
        e => e.set("metadata.fsGroupChangePolicy", json!("Sometimes"));
    Read "an invalid access mode" ["{info}", "`metadata.accessMode`", "\"RWOP\""],
        e => e.set("metadata.accessMode", json!("RWOP"));
    Read "metadata that is not an object" ["{info}", "`metadata`"], e => e.set("metadata", json!([]));
    Read "another volume's target path" ["{info}", "`metadata.targetPath`", "/elsewhere/mount"],
        e => e.set("metadata.targetPath", json!("/elsewhere/mount"));
    Read "a relative target path" ["{info}", "`metadata.targetPath`"],
        e => e.set("metadata.targetPath", json!("pv-1/mount"));
    Read "a link instead of the file" ["{info}", "symbolic link"], e => {
        fs::rename(e.info(), &e.aside).expect("mv");
        symlink(&e.aside, e.info()).expect("ln -s");
    };
    Read "a directory instead of the file" ["{info}"], e => {
        fs::remove_file(e.info()).expect("rm");
        fs::create_dir(e.info()).expect("mkdir");
    };
    Read "a file of another user" ["{info}", "root"],
        e => chown(e.info(), Some(1000), None).expect("chown");
    Read "a file writable by its group" ["{info}", "written"],
        e => fs::set_permissions(e.info(), Permissions::from_mode(0o620)).expect("chmod");
    Read "more than 64 KiB" ["{info}", "64 KiB"], e => {
        let mut bytes = fs::read(e.info()).expect("read");
        bytes.resize(64 * 1024 + 1, b' ');
        e.write(bytes);
    };
    Read "a link instead of the entry" ["{entry}", "link"], e => {
        fs::rename(&e.path, &e.aside).expect("mv");
        symlink(&e.aside, &e.path).expect("ln -s");
    };
    Read "a file instead of the entry" ["{entry}", "directory"], e => {
        fs::rename(&e.path, &e.aside).expect("mv");
        fs::write(&e.path, "").expect("write");
    };
    Read "an entry of another user" ["{entry}", "root"],
        e => chown(&e.path, Some(1000), None).expect("chown");
    Read "an entry writable by others" ["{entry}", "written"],
        e => fs::set_permissions(&e.path, Permissions::from_mode(0o703)).expect("chmod");
}
