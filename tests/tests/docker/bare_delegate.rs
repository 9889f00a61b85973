//! Containers without a volume, run by runcrust and by the delegate alone. The output of docker and of the containers
//! is the same.

use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::{DOCKER_IMAGE, Docker, Engine as _, Node, Run, on_each_delegate, wait_until};
use serde_json::json;

/// Prints what a container can see of its creation. Leaves out the numbers of mounts and file systems. Also leaves out
/// loop devices, because other tests attach and detach them.
const SCRIPT: &str = "id; env; pwd; hostname; ulimit -a; cat /proc/self/cgroup /proc/self/oom_score_adj;
    grep -E 'Cap|NoNew|Seccomp|Groups|Umask' /proc/self/status;
    stat -c '%n %F %a %t:%T' /dev/* | grep -v /dev/loop;
    cut -d' ' -f4- /proc/self/mountinfo; cat /proc/self/uid_map; readlink /proc/1/exe; ls /data /sys/fs/cgroup 2>&1";

/// Replaces the ids of containers and images, full or short.
fn without_ids(text: &str) -> String {
    let is_id = |word: &str| word.len() >= 12 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let parts = text.split_inclusive(|at: char| !at.is_ascii_alphanumeric());
    let replaced = parts.map(|part| {
        let word = part.trim_end_matches(|at: char| !at.is_ascii_alphanumeric());
        if is_id(word) {
            part.replace(word, "ID")
        } else {
            part.to_owned()
        }
    });
    replaced.collect()
}

/// Exit code, standard output and standard error of the client.
type Output = (Option<i32>, String, String);

fn output(run: &Run) -> Output {
    (
        run.status.code(),
        without_ids(&run.stdout),
        without_ids(&run.stderr),
    )
}

on_each_delegate! {
    #[ignore = "needs docker; runs in another Debian: make engines"]
    fn a_container_without_a_volume_is_the_delegates(delegate: Delegate) {
        let node = Node::new(delegate);
        let (runcrust, bare) = (node.handler().path(), delegate.program());
        let docker = Docker::start(node.dir(), delegate, &[("crust", runcrust), ("bare", &bare)], json!({}));
        let ordinary = format!("--volume={}:/data", node.dir().subdir("ordinary").display());
        let print: &[&str] = &["/bin/sh", "-c", SCRIPT];
        let rows: [(&[&str], &[&str]); 14] = [
            (&[], print),
            (&[&ordinary, "--volume=/data/anonymous", "--tmpfs=/scratch"], print),
            (&[&format!("{ordinary}:ro,rslave"), "--read-only", "--init"], print),
            (&["--user=5:6", "--group-add=7", "--cap-drop=ALL", "--security-opt=no-new-privileges"], print),
            (&["--privileged"], print),
            (&["--cap-add=NET_ADMIN", "--device=/dev/zero:/dev/other", "--ulimit=nofile=512:512"], print),
            (&["--pids-limit=33", "--shm-size=1m", "--ipc=none", "--workdir=/made"], print),
            (&["--network=host", "--pid=host", "--uts=host"], &["/bin/sh", "-c", "hostname; id"]),
            (&["--tty"], &["/bin/sh", "-c", "test -t 1 && echo terminal"]),
            (&[], &["/bin/sh", "-c", "echo out; echo err >&2; exit 7"]),
            (&[], &["/no/such/program"]),
            (&[], &["/etc/passwd"]),
            (&["--workdir=/etc/passwd"], &["/bin/true"]),
            (&["--user=nobody-has-this-name"], &["/bin/true"]),
        ];
        for (flags, command) in rows {
            let outputs = run_outputs(&docker, "crust", flags, command);
            assert_eq!(outputs, run_outputs(&docker, "bare", flags, command), "{flags:?} {command:?}");
            // Two equal errors of the command line must not pass.
            let has_printed = outputs.iter().any(|(_, stdout, _)| stdout.contains("CapEff:"));
            assert_eq!(command == print, has_printed, "{flags:?}: {outputs:?}");
        }
        let attached = ["crust", "bare"].map(|runtime| {
            let flags = ["--runtime", runtime, "--hostname=compared"];
            let run = docker.run_attached(&flags, "hostname; echo err >&2", 7, ["compared\n", "err\n"]);
            (run.status.code(), run.stdout, run.stderr)
        });
        assert_eq!(attached, ["crust", "bare"].map(|_| (Some(7), "compared\n".to_owned(), "err\n".to_owned())));
        let life = life_outputs(&docker, "crust");
        assert_eq!(life, life_outputs(&docker, "bare"));
        for status in ["running 0", "paused 0", "exited 137"] {
            assert!(life.iter().any(|output| output.1.starts_with(status)), "{status}: {life:#?}");
        }
        assert_eq!(node.records(), Vec::<std::path::PathBuf>::new());
    }
}

/// Runs a container to its end, detached (see [`Docker::run_attached`]), and returns the outputs of the commands. The
/// third is the log, which has the container's own output.
fn run_outputs(docker: &Docker, runtime: &str, flags: &[&str], command: &[&str]) -> [Output; 4] {
    let run = [
        "run",
        "--detach",
        "--name=compared",
        "--hostname=compared",
        "--runtime",
        runtime,
    ];
    let run = [&run, flags, &[DOCKER_IMAGE], command].concat();
    let started = docker.run(&run);
    let ended = docker.run(&["wait", "compared"]);
    let mut log = docker.run(&["logs", "compared"]);
    // Every command that starts writes something. The daemon of docker 28 may report the end before that is in the log.
    wait_until("the container's log", WAIT_TIMEOUT, || {
        log = docker.run(&["logs", "compared"]);
        !(started.status.success() && log.stdout.is_empty() && log.stderr.is_empty())
    });
    [started, ended, log, docker.run(&["rm", "compared"])].map(|run| output(&run))
}

/// Returns the outputs of the commands in a container's life, with its state after each.
fn life_outputs(docker: &Docker, runtime: &str) -> Vec<Output> {
    let state = [
        "inspect",
        "--format={{.State.Status}} {{.State.ExitCode}} {{.State.Error}} {{.RestartCount}}",
        "compared",
    ];
    let steps: [&[&str]; 16] = [
        &[
            "run",
            "--detach",
            "--name=compared",
            "--hostname=compared",
            "--runtime",
            runtime,
            DOCKER_IMAGE,
        ],
        &[
            "exec",
            "compared",
            "/bin/sh",
            "-c",
            "echo out; echo err >&2; exit 5",
        ],
        &[
            "exec",
            "--tty",
            "compared",
            "/bin/sh",
            "-c",
            "test -t 1 && echo terminal",
        ],
        &[
            "exec",
            "--user=5:6",
            "--env=A=b",
            "--workdir=/tmp",
            "compared",
            "/bin/sh",
            "-c",
            "id; env; pwd",
        ],
        &[
            "exec",
            "--privileged",
            "compared",
            "/bin/grep",
            "Cap",
            "/proc/self/status",
        ],
        &["exec", "compared", "/no/such/program"],
        &["top", "compared", "-o", "args"],
        &["pause", "compared"],
        &["exec", "compared", "/bin/true"],
        &["unpause", "compared"],
        &["update", "--pids-limit=44", "compared"],
        &["restart", "-t0", "compared"],
        &["diff", "compared"],
        &["kill", "compared"],
        &["wait", "compared"],
        &["rm", "compared"],
    ];
    let mut outputs = Vec::new();
    for step in steps {
        outputs.push(output(&docker.run(step)));
        if step[0] != "rm" {
            outputs.push(output(&docker.run(&state)));
        }
    }
    outputs
}
