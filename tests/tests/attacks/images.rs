//! Forged file systems. The host's kernel reads them (docs/limitations.md); runcrust has to limit the failure to the
//! one volume, and report it.

use std::fs;
use std::path::Path;

use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use runcrust_tests::container::end;
use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::process::kill_and_wait;
use runcrust_tests::refusal::assert_contains;
use runcrust_tests::tree::OutsideFiles;
use runcrust_tests::volume::{fsck, mkfs, with_mounted};
use runcrust_tests::{
    Bundle, Container, Delegate, LoopDevice, Node, POD, Pod, on_each_delegate, refusal, wait_until,
};

use super::damage::{self, Damage, debugfs};
use super::{OTHER_POD, assert_not_on_the_host};

/// Asserts that a pod's damaged volumes are refused one by one, while its intact volume works.
fn each_is_refused_alone(delegate: Delegate, damages: &[Damage]) {
    let node = Node::new(delegate);
    let sound = node.ext4();
    let good = node.stage(POD, "sound", &sound, &[]);
    let bad: Vec<_> = damages
        .iter()
        .map(|damage| {
            let device = node.formatted(damage.fstype);
            (damage.apply)(&device);
            let target = node.stage(POD, damage.name, &device, &["--fs-group", "2000"]);
            (damage.name, device, target)
        })
        .collect();
    let sandbox = node.sandbox(POD);
    for (name, device, target) in &bad {
        assert!(device.mounts_of(sandbox.pid()).is_empty(), "{name}");
        let bundle = node.app_bundle(&sandbox).bind(target, "/data", &[]);
        let refused = refusal::create_refused(&node, &bundle.write()).naming_volume(name);
        let _ = refused
            .containing(&[utf8(device.path()), "hint: "])
            .message();
        assert!(device.is_free(), "{name}");
        assert_not_on_the_host(device);
    }
    let app = node.app(&sandbox, &good, "/data");
    assert_eq!(app.sh("echo x > /data/file; cat /data/file"), "x");
    end([app, sandbox]);
    sound.wait_until_free(WAIT_TIMEOUT);
    fsck("ext4", sound.path());
    let targets: Vec<&Path> = bad.iter().map(|(_, _, target)| target.as_path()).collect();
    node.unstage_all(&[&targets[..], &[&good]].concat());
}

/// Returns an ext4 with these mkfs arguments, which turn off checksums where a test changes bytes.
fn ext4_with(node: &Node, arguments: &[&str]) -> LoopDevice {
    let device = node.ext4();
    mkfs("ext4", device.path(), arguments);
    device
}

