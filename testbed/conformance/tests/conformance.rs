//! Runs the conformance suite against runcrust, which meets all requirements, against plain delegates, which meet only
//! the ordinary ones, and against runtimes that break one requirement on purpose.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::{
    Delegate, Handler, NfsServer, Run, TestDir, mounts, on_each_delegate, package_binary,
    wait_until,
};
use serde_json::Value;

/// The conformance suite, ready to run against a runtime.
struct Suite {
    handler: Handler,
    dir: TestDir,
}

/// The results of a run.
struct Report {
    requirements: Vec<Value>,
    exit: Option<i32>,
}

impl Suite {
    /// Sets up runcrust with these lines in its configuration.
    fn with(delegate: Delegate, extra: &str) -> Self {
        let dir = TestDir::new();
        // A tmpfs like /run, also because hundreds of pods would be slow on a disk.
        mounts::tmpfs(dir.path());
        Self {
            handler: Handler::new(&dir, delegate, extra),
            dir,
        }
    }

    fn command(&self, runtime: &Path) -> Command {
        let program = package_binary("conformance", env!("CARGO_BIN_EXE_conformance"));
        let mut command = Command::new(program);
        for name in ["ONLY", "RUNTIME_FLAGS", "SHARE", "TIMEOUT"] {
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
        Report::run(self.command(runtime).env("ONLY", only))
    }

    /// Returns a shell script that acts as a runtime: at each create it runs `before`, with the bundle in `$bundle` and
    /// the crust directory in `$crust`, and then execs runcrust.
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

    /// Returns a shell script that acts as a runtime, and has to call `$runcrust` itself.
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

    /// Asserts that nothing is left in the directories of the runtime and of kubelet, nor in the suite's own temporary
    /// directory, which has the loop devices' files.
    #[track_caller]
    fn assert_nothing_left(&self) {
        let temporary = fs::read_dir(self.dir.join("tmp")).expect("its temporary directory");
        assert_eq!(temporary.count(), 0);
        for directory in [self.handler.crust_root(), self.handler.kubelet_dir()] {
            assert!(!directory.exists(), "{} still exists", directory.display());
        }
    }
}

impl Report {
    #[track_caller]
    fn run(command: &mut Command) -> Self {
        let run = Run::capture(command.arg("--json"));
        let report: Value =
            serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run}"));
        assert_eq!(run.stderr, "");
        Self {
            requirements: report["requirements"].as_array().unwrap().clone(),
            exit: run.status.code(),
        }
    }

    /// Returns the ids with a result, each with its reason.
    fn reasons_by_id(&self, result: &str) -> BTreeMap<String, String> {
        let matching = self.requirements.iter().filter(|it| it["result"] == result);
        let text = |value: &'_ Value| value.as_str().unwrap_or_default().to_owned();
        matching
            .map(|it| (text(&it["id"]), text(&it["reason"])))
            .collect()
    }

    fn ids_of_kind(&self, kind: &str) -> Vec<&str> {
        let matching = self.requirements.iter().filter(|it| it["kind"] == kind);
        let mut ids: Vec<&str> = matching.map(|it| it["id"].as_str().unwrap()).collect();
        ids.sort_unstable();
        ids
    }

    /// Asserts that exactly these requirements failed, that none was skipped, and the exit code.
    #[track_caller]
    fn assert_failed(&self, expected: &[&str]) {
        let failed = self.reasons_by_id("failed");
        let ids: Vec<&String> = failed.keys().collect();
        let mut expected = expected.to_vec();
        expected.sort_unstable();
        assert_eq!(ids, expected, "{failed:#?}");
        assert_eq!(self.reasons_by_id("skipped"), BTreeMap::new());
        let mut requirements = self.requirements.iter();
        let must = requirements.any(|it| it["result"] == "failed" && it["level"] == "MUST");
        assert_eq!(self.exit, Some(i32::from(must)));
    }
}

on_each_delegate! {
    fn runcrust_meets_every_requirement(delegate: Delegate) {
        let suite = Suite::with(delegate, "");
        let report = suite.report(suite.handler.path(), "");
        report.assert_failed(&[]);
        assert!(report.requirements.len() > 100);
        suite.assert_nothing_left();
    }

    /// Each deferred requirement detects a runtime without support for deferred volumes, and no ordinary one depends on
    /// that support.
    fn the_bare_delegate_fails_all_deferred_requirements_only(delegate: Delegate) {
        let suite = Suite::with(delegate, "");
        let report = suite.report(&delegate.program(), "");
        report.assert_failed(&report.ids_of_kind("deferred"));
        suite.assert_nothing_left();
    }
}

