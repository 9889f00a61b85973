//! Hooks and annotations that the caller put into the config of a container with a volume.

use std::fs;
use std::path::{Path, PathBuf};

use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::{Bundle, POD, StagedVolume, on_each_delegate, wait_until};
use serde_json::{Value, json};

use crate::compared_container::masked;
use crate::container_pair::ContainerPair;

const KINDS: [&str; 6] = [
    "prestart",
    "createRuntime",
    "createContainer",
    "startContainer",
    "poststart",
    "poststop",
];

/// Returns the files that a bundle's hooks write to. A `startContainer` hook runs in the container.
fn hook_outputs(bundle: &Path) -> [PathBuf; 2] {
    [bundle.join("order"), bundle.join("rootfs/order")]
}

/// Returns a hook that appends its name, one variable of its environment, and its state to a file, and then runs a
/// command, in which `NAME` is replaced by the hook's name.
fn hook(bundle: &Bundle, kind: &str, name: &str, command: &str) -> Value {
    let [outside, _] = hook_outputs(bundle.path());
    let (file, command) = match kind {
        "startContainer" => (Path::new("/order"), String::new()),
        _ => (outside.as_path(), command.replace("NAME", name)),
    };
    let script = format!("{{ echo {name} $MARK; cat; echo; }} >>{file:?}; {command}");
    json!({
        "path": "/bin/sh",
        "args": ["sh", "-c", script],
        "env": ["MARK=its-own", "PATH=/bin:/usr/bin"],
        "timeout": 60,
    })
}

/// Adds two hooks of each kind, annotations, and an unknown field.
fn with_foreign_hooks(bundle: Bundle, command: &str) -> Bundle {
    let mut bundle = bundle
        .annotation("org.example/first", "1")
        .annotation("io.kubernetes.cri.crust", "set by a user");
    let mut hooks = serde_json::Map::new();
    for kind in KINDS {
        let names = ["one", "two"].map(|n| format!("{kind}-{n}"));
        let both = names.map(|name| hook(&bundle, kind, &name, command));
        hooks.insert(kind.to_owned(), both.to_vec().into());
    }
    let spec = bundle.spec_mut();
    spec["hooks"] = Value::Object(hooks);
    spec["org.example.unknown"] = json!({"kept": [1, 2.50, null]});
    // A startContainer hook also writes to a sandbox's root file system.
    spec["root"]["readonly"] = false.into();
    bundle
}

fn with_successful_hooks(bundle: Bundle) -> Bundle {
    with_foreign_hooks(bundle, "")
}

/// Returns what a bundle's hooks have written.
fn hook_output(bundle: &Path) -> String {
    let texts = hook_outputs(bundle).map(|path| fs::read_to_string(path).unwrap_or_default());
    texts.concat()
}

/// Asserts that the hooks of both containers have written the same text, and returns the text.
#[track_caller]
fn same_hook_output(pair: &ContainerPair) -> String {
    let [bare, wrapped] = pair
        .members()
        .map(|member| masked(&hook_output(member.bundle.path())));
    assert_eq!(
        bare, wrapped,
        "left: of the bare delegate's container; right: of runcrust's"
    );
    wrapped
}

/// Returns the hooks' names in the order in which they ran.
fn names(text: &str) -> Vec<&str> {
    let lines = text
        .lines()
        .filter_map(|line| line.strip_suffix(" its-own"));
    lines.collect()
}

/// Runs both containers from create to delete, and compares the hooks' output after each step.
fn run_to_end(pair: &ContainerPair) {
    let _ = pair
        .assert_same("--root @ROOT create --bundle @BUNDLE --pid-file @PIDFILE @ID")
        .success()
        .silent();
    let created = same_hook_output(pair);
    assert!(names(&created).contains(&"createRuntime-two"), "{created}");
    let state = pair.assert_same("--root @ROOT state @ID").success();
    let state_json: Value =
        serde_json::from_str(&state.stdout.replace('#', "0")).unwrap_or_default();
    assert!(
        !state_json["annotations"]["org.example/first"].is_null(),
        "{state:?}"
    );
    let _ = pair.assert_same("--root @ROOT start @ID").success();
    pair.wait_for_program("sleep");
    let _ = same_hook_output(pair);
    pair.end();
    for member in pair.members() {
        wait_until("the last hook", WAIT_TIMEOUT, || {
            hook_output(member.bundle.path()).contains("poststop-two")
        });
    }
    let text = same_hook_output(pair);
    for kind in KINDS {
        let both = [format!("{kind}-one"), format!("{kind}-two")];
        let ran: Vec<&str> = names(&text)
            .into_iter()
            .filter(|name| name.starts_with(kind))
            .collect();
        assert_eq!(ran, both, "{text}");
    }
}

