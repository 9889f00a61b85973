//! `fsgroup-walk GROUP DIRECTORY [DEVICE]`: applies fsGroup as a create does, in a separate program. Without the
//! volume's device it uses only the walk. It prints the time in nanoseconds and the peak memory of the program in
//! kilobytes.

use std::error::Error;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::Instant;

use crust_blockfs::Deadline;
use crust_blockfs::device::{Device, DeviceFacts};
use crust_blockfs::fsgroup::FsGroupChangePolicy;
use crust_blockfs::fsgroup::{self, FsGroupRequest};

const USAGE: &str = "usage: fsgroup-walk GROUP DIRECTORY [DEVICE]";

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(group), Some(directory)) = (arguments.next(), arguments.next()) else {
        return Err(USAGE.into());
    };
    let device = arguments.next();
    let device = device
        .map(|path| Device::open(Path::new(&path)).map(DeviceFacts::from))
        .transpose()?;
    let root = File::open(directory)?;
    let order = FsGroupRequest {
        group: group.to_str().ok_or(USAGE)?.parse()?,
        policy: FsGroupChangePolicy::Always,
        device: device.as_ref(),
        in_use: false,
    };
    let start = Instant::now();
    fsgroup::apply(&root, &order, Deadline::never(), &mut |_| {})?;
    let took = start.elapsed().as_nanos();
    println!("{took} {}", peak()?);
    Ok(())
}

fn peak() -> Result<u64, Box<dyn Error>> {
    for line in BufReader::new(File::open("/proc/self/status")?).lines() {
        let line = line?;
        let peak = line.strip_prefix("VmHWM:");
        if let Some(kilobytes) = peak.and_then(|peak| peak.trim().strip_suffix(" kB")) {
            return Ok(kilobytes.parse()?);
        }
    }
    Err("/proc/self/status: no VmHWM".into())
}
