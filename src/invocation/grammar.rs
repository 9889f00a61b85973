//! The delegates' flags: which of them take a value, and which of them runcrust uses.
//!
//! Each table is a union over versions (runc 1.1.5 to its main branch of spring 2026; crun 1.8.1 to 1.28; youki
//! 0.7.0). This is safe: an installed delegate rejects flags that it doesn't know, so a flag of another version
//! starts no container. A flag must take a value either in all versions or in none.

use super::CreateVerb;

/// The purpose of a flag for runcrust.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FlagRole {
    Root,
    Log,
    LogFormat,
    Bundle,
    Config,
    Resources,
    /// The delegate prints help, usage or its version, and exits.
    Help,
    /// The flag is not used. The table only records whether it takes a value.
    Other,
}

/// Whether a flag takes a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FlagValue {
    /// A switch. Go's flag package also accepts `--switch=false`.
    Nothing,
    /// The value is part of the argument (`--flag=value`) or the next argument.
    Value,
    /// The value is optional, and never the next argument (getopt's `optional_argument`).
    Optional,
}

/// The part of the command line that a flag belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// Before the subcommand.
    Global,
    /// After `create`, `run` or `restore`.
    Create(CreateVerb),
    /// After `update`.
    Update,
}

impl Scope {
    const fn bit(self) -> u8 {
        match self {
            Self::Global => GLOBAL,
            Self::Create(CreateVerb::Create) => CREATE,
            Self::Create(CreateVerb::Run) => RUN,
            Self::Create(CreateVerb::Restore) => RESTORE,
            Self::Update => UPDATE,
        }
    }
}

/// A flag, and the scopes in which it is accepted.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Flag {
    pub(super) long: &'static str,
    /// The one-letter names.
    pub(super) short: &'static [u8],
    pub(super) takes: FlagValue,
    pub(super) role: FlagRole,
    /// Bits of [`Scope::bit`].
    scopes: u8,
}

impl Flag {
    pub(super) const fn is_in(&self, scope: Scope) -> bool {
        self.scopes & scope.bit() != 0
    }
}

const GLOBAL: u8 = 1;
const CREATE: u8 = 2;
const RUN: u8 = 4;
const RESTORE: u8 = 8;
const UPDATE: u8 = 16;
const VERBS: u8 = CREATE | RUN | RESTORE;
const ALL: u8 = GLOBAL | VERBS;

const fn flag(
    long: &'static str,
    short: &'static [u8],
    takes: FlagValue,
    role: FlagRole,
    scopes: u8,
) -> Flag {
    Flag {
        long,
        short,
        takes,
        role,
        scopes,
    }
}

const fn switch(long: &'static str, scopes: u8) -> Flag {
    flag(long, b"", FlagValue::Nothing, FlagRole::Other, scopes)
}

const fn value(long: &'static str, scopes: u8) -> Flag {
    flag(long, b"", FlagValue::Value, FlagRole::Other, scopes)
}

/// runc's flags: runc(8), runc-create(8), runc-run(8), runc-restore(8).
///
/// Builds with urfave/cli v3 accept the global flags after the subcommand, too.
pub(super) const RUNC: &[Flag] = &[
    flag("bundle", b"b", FlagValue::Value, FlagRole::Bundle, VERBS),
    flag("root", b"", FlagValue::Value, FlagRole::Root, ALL),
    flag("log", b"", FlagValue::Value, FlagRole::Log, ALL),
    flag(
        "log-format",
        b"",
        FlagValue::Value,
        FlagRole::LogFormat,
        ALL,
    ),
    flag(
        "config",
        b"",
        FlagValue::Value,
        FlagRole::Config,
        CREATE | RUN,
    ),
    flag("help", b"h", FlagValue::Nothing, FlagRole::Help, ALL),
    flag("version", b"v", FlagValue::Nothing, FlagRole::Help, GLOBAL),
    value("criu", ALL),
    value("rootless", ALL),
    switch("debug", ALL),
    switch("systemd-cgroup", ALL),
    value("pid-file", VERBS),
    value("console-socket", VERBS),
    value("pidfd-socket", VERBS),
    value("preserve-fds", CREATE | RUN),
    switch("no-pivot", VERBS),
    switch("no-new-keyring", CREATE | RUN),
    flag(
        "detach",
        b"d",
        FlagValue::Nothing,
        FlagRole::Other,
        RUN | RESTORE,
    ),
    switch("keep", RUN),
    switch("no-subreaper", RUN | RESTORE),
    value("image-path", RESTORE),
    value("work-path", RESTORE),
    value("manage-cgroups-mode", RESTORE),
    value("empty-ns", RESTORE),
    value("lsm-profile", RESTORE),
    value("lsm-mount-context", RESTORE),
    switch("tcp-established", RESTORE),
    switch("ext-unix-sk", RESTORE),
    switch("link-remap", RESTORE),
    switch("shell-job", RESTORE),
    switch("file-locks", RESTORE),
    switch("auto-dedup", RESTORE),
    switch("lazy-pages", RESTORE),
];

