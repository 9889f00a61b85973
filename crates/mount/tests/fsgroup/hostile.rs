//! Trees that change under the walk, or that no file system would make.

use std::fs;
use std::os::unix::fs::{lchown, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crust_mount::filesystem::{Request, instantiate};
use crust_mount::fsgroup::{FsGroupError, apply};
use crust_mount::options;
use crust_state::{Deadline, FsGroupChangePolicy};
use rustix::fs::{CWD, RenameFlags};

use crate::support::{Image, Tree, group_and_mode, run, set_mode};
use crate::{GROUP, order, try_apply};

/// Does `work` while two names change places all the time.
fn while_swapped<T>(one: &Path, other: &Path, work: impl FnOnce() -> T) -> T {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let exchange = RenameFlags::EXCHANGE;
                rustix::fs::renameat_with(CWD, one, CWD, other, exchange).expect("a swap");
            }
        });
        let result = work();
        stop.store(true, Ordering::Relaxed);
        result
    })
}

/// Losing the race is allowed, as an error; winning it is not.
fn walk_again_and_again(tree: &Tree) {
    for n in 0..2000_u32 {
        if let Err(error) = try_apply(tree.open(), GROUP + n % 2) {
            assert!(matches!(error, FsGroupError::Restless { .. }), "{error}");
        }
    }
}

/// The attack on a walk by path: a directory becomes a link out of the volume under its feet.
#[test]
fn an_entry_that_turns_into_a_link_out_of_the_volume_leads_nowhere() {
    let (tree, outside) = (Tree::new(), Tree::new());
    let victim = outside.file("file", 0o600);
    let entry = tree.directory("a", 0o755);
    tree.file("a/file", 0o644);
    let link = tree.root().join("b");
    symlink(outside.root(), &link).expect("a link");
    while_swapped(&entry, &link, || walk_again_and_again(&tree));
    assert_eq!(group_and_mode(&victim), (0, 0o600));
    assert_eq!(group_and_mode(outside.root()).0, 0);
}

/// The attack on a mode that is read by one name and set by the same: by then it is another file's.
/// One of them is its owner's setuid program, the other root's file.
#[test]
fn a_hard_link_to_a_setuid_file_gives_its_mode_to_no_other() {
    let tree = Tree::new();
    let (program, roots) = (tree.file("program", 0o4755), tree.file("roots", 0o644));
    lchown(&program, Some(1000), Some(1000)).expect("its owner");
    set_mode(&program, 0o4755);
    let names = ["a", "b"].map(|name| tree.root().join(name));
    fs::hard_link(&program, &names[0]).expect("a second name");
    fs::hard_link(&roots, &names[1]).expect("a second name");
    while_swapped(&names[0], &names[1], || walk_again_and_again(&tree));
    assert_eq!(group_and_mode(&roots).1, 0o664);
    assert_eq!(group_and_mode(&program).1, 0o4775);
}

/// A device's maker can give each directory two names: thirty levels are a thousand million of them.
#[test]
fn directories_of_two_names_each_end_with_the_deadline() {
    const LEVELS: usize = 30;
    let image = Image::ext4(&[]);
    let script = (0..LEVELS).map(|depth| {
        let parent = "/d".repeat(depth);
        format!("mkdir {parent}/d\nlink {parent}/d {parent}/e\n")
    });
    let commands = image.directory().join("commands");
    fs::write(&commands, script.collect::<Vec<_>>().concat()).expect("a script");
    run(Command::new("debugfs")
        .arg("-wf")
        .arg(commands)
        .arg(image.path()));
    let on = image.attach();
    let volume = instantiate(&Request {
        device: &on.device(),
        fstype: "ext4",
        options: &options::parse::<&str>(&[]).expect("no options"),
        exclusive: true,
    })
    .expect("it is mounted");
    let deadline = Deadline::after(Duration::from_millis(500));
    let order = order(GROUP, FsGroupChangePolicy::Always);
    let error = apply(&volume, &order, deadline, &mut |_| {}).expect_err("it is endless");
    assert!(matches!(error, FsGroupError::Stopped { .. }), "{error}");
}
