//! A `runtime-cli` that isn't what it should be: each gives its code, and leaves no process.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crust_proto::v1::runtime_client::RuntimeClient;
use crust_proto::v1::{RuntimeGetVolumeStatsRequest, RuntimeGetVolumeStatsResponse};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use runcrust_tests::node::{PATIENCE, utf8};
use runcrust_tests::ops::stage_request;
use runcrust_tests::{Delegate, LoopDevice, Node, Ops, Run, process, until, wait_until};
use tonic::Code::{self, DeadlineExceeded, Internal, NotFound, OutOfRange};
use tonic::Status;

use crate::{reason, refused};

/// An answer to `stats`.
pub(crate) const ANSWER: &str = r#"{"usage":[{"unit":"BYTES","total":9,"used":4,"available":3}],"volume_condition":{"abnormal":true,"message":"so so"}}"#;

/// A staged volume whose `runtime-cli` the test writes.
pub(crate) struct Scene {
    pub(crate) node: Node,
    pub(crate) ops: Ops,
    pub(crate) target: PathBuf,
    device: LoopDevice,
}

impl Scene {
    /// With lines added to the daemon's configuration, which allows [`Self::program`].
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
        scene.name(&scene.program());
        scene
    }

    /// The program that the volume's entry names, where only root can change anything.
    pub(crate) fn program(&self) -> PathBuf {
        program(&self.node)
    }

    /// Has the volume's entry name a program.
    fn name(&self, program: &Path) {
        let file = self.node.entry(&self.target).join("runtime-cli");
        fs::write(&file, format!("{}\n", program.display())).unwrap();
        fs::set_permissions(file, Permissions::from_mode(0o600)).unwrap();
    }

    /// Writes the program: a script, after a line that tells its pid, which is its group's.
    pub(crate) fn script(&self, text: &str) {
        let _ = fs::remove_file(self.told());
        let told = self.told();
        let text = format!(
            "#!/bin/sh\necho $$ > {0}.new\nmv {0}.new {0}\n{text}\n",
            utf8(&told)
        );
        fs::write(self.program(), text).unwrap();
        fs::set_permissions(self.program(), Permissions::from_mode(0o755)).unwrap();
    }

    pub(crate) fn told(&self) -> PathBuf {
        self.node.dir().join("pid")
    }

    /// The group of the program that was run last.
    #[track_caller]
    pub(crate) fn group(&self) -> i32 {
        let told = self.told();
        wait_until("the program to run", PATIENCE, || told.exists());
        fs::read_to_string(told).unwrap().trim().parse().unwrap()
    }

    pub(crate) fn stats(&self) -> Result<RuntimeGetVolumeStatsResponse, Status> {
        self.ops.stats(&self.target)
    }

    /// Nothing runs of the program that was run last.
    #[track_caller]
    fn assert_none_left(&self) {
        let group = self.group();
        wait_until("the group to end", PATIENCE, || {
            process::in_group(group).is_empty()
        });
        wait_until("whoever left it to end", PATIENCE, || {
            self.children().is_empty()
        });
    }

    /// Who runs below the daemon.
    fn children(&self) -> Vec<i32> {
        process::children(self.ops.pid())
    }
}

fn program(node: &Node) -> PathBuf {
    node.handler().path().with_file_name("cli")
}

