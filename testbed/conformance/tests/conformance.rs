//! The conformance suite, run against what meets all of it, what meets only the ordinary part, and
//! what breaks a requirement on purpose.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::{Delegate, Handler, Run, TestDir, mounts, on_each_delegate, wait_until};
use serde_json::Value;

/// The suite's program, to be run against a runtime.
struct Suite {
    handler: Handler,
    dir: TestDir,
}

/// What it said of each requirement.
struct Report {
    requirements: Vec<Value>,
    exit: Option<i32>,
}

impl Suite {
    /// For runcrust with these lines in its configuration.
    fn with(delegate: Delegate, extra: &str) -> Self {
        let dir = TestDir::new();
        // As /run is; and hundreds of pods wait for no disk.
        mounts::tmpfs(dir.path());
        Self {
            handler: Handler::new(&dir, delegate, extra),
            dir,
        }
    }

    fn command(&self, runtime: &Path) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_conformance"));
        for name in ["ONLY", "RUNTIME_FLAGS", "TIMEOUT"] {
            command.env_remove(name);
        }
        command
            .env("TMPDIR", self.dir.subdir("tmp"))
            .env("RUNTIME", runtime)
            .env("CRUST_ROOT", self.handler.crust_root())
            .env("KUBELET_DIR", self.handler.kubelet_dir());
        command
    }

    fn report(&self, runtime: &Path, only: &str) -> Report {
        Report::of(self.command(runtime).env("ONLY", only))
    }

    /// A shell script as a runtime: at each create `before` is done, with the bundle in `$bundle`
    /// and the crust directory in `$crust`, and runcrust does the rest.
    fn script(&self, before: &str) -> PathBuf {
        self.wrapper(&format!(
            "bundle= previous=\n\
             for argument; do\n\
               case $previous in --bundle) bundle=$argument ;; esac\n\
               previous=$argument\n\
             done\n\
             if [ -n \"$bundle\" ]; then\n\
               {before}\n\
             fi\n\
             exec \"$runcrust\" \"$@\"\n"
        ))
    }

    /// A shell script as a runtime, which has to call `$runcrust` itself.
    fn wrapper(&self, commands: &str) -> PathBuf {
        let script = self.dir.join("runtime.sh");
        let text = format!(
            "#!/bin/sh -e\n\
             crust={:?} runcrust={:?}\n\
             {commands}",
            self.handler.crust_root(),
            self.handler.path(),
        );
        fs::write(&script, text).expect("write");
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("chmod");
        script
    }

    /// Nothing is left where the runtime and kubelet look, and none of its own directories, in which
    /// its loop devices' files are.
    #[track_caller]
    fn has_left_nothing(&self) {
        let temporary = fs::read_dir(self.dir.join("tmp")).expect("its temporary directory");
        assert_eq!(temporary.count(), 0);
        for directory in [self.handler.crust_root(), self.handler.kubelet_dir()] {
            assert!(!directory.exists(), "{} stays", directory.display());
        }
    }
}

impl Report {
    #[track_caller]
    fn of(command: &mut Command) -> Self {
        let run = Run::of(command.arg("--json"));
        let report: Value =
            serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run}"));
        assert_eq!(run.stderr, "");
        Self {
            requirements: report["requirements"].as_array().unwrap().clone(),
            exit: run.status.code(),
        }
    }

    /// The ids with a result, each with why.
    fn with_result(&self, result: &str) -> BTreeMap<String, String> {
        let wanted = self.requirements.iter().filter(|it| it["result"] == result);
        let text = |value: &'_ Value| value.as_str().unwrap_or_default().to_owned();
        wanted
            .map(|it| (text(&it["id"]), text(&it["reason"])))
            .collect()
    }

    /// The ids of a kind.
    fn of_kind(&self, kind: &str) -> Vec<&str> {
        let wanted = self.requirements.iter().filter(|it| it["kind"] == kind);
        let mut ids: Vec<&str> = wanted.map(|it| it["id"].as_str().unwrap()).collect();
        ids.sort_unstable();
        ids
    }

    #[track_caller]
    fn fails_just(&self, wanted: &[&str]) {
        let failed = self.with_result("failed");
        let ids: Vec<&String> = failed.keys().collect();
        let mut wanted = wanted.to_vec();
        wanted.sort_unstable();
        assert_eq!(ids, wanted, "{failed:#?}");
        assert_eq!(self.with_result("skipped"), BTreeMap::new());
        let mut requirements = self.requirements.iter();
        let must = requirements.any(|it| it["result"] == "failed" && it["level"] == "MUST");
        assert_eq!(self.exit, Some(i32::from(must)));
    }
}

