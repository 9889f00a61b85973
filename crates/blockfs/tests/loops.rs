//! Tests of images as loop devices. They need root.
#![allow(
    clippy::disallowed_methods,
    reason = "tests run programs and prepare files by path"
)]

mod support;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Barrier;
use std::time::Duration;

use crust_blockfs::Deadline;
use crust_blockfs::device::{Device, DeviceFacts, LoopDeviceCache};
use crust_blockfs::loops::{self, LoopDevice, LoopError};
use support::{TestMount, in_mount_namespace, run};

/// An image with a unique name. All loop devices on it are detached when this is dropped.
struct TestImage {
    directory: tempfile::TempDir,
    image: PathBuf,
}

impl TestImage {
    fn new() -> Self {
        Self::named("")
    }

    fn named(end: &str) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let name = directory.path().file_name().expect("a name");
        let name = format!("{}.img{end}", name.display());
        let image = directory.path().join(name);
        let test_image = Self { directory, image };
        test_image.make(8);
        test_image
    }

    fn make(&self, mebibytes: u64) {
        let file = File::create_new(&self.image).expect("the image is created");
        file.set_len(mebibytes << 20).expect("the image grows");
    }

    fn attach(&self) -> LoopDevice {
        loops::attach(&self.image, false).expect("the image is attached")
    }

    fn find(&self) -> Option<LoopDevice> {
        loops::find(&self.image).expect("the state is known")
    }

    /// Attaches the image with losetup(8), and returns the device.
    fn losetup(&self, arguments: &[&str]) -> PathBuf {
        let mut losetup = Command::new("losetup");
        losetup.args(["--find", "--show"]).args(arguments);
        PathBuf::from(run(losetup.arg(&self.image)).trim())
    }

    /// Returns all loop devices whose backing file has or had the image's name.
    fn devices(&self) -> Vec<PathBuf> {
        let image = self.image.display().to_string();
        let blocks = fs::read_dir("/sys/block").expect("sysfs");
        let names = blocks.filter_map(|block| block.ok()?.file_name().into_string().ok());
        let is_on_image = |name: &String| {
            let shown = fs::read_to_string(format!("/sys/block/{name}/loop/backing_file"));
            shown.is_ok_and(|path| path.contains(&image))
        };
        let mut devices: Vec<_> = names.filter(is_on_image).collect();
        devices.sort();
        devices
            .iter()
            .map(|name| Path::new("/dev").join(name))
            .collect()
    }
}

impl Drop for TestImage {
    fn drop(&mut self) {
        for device in self.devices() {
            let _ = Command::new("losetup").arg("--detach").arg(device).status();
        }
    }
}

/// Returns a deadline that leaves other users enough time to close a device.
fn long_deadline() -> Deadline {
    Deadline::after(Duration::from_secs(10))
}

fn expired_deadline() -> Deadline {
    Deadline::after(Duration::ZERO)
}

/// Returns an attribute of a loop device from sysfs, such as `autoclear`.
fn attribute(device: &Path, name: &str) -> String {
    let name = format!("loop/{name}");
    let block = Path::new("/sys/block").join(device.file_name().expect("a name"));
    let text = fs::read_to_string(block.join(name)).expect("the attribute is read");
    text.trim().to_owned()
}

fn expect_error<T: std::fmt::Debug>(result: Result<T, LoopError>) -> (LoopError, String) {
    let error = result.expect_err("the call fails");
    let message = error.to_string();
    assert!(message.contains("; hint: "), "{message}");
    (error, message)
}

/// Attaches the image in four threads at the same time.
fn attach_concurrently(test_image: &TestImage, barrier: &Barrier) -> Vec<LoopDevice> {
    std::thread::scope(|scope| {
        let work = || {
            barrier.wait();
            test_image.attach()
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(work)).collect();
        let all = threads
            .into_iter()
            .map(|thread| thread.join().expect("the image is attached"));
        all.collect()
    })
}

