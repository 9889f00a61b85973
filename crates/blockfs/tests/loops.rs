//! Images as loop devices. Needs root.
#![allow(
    clippy::disallowed_methods,
    reason = "tests run tools and set their scenes by path"
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
use support::{Mounted, in_own_mount_namespace, run};

/// An image whose name no other file has. Whatever shows it is detached when it is dropped.
struct Scene {
    directory: tempfile::TempDir,
    image: PathBuf,
}

impl Scene {
    fn new() -> Self {
        Self::named("")
    }

    fn named(end: &str) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let name = directory.path().file_name().expect("a name");
        let name = format!("{}.img{end}", name.display());
        let image = directory.path().join(name);
        let scene = Self { directory, image };
        scene.make(8);
        scene
    }

    fn make(&self, mebibytes: u64) {
        let file = File::create_new(&self.image).expect("the image is created");
        file.set_len(mebibytes << 20).expect("it grows");
    }

    fn attach(&self) -> LoopDevice {
        loops::attach(&self.image, false).expect("it is attached")
    }

    fn find(&self) -> Option<LoopDevice> {
        loops::find(&self.image).expect("it can be told")
    }

    /// By losetup(8), as somebody else would.
    fn losetup(&self, arguments: &[&str]) -> PathBuf {
        let mut losetup = Command::new("losetup");
        losetup.args(["--find", "--show"]).args(arguments);
        PathBuf::from(run(losetup.arg(&self.image)).trim())
    }

    /// Every device on whatever has or had the image's name.
    fn devices(&self) -> Vec<PathBuf> {
        let image = self.image.display().to_string();
        let blocks = fs::read_dir("/sys/block").expect("sysfs");
        let names = blocks.filter_map(|block| block.ok()?.file_name().into_string().ok());
        let is_ours = |name: &String| {
            let shown = fs::read_to_string(format!("/sys/block/{name}/loop/backing_file"));
            shown.is_ok_and(|path| path.contains(&image))
        };
        let mut devices: Vec<_> = names.filter(is_ours).collect();
        devices.sort();
        devices
            .iter()
            .map(|name| Path::new("/dev").join(name))
            .collect()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        for device in self.devices() {
            let _ = Command::new("losetup").arg("--detach").arg(device).status();
        }
    }
}

/// Long enough for who is about to let go.
fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(10))
}

fn at_once() -> Deadline {
    Deadline::after(Duration::ZERO)
}

/// One of its attributes, such as whether it goes with the last one that closes it.
fn attribute(device: &Path, name: &str) -> String {
    let name = format!("loop/{name}");
    let block = Path::new("/sys/block").join(device.file_name().expect("a name"));
    let text = fs::read_to_string(block.join(name)).expect("it shows something");
    text.trim().to_owned()
}

fn refused<T: std::fmt::Debug>(result: Result<T, LoopError>) -> (LoopError, String) {
    let error = result.expect_err("it is refused");
    let sentence = error.to_string();
    assert!(sentence.contains("; hint: "), "{sentence}");
    (error, sentence)
}

/// By as many threads as the barrier waits for.
fn attach_at_once(scene: &Scene, barrier: &Barrier) -> Vec<LoopDevice> {
    std::thread::scope(|scope| {
        let work = || {
            barrier.wait();
            scene.attach()
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(work)).collect();
        let all = threads
            .into_iter()
            .map(|thread| thread.join().expect("it is attached"));
        all.collect()
    })
}

#[test]
fn an_image_has_one_device_however_often_it_is_attached() {
    let scene = Scene::new();
    assert_eq!(scene.find(), None);
    let barrier = Barrier::new(4);
    for _ in 0..50 {
        attach_at_once(&scene, &barrier);
        assert_eq!(scene.devices().len(), 1);
        assert!(loops::detach(&scene.image, soon()).expect("it is detached"));
    }
    let all = attach_at_once(&scene, &barrier);

    let attached = scene.attach();
    assert_eq!(all, vec![attached.clone(); 4]);
    assert_eq!(scene.devices(), [attached.device.as_path()]);
    assert!(!attached.read_only);
    assert_eq!(attribute(&attached.device, "autoclear"), "0");
    let device = Device::open(&attached.device).expect("a device");
    assert_eq!(device.number(), attached.number);
    assert_eq!(device.size().expect("a size"), 8 << 20);
    assert!(loops::detach(&scene.image, soon()).expect("it is detached"));
    assert_eq!(scene.find(), None);
    assert!(!loops::detach(&scene.image, soon()).expect("there is nothing to be detached"));
}