/// crun's flags: crun(1), and those that argp adds. Of these, `--program-name` takes a value, and `--HANG` takes one
/// only after `=`.
pub(super) const CRUN: &[Flag] = &[
    flag("bundle", b"b", FlagValue::Value, FlagRole::Bundle, VERBS),
    flag("root", b"", FlagValue::Value, FlagRole::Root, GLOBAL),
    flag("log", b"", FlagValue::Value, FlagRole::Log, GLOBAL),
    flag(
        "log-format",
        b"",
        FlagValue::Value,
        FlagRole::LogFormat,
        GLOBAL,
    ),
    flag(
        "config",
        b"f",
        FlagValue::Value,
        FlagRole::Config,
        CREATE | RUN,
    ),
    flag(
        "help",
        b"?",
        FlagValue::Nothing,
        FlagRole::Help,
        ALL | UPDATE,
    ),
    flag(
        "usage",
        b"",
        FlagValue::Nothing,
        FlagRole::Help,
        ALL | UPDATE,
    ),
    flag("version", b"vV", FlagValue::Nothing, FlagRole::Help, GLOBAL),
    flag(
        "HANG",
        b"",
        FlagValue::Optional,
        FlagRole::Other,
        ALL | UPDATE,
    ),
    value("program-name", ALL | UPDATE),
    value("log-level", GLOBAL),
    value("cgroup-manager", GLOBAL),
    value("rootless", GLOBAL),
    switch("debug", GLOBAL),
    switch("systemd-cgroup", GLOBAL),
    value("pid-file", VERBS),
    value("console-socket", VERBS),
    value("preserve-fds", CREATE | RUN),
    switch("no-pivot", CREATE | RUN),
    switch("no-new-keyring", CREATE | RUN),
    switch("no-subreaper", CREATE | RUN),
    flag(
        "detach",
        b"d",
        FlagValue::Nothing,
        FlagRole::Other,
        RUN | RESTORE,
    ),
    switch("keep", RUN),
    value("image-path", RESTORE),
    value("work-path", RESTORE),
    value("manage-cgroups-mode", RESTORE),
    value("lsm-profile", RESTORE),
    value("lsm-mount-context", RESTORE),
    switch("tcp-established", RESTORE),
    switch("tcp-close", RESTORE),
    switch("ext-unix-sk", RESTORE),
    switch("shell-job", RESTORE),
    switch("file-locks", RESTORE),
    // The help shows it as a switch, but it takes the next argument.
    value("network-lock", RESTORE),
    flag(
        "resources",
        b"r",
        FlagValue::Value,
        FlagRole::Resources,
        UPDATE,
    ),
    value("blkio-weight", UPDATE),
    value("cpu-period", UPDATE),
    value("cpu-quota", UPDATE),
    value("cpu-rt-period", UPDATE),
    value("cpu-rt-runtime", UPDATE),
    value("cpu-share", UPDATE),
    value("cpuset-cpus", UPDATE),
    value("cpuset-mems", UPDATE),
    value("kernel-memory", UPDATE),
    value("kernel-memory-tcp", UPDATE),
    value("l3-cache-schema", UPDATE),
    value("mem-bw-schema", UPDATE),
    value("memory", UPDATE),
    value("memory-reservation", UPDATE),
    value("memory-swap", UPDATE),
    value("pids-limit", UPDATE),
];

/// youki's flags: `youki --help`, `youki create --help`, `youki run --help`.
///
/// youki has no `restore`. A future `restore` is assumed to have the options of `create`.
pub(super) const YOUKI: &[Flag] = &[
    flag("bundle", b"b", FlagValue::Value, FlagRole::Bundle, VERBS),
    flag("root", b"r", FlagValue::Value, FlagRole::Root, GLOBAL),
    flag("log", b"l", FlagValue::Value, FlagRole::Log, GLOBAL),
    flag(
        "log-format",
        b"",
        FlagValue::Value,
        FlagRole::LogFormat,
        GLOBAL,
    ),
    flag("help", b"h", FlagValue::Nothing, FlagRole::Help, ALL),
    flag("version", b"v", FlagValue::Nothing, FlagRole::Help, GLOBAL),
    flag(
        "systemd-cgroup",
        b"s",
        FlagValue::Nothing,
        FlagRole::Other,
        GLOBAL,
    ),
    switch("debug", GLOBAL),
    switch("systemd-log", GLOBAL),
    value("log-level", GLOBAL),
    flag(
        "console-socket",
        b"c",
        FlagValue::Value,
        FlagRole::Other,
        VERBS,
    ),
    flag("pid-file", b"p", FlagValue::Value, FlagRole::Other, VERBS),
    value("preserve-fds", VERBS),
    switch("no-pivot", VERBS),
    switch("no-new-keyring", VERBS),
    switch("no-subreaper", RUN),
    switch("keep", RUN),
    flag("detach", b"d", FlagValue::Nothing, FlagRole::Other, RUN),
];
