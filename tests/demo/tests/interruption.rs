//! Ctrl-C in the demo.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, Stdio};

use runcrust_harness::{TestDir, loopdev, package_binary};

const SIGINT: i32 = 2;

#[test]
fn an_interrupted_demo_removes_what_it_created() {
    let program = package_binary("demo", env!("CARGO_BIN_EXE_demo"));
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
        let left: Vec<_> = fs::read_dir(dir.path()).expect("a directory").collect();
        assert!(left.is_empty(), "step {step}: {left:?}");
        let devices = loopdev::on_files_below(dir.path());
        assert!(devices.is_empty(), "step {step}: {devices:?}");
    }
}
