//! The processes of a `runtime-cli`: they end with the caller and the daemon, and a hung one only affects its volume.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crust_proto::v1::RuntimeGetVolumeStatsRequest;
use crust_proto::v1::runtime_client::RuntimeClient;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::ops::stage_request;
use runcrust_tests::{LoopDevice, Node, Run, process, wait_until, wait_until_async};
use tonic::Code::DeadlineExceeded;

use super::{ANSWER, Scene};
use crate::{expect_error, reason};

#[test]
fn a_client_that_disconnects_ends_the_program() {
    let scene = Scene::new("cli_timeout = 3600");
    scene.script("sleep 1000000 & sleep 1000000 & wait");
    scene.ops.block_on(async {
        let mut client = RuntimeClient::new(scene.ops.channel(scene.ops.socket()));
        let request = RuntimeGetVolumeStatsRequest {
            volume_target_path: utf8(&scene.target).to_owned(),
        };
        let call = tokio::spawn(async move { client.runtime_get_volume_stats(request).await });
        wait_until_async("the program to run", WAIT_TIMEOUT, || {
            scene.pid_file().exists()
        })
        .await;
        assert!(!process::in_group(scene.group()).is_empty());
        call.abort();
        let group = scene.group();
        wait_until_async("the group to end", WAIT_TIMEOUT, || {
            process::in_group(group).is_empty()
        })
        .await;
    });
    scene.script(&format!("echo '{ANSWER}'"));
    scene.stats().expect("the volume is available again");
}

/// A process in an uninterruptible sleep cannot be killed. The call ends anyway, later calls for the volume start no
/// further process, and other volumes are not affected.
#[test]
fn an_unkillable_runtime_cli_delays_no_other_call() {
    let scene = Scene::new("cli_timeout = 1");
    let device = scene.node.ext4();
    let other = scene.node.target("pod-a", "pv-2");
    let frozen = FrozenFilesystem::new(&scene.node, &device);
    scene.script(&format!("echo x > {}", utf8(&frozen.file())));
    let words = [
        "didn't answer within 1 s",
        "an earlier call for it",
        "an earlier call for it",
    ];
    for words in words {
        let error = expect_error(scene.stats(), DeadlineExceeded);
        assert!(
            error.starts_with("volume pv-1: ") && error.contains(words),
            "{error}"
        );
    }
    assert_eq!(scene.children().len(), 1, "only the hung one");
    scene
        .ops
        .stage(stage_request(&other, &scene.device))
        .unwrap();
    scene.ops.unstage(&other).unwrap();
    drop(frozen);
    wait_until("the program to end", WAIT_TIMEOUT, || {
        scene.children().is_empty()
    });
    scene.script(&format!("echo '{ANSWER}'"));
    scene.stats().expect("the volume is available again");
}

/// A frozen file system (fsfreeze(8)) that the daemon sees. Writers to it sleep uninterruptibly. Dropping the value
/// thaws and unmounts it.
struct FrozenFilesystem(PathBuf);

impl FrozenFilesystem {
    fn new(node: &Node, device: &LoopDevice) -> Self {
        let at = node.dir().subdir("frozen");
        let mut mount = Command::new("mount");
        let _ = Run::capture(mount.arg(device.path()).arg(&at)).success();
        let frozen = Self(at);
        fs::write(frozen.file(), "").unwrap();
        let _ = frozen.fsfreeze("--freeze").success();
        frozen
    }

    fn file(&self) -> PathBuf {
        self.0.join("file")
    }

    fn fsfreeze(&self, action: &str) -> Run {
        Run::capture(Command::new("fsfreeze").arg(action).arg(&self.0))
    }
}

impl Drop for FrozenFilesystem {
    fn drop(&mut self) {
        let _ = self.fsfreeze("--unfreeze");
        let _ = Run::capture(Command::new("umount").arg("--lazy").arg(&self.0));
    }
}

/// The program answers and leaves an unkillable child. The answer counts, and further calls for its volume fail until
/// the child has ended.
#[test]
fn an_unkillable_child_affects_one_volume_only() {
    let scene = Scene::new("cli_timeout = 4\nunstage_timeout = 4");
    let device = scene.node.ext4();
    let frozen = FrozenFilesystem::new(&scene.node, &device);
    let other = scene.stage_second();
    // Only for the first volume, the program starts a process that hangs in the kernel.
    scene.script(&format!(
        "case $3 in *pv-1/*) setsid sh -c 'echo x > {}' >/dev/null 2>&1 & \
         until grep -q '^State:.*D' /proc/$!/status; do :; done; esac; echo '{ANSWER}'",
        utf8(&frozen.file())
    ));
    scene.stats().expect("an answer");
    let error = expect_error(scene.stats(), DeadlineExceeded);
    assert!(error.contains("an earlier call for it"), "{error}");
    for _ in 0..3 {
        scene.ops.stats(&other).expect("a call for another volume");
    }
    assert_eq!(
        scene.children().len(),
        1,
        "only the attendant of the hung child"
    );
    drop(frozen);
    wait_until("the program to end", WAIT_TIMEOUT, || {
        scene.children().is_empty()
    });
    scene.script(&format!("echo '{ANSWER}'"));
    scene.stats().expect("the volume is available again");
}