on_each_delegate! {
    fn runcrust_meets_every_requirement(delegate: Delegate) {
        let suite = Suite::with(delegate, "");
        let report = suite.report(suite.handler.path(), "");
        report.fails_just(&[]);
        assert!(report.requirements.len() > 100);
        suite.has_left_nothing();
    }

    /// A deferred requirement shows whether a runtime mounts deferred volumes, and no ordinary one
    /// asks for that.
    fn the_bare_delegate_fails_exactly_the_deferred_ones(delegate: Delegate) {
        let suite = Suite::with(delegate, "");
        let report = suite.report(&delegate.program(), "");
        report.fails_just(&report.of_kind("deferred"));
        suite.has_left_nothing();
    }
}

const MOUNTS_ON_THE_HOST: &str = r#"
    for source in $(grep -o '"source":"[^"]*/mount"' "$bundle/config.json" | cut -d '"' -f 4); do
        entry=$crust/$(printf %s "$source" | sha256sum | cut -d ' ' -f 1)
        device=$(grep -o '"device":"[^"]*"' "$entry/mountInfo.json" | cut -d '"' -f 4)
        at=$(mktemp -d)
        mount "$device" "$at"
        umount "$at"
        rmdir "$at"
    done"#;

#[test]
fn a_runtime_that_mounts_on_the_host_for_a_moment_is_found_out() {
    let suite = Suite::with(Delegate::Runc, "");
    let report = suite.report(&suite.script(MOUNTS_ON_THE_HOST), "mount");
    report.fails_just(&["mount-never-on-host"]);
}

