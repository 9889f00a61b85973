//! `config.json` as containerd 1.6.20 writes it. The test `harness::the_harness_bundles_match_containerds` compares it
//! with the original.

mod capabilities;
mod files;

use std::fs;
use std::path::PathBuf;

use serde_json::{Map, Value, json};

use self::capabilities::DEFAULT;
pub(super) use self::capabilities::all as all_capabilities;
use self::files::KubeletFiles;
pub(super) use self::files::SandboxFiles;
use super::{IDLE, PodIdentity};
use crate::{TestDir, cgroup};

/// Returns an entry that joins the namespace of a process.
pub(super) fn namespace_of(kind: &str, pid: i32) -> Value {
    let file = match kind {
        "network" => "net",
        "mount" => "mnt",
        other => other,
    };
    json!({"type": kind, "path": format!("/proc/{pid}/ns/{file}")})
}

pub(super) fn plain(id: &str) -> Value {
    json!({
        "ociVersion": "1.0.2-dev",
        "process": process(),
        "root": {"path": "rootfs"},
        "hostname": "plain",
        "mounts": basic_mounts("rw"),
        "linux": linux(id, &json!([
            {"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}, {"type": "network"},
        ])),
    })
}

pub(super) fn sandbox(id: &str, pod: &PodIdentity, files: &SandboxFiles) -> Value {
    let mut mounts = basic_mounts("ro");
    // containerd writes both: the tmpfs on /dev/shm, and the bind on top of it.
    mounts.insert(
        3,
        json!({
            "destination": "/dev/shm", "type": "tmpfs", "source": "shm",
            "options": ["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"],
        }),
    );
    mounts.push(bind(&files.shm, "/dev/shm", &["rbind", "ro"]));
    mounts.push(bind(
        &files.resolv_conf,
        "/etc/resolv.conf",
        &["rbind", "ro"],
    ));
    let mut process = process();
    process["noNewPrivileges"] = true.into();
    process["rlimits"] = json!([{"type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024}]);
    let mut linux = linux(
        id,
        &json!([
            {"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}, {"type": "network"},
        ]),
    );
    linux["resources"]["cpu"] = json!({"shares": 2});
    json!({
        "ociVersion": "1.0.2-dev",
        "process": process,
        "root": {"path": "rootfs", "readonly": true},
        "hostname": pod.name,
        "mounts": mounts,
        "annotations": annotations([
            ("container-type", "sandbox"),
            ("sandbox-cpu-period", "100000"),
            ("sandbox-cpu-quota", "0"),
            ("sandbox-cpu-shares", "2"),
            ("sandbox-id", id),
            ("sandbox-log-directory", &format!("/var/log/pods/default_pod-1_{}", pod.uid)),
            ("sandbox-memory", "0"),
            ("sandbox-name", &pod.name),
            ("sandbox-namespace", &pod.namespace),
            ("sandbox-uid", &pod.uid),
        ]),
        "linux": linux,
    })
}

/// Returns the config of an app in a sandbox, and creates the files that it mounts. `sandbox_pid` is the sandbox's
/// first process.
pub(super) fn app(
    dir: &TestDir,
    id: &str,
    pod: &PodIdentity,
    sandbox: &str,
    sandbox_pid: i32,
) -> Value {
    let files = SandboxFiles::make(dir, sandbox);
    let kubelet = KubeletFiles::make(dir, pod, id);
    let mut mounts = basic_mounts("ro");
    mounts.push(json!({
        "destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup",
        "options": ["nosuid", "noexec", "nodev", "relatime", "ro"],
    }));
    let rw = ["rbind", "rprivate", "rw"];
    mounts.push(bind(&kubelet.hosts, "/etc/hosts", &rw));
    mounts.push(bind(&kubelet.termination_log, "/dev/termination-log", &rw));
    mounts.push(bind(&files.hostname, "/etc/hostname", &rw));
    mounts.push(bind(&files.resolv_conf, "/etc/resolv.conf", &rw));
    mounts.push(bind(&files.shm, "/dev/shm", &rw));
    let service_account = "/var/run/secrets/kubernetes.io/serviceaccount";
    mounts.push(bind(
        &kubelet.token,
        service_account,
        &["rbind", "rprivate", "ro"],
    ));
    let mut linux = linux(
        id,
        &json!([
            {"type": "pid"},
            namespace_of("ipc", sandbox_pid),
            namespace_of("uts", sandbox_pid),
            {"type": "mount"},
            namespace_of("network", sandbox_pid),
        ]),
    );
    if cgroup::is_unified() {
        let namespaces = linux["namespaces"].as_array_mut().expect("an array");
        namespaces.push(json!({"type": "cgroup"}));
    }
    linux["resources"]["memory"] = json!({});
    linux["resources"]["cpu"] = json!({"shares": 2, "quota": 0, "period": 100_000});
    json!({
        "ociVersion": "1.0.2-dev",
        "process": process(),
        "root": {"path": "rootfs"},
        "mounts": mounts,
        "annotations": annotations([
            ("container-name", "app-1"),
            ("container-type", "container"),
            ("image-name", "runcrust.test/app:1"),
            ("sandbox-id", sandbox),
            ("sandbox-name", &pod.name),
            ("sandbox-namespace", &pod.namespace),
            ("sandbox-uid", &pod.uid),
        ]),
        "linux": linux,
    })
}

fn process() -> Value {
    // Lowering the score below this process's needs CAP_SYS_RESOURCE, and containerd does not try.
    let score = fs::read_to_string("/proc/self/oom_score_adj").expect("/proc");
    let score: i32 = score.trim().parse().expect("oom_score_adj is a number");
    json!({
        "user": {"uid": 0, "gid": 0, "additionalGids": [0]},
        "args": IDLE,
        "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOSTNAME=pod-1"],
        "cwd": "/",
        "capabilities": {
            "bounding": DEFAULT, "effective": DEFAULT, "permitted": DEFAULT,
        },
        "oomScoreAdj": score,
    })
}

/// Returns proc, dev, pts, mqueue and sys in containerd's order. `sys` is `ro` or `rw`.
fn basic_mounts(sys: &str) -> Vec<Value> {
    let mount = |destination: &str, kind: &str, source: &str, options: &[&str]| json!({"destination": destination, "type": kind, "source": source, "options": options});
    let strict = ["nosuid", "noexec", "nodev"];
    vec![
        mount("/proc", "proc", "proc", &strict),
        mount(
            "/dev",
            "tmpfs",
            "tmpfs",
            &["nosuid", "strictatime", "mode=755", "size=65536k"],
        ),
        mount(
            "/dev/pts",
            "devpts",
            "devpts",
            &[
                "nosuid",
                "noexec",
                "newinstance",
                "ptmxmode=0666",
                "mode=0620",
                "gid=5",
            ],
        ),
        mount("/dev/mqueue", "mqueue", "mqueue", &strict),
        mount(
            "/sys",
            "sysfs",
            "sysfs",
            &["nosuid", "noexec", "nodev", sys],
        ),
    ]
}

fn bind(source: &PathBuf, destination: &str, options: &[&str]) -> Value {
    json!({"destination": destination, "type": "bind", "source": source, "options": options})
}

/// The cgroup is named after the container's id and is at the top level: the name is unique, and no parent is left
/// after its removal.
fn linux(id: &str, namespaces: &Value) -> Value {
    json!({
        "resources": {"devices": [{"allow": false, "access": "rwm"}]},
        "cgroupsPath": format!("/{id}"),
        "namespaces": namespaces,
        "maskedPaths": [
            "/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
            "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/sys/firmware",
            "/proc/scsi",
        ],
        "readonlyPaths": [
            "/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger",
        ],
    })
}

fn annotations<const N: usize>(pairs: [(&str, &str); N]) -> Value {
    let pairs = pairs.map(|(key, value)| (format!("io.kubernetes.cri.{key}"), value.into()));
    Value::Object(Map::from_iter(pairs))
}
