//! What a subcommand shows on a terminal while it works. It shows nothing on a pipe: the other modules check that
//! standard error is empty.

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::thread;

use nix::libc;
use runcrust_tests::console::on_terminal;
use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::{Delegate, LoopDevice, Node, POD, Run, StagedVolume, wait_until};

use crate::resize::{MIB, device_size, stage_new};

/// Runs `crust <arguments>` on a terminal, and returns the terminal's output.
#[track_caller]
fn crust_on_terminal(node: &Node, arguments: &[&str]) -> String {
    let mut command = node.handler().command();
    command.arg("crust").args(arguments);
    let typescript = node.dir().join("typescript");
    Run::capture(&mut on_terminal(&command, &typescript))
        .success()
        .stdout
}

/// Returns what a terminal gets for a progress line that is removed before the result is printed.
fn progress_and_result(progress: &str, result: &str) -> String {
    format!("\r\u{1b}[K{progress}\r\u{1b}[K{result}\r\n")
}

#[test]
fn a_resize_shows_that_the_file_system_grows() {
    let volume = stage_new(Delegate::Runc, "xfs");
    let _sandbox = volume.sandbox();
    let size = device_size(&volume.device) + 32 * MIB;
    volume.device.set_size(size);
    let shown = crust_on_terminal(&volume, &["resize", utf8(&volume.target), "0", "0"]);
    let device = utf8(volume.device.path());
    let progress =
        format!("the file system is being grown volume=\"pv-1\" fstype=\"xfs\" device={device}");
    let result = format!("{{\"capacity_bytes\":{size}}}");
    assert_eq!(shown, progress_and_result(&progress, &result));
}

#[test]
fn a_publish_shows_that_fsgroup_is_applied() {
    let node = Node::with(Delegate::Runc, "sandbox = \"always\"\n");
    let device = node.ext4();
    let sandbox = node.sandbox(POD);
    let target = node.target(POD, "pv-1");
    let options = ["--fstype", "ext4", "--fs-group", "7"];
    let words = [
        "publish",
        utf8(&target),
        "--sandbox",
        sandbox.id(),
        "--device",
        utf8(device.path()),
    ];
    let shown = crust_on_terminal(&node, &[&words[..], &options].concat());
    let progress = "fsGroup is being applied volume=\"pv-1\" group=7";
    assert_eq!(shown, progress_and_result(progress, "{}"));
}

#[test]
fn an_unstage_shows_that_it_waits_for_the_device() {
    let (volume, sandbox) = StagedVolume::with_sandbox(Delegate::Runc);
    sandbox.end();
    volume.device.wait_until_free(WAIT_TIMEOUT);
    let holder = claim(&volume.device);
    let typescript = volume.dir().join("typescript");
    let shown = thread::scope(|scope| {
        let unstage =
            scope.spawn(|| crust_on_terminal(&volume, &["unstage", utf8(&volume.target)]));
        wait_until("the progress of the unstage", WAIT_TIMEOUT, || {
            fs::read_to_string(&typescript).is_ok_and(|text| text.contains("seconds=0"))
        });
        drop(holder);
        unstage.join().expect("the unstage succeeds")
    });
    let device = utf8(volume.device.path());
    let progress = format!(
        "\r\u{1b}[Kwaiting until the device is free volume=\"pv-1\" device={device} seconds=0"
    );
    assert!(shown.starts_with(&progress), "{shown:?}");
    assert!(shown.ends_with("\r\u{1b}[K{}\r\n"), "{shown:?}");
}

/// Opens a device exclusively, as a file system that is mounted on the host does.
fn claim(device: &LoopDevice) -> File {
    let mut options = File::options();
    options.read(true).custom_flags(libc::O_EXCL);
    options.open(device.path()).expect("a free device")
}