/// Returns a device number as an inode stores it (`new_encode_dev`).
fn encoded(number: &str) -> u32 {
    let (major, minor) = number.split_once(':').expect("major:minor");
    let [major, minor]: [u32; 2] = [major, minor].map(|number| number.parse().expect("a number"));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

on_each_delegate! {
    fn a_corrupt_superblock_is_refused(delegate: Delegate) {
        each_is_refused_alone(delegate, damage::SUPERBLOCKS);
    }

    fn a_corrupt_journal_is_refused(delegate: Delegate) {
        each_is_refused_alone(delegate, damage::JOURNALS);
    }

    fn a_corrupt_root_inode_is_refused(delegate: Delegate) {
        each_is_refused_alone(delegate, damage::ROOTS);
    }

    /// Otherwise the kernel would write the journal of one file system to the device of another.
    fn an_ext4_with_another_pods_device_as_journal_is_refused(delegate: Delegate) {
        let node = Node::new(delegate);
        let victim = node.ext4();
        with_mounted(victim.path(), |root| fs::write(root.join("file"), "the victim's").unwrap());
        let device = ext4_with(&node, &["-O", "^has_journal"]);
        let journal = format!("set_super_value journal_dev {}", encoded(victim.number()));
        let _ = debugfs(&device, &["feature has_journal", &journal]);
        let attacker = Pod::new(&node, POD, &device, &[]);
        let before = fs::read(victim.file()).unwrap();
        let _ = attacker.expect_refusal();
        assert!(fs::read(victim.file()).unwrap() == before, "the victim's device was written to");

        let holder = Pod::new(&node, OTHER_POD, &victim, &[]);
        let app = holder.app();
        let _ = attacker.expect_refusal();
        assert_eq!(app.sh("cat /data/file; sync -f /data"), "the victim's");
        holder.end([app]);
        victim.wait_until_free(WAIT_TIMEOUT);
        fsck("ext4", victim.path());
    }

    /// With multiple mount protection the superblock says how long a mount has to wait.
    fn an_ext4_that_delays_its_mount_blocks_no_other_volume(delegate: Delegate) {
        const FSCONFIG: &str = "431 ";
        let node = Node::new(delegate);
        let (device, sound) = (ext4_with(&node, &["-O", "mmp,^metadata_csum"]), node.ext4());
        let block = damage::value(&device, "MMP block number:") * damage::block_size(&device);
        // A sequence number that says that the file system is in use.
        damage::write(&device, block + 4, &[1, 2, 3, 0]);
        damage::write(&device, block + 112, &u16::MAX.to_le_bytes());
        let target = node.stage(POD, "pv-1", &device, &[]);
        let bundle = Bundle::plain(node.dir()).bind(&target, "/data", &[]).write();
        let container = node.container(&bundle);
        let mut create = container.spawn(container.create_command());
        let pid = create.id().cast_signed();
        wait_until("the kernel to wait", WAIT_TIMEOUT, || {
            let call = fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
            call.starts_with(FSCONFIG)
        });

        let other = Pod::new(&node, OTHER_POD, &sound, &[]);
        let app = other.app();
        assert_eq!(app.sh("echo x > /data/file; cat /data/file"), "x");
        other.end([app]);
        let _ = node.unstage(&other.target).success();
        let _ = node.handler().crust(&["list"]).success();

        // containerd does the same after kubelet's timeout.
        kill_and_wait(pid);
        let _ = create.wait();
        device.wait_until_free(WAIT_TIMEOUT);
        let _ = node.unstage(&target).success();
    }

    /// The kernel's readdir returns EIO for such names since Linux 5.4.
    fn a_file_name_with_slashes_is_refused(delegate: Delegate) {
        let node = Node::new(delegate);
        let outside = OutsideFiles::new(node.dir());
        let device = ext4_with(&node, &["-O", "^metadata_csum,^dir_index"]);
        let far = format!("{}{}", "../".repeat(8), node.dir().join("outside/file").display());
        let name = "A".repeat(far.len());
        with_mounted(device.path(), |root| fs::write(root.join(&name), "").unwrap());
        let image = fs::read(device.file()).unwrap();
        let places = image.windows(name.len()).enumerate();
        let places = places.filter(|(_, bytes)| *bytes == name.as_bytes());
        let places: Vec<_> = places.map(|(at, _)| at).collect();
        assert!(!places.is_empty(), "the name is not in the image");
        for at in places {
            damage::write(&device, at as u64, far.as_bytes());
        }
        let pod = Pod::new(&node, POD, &device, &["--fs-group", "2000"]);
        let sentence = pod.expect_refusal();
        assert_contains(&sentence, &["fsGroup: getdents64(", "EIO", "hint: "]);
        outside.assert_unchanged();
    }

    fn a_directory_that_contains_itself_is_refused(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        let _ = debugfs(&device, &["mkdir one", "mkdir one/two", "link <2> one/two/up", "link one one/two/again"]);
        let pod = Pod::new(&node, POD, &device, &["--fs-group", "2000"]);
        let sentence = pod.expect_refusal();
        assert_contains(&sentence, &["fsGroup: ", "one/two/", "ELOOP", "file system is corrupt"]);
    }

    /// The container's device rules keep these nodes from being opened, as on an ordinary mount. The volume is not
    /// mounted with `nodev`.
    fn device_nodes_in_the_image_cannot_be_opened(delegate: Delegate) {
        let node = Node::new(delegate);
        let (device, other) = (node.ext4(), node.ext4());
        let of = |device: &LoopDevice| {
            let (major, minor) = device.number().split_once(':').unwrap();
            makedev(major.parse().unwrap(), minor.parse().unwrap())
        };
        with_mounted(device.path(), |root| {
            let mode = Mode::from_bits_truncate(0o666);
            for (name, kind, number) in [
                ("own", SFlag::S_IFBLK, of(&device)),
                ("other", SFlag::S_IFBLK, of(&other)),
                ("memory", SFlag::S_IFCHR, makedev(1, 1)),
                ("log", SFlag::S_IFCHR, makedev(1, 11)),
                ("zero", SFlag::S_IFCHR, makedev(1, 5)),
            ] {
                mknod(&root.join(name), kind, mode, number).unwrap();
            }
        });
        let pod = Pod::new(&node, POD, &device, &[]);
        let holder = Pod::new(&node, OTHER_POD, &other, &[]);
        let read = |app: &Container, name: &str| {
            app.exec(&["/bin/dd", &format!("if=/data/{name}"), "of=/dev/null", "bs=512", "count=1"])
        };
        let bundle = node.app_bundle(&pod.sandbox).bind(&pod.target, "/data", &[]);
        for app in [pod.app(), node.run(&bundle.all_capabilities().write())] {
            for name in ["own", "other", "memory", "log"] {
                let refused = read(&app, name).failure();
                assert!(refused.stderr.contains("Operation not permitted"), "{refused}");
            }
            let _ = read(&app, "zero").success();
        }
        holder.end([holder.app()]);
    }
}