/// What it does, how that is answered, and in which words about the program.
const PROGRAMS: [(&str, Code, &str, &str); 17] = [
    // Who leaves the group, and even his parent, is found all the same.
    (
        "setsid sleep 1000000 & setsid sh -c 'setsid sleep 1000000 & sleep 1000000' & wait",
        DeadlineExceeded,
        "RUNTIME_CLI_TIMEOUT",
        " gave no answer within 2 s",
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
        " gave no answer within 2 s and was killed",
    ),
    (
        "sleep 1000000 & sleep 1000000 & wait",
        DeadlineExceeded,
        "RUNTIME_CLI_TIMEOUT",
        " gave no answer within 2 s",
    ),
    (
        "trap '' TERM INT HUP; while true; do sleep 1; done",
        DeadlineExceeded,
        "RUNTIME_CLI_TIMEOUT",
        " gave no answer within 2 s",
    ),
    (
        "exec >&- 2>&-; sleep 1000000",
        DeadlineExceeded,
        "RUNTIME_CLI_TIMEOUT",
        " gave no answer within 2 s",
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
fn whatever_it_does_the_call_ends_and_so_does_its_group() {
    let scene = Scene::new("cli_timeout = 2");
    let program = scene.program();
    for (script, code, expected, message) in PROGRAMS {
        scene.script(script);
        let call = scene.stats();
        assert_eq!(reason(&call), expected, "{script}");
        let error = refused(call, code);
        let start = match expected {
            "RUNTIME" => format!("volume pv-1: {message}"),
            _ => format!("volume pv-1: {}{message}", program.display()),
        };
        assert!(error.starts_with(&start), "{script}: {error}");
        scene.assert_none_left();
    }
    scene.script("exec sleep 1000000");
    refused(scene.ops.expand(&scene.target, 0, 0), DeadlineExceeded);
    scene.assert_none_left();
}

#[test]
fn its_answer_is_passed_on_and_so_are_its_errors() {
    let scene = Scene::new("");
    // Who still has its output is ended, also one that isn't of its group.
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
        refused(scene.ops.expand(&scene.target, 0, 0), code);
    }
}

/// No shell reads the target path, and nothing of the daemon's is passed on.
#[test]
fn it_gets_its_arguments_and_little_else() {
    let volume = "pv; touch $(pwd) `id` 'x' \"y\"";
    let scene = Scene::with_volume(volume, "");
    let seen = scene.node.dir().join("seen");
    let tell = format!(
        "{{ printf '%s\\n' \"$@\"; pwd; cat /proc/$$/environ | tr '\\0' '\\n'; readlink /proc/$$/fd/0; readlink /proc/$$/fd/* | grep -c -e socket -e event; }} > {}",
        seen.display()
    );
    scene.script(&format!("{tell}\necho '{ANSWER}'"));
    scene.stats().unwrap();
    let expected = format!(
        "crust\nstats\n{}\n/\nPATH=/usr/sbin:/usr/bin:/sbin:/bin\n/dev/null\n0\n",
        scene.target.display()
    );
    assert_eq!(fs::read_to_string(&seen).unwrap(), expected);
    scene.script(&format!("{tell}\necho '{{\"capacity_bytes\":5}}'"));
    assert_eq!(scene.ops.expand(&scene.target, 3, 7).unwrap(), 5);
    let seen = fs::read_to_string(&seen).unwrap();
    let start = format!("crust\nresize\n{}\n3\n7\n", scene.target.display());
    assert!(seen.starts_with(&start), "{seen}");
}

#[test]
fn one_that_others_could_change_or_that_nobody_listed_is_not_run() {
    let scene = Scene::new("");
    scene.script(&format!("echo '{ANSWER}'"));
    scene.stats().expect("this one may be run");
    let program = scene.program();
    let beside = |name: &str| program.with_file_name(name);
    let open = scene.node.dir().join("open");
    fs::copy(&program, &open).unwrap();
    fs::copy(&program, beside("unlisted")).unwrap();
    let group = scene.told();

    let untrusted = |words: &str| {
        let _ = fs::remove_file(&group);
        let call = scene.stats();
        assert_eq!(reason(&call), "RUNTIME_CLI_UNTRUSTED");
        let error = refused(call, Internal);
        assert!(error.starts_with("volume pv-1: runtime-cli "), "{error}");
        assert!(error.contains(words), "{error}");
        assert!(!group.exists(), "it was run");
    };
    chown(&program, Some(1000), None).unwrap();
    untrusted("isn't owned by root");
    chown(&program, Some(0), None).unwrap();
    for mode in [0o775, 0o757] {
        fs::set_permissions(&program, Permissions::from_mode(mode)).unwrap();
        untrusted("can be written by others than root");
    }
    fs::remove_file(&program).unwrap();
    untrusted("No such file");
    symlink(&open, &program).unwrap();
    untrusted("/tmp can be written by others than root");
    fs::remove_file(&program).unwrap();
    fs::create_dir(&program).unwrap();
    untrusted("isn't a file");
    fs::remove_dir(&program).unwrap();

    scene.name(&beside("unlisted"));
    untrusted("isn't one of those that may be run");
    for odd in ["cli", "/run/../bin/sh"] {
        scene.name(Path::new(odd));
        untrusted("isn't an absolute path without `..`");
    }
    symlink(beside("unlisted"), &program).unwrap();
    scene.name(&program);
    scene
        .stats()
        .expect("a link on the list, to what is root's");
}

#[test]
fn one_that_cannot_be_started_is_told() {
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
        let error = refused(call, Internal);
        let start = format!("volume pv-1: exec {}: {words}", scene.program().display());
        assert!(
            error.starts_with(&start) && error.contains("; hint: "),
            "{error}"
        );
    }
}