#[test]
fn an_image_has_one_device_however_often_it_is_attached() {
    let test_image = TestImage::new();
    assert_eq!(test_image.find(), None);
    let barrier = Barrier::new(4);
    for _ in 0..50 {
        attach_concurrently(&test_image, &barrier);
        assert_eq!(test_image.devices().len(), 1);
        assert!(loops::detach(&test_image.image, long_deadline()).expect("the image is detached"));
    }
    let all = attach_concurrently(&test_image, &barrier);

    let attached = test_image.attach();
    assert_eq!(all, vec![attached.clone(); 4]);
    assert_eq!(test_image.devices(), [attached.device.as_path()]);
    assert!(!attached.read_only);
    assert_eq!(attribute(&attached.device, "autoclear"), "0");
    let device = Device::open(&attached.device).expect("a device");
    assert_eq!(device.number(), attached.number);
    assert_eq!(device.size().expect("a size"), 8 << 20);
    assert!(loops::detach(&test_image.image, long_deadline()).expect("the image is detached"));
    assert_eq!(test_image.find(), None);
    assert!(
        !loops::detach(&test_image.image, long_deadline())
            .expect("there is nothing to be detached")
    );
}

#[test]
fn what_is_written_to_the_device_is_in_the_image() {
    let test_image = TestImage::new();
    let attached = test_image.attach();
    let device = File::options().write(true).open(&attached.device);
    let device = device.expect("the device opens");
    device
        .write_all_at(b"written", 4096)
        .expect("the device is written");
    device.sync_all().expect("the device is synced");
    drop(device);
    loops::detach(&test_image.image, long_deadline()).expect("the image is detached");
    let mut found = [0; 7];
    let image = File::open(&test_image.image).expect("the image opens");
    image
        .read_exact_at(&mut found, 4096)
        .expect("the image is read");
    assert_eq!(&found, b"written");
}

#[test]
fn direct_io_is_enabled_if_losetup_can_enable_it() {
    let test_image = TestImage::new();
    let losetup_device = test_image.losetup(&["--direct-io=on"]);
    let expected = attribute(&losetup_device, "dio");
    assert!(loops::detach(&test_image.image, long_deadline()).expect("the image is detached"));
    let attached = test_image.attach();
    assert_eq!(attribute(&attached.device, "dio"), expected);
    assert_eq!(attached.direct_io, expected == "1");
}

#[test]
fn a_device_that_losetup_attached_is_found() {
    let test_image = TestImage::new();
    let losetup_device = test_image.losetup(&[]);
    let found = test_image.find().expect("the device is found");
    assert_eq!(found.device, losetup_device);
    assert_eq!(test_image.attach(), found);
}

/// The data directory has another path in the container of the driver that attached the image.
#[test]
fn a_device_is_found_if_its_image_has_another_path() {
    let test_image = TestImage::new();
    let elsewhere = tempfile::tempdir().expect("a temporary directory");
    let script = "mount --bind \"$1\" \"$2\" && exec losetup --find --show \"$3\"";
    let mut losetup = Command::new("unshare");
    losetup.args(["--mount", "sh", "-ec", script, "sh"]);
    losetup
        .arg(test_image.directory.path())
        .arg(elsewhere.path());
    let name = test_image.image.file_name().expect("a name");
    let losetup_device = run(losetup.arg(elsewhere.path().join(name)));
    let found = test_image.find().expect("the device is found");
    assert_eq!(found.device, Path::new(losetup_device.trim()));
    assert!(loops::detach(&test_image.image, long_deadline()).expect("the image is detached"));
}

#[test]
fn an_image_with_two_devices_is_refused_with_both_names() {
    let test_image = TestImage::new();
    let devices = [test_image.losetup(&[]), test_image.losetup(&[])];
    let results = [
        loops::find(&test_image.image).map(drop),
        loops::attach(&test_image.image, false).map(drop),
        loops::detach(&test_image.image, long_deadline()).map(drop),
        loops::refresh(&test_image.image).map(drop),
    ];
    for result in results {
        let (error, message) = expect_error(result);
        assert!(matches!(error, LoopError::Twice { .. }), "{message}");
        for device in &devices {
            let device = format!("{device:?}");
            assert!(message.contains(&device), "{message}");
        }
    }
    assert_eq!(test_image.devices().len(), 2, "both are left");
}

#[test]
fn a_device_on_a_part_of_the_image_is_refused() {
    for arguments in [["--offset", "4096"], ["--sizelimit", "4096"]] {
        let test_image = TestImage::new();
        test_image.losetup(&arguments);
        let (error, message) = expect_error(loops::attach(&test_image.image, false));
        assert!(matches!(error, LoopError::Part { .. }), "{message}");
        assert_eq!(test_image.devices().len(), 1, "it is left");
    }
}

