//! The conformance suite, run against what meets all of it, what meets only the ordinary part, and
//! what breaks a requirement on purpose.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use runcrust_tests::{Delegate, Handler, Run, TestDir, on_each_delegate};
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
    /// With runcrust installed, and lines in its configuration.
    fn with(delegate: Delegate, extra: &str) -> Self {
        let dir = TestDir::new();
        Self {
            handler: Handler::new(&dir, delegate, extra),
            dir,
        }
    }

    fn command(&self, runtime: &Path) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_conformance"));
        command
            .env("RUNTIME", runtime)
            .env("CRUST_ROOT", self.handler.crust_root())
            .env("KUBELET_DIR", self.handler.kubelet_dir());
        command
    }

    fn report(&self, runtime: &Path, only: &str) -> Report {
        let run = Run::of(self.command(runtime).env("ONLY", only).arg("--json"));
        let report: Value =
            serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run}"));
        assert_eq!(run.stderr, "");
        Report {
            requirements: report["requirements"].as_array().unwrap().clone(),
            exit: run.status.code(),
        }
    }

    /// A shell script as a runtime: `before` is done at each create, with the bundle in `$bundle`,
    /// and runcrust does the rest.
    fn script(&self, before: &str) -> PathBuf {
        let script = self.dir.join("runtime.sh");
        let text = format!(
            "#!/bin/sh -e\nruncrust={:?} crust={:?}\nbundle= previous=\nfor argument; do\n\
             case $previous in --bundle) bundle=$argument ;; esac\nprevious=$argument\ndone\n\
             if [ -n \"$bundle\" ]; then\n{before}\nfi\nexec \"$runcrust\" \"$@\"\n",
            self.handler.path(),
            self.handler.crust_root(),
        );
        fs::write(&script, text).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        script
    }
}

impl Report {
    /// The ids with a result, each with why.
    fn with_result(&self, result: &str) -> BTreeMap<&str, &str> {
        let wanted = self.requirements.iter().filter(|it| it["result"] == result);
        let text = |it: &'static str| move |entry: &'_ Value| -> Option<String> { entry[it].as_str().map(str::to_owned) };
        let _ = text;
        wanted
            .map(|it| (it["id"].as_str().unwrap(), it["reason"].as_str().unwrap_or_default()))
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
        let ids: Vec<&str> = failed.keys().copied().collect();
        let mut wanted = wanted.to_vec();
        wanted.sort_unstable();
        assert_eq!(ids, wanted, "{failed:#?}");
        assert_eq!(self.with_result("skipped"), BTreeMap::new());
        assert_eq!(self.exit, Some(i32::from(!wanted.is_empty())));
    }
}

on_each_delegate! {
    fn runcrust_meets_every_requirement(delegate: Delegate) {
        let suite = Suite::with(delegate, "");
        let report = suite.report(suite.handler.path(), "");
        report.fails_just(&[]);
        assert_eq!(fs::read_dir(suite.handler.crust_root()).map_or(0, Iterator::count), 0);
        assert_eq!(fs::read_dir(suite.handler.kubelet_dir()).map_or(0, Iterator::count), 0);
    }

    /// Each deferred requirement shows whether a runtime mounts deferred volumes, and no ordinary one
    /// asks for that.
    fn the_bare_delegate_fails_exactly_the_deferred_ones(delegate: Delegate) {
        let suite = Suite::with(delegate, "");
        let report = suite.report(&delegate.program(), "");
        report.fails_just(&report.of_kind("deferred"));
    }
}