#[test]
fn a_client_that_hangs_up_ends_it() {
    let scene = Scene::new("cli_timeout = 3600");
    scene.script("sleep 1000000 & sleep 1000000 & wait");
    scene.ops.block_on(async {
        let mut client = RuntimeClient::new(scene.ops.channel(scene.ops.socket()));
        let request = RuntimeGetVolumeStatsRequest {
            volume_target_path: utf8(&scene.target).to_owned(),
        };
        let call = tokio::spawn(async move { client.runtime_get_volume_stats(request).await });
        until("the program to run", PATIENCE, || scene.told().exists()).await;
        assert!(!process::in_group(scene.group()).is_empty());
        call.abort();
        let group = scene.group();
        until("the group to end", PATIENCE, || {
            process::in_group(group).is_empty()
        })
        .await;
    });
    scene.script(&format!("echo '{ANSWER}'"));
    scene.stats().expect("the volume isn't kept");
}

/// A process that the kernel has can't be killed. The call ends all the same; of the next ones none
/// adds another process, and other volumes don't mind.
#[test]
fn one_that_cannot_be_killed_is_one_process_and_holds_up_no_other() {
    let scene = Scene::new("cli_timeout = 1");
    let device = scene.node.ext4();
    let other = scene.node.target("pod-a", "pv-2");
    let frozen = Frozen::new(&scene.node, &device);
    scene.script(&format!("echo x > {}", utf8(&frozen.file())));
    let words = [
        "gave no answer within 1 s",
        "an earlier call for it",
        "an earlier call for it",
    ];
    for words in words {
        let error = refused(scene.stats(), DeadlineExceeded);
        assert!(
            error.starts_with("volume pv-1: ") && error.contains(words),
            "{error}"
        );
    }
    assert_eq!(scene.children().len(), 1, "the one that hangs");
    scene
        .ops
        .stage(stage_request(&other, &scene.device))
        .unwrap();
    scene.ops.unstage(&other).unwrap();
    drop(frozen);
    wait_until("its end", PATIENCE, || scene.children().is_empty());
    scene.script(&format!("echo '{ANSWER}'"));
    scene.stats().expect("the volume isn't kept");
}

/// A file system that lets nobody write: who does is in the kernel's hands. It is mounted where the
/// daemon sees it.
struct Frozen(PathBuf);

impl Frozen {
    fn new(node: &Node, device: &LoopDevice) -> Self {
        let at = node.dir().subdir("frozen");
        let mut mount = Command::new("mount");
        let _ = Run::of(mount.arg(device.path()).arg(&at)).success();
        let frozen = Self(at);
        fs::write(frozen.file(), "").unwrap();
        let _ = frozen.turn("--freeze").success();
        frozen
    }

    fn file(&self) -> PathBuf {
        self.0.join("file")
    }

    fn turn(&self, how: &str) -> Run {
        Run::of(Command::new("fsfreeze").arg(how).arg(&self.0))
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = self.turn("--unfreeze");
        let _ = Run::of(Command::new("umount").arg("--lazy").arg(&self.0));
    }
}

/// Nor does a child that it leaves: its answer is one, and its volume waits for the child's end.
#[test]
fn what_it_leaves_in_the_kernels_hands_keeps_its_volume_alone() {
    let scene = Scene::new("cli_timeout = 4\nunstage_timeout = 4");
    let device = scene.node.ext4();
    let frozen = Frozen::new(&scene.node, &device);
    let other = scene.node.target("pod-a", "pv-2");
    scene
        .ops
        .stage(stage_request(&other, &scene.device))
        .unwrap();
    fs::copy(
        scene.node.entry(&scene.target).join("runtime-cli"),
        scene.node.entry(&other).join("runtime-cli"),
    )
    .unwrap();
    // Of the first volume alone.
    scene.script(&format!(
        "case $3 in *pv-1/*) setsid sh -c 'echo x > {}' >/dev/null 2>&1 & \
         until grep -q '^State:.*D' /proc/$!/status; do :; done; esac; echo '{ANSWER}'",
        utf8(&frozen.file())
    ));
    scene.stats().expect("it has answered");
    let error = refused(scene.stats(), DeadlineExceeded);
    assert!(error.contains("an earlier call for it"), "{error}");
    for _ in 0..3 {
        scene.ops.stats(&other).expect("another volume's");
    }
    assert_eq!(scene.children().len(), 1, "the attendant of what hangs");
    drop(frozen);
    wait_until("its end", PATIENCE, || scene.children().is_empty());
    scene.script(&format!("echo '{ANSWER}'"));
    scene.stats().expect("the volume isn't kept");
}