#[test]
fn a_mounted_device_stays_attached_after_its_unmount() {
    let test = "a_mounted_device_stays_attached_after_its_unmount";
    in_mount_namespace(test, || {
        let test_image = TestImage::new();
        let attached = test_image.attach();
        run(Command::new("mkfs.ext4").arg("-q").arg(&attached.device));
        let mount_point = tempfile::tempdir().expect("a temporary directory");
        let mounted = TestMount::device(&attached.device, mount_point.path(), "ext4", "defaults");
        let mounted = mounted.expect("the volume is mounted");
        let (error, message) = expect_error(loops::detach(&test_image.image, expired_deadline()));
        assert!(matches!(error, LoopError::InUse { .. }), "{message}");
        let location = format!("mounted at {:?}", mount_point.path());
        assert!(message.contains(&location), "{message}");
        assert_eq!(attribute(&attached.device, "autoclear"), "0");
        drop(mounted);
        // The kernel releases the device a moment after the unmount.
        let free = long_deadline().poll(|| {
            let device = Device::open(&attached.device)?;
            Ok::<_, crust_blockfs::device::DeviceError>(
                (!device.is_held_exclusively()?).then_some(()),
            )
        });
        assert_eq!(free.expect("the device is checked"), Some(()));
        assert_eq!(test_image.find(), Some(attached));
        assert!(loops::detach(&test_image.image, long_deadline()).expect("the image is detached"));
    });
}

#[test]
fn a_device_that_is_open_is_not_changed() {
    let test_image = TestImage::new();
    let attached = test_image.attach();
    let open = File::open(&attached.device).expect("the device opens");
    let (error, message) = expect_error(loops::detach(&test_image.image, expired_deadline()));
    assert!(matches!(error, LoopError::Open { .. }), "{message}");
    assert!(message.contains("a process has it open"), "{message}");
    assert_eq!(attribute(&attached.device, "autoclear"), "0");
    drop(open);
    assert_eq!(test_image.find(), Some(attached));
    assert!(loops::detach(&test_image.image, long_deadline()).expect("the image is detached"));
}

/// The other loop device has the image's device open, as a process might have.
#[test]
fn another_loop_device_on_the_device_is_named() {
    let test_image = TestImage::new();
    let attached = test_image.attach();
    let mut losetup = Command::new("losetup");
    losetup.args(["--find", "--show"]).arg(&attached.device);
    let above = run(&mut losetup).trim().to_owned();
    let (error, message) = expect_error(loops::detach(&test_image.image, expired_deadline()));
    run(Command::new("losetup").arg("--detach").arg(&above));
    assert!(matches!(error, LoopError::Open { .. }), "{message}");
    assert!(
        message.contains(&format!("loop device {above} is attached to it")),
        "{message}"
    );
    assert!(!message.contains("process"), "{message}");
    assert!(loops::detach(&test_image.image, long_deadline()).expect("the image is detached"));
}

#[test]
fn attaching_keeps_a_device_that_was_to_be_detached() {
    let test_image = TestImage::new();
    let attached = test_image.attach();
    let open = File::open(&attached.device).expect("the device opens");
    run(Command::new("losetup")
        .arg("--detach")
        .arg(&attached.device));
    assert_eq!(attribute(&attached.device, "autoclear"), "1");
    assert_eq!(test_image.attach(), attached);
    drop(open);
    assert_eq!(test_image.find(), Some(attached));
}

#[test]
fn a_device_grows_with_its_image() {
    let test_image = TestImage::new();
    let attached = test_image.attach();
    let image = File::options().write(true).open(&test_image.image);
    let image = image.expect("the image opens");
    image.set_len(12 << 20).expect("the image grows");
    let device = Device::open(&attached.device).expect("a device");
    assert_eq!(device.size().expect("a size"), 8 << 20);
    assert_eq!(
        loops::refresh(&test_image.image).expect("the size is refreshed"),
        12 << 20
    );
    assert_eq!(device.size().expect("a size"), 12 << 20);
}

