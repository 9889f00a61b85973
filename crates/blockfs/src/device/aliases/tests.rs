use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::fs::symlink;

use super::*;
use crate::device::sysfs::{
    add_loop_devices, disk_seq, has_holders, parse_loop_devices, with_file_name,
};

/// A fake sysfs in a temporary directory. As in the real one, devices are directories in `devices/`.
struct Sysfs(tempfile::TempDir);

impl Sysfs {
    fn new() -> Self {
        let sysfs = tempfile::tempdir().expect("a temporary directory");
        fs::create_dir_all(sysfs.path().join("dev/block")).expect("dev/block");
        Self(sysfs)
    }

    /// Adds a device. `name` is `sda`, or `sda/sda1` for a partition.
    fn device(&self, name: &str, number: &str) -> PathBuf {
        let directory = self.0.path().join("devices").join(name);
        fs::create_dir_all(&directory).expect("the device's directory");
        Self::write(&directory, "dev", &format!("{number}\n"));
        if name.contains('/') {
            Self::write(&directory, "partition", "1\n");
        } else {
            fs::create_dir(directory.join("slaves")).expect("slaves");
        }
        symlink(&directory, self.0.path().join("dev/block").join(number)).expect("a link");
        directory
    }

    fn lies_on(upper: &Path, lower: &Path) {
        let name = lower.file_name().expect("a name");
        symlink(lower, upper.join("slaves").join(name)).expect("a link");
    }

    fn attach(device: &Path, file: &Path, offset: u64) {
        fs::create_dir(device.join("loop")).expect("loop");
        Self::write(
            device,
            "loop/backing_file",
            &format!("{}\n", file.display()),
        );
        Self::write(device, "loop/offset", &format!("{offset}\n"));
    }

    fn write(directory: &Path, name: &str, contents: &str) {
        fs::write(directory.join(name), contents).expect("the file is written");
    }

    fn conflict(&self, a: &str, b: &str) -> bool {
        let (a, b) = (self.aliases(a), self.aliases(b));
        let conflict = a.conflicts_with(&b);
        assert_eq!(conflict, b.conflicts_with(&a), "the relation is symmetric");
        conflict
    }

    fn aliases(&self, number: &str) -> Aliases {
        Aliases::read(
            self.0.path(),
            |_| Ok(None),
            number.parse().expect("a number"),
        )
        .expect("sysfs is complete")
    }
}

fn status(file: LoopFile, offset: u64) -> LoopStatus {
    LoopStatus {
        file,
        offset,
        size_limit: 0,
        flags: 0,
    }
}

#[test]
fn a_device_conflicts_with_itself_and_not_with_another() {
    let sysfs = Sysfs::new();
    sysfs.device("sda", "8:0");
    sysfs.device("sdb", "8:16");
    assert!(sysfs.conflict("8:0", "8:0"));
    assert!(!sysfs.conflict("8:0", "8:16"));
}

#[test]
fn device_mapper_conflicts_with_every_device_below_it() {
    let sysfs = Sysfs::new();
    let disk = sysfs.device("sda", "8:0");
    let crypt = sysfs.device("dm-0", "253:0");
    let volume = sysfs.device("dm-1", "253:1");
    Sysfs::lies_on(&crypt, &disk);
    Sysfs::lies_on(&volume, &crypt);
    assert!(sysfs.conflict("253:0", "8:0"));
    assert!(sysfs.conflict("253:1", "253:0"));
    assert!(sysfs.conflict("253:1", "8:0"));
}

#[test]
fn logical_volumes_of_one_physical_volume_do_not_conflict() {
    let sysfs = Sysfs::new();
    let disk = sysfs.device("sda", "8:0");
    for (name, number) in [("dm-0", "253:0"), ("dm-1", "253:1")] {
        let volume = sysfs.device(name, number);
        Sysfs::lies_on(&volume, &disk);
    }
    assert!(!sysfs.conflict("253:0", "253:1"));
}

#[test]
fn a_partition_conflicts_with_its_disk_but_no_other_partition() {
    let sysfs = Sysfs::new();
    sysfs.device("sda", "8:0");
    let first = sysfs.device("sda/sda1", "8:1");
    sysfs.device("sda/sda2", "8:2");
    let crypt = sysfs.device("dm-0", "253:0");
    Sysfs::lies_on(&crypt, &first);
    assert!(sysfs.conflict("8:1", "8:0"));
    assert!(!sysfs.conflict("8:1", "8:2"));
    assert!(sysfs.conflict("253:0", "8:0"));
    assert!(!sysfs.conflict("253:0", "8:2"));
}