const IGNORES_FSGROUP: &str = r#"
    uid=$(grep -o '"io.kubernetes.cri.sandbox-uid":"[^"]*"' "$bundle/config.json" | cut -d '"' -f 4)
    for info in $(grep -l "/pods/$uid/" "$crust"/*/mountInfo.json); do
        sed -i 's/"fsGroup":"[^"]*",*//' "$info"
    done"#;

#[test]
fn a_runtime_that_ignores_fsgroup_is_found_out() {
    let suite = Suite::with(Delegate::Crun, "");
    let report = suite.report(&suite.script(IGNORES_FSGROUP), "fsgroup");
    report.fails_just(&[
        "fsgroup-always",
        "fsgroup-default-policy",
        "fsgroup-links",
        "fsgroup-modes",
        "fsgroup-new-files",
        "fsgroup-on-root-mismatch-applies",
        "fsgroup-zero",
    ]);
}

#[test]
fn a_runtime_with_the_device_and_one_file_system_fails() {
    let extra = "device_node = \"always\"\nfstypes = [\"ext4\"]";
    let suite = Suite::with(Delegate::Crun, extra);
    let only = "device,mount-ext4,mount-xfs,mount-btrfs";
    let report = suite.report(suite.handler.path(), only);
    report.fails_just(&["device-out-of-reach", "mount-btrfs", "mount-xfs"]);
}

#[test]
fn a_runtime_that_adds_attributes_of_its_own_is_found_out() {
    let extra = r#"default_options = ["noatime", "nosuid", "nodev", "noexec"]"#;
    let suite = Suite::with(Delegate::Runc, extra);
    let report = suite.report(suite.handler.path(), "options");
    report.fails_just(&[
        "option-file-system",
        "option-mount8",
        "option-noatime",
        "option-none",
        "option-nosuid",
    ]);
}

const BELIEVES_ANYBODY: &str = r#"
    chmod go-w "$crust"
    chown root "$crust"
    for at in "$crust"/[0-9a-f]*; do
        chmod go-w "$at" "$at/mountInfo.json" || true
        chown root "$at" "$at/mountInfo.json" || true
    done 2>/dev/null"#;

#[test]
fn a_runtime_that_trusts_writable_entries_fails() {
    let suite = Suite::with(Delegate::Runc, "");
    let report = suite.report(&suite.script(BELIEVES_ANYBODY), "entries");
    report.fails_just(&[
        "crust-directory-mode",
        "crust-directory-owner",
        "entry-mode",
        "entry-owner",
        "info-mode",
        "info-owner",
    ]);
}

/// Before anything of a pod is created its own volume's access mode is dropped where so many pods,
/// the own one too, have the device staged.
fn forgets_the_mode_of(count: u32) -> String {
    let own = r#"
        uid=$(grep -o '"io.kubernetes.cri.sandbox-uid":"[^"]*"' "$bundle/config.json" | cut -d '"' -f 4)
        for info in $(grep -l "/pods/$uid/" "$crust"/*/mountInfo.json); do
            device=$(grep -o '"device":"[^"]*"' "$info")
            staged=$(grep -l "$device" "$crust"/*/mountInfo.json | wc -l)"#;
    format!(
        "{own}
            if [ $staged = {count} ]; then sed -i 's/\"accessMode\":\"[^\"]*\",*//' $info; fi
        done"
    )
}

#[test]
fn a_runtime_that_looks_at_one_pods_access_mode_is_found_out() {
    for (count, wanted) in [
        (1, "device-single-writer-first"),
        (2, "device-single-writer-second"),
    ] {
        let suite = Suite::with(Delegate::Runc, "");
        let script = suite.script(&forgets_the_mode_of(count));
        let report = suite.report(&script, "device");
        report.fails_just(&[wanted]);
    }
}

const KNOWS_NO_LINKS: &str = r#"
    for device in $(grep -ho '"device":"[^"]*"' "$crust"/*/mountInfo.json | cut -d '"' -f 4); do
        if [ -L "$device" ]; then exit 1; fi
    done"#;

#[test]
fn a_runtime_that_knows_a_device_by_one_name_is_found_out() {
    let suite = Suite::with(Delegate::Runc, "");
    let only = "info-device-link";
    let report = suite.report(&suite.script(KNOWS_NO_LINKS), only);
    report.fails_just(&[only]);
}

const KEEPS_A_CLI: &str = r#"
    for cli in "$crust"/*/runtime-cli; do
        [ ! -f "$cli" ] || cp "$cli" "$cli.kept"
    done
    status=0
    "$runcrust" "$@" || status=$?
    for cli in "$crust"/*/runtime-cli.kept; do
        [ -f "$cli" ] || continue
        entry=${cli%/*}
        target=$(grep -o '"targetPath":"[^"]*"' "$entry/mountInfo.json" | cut -d '"' -f 4)
        digest=$(printf %s "$target" | sha256sum | cut -d ' ' -f 1)
        [ "${entry##*/}" = "$digest" ] || mv "$cli" "$entry/runtime-cli"
    done
    exit $status"#;

#[test]
fn a_runtime_that_clears_one_of_two_entries_is_found_out() {
    let suite = Suite::with(Delegate::Runc, "");
    let runtime = suite.wrapper(KEEPS_A_CLI);
    let mut command = suite.command(&runtime);
    let report = Report::of(command.env("ONLY", "cli-gone").env("TIMEOUT", "10"));
    report.fails_just(&["cli-gone"]);
}

/// What makes nothing refuses all that has to be refused, and meets none of it by that.
#[test]
fn a_runtime_that_creates_nothing_meets_no_requirement() {
    let suite = Suite::with(Delegate::Runc, "");
    let report = suite.report(&suite.script("exit 1"), "");
    let met = report.with_result("passed");
    let deferred = report.of_kind("deferred");
    assert!(
        deferred.iter().all(|id| !met.contains_key(*id)),
        "it meets {met:?}"
    );
}

/// It finds no volume, and refuses their directories as unstaged ones.
#[test]
fn a_runtime_of_another_crust_directory_meets_no_requirement() {
    let suite = Suite::with(Delegate::Runc, "");
    let elsewhere = suite.dir.join("elsewhere");
    let mut command = suite.command(suite.handler.path());
    let refusing = "matching,entries,options,device,life";
    let report = Report::of(command.env("CRUST_ROOT", elsewhere).env("ONLY", refusing));
    report.fails_just(&report.of_kind("deferred"));
}

/// What it should do, and doesn't, is told and no failure of the whole.
#[test]
fn a_runtime_that_passes_unstaged_directories_fails_no_must() {
    let suite = Suite::with(Delegate::Runc, "unstaged = \"pass\"");
    let report = suite.report(suite.handler.path(), "match-unstaged,match-exact");
    report.fails_just(&["match-unstaged"]);
    assert_eq!(report.exit, Some(0));
}

#[test]
fn a_runtime_that_hangs_is_ended_and_reported() {
    let suite = Suite::with(Delegate::Runc, "");
    let hangs = suite.script("sleep 1000");
    let mut command = suite.command(&hangs);
    let run = Run::of(
        command
            .env("TIMEOUT", "1")
            .env("ONLY", "oci-exec,match-exact"),
    );
    assert_eq!(run.status.code(), Some(1), "{run}");
    for id in ["oci-exec", "match-exact"] {
        let line = run.stdout.lines().find(|line| line.contains(id));
        let line = line.unwrap_or_else(|| panic!("{run}"));
        assert!(
            line.starts_with("FAIL ") && line.contains("hasn't ended within 1s"),
            "{line}"
        );
    }
    assert!(
        run.stdout
            .ends_with("2 requirements: 0 passed, 2 failed, 0 skipped\n"),
        "{run}"
    );
    suite.has_left_nothing();
}

#[test]
fn interrupted_it_leaves_nothing() {
    let suite = Suite::with(Delegate::Runc, "");
    let mut command = suite.command(suite.handler.path());
    let mut running = command.stdout(Stdio::null()).spawn().expect("it starts");
    wait_until("a volume in use", WAIT_TIMEOUT, || {
        let entries = fs::read_dir(suite.handler.crust_root());
        let mut entries = entries.into_iter().flatten().flatten();
        entries.any(|entry| entry.path().join("runtime-cli").exists())
    });
    let pid = Pid::from_raw(running.id().cast_signed());
    kill(pid, Signal::SIGINT).expect("it runs");
    let status = running.wait().expect("waitpid");
    assert_eq!(status.signal(), Some(Signal::SIGINT as i32), "{status}");
    suite.has_left_nothing();
}

#[test]
fn the_list_has_what_is_run() {
    let suite = Suite::with(Delegate::Runc, "");
    let list = Run::of(suite.command(Path::new("")).arg("--list")).success();
    let ids = list.stdout.lines().map(|line| line.split(' ').next());
    assert!(ids.flatten().any(|id| id == "match-exact"), "{list}");
    let report = suite.report(suite.handler.path(), "oci-exec,cli-not-found");
    for requirement in &report.requirements {
        let sentence = requirement["sentence"].as_str().expect("a sentence");
        assert!(list.stdout.contains(sentence), "{sentence}");
    }
}

#[test]
fn what_it_does_not_know_is_told_with_its_usage() {
    let suite = Suite::with(Delegate::Runc, "");
    let runc = Delegate::Runc.program();
    let no_such = Path::new("/no/such/runtime");
    for (runtime, only, named) in [
        (no_such, "", "/no/such/runtime"),
        (&*runc, "oci-exec,no-such", "no-such"),
    ] {
        let run = Run::of(suite.command(runtime).env("ONLY", only));
        assert_eq!(run.status.code(), Some(2), "{run}");
        assert!(
            run.stderr.contains(named) && run.stderr.contains("\nusage: "),
            "{run}"
        );
    }
}