#[test]
fn a_new_image_at_the_same_path_is_another_image() {
    for end in ["", " (deleted)"] {
        let test_image = TestImage::named(end);
        let old = test_image.attach();
        fs::remove_file(&test_image.image).expect("the image is removed");
        let (_, message) = expect_error(loops::find(&test_image.image));
        assert!(message.contains("ENOENT"), "{message}");
        test_image.make(4);
        assert_eq!(test_image.find(), None);
        assert!(
            !loops::detach(&test_image.image, long_deadline())
                .expect("there is no device on the new image")
        );
        let new = test_image.attach();
        assert_ne!(new.number, old.number);
        assert_eq!(test_image.devices().len(), 2);
        assert_eq!(test_image.find(), Some(new));
    }
}

#[test]
fn all_devices_on_an_image_are_found_even_after_its_unlink() {
    let test_image = TestImage::new();
    let named = || {
        let named = loops::find_by_name(&test_image.image).expect("the state is known");
        let mut paths: Vec<PathBuf> = named
            .iter()
            .map(|device| device.path().to_owned())
            .collect();
        paths.sort();
        paths
    };
    assert_eq!(named(), Vec::<PathBuf>::new());
    let mut devices = [
        test_image.losetup(&[]),
        test_image.losetup(&["--read-only"]),
    ];
    devices.sort();
    assert_eq!(named(), devices);
    fs::remove_file(&test_image.image).expect("the image is removed");
    assert_eq!(named(), devices);
}

#[test]
fn a_device_is_idle_once_it_is_detached() {
    let test_image = TestImage::new();
    let is_detached = |path: &Path| loops::is_detached(path).expect("the state is known");
    let device = test_image.attach().device;
    assert!(!is_detached(&device));
    let open = File::open(&device).expect("the device opens");
    run(Command::new("losetup").arg("--detach").arg(&device));
    assert!(
        !is_detached(&device),
        "it is detached when its last user closes it"
    );
    drop(open);
    // A number that isn't in use.
    let node = test_image.directory.path().join("node");
    run(Command::new("mknod").arg(&node).args(["b", "7", "1048000"]));
    assert!(is_detached(&node));
    fs::remove_file(&node).expect("the node is removed");
    assert!(is_detached(&node), "the node was removed too");
    assert!(!is_detached(&test_image.image), "it is not a device");
}

#[test]
fn a_detached_number_is_writable_for_the_next_image() {
    let test_image = TestImage::new();
    test_image.attach();
    for read_only in [true, false, true, true] {
        loops::set_read_only(&test_image.image, read_only).expect("the flag is set");
        assert_eq!(
            test_image.find().expect("the device is found").read_only,
            read_only
        );
    }
    let old = test_image.attach();
    assert!(old.read_only, "attaching it again doesn't change that");
    assert!(loops::detach(&test_image.image, long_deadline()).expect("the image is detached"));
    // Another test may already use the number, and make it read-only for a while.
    let number = Path::new("/sys/dev/block").join(old.number.to_string());
    let is_writable = || {
        let text = fs::read_to_string(number.join("ro"))?;
        Ok::<_, std::io::Error>((text == "0\n").then_some(()))
    };
    assert_eq!(
        long_deadline()
            .poll(is_writable)
            .expect("the attribute is readable"),
        Some(())
    );
    assert!(!TestImage::new().attach().read_only);
}

/// This test runs alone (`.config/nextest.toml`): losetup(8) doesn't reset the flag, and another test's image would get
/// the read-only device.
#[test]
fn a_device_left_read_only_is_writable_for_the_next_image() {
    let first = TestImage::new();
    let device = first.attach().device;
    let blockdev = |option| run(Command::new("blockdev").arg(option).arg(&device));
    blockdev("--setro");
    run(Command::new("losetup").arg("--detach").arg(&device));
    // udev opens changed devices. The number is free when the last user has closed the device.
    let is_free = || loops::is_detached(&device).map(|idle| idle.then_some(()));
    assert_eq!(
        long_deadline().poll(is_free).expect("the state is known"),
        Some(())
    );
    let test_image = TestImage::new();
    let attached = std::panic::catch_unwind(|| test_image.attach());
    blockdev("--setrw");
    let attached = attached.expect("the image is attached");
    assert_eq!(attached.device, device, "the first free device");
    assert!(!attached.read_only);
}

