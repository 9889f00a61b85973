//! A description of the machine, because figures of different machines can't be compared.

use std::fs;
use std::process::Command;
use std::thread;

use runcrust_tests::{Delegate, Run};

/// Describes the machine in one line, with the load before the first measurement.
pub(crate) fn describe() -> String {
    let file = |path| fs::read_to_string(path).expect("/proc");
    let runc = Run::capture(Command::new(Delegate::Runc.program()).arg("--version")).success();
    let load = file("/proc/loadavg");
    let blocks = fs::read_dir("/sys/block").expect("/sys/block").flatten();
    let loops = blocks.filter(|block| block.path().join("loop/backing_file").exists());
    format!(
        "Linux {}, {} processors, load {}, {} loop devices, {}\n",
        file("/proc/sys/kernel/osrelease").trim(),
        thread::available_parallelism().expect("processors"),
        load.split(' ').next().unwrap_or_default(),
        loops.count(),
        runc.stdout.lines().next().unwrap_or_default(),
    )
}
