//! The `runtime-cli` of a volume misbehaves in different ways. Each way has its error code, and leaves no process.

mod processes;

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use crust_proto::v1::RuntimeGetVolumeStatsResponse;
use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::ops::stage_request;
use runcrust_tests::{Delegate, LoopDevice, Node, Ops, process, wait_until};
use tonic::Code::{self, DeadlineExceeded, Internal, NotFound, OutOfRange};
use tonic::Status;

use crate::{expect_error, reason};

/// A valid answer to `stats`.
pub(crate) const ANSWER: &str = r#"{"usage":[{"unit":"BYTES","total":9,"used":4,"available":3}],"volume_condition":{"abnormal":true,"message":"so so"}}"#;

/// A staged volume with a `runtime-cli` that the test writes.
pub(crate) struct Scene {
    pub(crate) node: Node,
    pub(crate) ops: Ops,
    pub(crate) target: PathBuf,
    device: LoopDevice,
}

impl Scene {
    /// Starts a daemon whose configuration allows [`Self::program`] and has the lines `extra`.
    pub(crate) fn new(extra: &str) -> Self {
        Self::with_volume("pv-1", extra)
    }

    fn with_volume(volume: &str, extra: &str) -> Self {
        let node = Node::trusted(Delegate::Runc, "");
        let allowed = format!("allowed_clis = [{:?}]\n{extra}", program(&node));
        let ops = Ops::with(&node, &allowed);
        let device = node.ext4();
        let target = node.target("pod-a", volume);
        ops.stage(stage_request(&target, &device)).unwrap();
        let scene = Self {
            node,
            ops,
            target,
            device,
        };
        scene.set_runtime_cli(&scene.program());
        scene
    }

    /// Returns the path of the program, in a directory that only root can change.
    pub(crate) fn program(&self) -> PathBuf {
        program(&self.node)
    }

    /// Stages another volume with the same program.
    fn stage_second(&self) -> PathBuf {
        let other = self.node.target("pod-a", "pv-2");
        self.ops.stage(stage_request(&other, &self.device)).unwrap();
        let cli = |target| self.node.entry(target).join("runtime-cli");
        fs::copy(cli(&self.target), cli(&other)).unwrap();
        other
    }

    /// Writes a path into the `runtime-cli` of the volume's entry.
    fn set_runtime_cli(&self, program: &Path) {
        let file = self.node.entry(&self.target).join("runtime-cli");
        fs::write(&file, format!("{}\n", program.display())).unwrap();
        fs::set_permissions(file, Permissions::from_mode(0o600)).unwrap();
    }

    /// Writes the program: a script that first writes its pid, which is also its process group, to [`Self::pid_file`].
    pub(crate) fn script(&self, text: &str) {
        let _ = fs::remove_file(self.pid_file());
        let pid_file = self.pid_file();
        let text = format!(
            "#!/bin/sh\necho $$ > {0}.new\nmv {0}.new {0}\n{text}\n",
            utf8(&pid_file)
        );
        fs::write(self.program(), text).unwrap();
        fs::set_permissions(self.program(), Permissions::from_mode(0o755)).unwrap();
    }

    pub(crate) fn pid_file(&self) -> PathBuf {
        self.node.dir().join("pid")
    }

    /// Returns the process group of the program that was run last.
    #[track_caller]
    pub(crate) fn group(&self) -> i32 {
        let pid_file = self.pid_file();
        wait_until("the program to run", WAIT_TIMEOUT, || pid_file.exists());
        fs::read_to_string(pid_file)
            .unwrap()
            .trim()
            .parse()
            .unwrap()
    }

    pub(crate) fn stats(&self) -> Result<RuntimeGetVolumeStatsResponse, Status> {
        self.ops.stats(&self.target)
    }

    /// Asserts that nothing of the last run is left, neither in its process group nor below the daemon.
    #[track_caller]
    fn assert_none_left(&self) {
        let group = self.group();
        wait_until("the group to end", WAIT_TIMEOUT, || {
            process::in_group(group).is_empty()
        });
        wait_until("the daemon's other children to end", WAIT_TIMEOUT, || {
            self.children().is_empty()
        });
    }

    /// Returns the child processes of the daemon.
    fn children(&self) -> Vec<i32> {
        process::children(self.ops.pid())
    }
}

fn program(node: &Node) -> PathBuf {
    node.handler().path().with_file_name("cli")
}