#[test]
fn what_is_written_to_the_device_is_in_the_image() {
    let scene = Scene::new();
    let attached = scene.attach();
    let device = File::options().write(true).open(&attached.device);
    let device = device.expect("the device opens");
    device
        .write_all_at(b"written", 4096)
        .expect("it is written");
    device.sync_all().expect("it is synced");
    drop(device);
    loops::detach(&scene.image, soon()).expect("it is detached");
    let mut found = [0; 7];
    let image = File::open(&scene.image).expect("the image opens");
    image.read_exact_at(&mut found, 4096).expect("it is read");
    assert_eq!(&found, b"written");
}

#[test]
fn direct_io_is_had_where_losetup_gets_it() {
    let scene = Scene::new();
    let theirs = scene.losetup(&["--direct-io=on"]);
    let expected = attribute(&theirs, "dio");
    assert!(loops::detach(&scene.image, soon()).expect("it is detached"));
    let attached = scene.attach();
    assert_eq!(attribute(&attached.device, "dio"), expected);
    assert_eq!(attached.direct_io, expected == "1");
}

#[test]
fn a_device_is_found_by_who_did_not_attach_it() {
    let scene = Scene::new();
    let theirs = scene.losetup(&[]);
    let found = scene.find().expect("it is found");
    assert_eq!(found.device, theirs);
    assert_eq!(scene.attach(), found);
}

/// A driver's container sees the data directory elsewhere than the one that was there before.
#[test]
fn a_device_is_found_though_its_path_is_another_namespaces() {
    let scene = Scene::new();
    let elsewhere = tempfile::tempdir().expect("a temporary directory");
    let script = "mount --bind \"$1\" \"$2\" && exec losetup --find --show \"$3\"";
    let mut losetup = Command::new("unshare");
    losetup.args(["--mount", "sh", "-ec", script, "sh"]);
    losetup.arg(scene.directory.path()).arg(elsewhere.path());
    let name = scene.image.file_name().expect("a name");
    let theirs = run(losetup.arg(elsewhere.path().join(name)));
    let found = scene.find().expect("it is found");
    assert_eq!(found.device, Path::new(theirs.trim()));
    assert!(loops::detach(&scene.image, soon()).expect("it is detached"));
}

#[test]
fn an_image_with_two_devices_is_refused_with_both_names() {
    let scene = Scene::new();
    let devices = [scene.losetup(&[]), scene.losetup(&[])];
    let results = [
        loops::find(&scene.image).map(drop),
        loops::attach(&scene.image, false).map(drop),
        loops::detach(&scene.image, soon()).map(drop),
        loops::refresh(&scene.image).map(drop),
    ];
    for result in results {
        let (error, sentence) = refused(result);
        assert!(matches!(error, LoopError::Twice { .. }), "{sentence}");
        for device in &devices {
            let device = format!("{device:?}");
            assert!(sentence.contains(&device), "{sentence}");
        }
    }
    assert_eq!(scene.devices().len(), 2, "both are left");
}

#[test]
fn a_part_of_an_image_is_not_taken_for_it() {
    for arguments in [["--offset", "4096"], ["--sizelimit", "4096"]] {
        let scene = Scene::new();
        scene.losetup(&arguments);
        let (error, sentence) = refused(loops::attach(&scene.image, false));
        assert!(matches!(error, LoopError::Part { .. }), "{sentence}");
        assert_eq!(scene.devices().len(), 1, "it is left");
    }
}