/// What was there before the daemon, and what others' programs leave while they run, is nobody's.
#[test]
fn nobody_elses_process_is_ended() {
    let scene = Scene::new("cli_timeout = 3600");
    scene.ops.kill();
    let daemon = scene.ops.command();
    let mut shell = Command::new("/bin/sh");
    let line = "sleep 1000003 & echo $! > \"$0\"; exec \"$@\"";
    let before = scene.node.dir().join("before");
    shell
        .args(["-c", line])
        .arg(&before)
        .arg(daemon.get_program())
        .args(daemon.get_args());
    scene.ops.spawn(shell);
    let other = scene.node.target("pod-a", "pv-2");
    scene
        .ops
        .stage(stage_request(&other, &scene.device))
        .unwrap();
    fs::copy(
        scene.node.entry(&scene.target).join("runtime-cli"),
        scene.node.entry(&other).join("runtime-cli"),
    )
    .unwrap();
    let [go, went, waits] = ["go", "went", "waits"].map(|name| scene.node.dir().join(name));
    for fifo in [&go, &went] {
        mkfifo(fifo, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    }
    // The first volume's waits for a helper that has left it.
    scene.script(&format!(
        "case $3 in *pv-1/*) (setsid sh -c 'read x < {go}; echo > {went}' &); echo > {waits}; read x < {went}; esac; echo '{ANSWER}'",
        go = utf8(&go),
        went = utf8(&went),
        waits = utf8(&waits),
    ));
    scene.ops.block_on(async {
        let mut client = RuntimeClient::new(scene.ops.channel(scene.ops.socket()));
        let request = |target: &Path| RuntimeGetVolumeStatsRequest {
            volume_target_path: utf8(target).to_owned(),
        };
        let (mut first, asked) = (client.clone(), request(&scene.target));
        let call = tokio::spawn(async move { first.runtime_get_volume_stats(asked).await });
        until("the program to wait", PATIENCE, || waits.exists()).await;
        client
            .runtime_get_volume_stats(request(&other))
            .await
            .unwrap();
        assert!(!call.is_finished());
        fs::write(&go, "\n").unwrap();
        call.await.unwrap().expect("its helper lives");
    });
    let before: i32 = fs::read_to_string(before).unwrap().trim().parse().unwrap();
    assert!(process::is_alive(before), "it isn't the daemon's");
    process::kill_now(before);
}

#[test]
fn a_callers_deadline_is_told_as_one() {
    let scene = Scene::new("cli_timeout = 3600");
    scene.script("exec sleep 1000000");
    let mut request = tonic::Request::new(RuntimeGetVolumeStatsRequest {
        volume_target_path: utf8(&scene.target).to_owned(),
    });
    // The client's own clock is this one's elder by a moment.
    request.set_timeout(Duration::from_secs(2));
    let call = scene
        .ops
        .call(|mut client| async move { client.runtime_get_volume_stats(request).await });
    assert_eq!(reason(&call), "DEADLINE");
    refused(call, DeadlineExceeded);
    scene.assert_none_left();
}

/// Its attendant sees to that.
#[test]
fn it_does_not_outlive_a_daemon_that_is_killed() {
    let scene = Scene::new("cli_timeout = 3600");
    scene.script("setsid sleep 1000000 & sleep 1000000 & wait");
    let attendants = scene.ops.block_on(async {
        let mut client = RuntimeClient::new(scene.ops.channel(scene.ops.socket()));
        let volume_target_path = utf8(&scene.target).to_owned();
        let request = RuntimeGetVolumeStatsRequest { volume_target_path };
        let call = tokio::spawn(async move { client.runtime_get_volume_stats(request).await });
        until("the program to run", PATIENCE, || scene.told().exists()).await;
        let attendants = scene.children();
        scene.ops.kill();
        let _ = call.await.unwrap().unwrap_err();
        attendants
    });
    assert_eq!(attendants.len(), 1);
    // It ends when all below it have.
    wait_until("the attendant to end", PATIENCE, || {
        !process::is_alive(attendants[0])
    });
    assert_eq!(process::in_group(scene.group()), <[i32; 0]>::default());
}

/// Others' calls go on meanwhile.
#[test]
fn one_volume_that_hangs_holds_up_no_other() {
    let scene = Scene::new("cli_timeout = 3600");
    scene.script("exec sleep 1000000");
    let (other, device) = (scene.node.target("pod-a", "pv-2"), scene.node.ext4());
    scene.ops.block_on(async {
        let mut client = RuntimeClient::new(scene.ops.channel(scene.ops.socket()));
        let volume_target_path = utf8(&scene.target).to_owned();
        let request = RuntimeGetVolumeStatsRequest { volume_target_path };
        let mut hanging = client.clone();
        let call = tokio::spawn(async move { hanging.runtime_get_volume_stats(request).await });
        until("the program to run", PATIENCE, || scene.told().exists()).await;
        let request = stage_request(&other, &device);
        client.runtime_stage_volume(request).await.unwrap();
        let again = stage_request(&scene.target, &scene.device);
        client
            .runtime_stage_volume(again)
            .await
            .expect("the volume itself can be staged too");
        assert!(!call.is_finished());
        call.abort();
        let group = scene.group();
        until("the group to end", PATIENCE, || {
            process::in_group(group).is_empty()
        })
        .await;
    });
}