/// Asserts that in the rewritten config the caller's hooks are first and unchanged, and that the caller's annotations
/// and other values are unchanged.
#[track_caller]
fn assert_foreign_hooks_are_first(spec: &Value, written: &Value) {
    for kind in KINDS {
        let foreign = spec["hooks"][kind].as_array().expect("hooks");
        let all = written["hooks"][kind].as_array().expect("hooks");
        assert_eq!(all[..foreign.len()], foreign[..], "{kind}");
        for added in &all[foreign.len()..] {
            assert!(
                added["path"]
                    .as_str()
                    .unwrap()
                    .ends_with("/crust-mount-hook"),
                "{added}"
            );
        }
    }
    for key in [
        "annotations",
        "process",
        "root",
        "hostname",
        "org.example.unknown",
    ] {
        assert_eq!(spec.get(key), written.get(key), "{key}");
    }
}

/// Returns the record that a hook with the command of [`copy_command`] found, if any.
fn copied_record(bundle: &Bundle, hook: &str) -> Option<Value> {
    let text = fs::read_to_string(bundle.path().join(format!("found-{hook}"))).ok()?;
    Some(serde_json::from_str(&text).expect("a record is JSON"))
}

/// Returns a command that copies a record into the bundle.
fn copy_command(bundle: &Bundle, record: &Path) -> String {
    let to = bundle.path().join("found-NAME");
    format!("[ ! -e {record:?} ] || cp {record:?} {to:?}")
}

/// Returns the kind of a container as a user in a volume's record.
fn user_kind(record: Option<Value>, id: &str) -> String {
    let record = record.expect("a record of the volume");
    let users = record["users"].as_array().expect("users").clone();
    let user = users.into_iter().find(|user| user["id"] == id);
    user.map_or_else(String::new, |user| {
        user["kind"].as_str().expect("a kind").to_owned()
    })
}

on_each_delegate! {
    fn foreign_hooks_run_unchanged_beside_a_volume(delegate: Delegate) {
        let pair = ContainerPair::apps(delegate, with_successful_hooks);
        run_to_end(&pair);
        assert!(pair.has_a_volume());
        assert_foreign_hooks_are_first(pair.wrapped.bundle.spec(), &pair.wrapped.bundle.config());
    }

    fn foreign_hooks_run_unchanged_in_a_sandbox_with_a_volume(delegate: Delegate) {
        let pair = ContainerPair::sandboxes(delegate, with_successful_hooks);
        run_to_end(&pair);
        assert!(pair.has_a_volume());
        assert_foreign_hooks_are_first(pair.wrapped.bundle.spec(), &pair.wrapped.bundle.config());
    }

    fn foreign_hooks_run_unchanged_without_a_volume(delegate: Delegate) {
        run_to_end(&ContainerPair::plain(delegate, with_successful_hooks));
    }

    /// Foreign hooks then find the same state as without runcrust, also at the container's end.
    fn foreign_hooks_run_before_runcrusts(delegate: Delegate) {
        let volume = StagedVolume::new(delegate);
        let bundle = volume.sandbox_bundle(POD);
        let record = volume.handler().state_dir().join(format!("sandboxes/{}.json", bundle.id()));
        let command = copy_command(&bundle, &record);
        let pod = with_foreign_hooks(bundle, &command).write();
        let sandbox = volume.run(&pod);
        assert_eq!(copied_record(&pod, "createRuntime-two"), None, "the sandbox was recorded before the hook");
        assert!(copied_record(&pod, "createContainer-one").is_some());

        let bundle = volume.app_bundle(&sandbox);
        let command = copy_command(&bundle, &volume.entry().join("runcrust.json"));
        let bundle = with_foreign_hooks(bundle, &command).write();
        let app = volume.run(&bundle);
        let kind = |hook: &str| user_kind(copied_record(&bundle, hook), app.id());
        assert_eq!(kind("createRuntime-two"), "pending");
        assert_eq!(kind("createContainer-one"), "container");
        for (container, bundle) in [(&app, &bundle), (&sandbox, &pod)] {
            container.stop();
            let _ = container.delete().success();
            wait_until("the last hook", WAIT_TIMEOUT, || hook_output(bundle.path()).contains("poststop-two"));
        }
        assert_eq!(kind("poststop-two"), "container", "the volume was released before the hook");
        assert!(copied_record(&pod, "poststop-two").is_some());
        wait_until("removal of the sandbox's record", WAIT_TIMEOUT, || !record.exists());
    }

    /// The hook reads its state first, because otherwise crun 1.8.1 sometimes dies of SIGPIPE.
    fn a_failing_foreign_hook_fails_the_create_unchanged(delegate: Delegate) {
        let failing = |mut bundle: Bundle| {
            bundle.spec_mut()["hooks"] = json!({
                "createRuntime": [{"path": "/bin/sh", "args": ["sh", "-c", "cat >/dev/null; echo no >&2; exit 3"]}],
            });
            bundle
        };
        for pair in [
            ContainerPair::plain(delegate, failing),
            ContainerPair::apps(delegate, failing),
            ContainerPair::sandboxes(delegate, failing),
        ] {
            let create = "--root @ROOT --log @LOG --log-format json create --bundle @BUNDLE @ID";
            let _ = pair.assert_same(create).failure();
            let _ = pair.assert_same("--root @ROOT state @ID");
            let _ = pair.assert_same("--root @ROOT delete --force @ID").success();
        }
    }
}