/// Scripts, each with the code, the reason and a part of the message of the error that it leads to.
const PROGRAMS: [(&str, Code, &str, &str); 17] = [
    // Processes that leave the group, and even those that leave their parent, are found and killed.
    (
        "setsid sleep 1000000 & setsid sh -c 'setsid sleep 1000000 & sleep 1000000' & wait",
        DeadlineExceeded,
        "RUNTIME_CLI_TIMEOUT",
        " didn't answer within 2 s",
    ),
    (
        "setsid sleep 1000000 & echo '{}'",
        Internal,
        "RUNTIME_CLI",
        ": its answer can't be read: missing field",
    ),
    (
        "exec sleep 1000000",
        DeadlineExceeded,
        "RUNTIME_CLI_TIMEOUT",
        " didn't answer within 2 s and was killed",
    ),
    (
        "sleep 1000000 & sleep 1000000 & wait",
        DeadlineExceeded,
        "RUNTIME_CLI_TIMEOUT",
        " didn't answer within 2 s",
    ),
    (
        "trap '' TERM INT HUP; while true; do sleep 1; done",
        DeadlineExceeded,
        "RUNTIME_CLI_TIMEOUT",
        " didn't answer within 2 s",
    ),
    (
        "exec >&- 2>&-; sleep 1000000",
        DeadlineExceeded,
        "RUNTIME_CLI_TIMEOUT",
        " didn't answer within 2 s",
    ),
    (
        "echo hello",
        Internal,
        "RUNTIME_CLI",
        ": its answer can't be read: ",
    ),
    (
        "head -c 1000 /dev/urandom",
        Internal,
        "RUNTIME_CLI",
        ": its answer can't be read: ",
    ),
    (
        "true",
        Internal,
        "RUNTIME_CLI",
        ": its answer can't be read: ",
    ),
    (
        "sleep 1000000 & echo '{}'",
        Internal,
        "RUNTIME_CLI",
        ": its answer can't be read: ",
    ),
    (
        "head -c 104857600 /dev/zero",
        Internal,
        "RUNTIME_CLI",
        ": its answer is too long",
    ),
    (
        "head -c 104857600 /dev/zero >&2",
        Internal,
        "RUNTIME_CLI",
        ": its answer is too long",
    ),
    (
        "while true; do head -c 104857600 /dev/zero; done & wait",
        Internal,
        "RUNTIME_CLI",
        ": its answer is too long",
    ),
    (
        "exit 3",
        Internal,
        "RUNTIME_CLI",
        ": it failed (exit status: 3): nothing on standard error",
    ),
    (
        "echo '{}'; echo 'no\tsuch \"thing\"' >&2; exit 3",
        Internal,
        "RUNTIME_CLI",
        ": it failed (exit status: 3): no\\tsuch \\\"thing\\\";",
    ),
    (
        "kill -SEGV $$",
        Internal,
        "RUNTIME_CLI",
        ": it failed (signal: 11",
    ),
    (
        "echo '{\"error\":{\"code\":\"NO_SUCH_CODE\",\"message\":\"why\"}}' >&2; exit 3",
        Internal,
        "RUNTIME",
        "why",
    ),
];

#[test]
fn every_call_ends_and_leaves_no_process() {
    let scene = Scene::new("cli_timeout = 2");
    let program = scene.program();
    for (script, code, expected, message) in PROGRAMS {
        scene.script(script);
        let call = scene.stats();
        assert_eq!(reason(&call), expected, "{script}");
        let error = expect_error(call, code);
        let start = match expected {
            "RUNTIME" => format!("volume pv-1: {message}"),
            _ => format!("volume pv-1: {}{message}", program.display()),
        };
        assert!(error.starts_with(&start), "{script}: {error}");
        scene.assert_none_left();
    }
    scene.script("exec sleep 1000000");
    expect_error(scene.ops.expand(&scene.target, 0, 0), DeadlineExceeded);
    scene.assert_none_left();
}

#[test]
fn its_answers_and_errors_are_passed_on() {
    let scene = Scene::new("");
    // Processes that still have its output open are killed, even outside of its group.
    scene.script(&format!(
        "sleep 1000000 & setsid sleep 1000000 & echo warning >&2; echo '{ANSWER}'"
    ));
    let stats = scene.stats().unwrap();
    let [usage] = &stats.usage[..] else {
        panic!("{stats:?}");
    };
    assert_eq!((usage.total, usage.used, usage.available), (9, 4, 3));
    let condition = stats.volume_condition.unwrap();
    assert!(condition.abnormal && condition.message == "so so");
    scene.assert_none_left();
    for (name, code) in [("OUT_OF_RANGE", OutOfRange), ("NOT_FOUND", NotFound)] {
        scene.script(&format!("echo '{{\"error\":{{\"code\":\"{name}\",\"message\":\"volume pv-1: why\"}}}}' >&2; exit 1"));
        expect_error(scene.ops.expand(&scene.target, 0, 0), code);
    }
}

