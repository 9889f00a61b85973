//! Ctrl-C in the demo.

use std::env;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Command, Stdio};

use runcrust_harness::TestDir;

const SIGINT: i32 = 2;

#[test]
fn an_interrupted_demo_removes_what_it_created() {
    let program = env::var_os("NEXTEST_BIN_EXE_demo");
    let program = program.unwrap_or_else(|| env!("CARGO_BIN_EXE_demo").into());
    for step in ["1. ", "2. ", "3. ", "8. "] {
        let dir = TestDir::new();
        let mut demo = Command::new(&program)
            .env("TMPDIR", dir.path())
            .process_group(0)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("start the demo");
        let mut lines = BufReader::new(demo.stdout.take().expect("a pipe")).lines();
        assert!(lines.any(|line| line.expect("a line").starts_with(step)));
        // To the process group, as a terminal does it. A minimal Debian has no kill(1).
        let group = format!("-{}", demo.id());
        let sent = Command::new("sh")
            .args(["-c", "kill -s INT -- \"$0\"", &group])
            .status();
        assert!(sent.expect("run sh").success());
        lines.for_each(drop);
        let mut errors = String::new();
        let mut stderr = demo.stderr.take().expect("a pipe");
        let _ = stderr.read_to_string(&mut errors).expect("read stderr");
        let status = demo.wait().expect("wait for the demo");
        assert_eq!(status.signal(), Some(SIGINT), "step {step}: {errors}");
        assert_eq!(
            errors.trim(),
            "Interrupted. The demo removes what it created.",
            "step {step}"
        );
        assert_eq!(names_in(dir.path()), [] as [String; 0], "step {step}");
        assert_eq!(
            loop_devices_of(dir.path()),
            [] as [String; 0],
            "step {step}"
        );
    }
}

fn names_in(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("list a directory");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    names.map(|name| name.to_string_lossy().into()).collect()
}

/// Returns the files in a directory that loop devices show.
fn loop_devices_of(dir: &Path) -> Vec<String> {
    let devices = names_in(Path::new("/sys/block"));
    let files = devices
        .iter()
        .filter_map(|name| fs::read_to_string(format!("/sys/block/{name}/loop/backing_file")).ok());
    files
        .filter(|file| Path::new(file).starts_with(dir))
        .collect()
}
