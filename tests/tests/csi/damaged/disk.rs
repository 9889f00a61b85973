//! A disk that returns EIO. A volume that cannot be read is not an empty one.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use runcrust_tests::csi::filesystem;
use runcrust_tests::volume::mkfs;
use runcrust_tests::{Csi, Delegate, LoopDevice, Node, Run, mounts};
use rustix::fs::{Advice, fadvise, syncfs};
use tonic::Code;

use super::{OLDER_RECORDS, change_record};
use crate::expect_error;
use crate::scene::{read, write};

const SIZE: u64 = 128 << 20;

/// Returns the offset of a file's first byte on its disk.
fn first_byte(file: &Path) -> u64 {
    let mut filefrag = Command::new("filefrag");
    let run = Run::capture(filefrag.args(["-e", "-v", "-b1"]).arg(file)).success();
    // `0:   0..  262143:   65011712..  65273855:  262144:`
    let mut lines = run.stdout.lines().map(str::split_whitespace);
    let first = lines.find_map(|mut words| (words.next() == Some("0:")).then(|| words.nth(2)));
    let first = first
        .flatten()
        .map(|first_byte| first_byte.trim_end_matches('.'));
    let first = first.and_then(|first_byte| first_byte.parse().ok());
    first.unwrap_or_else(|| panic!("{}", run.stdout))
}

#[test]
fn an_unreadable_image_is_not_formatted() {
    let node = Node::root_only(Delegate::Runc, "");
    let path = node.dir().join("disk");
    let disk = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .unwrap();
    disk.set_len(SIZE).unwrap();
    // A journal would be written behind the cut, which extends the file again, so the lost part would be read as zeros.
    mkfs("ext4", &path, &["-O", "^has_journal"]);
    let device = LoopDevice::on(&path);
    let mountpoint = node.dir().subdir("disk-of-images");
    mounts::mount(device.path(), &mountpoint, "ext4");
    let data = mountpoint.join("csi");
    let data_dir = ["--data-dir", data.to_str().unwrap()];
    let csi = Csi::with(&node, &data_dir);
    let volume = csi.volume("pv", filesystem("ext4"));
    let target = csi.target("pod", "pv");
    csi.call(volume.stage()).unwrap();
    csi.call(volume.publish(&target)).unwrap();
    write(&target, "file", "data");
    csi.call(volume.unpublish(&target)).unwrap();
    csi.call(volume.unstage()).unwrap();
    csi.kill();
    let (now, before) = OLDER_RECORDS[0];
    change_record(&data, &volume, now, before);

    let image = data.join("images").join(format!("{}.img", volume.id));
    let image_file = File::open(&image).unwrap();
    syncfs(&image_file).unwrap();
    fadvise(&image_file, 0, None, Advice::DontNeed).unwrap();
    drop(image_file);
    let cut = first_byte(&image);
    let mut rest = vec![0; usize::try_from(SIZE - cut).unwrap()];
    disk.read_exact_at(&mut rest, cut).unwrap();
    disk.set_len(cut).unwrap();
    csi.spawn(csi.command(&data_dir));
    let message = expect_error(csi.call(volume.stage()), Code::Internal);
    assert!(message.contains("so it isn't formatted"), "{message}");
    assert!(message.contains(&volume.id), "{message}");
    let size = fs::metadata(&path).unwrap().len();
    assert_eq!(size, cut, "nothing was written");

    disk.write_all_at(&rest, cut).unwrap();
    csi.call(volume.stage()).unwrap();
    csi.call(volume.publish(&target)).unwrap();
    assert_eq!(read(&target, "file"), "data");
    csi.call(volume.unpublish(&target)).unwrap();
    csi.call(volume.unstage()).unwrap();
    csi.kill();
    nix::mount::umount(&mountpoint).unwrap();
}