#[test]
fn a_mounted_device_stays_attached_after_its_unmount() {
    let test = "a_mounted_device_stays_attached_after_its_unmount";
    in_own_mount_namespace(test, || {
        let scene = Scene::new();
        let attached = scene.attach();
        run(Command::new("mkfs.ext4").arg("-q").arg(&attached.device));
        let on = tempfile::tempdir().expect("a temporary directory");
        let mounted = Mounted::device(&attached.device, on.path(), "ext4", "defaults");
        let mounted = mounted.expect("it is mounted");
        let (error, sentence) = refused(loops::detach(&scene.image, at_once()));
        assert!(matches!(error, LoopError::InUse { .. }), "{sentence}");
        let place = format!("mounted at {:?}", on.path());
        assert!(sentence.contains(&place), "{sentence}");
        assert_eq!(attribute(&attached.device, "autoclear"), "0");
        drop(mounted);
        // The mount is gone a moment later.
        let free = soon().poll(|| {
            let device = Device::open(&attached.device)?;
            Ok::<_, crust_blockfs::device::DeviceError>(
                (!device.is_held_exclusively()?).then_some(()),
            )
        });
        assert_eq!(free.expect("it is looked at"), Some(()));
        assert_eq!(scene.find(), Some(attached));
        assert!(loops::detach(&scene.image, soon()).expect("it is detached"));
    });
}

#[test]
fn a_device_that_is_merely_open_stays_as_it_was() {
    let scene = Scene::new();
    let attached = scene.attach();
    let open = File::open(&attached.device).expect("the device opens");
    let (error, sentence) = refused(loops::detach(&scene.image, at_once()));
    assert!(matches!(error, LoopError::Open { .. }), "{sentence}");
    assert!(sentence.contains("a process has it open"), "{sentence}");
    assert_eq!(attribute(&attached.device, "autoclear"), "0");
    drop(open);
    assert_eq!(scene.find(), Some(attached));
    assert!(loops::detach(&scene.image, soon()).expect("it is detached"));
}

/// Which has it merely open, as a process would.
#[test]
fn another_loop_device_on_it_is_named() {
    let scene = Scene::new();
    let attached = scene.attach();
    let mut losetup = Command::new("losetup");
    losetup.args(["--find", "--show"]).arg(&attached.device);
    let above = run(&mut losetup).trim().to_owned();
    let (error, sentence) = refused(loops::detach(&scene.image, at_once()));
    run(Command::new("losetup").arg("--detach").arg(&above));
    assert!(matches!(error, LoopError::Open { .. }), "{sentence}");
    assert!(
        sentence.contains(&format!("loop device {above} shows it")),
        "{sentence}"
    );
    assert!(!sentence.contains("process"), "{sentence}");
    assert!(loops::detach(&scene.image, soon()).expect("it is detached"));
}

#[test]
fn attaching_keeps_a_device_that_was_about_to_go() {
    let scene = Scene::new();
    let attached = scene.attach();
    let open = File::open(&attached.device).expect("the device opens");
    run(Command::new("losetup")
        .arg("--detach")
        .arg(&attached.device));
    assert_eq!(attribute(&attached.device, "autoclear"), "1");
    assert_eq!(scene.attach(), attached);
    drop(open);
    assert_eq!(scene.find(), Some(attached));
}

#[test]
fn a_device_grows_with_its_image() {
    let scene = Scene::new();
    let attached = scene.attach();
    let image = File::options().write(true).open(&scene.image);
    let image = image.expect("the image opens");
    image.set_len(12 << 20).expect("it grows");
    let device = Device::open(&attached.device).expect("a device");
    assert_eq!(device.size().expect("a size"), 8 << 20);
    assert_eq!(
        loops::refresh(&scene.image).expect("it is refreshed"),
        12 << 20
    );
    assert_eq!(device.size().expect("a size"), 12 << 20);
}