#[test]
fn loop_devices_on_one_file_conflict_at_the_same_offset() {
    let sysfs = Sysfs::new();
    let image = sysfs.0.path().join("an image");
    let link = sysfs.0.path().join("link");
    fs::write(&image, "").expect("the image is written");
    fs::hard_link(&image, &link).expect("a second name");
    for (name, number, file, offset) in [
        ("loop0", "7:0", &image, 0),
        ("loop1", "7:1", &link, 0),
        ("loop2", "7:2", &image, 1_048_576),
    ] {
        let device = sysfs.device(name, number);
        Sysfs::attach(&device, file, offset);
    }
    assert!(sysfs.conflict("7:0", "7:1"));
    assert!(!sysfs.conflict("7:0", "7:2"));
}

#[test]
fn a_loop_device_conflicts_with_device_mapper_over_its_file() {
    let sysfs = Sysfs::new();
    let image = sysfs.0.path().join("image");
    fs::write(&image, "").expect("the image is written");
    let lower = sysfs.device("loop0", "7:0");
    Sysfs::attach(&lower, &image, 0);
    let other = sysfs.device("loop1", "7:1");
    Sysfs::attach(&other, &image, 0);
    let crypt = sysfs.device("dm-0", "253:0");
    Sysfs::lies_on(&crypt, &lower);
    assert!(sysfs.conflict("253:0", "7:1"));
}

#[test]
fn a_file_that_cannot_be_looked_up_is_compared_by_its_path() {
    let sysfs = Sysfs::new();
    for (name, number, file) in [
        ("loop0", "7:0", "/gone/image (deleted)"),
        ("loop1", "7:1", "/gone/image (deleted)"),
        ("loop2", "7:2", "/gone/another (deleted)"),
    ] {
        let device = sysfs.device(name, number);
        Sysfs::attach(&device, Path::new(file), 0);
    }
    assert!(sysfs.conflict("7:0", "7:1"));
    assert!(!sysfs.conflict("7:0", "7:2"));
}

/// The path in sysfs is that of the process that attached the device. In another mount namespace it may lead to another
/// file, or the file may have several paths.
#[test]
fn the_inode_from_the_device_takes_precedence_over_the_path() {
    let sysfs = Sysfs::new();
    for (name, number, file) in [
        ("loop0", "7:0", "/pv.img"),
        ("loop1", "7:1", "/data/pv.img"),
        ("loop2", "7:2", "/pv.img"),
    ] {
        let device = sysfs.device(name, number);
        Sysfs::attach(&device, Path::new(file), 0);
    }
    let file = |number: DeviceNumber| {
        let file = LoopFile {
            device: 0x801,
            inode: if number.minor() == 2 { 9 } else { 8 },
            disk: None,
        };
        Ok(Some(status(file, 0)))
    };
    let [a, b, c] = ["7:0", "7:1", "7:2"]
        .map(|number| Aliases::read(sysfs.0.path(), file, number.parse().unwrap()).unwrap());
    assert!(a.conflicts_with(&b));
    assert!(!a.conflicts_with(&c));
}

/// kubelet attaches such a loop device to the device of a volume of mode `Block`.
#[test]
fn a_loop_device_on_a_device_lies_on_it() {
    let sysfs = Sysfs::new();
    let disk = sysfs.device("sda", "8:0");
    sysfs.device("sdb", "8:16");
    let crypt = sysfs.device("dm-0", "253:0");
    Sysfs::lies_on(&crypt, &disk);
    for (name, number, offset) in [
        ("loop0", "7:0", 0),
        ("loop1", "7:1", 0),
        ("loop2", "7:2", 1_048_576),
    ] {
        let device = sysfs.device(name, number);
        Sysfs::attach(&device, Path::new("/dev/sda"), offset);
    }
    let on_sda = |number: DeviceNumber| {
        assert_eq!(number.major(), 7);
        let file = LoopFile {
            device: 5,
            inode: 1,
            disk: Some(DeviceNumber::new(8, 0)),
        };
        let offset = if number.minor() == 2 { 1_048_576 } else { 0 };
        Ok(Some(status(file, offset)))
    };
    let aliases =
        |number: &str| Aliases::read(sysfs.0.path(), on_sda, number.parse().unwrap()).unwrap();
    for (one, other, conflict) in [
        ("7:0", "8:0", true),
        ("7:0", "8:16", false),
        ("7:0", "7:1", true),
        // Different parts of one disk don't conflict, like two partitions.
        ("7:0", "7:2", false),
        ("7:2", "8:0", true),
        ("7:0", "253:0", false),
    ] {
        assert_eq!(
            aliases(one).conflicts_with(&aliases(other)),
            conflict,
            "{one} {other}"
        );
    }
    let on_loop = sysfs.device("dm-1", "253:1");
    Sysfs::lies_on(&on_loop, &sysfs.0.path().join("devices/loop0"));
    for (number, expected) in [("7:0", true), ("253:1", true), ("253:0", false)] {
        let mut loops = BTreeMap::new();
        add_loop_devices(sysfs.0.path(), number.parse().unwrap(), &mut loops);
        let expected = expected.then_some(DeviceNumber::new(7, 0));
        assert!(loops.into_keys().eq(expected), "{number}");
    }
}