/// A process that the daemon inherited at its start, and the helper of a running program, stay alive when another
/// program ends.
#[test]
fn processes_of_others_are_not_killed() {
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
    let other = scene.stage_second();
    let [go, went, waits] = ["go", "went", "waits"].map(|name| scene.node.dir().join(name));
    for fifo in [&go, &went] {
        mkfifo(fifo, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    }
    // The program of the first volume waits for a helper that has left its session.
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
        let (mut first, first_request) = (client.clone(), request(&scene.target));
        let call = tokio::spawn(async move { first.runtime_get_volume_stats(first_request).await });
        wait_until_async("the program to wait", WAIT_TIMEOUT, || waits.exists()).await;
        client
            .runtime_get_volume_stats(request(&other))
            .await
            .unwrap();
        assert!(!call.is_finished());
        fs::write(&go, "\n").unwrap();
        call.await.unwrap().expect("a helper that is alive");
    });
    let before: i32 = fs::read_to_string(before).unwrap().trim().parse().unwrap();
    assert!(process::is_alive(before), "the inherited process lives");
    process::kill_now(before);
}

#[test]
fn a_callers_deadline_is_reported_as_such() {
    let scene = Scene::new("cli_timeout = 3600");
    scene.script("exec sleep 1000000");
    let mut request = tonic::Request::new(RuntimeGetVolumeStatsRequest {
        volume_target_path: utf8(&scene.target).to_owned(),
    });
    // The client's own deadline is slightly later than the one that it sends.
    request.set_timeout(Duration::from_secs(2));
    let call = scene
        .ops
        .call(|mut client| async move { client.runtime_get_volume_stats(request).await });
    assert_eq!(reason(&call), "DEADLINE");
    expect_error(call, DeadlineExceeded);
    scene.assert_none_left();
}

/// The attendant of the program ends it.
#[test]
fn the_program_does_not_outlive_a_killed_daemon() {
    let scene = Scene::new("cli_timeout = 3600");
    scene.script("setsid sleep 1000000 & sleep 1000000 & wait");
    let attendants = scene.ops.block_on(async {
        let mut client = RuntimeClient::new(scene.ops.channel(scene.ops.socket()));
        let volume_target_path = utf8(&scene.target).to_owned();
        let request = RuntimeGetVolumeStatsRequest { volume_target_path };
        let call = tokio::spawn(async move { client.runtime_get_volume_stats(request).await });
        wait_until_async("the program to run", WAIT_TIMEOUT, || {
            scene.pid_file().exists()
        })
        .await;
        let attendants = scene.children();
        scene.ops.kill();
        let _ = call.await.unwrap().unwrap_err();
        attendants
    });
    assert_eq!(attendants.len(), 1);
    // The attendant ends after all processes below it.
    wait_until("the attendant to end", WAIT_TIMEOUT, || {
        !process::is_alive(attendants[0])
    });
    assert_eq!(process::in_group(scene.group()), <[i32; 0]>::default());
}

/// Calls for other volumes are answered in the meantime.
#[test]
fn a_hung_program_does_not_delay_other_volumes() {
    let scene = Scene::new("cli_timeout = 3600");
    scene.script("exec sleep 1000000");
    let (other, device) = (scene.node.target("pod-a", "pv-2"), scene.node.ext4());
    scene.ops.block_on(async {
        let mut client = RuntimeClient::new(scene.ops.channel(scene.ops.socket()));
        let volume_target_path = utf8(&scene.target).to_owned();
        let request = RuntimeGetVolumeStatsRequest { volume_target_path };
        let mut hanging = client.clone();
        let call = tokio::spawn(async move { hanging.runtime_get_volume_stats(request).await });
        wait_until_async("the program to run", WAIT_TIMEOUT, || {
            scene.pid_file().exists()
        })
        .await;
        let request = stage_request(&other, &device);
        client.runtime_stage_volume(request).await.unwrap();
        let repeated = stage_request(&scene.target, &scene.device);
        client
            .runtime_stage_volume(repeated)
            .await
            .expect("a stage of the same volume");
        assert!(!call.is_finished());
        call.abort();
        let group = scene.group();
        wait_until_async("the group to end", WAIT_TIMEOUT, || {
            process::in_group(group).is_empty()
        })
        .await;
    });
}