#[test]
fn an_image_attached_read_only_cannot_be_made_writable() {
    let test_image = TestImage::new();
    let attached = loops::attach(&test_image.image, true).expect("the image is attached");
    assert!(attached.read_only);
    assert_eq!(test_image.attach(), attached, "it is returned unchanged");
    let (error, message) = expect_error(loops::set_read_only(&test_image.image, false));
    assert!(
        matches!(error, LoopError::AttachedReadOnly { .. }),
        "{message}"
    );
    assert!(test_image.find().expect("the device is found").read_only);
    assert!(loops::detach(&test_image.image, long_deadline()).expect("the image is detached"));
    assert!(
        !test_image.attach().read_only,
        "attached again, it is writable"
    );
}

#[test]
fn an_unattached_image_cannot_be_refreshed() {
    let test_image = TestImage::new();
    let results = [
        loops::refresh(&test_image.image).map(drop),
        loops::set_read_only(&test_image.image, true),
    ];
    for result in results {
        let (error, message) = expect_error(result);
        assert!(matches!(error, LoopError::NotAttached { .. }), "{message}");
    }
}

#[test]
fn only_a_regular_file_is_attached() {
    let test_image = TestImage::new();
    let link = test_image.directory.path().join("link");
    std::os::unix::fs::symlink(&test_image.image, &link).expect("a link");
    for (path, kind) in [
        (link.as_path(), "a symbolic link"),
        (test_image.directory.path(), "a directory"),
    ] {
        let (error, message) = expect_error(loops::attach(path, false));
        assert!(matches!(error, LoopError::NotAFile { .. }), "{message}");
        assert!(message.contains(kind), "{message}");
    }
    assert_eq!(test_image.devices(), [] as [PathBuf; 0]);
}

#[test]
fn a_lock_on_the_image_prevents_detaching_it() {
    let test_image = TestImage::new();
    test_image.attach();
    let lock = File::open(&test_image.image).expect("the image opens");
    lock.lock().expect("the image is locked");
    let (error, message) = expect_error(loops::detach(&test_image.image, expired_deadline()));
    assert!(matches!(error, LoopError::Locked { .. }), "{message}");
    drop(lock);
    assert!(loops::detach(&test_image.image, expired_deadline()).expect("the image is detached"));
}

#[test]
fn backing_files_of_loop_devices_are_cached_for_a_moment() {
    /// Maximum number of attempts: another test's device may get the number.
    const ATTEMPTS: u32 = 20;
    let (test_image, elsewhere) = (TestImage::new(), TestImage::new());
    let device = DeviceFacts::from(Device::open(&test_image.losetup(&[])).unwrap());
    let rivals = |loop_devices: &LoopDeviceCache| -> Vec<PathBuf> {
        let rivals = device.conflicting_loop_devices(loop_devices).unwrap();
        rivals.iter().map(|rival| rival.path().to_owned()).collect()
    };
    for attempt in 1.. {
        let [always, never] = [Duration::MAX, Duration::ZERO].map(LoopDeviceCache::with_max_age);
        assert_eq!(
            [rivals(&always), rivals(&never)],
            [const { Vec::<PathBuf>::new() }; 2]
        );
        let rival = test_image.losetup(&[]);
        let cached = rivals(&always);
        // Another test's device had the number, and its backing file is cached.
        if cached.is_empty() && attempt < ATTEMPTS {
            run(Command::new("losetup").arg("--detach").arg(&rival));
            continue;
        }
        assert_eq!(
            [cached, rivals(&never)],
            [vec![rival.clone()], vec![rival.clone()]]
        );
        run(Command::new("losetup").arg("--detach").arg(&rival));
        // A process that has the device open delays the detaching.
        let gone = long_deadline()
            .poll(|| Ok::<_, ()>((!test_image.devices().contains(&rival)).then_some(())));
        assert_eq!(gone, Ok(Some(())));
        let attached = Command::new("losetup")
            .arg(&rival)
            .arg(&elsewhere.image)
            .status();
        if !attached.expect("losetup").success() {
            // Another test uses the number.
            continue;
        }
        assert_eq!([rivals(&always), rivals(&never)], [vec![rival], vec![]]);
        break;
    }
}