#[test]
fn loop_devices_are_listed_without_their_partitions() {
    let list = "major minor  #blocks  name\n\n   8        0   10485760 sda\n   8        1    1048576 sda1\n   \
                7        0      65536 loop0\n   7        1      65535 loop0p1\n 259        0        100 \
                loop1p1\n   7       16 4294967296 loop1\n   7   300000      1 loop18750\n";
    let expected = [0, 16, 300_000].map(|minor| DeviceNumber::new(7, minor));
    assert_eq!(parse_loop_devices(list), expected);
    assert_eq!(parse_loop_devices("major minor  #blocks  name\n\n"), []);
}

#[test]
fn a_device_unknown_to_sysfs_is_an_error() {
    let sysfs = Sysfs::new();
    let error = Aliases::read(sysfs.0.path(), |_| Ok(None), DeviceNumber::new(8, 0))
        .expect_err("no device");
    assert!(
        error.to_string().starts_with("device 8:0: read "),
        "{error}"
    );
}

#[test]
fn a_device_on_top_is_a_holder() {
    let sysfs = Sysfs::new();
    let (disk, mapper) = (sysfs.device("sda", "8:0"), sysfs.device("dm-0", "253:0"));
    let held = |number: &str| has_holders(sysfs.0.path(), number.parse().unwrap()).unwrap();
    assert!(!held("8:0"), "a device without a `holders` directory");
    fs::create_dir(disk.join("holders")).unwrap();
    assert!(!held("8:0"));
    symlink(&mapper, disk.join("holders/dm-0")).unwrap();
    assert!(held("8:0") && !held("253:0"));
}

#[test]
fn a_loop_device_is_found_by_its_file_name_in_any_directory() {
    let sysfs = Sysfs::new();
    for (number, path) in [
        (0, "/data/pv-1.img"),
        (1, "/another/namespace/pv-1.img"),
        (2, "/data/pv-1.img (deleted)"),
        (3, "/data/pv-10.img"),
        (4, "/data/pv-1.img/other"),
    ] {
        let device = sysfs.device(&format!("loop{number}"), &format!("7:{number}"));
        Sysfs::attach(&device, Path::new(path), 0);
    }
    // Number 5 has been detached meanwhile.
    let loops = (0..6).map(|number| DeviceNumber::new(7, number)).collect();
    let found =
        with_file_name(sysfs.0.path(), loops, OsStr::new("pv-1.img")).expect("sysfs is read");
    assert_eq!(found, [0, 1, 2].map(|number| DeviceNumber::new(7, number)));
}

#[test]
fn a_partition_has_the_sequence_number_of_its_disk() {
    let sysfs = Sysfs::new();
    let disk = sysfs.device("sda", "8:0");
    sysfs.device("sda/sda1", "8:1");
    // Without `diskseq`, as before Linux 5.15. The device 8:32 doesn't exist.
    sysfs.device("sdb", "8:16");
    sysfs.device("sdb/sdb1", "8:17");
    let seq = |number: &str| disk_seq(sysfs.0.path(), number.parse().expect("a number"));
    Sysfs::write(&disk, "diskseq", "50058\n");
    for (number, expected) in [
        ("8:0", Some("50058")),
        ("8:1", Some("50058")),
        ("8:16", None),
        ("8:17", None),
        ("8:32", None),
    ] {
        let found = seq(number).expect("sysfs can be read");
        let found = found.map(|found| found.to_string());
        assert_eq!(found.as_deref(), expected, "{number}");
    }
    Sysfs::write(&disk, "diskseq", "many\n");
    let error = seq("8:1").expect_err("no number").to_string();
    assert!(error.contains("8:1/../diskseq"), "{error}");
}
