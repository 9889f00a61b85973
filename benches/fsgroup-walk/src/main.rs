//! `fsgroup-walk GROUP DIRECTORY`: fsGroup as a create applies it, in a program of its own. It prints
//! the nanoseconds, and the most memory that the program ever had, in kilobytes.

use std::error::Error;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::time::Instant;

use crust_mount::fsgroup;
use crust_state::{Deadline, FsGroupChangePolicy};

const USAGE: &str = "usage: fsgroup-walk GROUP DIRECTORY";

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(group), Some(directory), None) =
        (arguments.next(), arguments.next(), arguments.next())
    else {
        return Err(USAGE.into());
    };
    let group = group.to_str().ok_or(USAGE)?.parse()?;
    let root = File::open(directory)?;
    let (policy, never) = (FsGroupChangePolicy::Always, Deadline::never());
    let start = Instant::now();
    fsgroup::apply(&root, group, policy, never, &mut |_| {})?;
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