#[test]
fn an_image_that_was_made_anew_is_not_the_old_one() {
    for end in ["", " (deleted)"] {
        let scene = Scene::named(end);
        let old = scene.attach();
        fs::remove_file(&scene.image).expect("the image is removed");
        let (_, sentence) = refused(loops::find(&scene.image));
        assert!(sentence.contains("ENOENT"), "{sentence}");
        scene.make(4);
        assert_eq!(scene.find(), None);
        assert!(!loops::detach(&scene.image, soon()).expect("the old one is another's"));
        let new = scene.attach();
        assert_ne!(new.number, old.number);
        assert_eq!(scene.devices().len(), 2);
        assert_eq!(scene.find(), Some(new));
    }
}

#[test]
fn all_devices_of_an_image_are_found_even_after_its_unlink() {
    let scene = Scene::new();
    let named = || {
        let named = loops::find_by_name(&scene.image).expect("it can be told");
        let mut paths: Vec<PathBuf> = named.iter().map(|it| it.path().to_owned()).collect();
        paths.sort();
        paths
    };
    assert_eq!(named(), Vec::<PathBuf>::new());
    let mut devices = [scene.losetup(&[]), scene.losetup(&["--read-only"])];
    devices.sort();
    assert_eq!(named(), devices);
    fs::remove_file(&scene.image).expect("the image is removed");
    assert_eq!(named(), devices);
}

#[test]
fn a_device_is_idle_once_it_is_detached() {
    let scene = Scene::new();
    let is_detached = |path: &Path| loops::is_detached(path).expect("it can be told");
    let device = scene.attach().device;
    assert!(!is_detached(&device));
    let open = File::open(&device).expect("it is opened");
    run(Command::new("losetup").arg("--detach").arg(&device));
    assert!(!is_detached(&device), "it goes when the last one closes it");
    drop(open);
    // Of a number that nobody is given.
    let node = scene.directory.path().join("node");
    run(Command::new("mknod").arg(&node).args(["b", "7", "1048000"]));
    assert!(is_detached(&node));
    fs::remove_file(&node).expect("it is removed");
    assert!(is_detached(&node), "its node went, too");
    assert!(!is_detached(&scene.image), "no device");
}

#[test]
fn the_number_that_was_read_only_is_not_so_for_the_next_image() {
    let scene = Scene::new();
    scene.attach();
    for read_only in [true, false, true, true] {
        loops::set_read_only(&scene.image, read_only).expect("it is set");
        assert_eq!(scene.find().expect("it is there").read_only, read_only);
    }
    let old = scene.attach();
    assert!(old.read_only, "attached again it is as it was");
    assert!(loops::detach(&scene.image, soon()).expect("it is detached"));
    // By now it may be another test's, for a while read-only.
    let number = Path::new("/sys/dev/block").join(old.number.to_string());
    let is_writable = || {
        let text = fs::read_to_string(number.join("ro"))?;
        Ok::<_, std::io::Error>((text == "0\n").then_some(()))
    };
    assert_eq!(soon().poll(is_writable).expect("it is there"), Some(()));
    assert!(!Scene::new().attach().read_only);
}

/// Run alone (`.config/nextest.toml`): losetup(8) doesn't look, and a number that is left read-only
/// would be so for another test's image.
#[test]
fn a_number_left_read_only_is_not_so_for_the_next_image() {
    let left = Scene::new();
    let device = left.attach().device;
    let blockdev = |what| run(Command::new("blockdev").arg(what).arg(&device));
    blockdev("--setro");
    run(Command::new("losetup").arg("--detach").arg(&device));
    // udev opens what has changed, and the number is free once the last one has closed it.
    let is_free = || loops::is_detached(&device).map(|idle| idle.then_some(()));
    assert_eq!(soon().poll(is_free).expect("it can be told"), Some(()));
    let scene = Scene::new();
    let attached = std::panic::catch_unwind(|| scene.attach());
    blockdev("--setrw");
    let attached = attached.expect("it is attached");
    assert_eq!(attached.device, device, "the first free one");
    assert!(!attached.read_only);
}