/// The target path is not interpreted by a shell, and the program inherits nothing from the daemon.
#[test]
fn it_gets_its_arguments_and_a_minimal_environment() {
    let volume = "pv; touch $(pwd) `id` 'x' \"y\"";
    let scene = Scene::with_volume(volume, "");
    let output = scene.node.dir().join("seen");
    let report = format!(
        "{{ printf '%s\\n' \"$@\"; pwd; cat /proc/$$/environ | tr '\\0' '\\n'; readlink /proc/$$/fd/0; readlink /proc/$$/fd/* | grep -c -e socket -e event; }} > {}",
        output.display()
    );
    scene.script(&format!("{report}\necho '{ANSWER}'"));
    scene.stats().unwrap();
    let expected = format!(
        "crust\nstats\n{}\n/\nPATH=/usr/sbin:/usr/bin:/sbin:/bin\n/dev/null\n0\n",
        scene.target.display()
    );
    assert_eq!(fs::read_to_string(&output).unwrap(), expected);
    scene.script(&format!("{report}\necho '{{\"capacity_bytes\":5}}'"));
    assert_eq!(scene.ops.expand(&scene.target, 3, 7).unwrap(), 5);
    let output = fs::read_to_string(&output).unwrap();
    let start = format!("crust\nresize\n{}\n3\n7\n", scene.target.display());
    assert!(output.starts_with(&start), "{output}");
}

#[test]
fn an_unlisted_or_writable_runtime_cli_is_not_run() {
    let scene = Scene::new("");
    scene.script(&format!("echo '{ANSWER}'"));
    scene.stats().expect("an allowed program");
    let program = scene.program();
    let sibling = |name: &str| program.with_file_name(name);
    let open = scene.node.dir().join("open");
    fs::copy(&program, &open).unwrap();
    fs::copy(&program, sibling("unlisted")).unwrap();
    let group = scene.pid_file();

    let assert_untrusted = |words: &str| {
        let _ = fs::remove_file(&group);
        let call = scene.stats();
        assert_eq!(reason(&call), "RUNTIME_CLI_UNTRUSTED");
        let error = expect_error(call, Internal);
        assert!(error.starts_with("volume pv-1: runtime-cli "), "{error}");
        assert!(error.contains(words), "{error}");
        assert!(!group.exists(), "the program was run");
    };
    chown(&program, Some(1000), None).unwrap();
    assert_untrusted("isn't owned by root");
    chown(&program, Some(0), None).unwrap();
    for mode in [0o775, 0o757] {
        fs::set_permissions(&program, Permissions::from_mode(mode)).unwrap();
        assert_untrusted("can be written by others than root");
    }
    fs::remove_file(&program).unwrap();
    assert_untrusted("No such file");
    symlink(&open, &program).unwrap();
    let temporary = std::env::temp_dir();
    assert_untrusted(&format!(
        "{} can be written by others than root",
        temporary.display()
    ));
    fs::remove_file(&program).unwrap();
    fs::create_dir(&program).unwrap();
    assert_untrusted("isn't a file");
    fs::remove_dir(&program).unwrap();

    scene.set_runtime_cli(&sibling("unlisted"));
    assert_untrusted("isn't one of those that may be run");
    for odd in ["cli", "/run/../bin/sh"] {
        scene.set_runtime_cli(Path::new(odd));
        assert_untrusted("isn't an absolute path without `..`");
    }
    symlink(sibling("unlisted"), &program).unwrap();
    scene.set_runtime_cli(&program);
    scene.stats().expect("an allowed link to a file of root's");
}

#[test]
fn a_program_that_cannot_be_started_is_reported() {
    let scene = Scene::new("");
    scene.script("");
    for (mode, text, words) in [
        (0o644, "#!/bin/sh\n", "Permission denied"),
        (
            0o755,
            "#!/no/such/interpreter\n",
            "No such file or directory",
        ),
        (0o755, "nothing that the kernel knows", "Exec format error"),
    ] {
        fs::write(scene.program(), text).unwrap();
        fs::set_permissions(scene.program(), Permissions::from_mode(mode)).unwrap();
        let call = scene.stats();
        assert_eq!(reason(&call), "RUNTIME_CLI");
        let error = expect_error(call, Internal);
        let start = format!("volume pv-1: exec {}: {words}", scene.program().display());
        assert!(
            error.starts_with(&start) && error.contains("; hint: "),
            "{error}"
        );
    }
}
