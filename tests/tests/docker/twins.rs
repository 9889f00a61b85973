//! Containers without a volume, once on the delegate alone: docker says the same of both, and so do they.

use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::{DOCKER_IMAGE, Docker, Engine as _, Node, Run, on_each_delegate, wait_until};
use serde_json::json;

/// Shows what a container can see of how it was made. Numbers of mounts and file systems are left out, and
/// so are loop devices, which come and go with other tests.
const LOOK: &str = "id; env; pwd; hostname; ulimit -a; cat /proc/self/cgroup /proc/self/oom_score_adj;
    grep -E 'Cap|NoNew|Seccomp|Groups|Umask' /proc/self/status;
    stat -c '%n %F %a %t:%T' /dev/* | grep -v /dev/loop;
    cut -d' ' -f4- /proc/self/mountinfo; cat /proc/self/uid_map; readlink /proc/1/exe; ls /data /sys/fs/cgroup 2>&1";

/// Replaces the ids of containers and images, whole or cut.
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

/// How a run of the client ended, and what it wrote to its standard output and standard error.
type Told = (Option<i32>, String, String);

fn told(run: &Run) -> Told {
    (
        run.status.code(),
        without_ids(&run.stdout),
        without_ids(&run.stderr),
    )
}

on_each_delegate! {
    #[ignore = "needs docker; runs in another Debian: make engines"]
    fn a_container_without_a_volume_is_as_the_delegates_own(delegate: Delegate) {
        let node = Node::new(delegate);
        let (runcrust, bare) = (node.handler().path(), delegate.program());
        let docker = Docker::start(node.dir(), delegate, &[("crust", runcrust), ("bare", &bare)], json!({}));
        let ordinary = format!("--volume={}:/data", node.dir().subdir("ordinary").display());
        let look: &[&str] = &["/bin/sh", "-c", LOOK];
        let rows: [(&[&str], &[&str]); 14] = [
            (&[], look),
            (&[&ordinary, "--volume=/data/anonymous", "--tmpfs=/scratch"], look),
            (&[&format!("{ordinary}:ro,rslave"), "--read-only", "--init"], look),
            (&["--user=5:6", "--group-add=7", "--cap-drop=ALL", "--security-opt=no-new-privileges"], look),
            (&["--privileged"], look),
            (&["--cap-add=NET_ADMIN", "--device=/dev/zero:/dev/other", "--ulimit=nofile=512:512"], look),
            (&["--pids-limit=33", "--shm-size=1m", "--ipc=none", "--workdir=/made"], look),
            (&["--network=host", "--pid=host", "--uts=host"], &["/bin/sh", "-c", "hostname; id"]),
            (&["--tty"], &["/bin/sh", "-c", "test -t 1 && echo terminal"]),
            (&[], &["/bin/sh", "-c", "echo out; echo err >&2; exit 7"]),
            (&[], &["/no/such/program"]),
            (&[], &["/etc/passwd"]),
            (&["--workdir=/etc/passwd"], &["/bin/true"]),
            (&["--user=nobody-has-this-name"], &["/bin/true"]),
        ];
        for (flags, command) in rows {
            let told = twin_run(&docker, "crust", flags, command);
            assert_eq!(told, twin_run(&docker, "bare", flags, command), "{flags:?} {command:?}");
            // Not twice the same mistake of the command line's.
            let has_looked = told.iter().any(|(_, stdout, _)| stdout.contains("CapEff:"));
            assert_eq!(command == look, has_looked, "{flags:?}: {told:?}");
        }
        let attached = ["crust", "bare"].map(|runtime| {
            let flags = ["--runtime", runtime, "--hostname=twin"];
            let run = docker.run_attached(&flags, "hostname; echo err >&2", 7, ["twin\n", "err\n"]);
            (run.status.code(), run.stdout, run.stderr)
        });
        assert_eq!(attached, ["crust", "bare"].map(|_| (Some(7), "twin\n".to_owned(), "err\n".to_owned())));
        let life = twin_life(&docker, "crust");
        assert_eq!(life, twin_life(&docker, "bare"));
        for status in ["running 0", "paused 0", "exited 137"] {
            assert!(life.iter().any(|told| told.1.starts_with(status)), "{status}: {life:#?}");
        }
        assert_eq!(node.records(), Vec::<std::path::PathBuf>::new());
    }
}

/// Runs a container to its end, detached ([`Docker::run_attached`] says why), and returns what docker says meanwhile;
/// its log, which has what the container wrote, is the third.
fn twin_run(docker: &Docker, runtime: &str, flags: &[&str], command: &[&str]) -> [Told; 4] {
    let run = [
        "run",
        "--detach",
        "--name=twin",
        "--hostname=twin",
        "--runtime",
        runtime,
    ];
    let run = [&run, flags, &[DOCKER_IMAGE], command].concat();
    let started = docker.run(&run);
    let ended = docker.run(&["wait", "twin"]);
    let mut log = docker.run(&["logs", "twin"]);
    // Each command that starts writes something. The daemon of docker 28 may tell of the end before that is in the log.
    wait_until("the container's log", WAIT_TIMEOUT, || {
        log = docker.run(&["logs", "twin"]);
        !(started.status.success() && log.stdout.is_empty() && log.stderr.is_empty())
    });
    [started, ended, log, docker.run(&["rm", "twin"])].map(|run| told(&run))
}

/// Returns what docker says at each step of a container's life.
fn twin_life(docker: &Docker, runtime: &str) -> Vec<Told> {
    let state = [
        "inspect",
        "--format={{.State.Status}} {{.State.ExitCode}} {{.State.Error}} {{.RestartCount}}",
        "twin",
    ];
    let steps: [&[&str]; 16] = [
        &[
            "run",
            "--detach",
            "--name=twin",
            "--hostname=twin",
            "--runtime",
            runtime,
            DOCKER_IMAGE,
        ],
        &[
            "exec",
            "twin",
            "/bin/sh",
            "-c",
            "echo out; echo err >&2; exit 5",
        ],
        &[
            "exec",
            "--tty",
            "twin",
            "/bin/sh",
            "-c",
            "test -t 1 && echo terminal",
        ],
        &[
            "exec",
            "--user=5:6",
            "--env=A=b",
            "--workdir=/tmp",
            "twin",
            "/bin/sh",
            "-c",
            "id; env; pwd",
        ],
        &[
            "exec",
            "--privileged",
            "twin",
            "/bin/grep",
            "Cap",
            "/proc/self/status",
        ],
        &["exec", "twin", "/no/such/program"],
        &["top", "twin", "-o", "args"],
        &["pause", "twin"],
        &["exec", "twin", "/bin/true"],
        &["unpause", "twin"],
        &["update", "--pids-limit=44", "twin"],
        &["restart", "-t0", "twin"],
        &["diff", "twin"],
        &["kill", "twin"],
        &["wait", "twin"],
        &["rm", "twin"],
    ];
    let mut told_at_each = Vec::new();
    for step in steps {
        told_at_each.push(told(&docker.run(step)));
        if step[0] != "rm" {
            told_at_each.push(told(&docker.run(&state)));
        }
    }
    told_at_each
}