#[test]
fn an_image_that_was_attached_read_only_takes_no_writes() {
    let scene = Scene::new();
    let attached = loops::attach(&scene.image, true).expect("it is attached");
    assert!(attached.read_only);
    assert_eq!(scene.attach(), attached, "it is returned as it is");
    let (error, sentence) = refused(loops::set_read_only(&scene.image, false));
    assert!(
        matches!(error, LoopError::AttachedReadOnly { .. }),
        "{sentence}"
    );
    assert!(scene.find().expect("it is there").read_only);
    assert!(loops::detach(&scene.image, soon()).expect("it is detached"));
    assert!(!scene.attach().read_only, "attached anew it takes them");
}

#[test]
fn what_has_no_device_is_neither_refreshed_nor_made_read_only() {
    let scene = Scene::new();
    let results = [
        loops::refresh(&scene.image).map(drop),
        loops::set_read_only(&scene.image, true),
    ];
    for result in results {
        let (error, sentence) = refused(result);
        assert!(matches!(error, LoopError::NotAttached { .. }), "{sentence}");
    }
}

#[test]
fn what_is_no_file_is_no_image() {
    let scene = Scene::new();
    let link = scene.directory.path().join("link");
    std::os::unix::fs::symlink(&scene.image, &link).expect("a link");
    for (path, kind) in [
        (link.as_path(), "a symbolic link"),
        (scene.directory.path(), "a directory"),
    ] {
        let (error, sentence) = refused(loops::attach(path, false));
        assert!(matches!(error, LoopError::NotAFile { .. }), "{sentence}");
        assert!(sentence.contains(kind), "{sentence}");
    }
    assert_eq!(scene.devices(), [] as [PathBuf; 0]);
}

#[test]
fn who_has_the_images_lock_keeps_others_from_attaching_it() {
    let scene = Scene::new();
    scene.attach();
    let lock = File::open(&scene.image).expect("the image opens");
    lock.lock().expect("it is locked");
    let (error, sentence) = refused(loops::detach(&scene.image, at_once()));
    assert!(matches!(error, LoopError::Locked { .. }), "{sentence}");
    drop(lock);
    assert!(loops::detach(&scene.image, at_once()).expect("it is detached"));
}

#[test]
fn answers_of_loop_devices_are_cached_for_a_moment() {
    /// How often another test's device may have the number.
    const ATTEMPTS: u32 = 20;
    let (scene, elsewhere) = (Scene::new(), Scene::new());
    let device = DeviceFacts::from(Device::open(&scene.losetup(&[])).unwrap());
    let rivals = |loop_devices: &LoopDeviceCache| -> Vec<PathBuf> {
        let rivals = device.conflicting_loop_devices(loop_devices).unwrap();
        rivals.iter().map(|it| it.path().to_owned()).collect()
    };
    for attempt in 1.. {
        let [always, never] = [Duration::MAX, Duration::ZERO].map(LoopDeviceCache::with_max_age);
        assert_eq!(
            [rivals(&always), rivals(&never)],
            [const { Vec::<PathBuf>::new() }; 2]
        );
        let rival = scene.losetup(&[]);
        let believed = rivals(&always);
        // Another test's device had the number, and what that showed is remembered.
        if believed.is_empty() && attempt < ATTEMPTS {
            run(Command::new("losetup").arg("--detach").arg(&rival));
            continue;
        }
        assert_eq!(
            [believed, rivals(&never)],
            [vec![rival.clone()], vec![rival.clone()]]
        );
        run(Command::new("losetup").arg("--detach").arg(&rival));
        // Whoever has it open for a moment puts that off.
        let gone = soon().poll(|| Ok::<_, ()>((!scene.devices().contains(&rival)).then_some(())));
        assert_eq!(gone, Ok(Some(())));
        let again = Command::new("losetup")
            .arg(&rival)
            .arg(&elsewhere.image)
            .status();
        if !again.expect("losetup").success() {
            // Another test has the number.
            continue;
        }
        assert_eq!([rivals(&always), rivals(&never)], [vec![rival], vec![]]);
        break;
    }
}