on_each_delegate! {
    #[ignore = "needs NFS; runs in the guest: make vm-test"]
    fn requirements_on_shares_detect_support_for_them(delegate: Delegate) {
        let suite = Suite::with(delegate, "");
        let dir = TestDir::new();
        let server = NfsServer::start(&dir);
        let report = |runtime: &Path| {
            let mut command = suite.command(runtime);
            Report::run(command.env("ONLY", "network").env("SHARE", server.share()))
        };
        report(suite.handler.path()).assert_failed(&[]);
        assert_eq!(fs::read_dir(server.directory()).unwrap().count(), 0);
        let bare = report(&delegate.program());
        assert!(bare.requirements.len() > 10);
        bare.assert_failed(&bare.ids_of_kind("network"));
        suite.assert_nothing_left();
    }
}

#[test]
fn a_requirement_on_shares_needs_a_share() {
    let suite = Suite::with(Delegate::Runc, "");
    let mut command = suite.command(suite.handler.path());
    let refused = Run::capture(command.env("ONLY", "network-mount")).failure();
    assert!(
        refused
            .stderr
            .contains("network-mount needs a share; set SHARE="),
        "{refused}"
    );
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
fn a_short_mount_on_the_host_is_detected() {
    let suite = Suite::with(Delegate::Runc, "");
    let report = suite.report(&suite.script(MOUNTS_ON_THE_HOST), "mount");
    report.assert_failed(&["mount-never-on-host"]);
}

const IGNORES_FSGROUP: &str = r#"
    uid=$(grep -o '"io.kubernetes.cri.sandbox-uid":"[^"]*"' "$bundle/config.json" | cut -d '"' -f 4)
    for info in $(grep -l "/pods/$uid/" "$crust"/*/mountInfo.json); do
        sed -i 's/"fsGroup":"[^"]*",*//' "$info"
    done"#;

#[test]
fn a_runtime_that_ignores_fsgroup_is_detected() {
    let suite = Suite::with(Delegate::Crun, "");
    let report = suite.report(&suite.script(IGNORES_FSGROUP), "fsgroup");
    report.assert_failed(&[
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
fn a_runtime_with_device_nodes_and_only_ext4_is_detected() {
    let extra = "device_node = \"always\"\nfstypes = [\"ext4\"]";
    let suite = Suite::with(Delegate::Crun, extra);
    let only = "device,mount-ext4,mount-xfs,mount-btrfs";
    let report = suite.report(suite.handler.path(), only);
    report.assert_failed(&["device-out-of-reach", "mount-btrfs", "mount-xfs"]);
}

#[test]
fn a_runtime_that_adds_mount_attributes_is_detected() {
    let extra = r#"default_options = ["noatime", "nosuid", "nodev", "noexec"]"#;
    let suite = Suite::with(Delegate::Runc, extra);
    let report = suite.report(suite.handler.path(), "options");
    report.assert_failed(&[
        "option-file-system",
        "option-mount8",
        "option-noatime",
        "option-none",
        "option-nosuid",
    ]);
}

const TRUSTS_ANY_OWNER_AND_MODE: &str = r#"
    chmod go-w "$crust"
    chown root "$crust"
    for at in "$crust"/[0-9a-f]*; do
        chmod go-w "$at" "$at/mountInfo.json" || true
        chown root "$at" "$at/mountInfo.json" || true
    done 2>/dev/null"#;

#[test]
fn a_runtime_that_trusts_writable_entries_is_detected() {
    let suite = Suite::with(Delegate::Runc, "");
    let report = suite.report(&suite.script(TRUSTS_ANY_OWNER_AND_MODE), "entries");
    report.assert_failed(&[
        "crust-directory-mode",
        "crust-directory-owner",
        "entry-mode",
        "entry-owner",
        "info-mode",
        "info-owner",
    ]);
}

/// Returns commands that, at each create of a pod, remove the access mode from the pod's own entry if `count` pods,
/// including this one, have the device staged.
fn removes_access_mode_at(count: u32) -> String {
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
fn a_runtime_that_checks_one_access_mode_is_detected() {
    for (count, expected) in [
        (1, "device-single-writer-first"),
        (2, "device-single-writer-second"),
    ] {
        let suite = Suite::with(Delegate::Runc, "");
        let script = suite.script(&removes_access_mode_at(count));
        let report = suite.report(&script, "device");
        report.assert_failed(&[expected]);
    }
}

const REJECTS_DEVICE_LINKS: &str = r#"
    for device in $(grep -ho '"device":"[^"]*"' "$crust"/*/mountInfo.json | cut -d '"' -f 4); do
        if [ -L "$device" ]; then exit 1; fi
    done"#;

#[test]
fn a_runtime_that_rejects_device_links_is_detected() {
    let suite = Suite::with(Delegate::Runc, "");
    let only = "info-device-link";
    let report = suite.report(&suite.script(REJECTS_DEVICE_LINKS), only);
    report.assert_failed(&[only]);
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
fn a_runtime_that_clears_one_of_two_entries_is_detected() {
    let suite = Suite::with(Delegate::Runc, "");
    let runtime = suite.wrapper(KEEPS_A_CLI);
    let mut command = suite.command(&runtime);
    let report = Report::run(command.env("ONLY", "cli-gone").env("TIMEOUT", "10"));
    report.assert_failed(&["cli-gone"]);
}

/// A runtime that refuses everything passes no requirement that expects a refusal.
#[test]
fn a_runtime_that_creates_nothing_meets_no_requirement() {
    let suite = Suite::with(Delegate::Runc, "");
    let report = suite.report(&suite.script("exit 1"), "");
    let met = report.reasons_by_id("passed");
    let deferred = report.ids_of_kind("deferred");
    assert!(
        deferred.iter().all(|id| !met.contains_key(*id)),
        "it meets {met:?}"
    );
}

/// Such a runtime finds no volume, and refuses the target paths as directories that are not staged.
#[test]
fn a_runtime_with_another_crust_directory_is_detected() {
    let suite = Suite::with(Delegate::Runc, "");
    let elsewhere = suite.dir.join("elsewhere");
    let mut command = suite.command(suite.handler.path());
    let refusing = "matching,entries,options,device,life";
    let report = Report::run(command.env("CRUST_ROOT", elsewhere).env("ONLY", refusing));
    report.assert_failed(&report.ids_of_kind("deferred"));
}

/// A SHOULD that is not met is reported, and does not change the exit code.
#[test]
fn a_runtime_that_passes_unstaged_directories_fails_no_must() {
    let suite = Suite::with(Delegate::Runc, "unstaged = \"pass\"");
    let report = suite.report(suite.handler.path(), "match-unstaged,match-exact");
    report.assert_failed(&["match-unstaged"]);
    assert_eq!(report.exit, Some(0));
}

#[test]
fn a_hanging_runtime_is_stopped_and_reported() {
    let suite = Suite::with(Delegate::Runc, "");
    let hangs = suite.script("sleep 1000");
    let mut command = suite.command(&hangs);
    let run = Run::capture(
        command
            .env("TIMEOUT", "1")
            .env("ONLY", "oci-exec,match-exact"),
    );
    assert_eq!(run.status.code(), Some(1), "{run}");
    for id in ["oci-exec", "match-exact"] {
        let line = run.stdout.lines().find(|line| line.contains(id));
        let line = line.unwrap_or_else(|| panic!("{run}"));
        assert!(
            line.starts_with("FAIL ") && line.contains("has not ended within 1s"),
            "{line}"
        );
    }
    assert!(
        run.stdout
            .ends_with("2 requirements: 0 passed, 2 failed, 0 skipped\n"),
        "{run}"
    );
    suite.assert_nothing_left();
}

#[test]
fn an_interrupted_run_leaves_nothing() {
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
    suite.assert_nothing_left();
}

#[test]
fn the_list_has_the_sentences_of_the_report() {
    let suite = Suite::with(Delegate::Runc, "");
    let list = Run::capture(suite.command(Path::new("")).arg("--list")).success();
    let ids = list.stdout.lines().map(|line| line.split(' ').next());
    assert!(ids.flatten().any(|id| id == "match-exact"), "{list}");
    let report = suite.report(suite.handler.path(), "oci-exec,cli-not-found");
    for requirement in &report.requirements {
        let sentence = requirement["sentence"].as_str().expect("a sentence");
        assert!(list.stdout.contains(sentence), "{sentence}");
    }
}

#[test]
fn a_usage_error_names_the_mistake_and_prints_the_usage() {
    let suite = Suite::with(Delegate::Runc, "");
    let runc = Delegate::Runc.program();
    let no_such = Path::new("/no/such/runtime");
    for (runtime, only, named) in [
        (no_such, "", "/no/such/runtime"),
        (&*runc, "oci-exec,no-such", "no-such"),
    ] {
        let run = Run::capture(suite.command(runtime).env("ONLY", only));
        assert_eq!(run.status.code(), Some(2), "{run}");
        assert!(
            run.stderr.contains(named) && run.stderr.contains("\nusage: "),
            "{run}"
        );
    }
}
