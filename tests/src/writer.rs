//! A workload that writes continuously.

use crate::node::WAIT_TIMEOUT;
use crate::{Container, wait_until};

/// A script that appends numbered lines to `/data/log` and syncs each, until it is killed or an error occurs.
pub const WRITER: &str = "n=0
    while true; do
        n=$((n + 1))
        echo $n | dd of=/data/log oflag=append conv=notrunc,fsync 2>/dev/null
        echo $n > /tmp/count.new
        mv /tmp/count.new /tmp/count
    done";

/// Returns the number of lines that the script has written to the disk.
pub fn lines_written(app: &Container) -> u64 {
    let run = app.exec(&["/bin/cat", "/tmp/count"]);
    run.stdout.trim().parse().unwrap_or(0)
}

/// Waits until the script has written more than `than` lines, and returns their number.
#[track_caller]
pub fn wait_for_lines(app: &Container, than: u64) -> u64 {
    wait_until("the writer to write", WAIT_TIMEOUT, || {
        lines_written(app) > than
    });
    assert!(app.is_alive());
    lines_written(app)
}

/// Checks that no line of the script is missing.
#[track_caller]
pub fn assert_no_line_missing(app: &Container) {
    let count = wait_for_lines(app, lines_written(app));
    let numbers = format!(
        "busybox seq 1 {count} > /tmp/expected; head -n {count} /data/log | cmp - /tmp/expected"
    );
    assert_eq!(app.sh(&numbers), "");
}
