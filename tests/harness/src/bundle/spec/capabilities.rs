//! The capabilities of containers.

use std::fs;

/// The capabilities of an unprivileged container in containerd.
pub(super) const DEFAULT: [&str; 14] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FSETID",
    "CAP_FOWNER",
    "CAP_MKNOD",
    "CAP_NET_RAW",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETFCAP",
    "CAP_SETPCAP",
    "CAP_NET_BIND_SERVICE",
    "CAP_SYS_CHROOT",
    "CAP_KILL",
    "CAP_AUDIT_WRITE",
];

/// All capabilities that both runtimes know, ordered by number.
const ALL: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// Returns the capabilities in this process's bounding set. crun fails if a config has one that crun itself lacks.
pub(in crate::bundle) fn all() -> Vec<String> {
    let status = fs::read_to_string("/proc/self/status").expect("/proc");
    let bounding = status
        .lines()
        .find_map(|line| line.strip_prefix("CapBnd:"))
        .expect("CapBnd");
    let bounding = u64::from_str_radix(bounding.trim(), 16).expect("CapBnd is hexadecimal");
    let held =
        |(number, name)| (bounding & (1_u64 << number) != 0_u64).then(|| format!("CAP_{name}"));
    (0..64).zip(ALL).filter_map(held).collect()
}
