//! Other people's hooks and annotations in the config of a container with a volume.

use std::fs;
use std::path::{Path, PathBuf};

use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::{Bundle, POD, StagedVolume, on_each_delegate, wait_until};
use serde_json::{Value, json};

use crate::twin::masked;
use crate::twins::Twins;

const KINDS: [&str; 6] = [
    "prestart",
    "createRuntime",
    "createContainer",
    "startContainer",
    "poststart",
    "poststop",
];

/// Where a bundle's hooks write. A `startContainer` hook runs in the container.
fn orders(bundle: &Path) -> [PathBuf; 2] {
    [bundle.join("order"), bundle.join("rootfs/order")]
}

/// A hook that writes down its name, one variable of its environment, and its state; and then runs
/// a command, in which `NAME` is its name.
fn hook(bundle: &Bundle, kind: &str, name: &str, command: &str) -> Value {
    let [outside, _] = orders(bundle.path());
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

/// Two hooks of each kind, annotations, and a field that nobody knows.
fn with_other_peoples(bundle: Bundle, command: &str) -> Bundle {
    let mut bundle = bundle
        .annotation("org.example/first", "1")
        .annotation("io.kubernetes.cri.crust", "a user's word");
    let mut hooks = serde_json::Map::new();
    for kind in KINDS {
        let names = ["one", "two"].map(|n| format!("{kind}-{n}"));
        let both = names.map(|name| hook(&bundle, kind, &name, command));
        hooks.insert(kind.to_owned(), both.to_vec().into());
    }
    let spec = bundle.spec_mut();
    spec["hooks"] = Value::Object(hooks);
    spec["org.example.unknown"] = json!({"kept": [1, 2.50, null]});
    // A sandbox's startContainer hook writes there, too.
    spec["root"]["readonly"] = false.into();
    bundle
}

fn plain(bundle: Bundle) -> Bundle {
    with_other_peoples(bundle, "")
}

/// All that a bundle's hooks have written.
fn order(bundle: &Path) -> String {
    let texts = orders(bundle).map(|path| fs::read_to_string(path).unwrap_or_default());
    texts.concat()
}

/// What both twins' hooks have written, which is the same.
#[track_caller]
fn written(twins: &Twins) -> String {
    let [theirs, ours] = twins.both().map(|twin| masked(&order(twin.bundle.path())));
    assert_eq!(
        theirs, ours,
        "by hooks of the bare delegate's container, and of runcrust's"
    );
    ours
}

/// The names in the order they ran.
fn names(text: &str) -> Vec<&str> {
    let lines = text
        .lines()
        .filter_map(|line| line.strip_suffix(" its-own"));
    lines.collect()
}

/// A whole life, with a look at what ran after each step.
fn live(twins: &Twins) {
    let _ = twins
        .same("--root @ROOT create --bundle @BUNDLE --pid-file @PIDFILE @ID")
        .success()
        .silent();
    let created = written(twins);
    assert!(names(&created).contains(&"createRuntime-two"), "{created}");
    let state = twins.same("--root @ROOT state @ID").success();
    let told: Value = serde_json::from_str(&state.stdout.replace('#', "0")).unwrap_or_default();
    assert!(
        !told["annotations"]["org.example/first"].is_null(),
        "{state:?}"
    );
    let _ = twins.same("--root @ROOT start @ID").success();
    twins.wait_for_program("sleep");
    let _ = written(twins);
    twins.end();
    for twin in twins.both() {
        wait_until("the last hook", WAIT_TIMEOUT, || {
            order(twin.bundle.path()).contains("poststop-two")
        });
    }
    let text = written(twins);
    for kind in KINDS {
        let both = [format!("{kind}-one"), format!("{kind}-two")];
        let ran: Vec<&str> = names(&text)
            .into_iter()
            .filter(|name| name.starts_with(kind))
            .collect();
        assert_eq!(ran, both, "{text}");
    }
}

/// In the rewritten config: other people's hooks are first and as they were, and nothing else of
/// theirs was touched.
#[track_caller]
fn assert_ours_are_last(spec: &Value, written: &Value) {
    for kind in KINDS {
        let theirs = spec["hooks"][kind].as_array().expect("hooks");
        let all = written["hooks"][kind].as_array().expect("hooks");
        assert_eq!(all[..theirs.len()], theirs[..], "{kind}");
        for ours in &all[theirs.len()..] {
            assert!(
                ours["path"]
                    .as_str()
                    .unwrap()
                    .ends_with("/crust-mount-hook"),
                "{ours}"
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

/// What a hook with the command of [`copying`] found.
fn found(bundle: &Bundle, hook: &str) -> Option<Value> {
    let text = fs::read_to_string(bundle.path().join(format!("found-{hook}"))).ok()?;
    Some(serde_json::from_str(&text).expect("a record is JSON"))
}

/// Copies a record into the bundle.
fn copying(bundle: &Bundle, record: &Path) -> String {
    let to = bundle.path().join("found-NAME");
    format!("[ ! -e {record:?} ] || cp {record:?} {to:?}")
}

/// The kind of user that a container is in a volume's record.
fn kind_of(record: Option<Value>, id: &str) -> String {
    let record = record.expect("the volume is in use");
    let users = record["users"].as_array().expect("users").clone();
    let user = users.into_iter().find(|user| user["id"] == id);
    user.map_or_else(String::new, |user| {
        user["kind"].as_str().expect("a kind").to_owned()
    })
}

on_each_delegate! {
    fn other_peoples_hooks_run_as_ever_beside_a_volume(delegate: Delegate) {
        let twins = Twins::apps(delegate, plain);
        live(&twins);
        assert!(twins.has_a_volume());
        assert_ours_are_last(twins.ours.bundle.spec(), &twins.ours.bundle.config());
    }

    fn other_peoples_hooks_run_as_ever_in_a_sandbox_with_a_volume(delegate: Delegate) {
        let twins = Twins::sandboxes(delegate, plain);
        live(&twins);
        assert!(twins.has_a_volume());
        assert_ours_are_last(twins.ours.bundle.spec(), &twins.ours.bundle.config());
    }

    fn other_peoples_hooks_run_as_ever_without_a_volume(delegate: Delegate) {
        live(&Twins::plain(delegate, plain));
    }

    /// So they find everything as it is without runcrust, at the end too.
    fn other_peoples_hooks_run_before_runcrusts(delegate: Delegate) {
        let volume = StagedVolume::new(delegate);
        let bundle = volume.sandbox_bundle(POD);
        let record = volume.handler().state_dir().join(format!("sandboxes/{}.json", bundle.id()));
        let command = copying(&bundle, &record);
        let pod = with_other_peoples(bundle, &command).write();
        let sandbox = volume.run(&pod);
        assert_eq!(found(&pod, "createRuntime-two"), None, "the sandbox isn't known yet");
        assert!(found(&pod, "createContainer-one").is_some());

        let bundle = volume.app_bundle(&sandbox);
        let command = copying(&bundle, &volume.entry().join("runcrust.json"));
        let bundle = with_other_peoples(bundle, &command).write();
        let app = volume.run(&bundle);
        let kind = |hook: &str| kind_of(found(&bundle, hook), app.id());
        assert_eq!(kind("createRuntime-two"), "pending");
        assert_eq!(kind("createContainer-one"), "container");
        for (container, bundle) in [(&app, &bundle), (&sandbox, &pod)] {
            container.stop();
            let _ = container.delete().success();
            wait_until("the last hook", WAIT_TIMEOUT, || order(bundle.path()).contains("poststop-two"));
        }
        assert_eq!(kind("poststop-two"), "container", "not released yet");
        assert!(found(&pod, "poststop-two").is_some());
        wait_until("the end of the sandbox's record", WAIT_TIMEOUT, || !record.exists());
    }

    /// It reads its state first: crun 1.8.1 dies of SIGPIPE otherwise, now and then.
    fn a_hook_of_other_people_that_fails_fails_the_create_as_ever(delegate: Delegate) {
        let failing = |mut bundle: Bundle| {
            bundle.spec_mut()["hooks"] = json!({
                "createRuntime": [{"path": "/bin/sh", "args": ["sh", "-c", "cat >/dev/null; echo no >&2; exit 3"]}],
            });
            bundle
        };
        for twins in [
            Twins::plain(delegate, failing),
            Twins::apps(delegate, failing),
            Twins::sandboxes(delegate, failing),
        ] {
            let create = "--root @ROOT --log @LOG --log-format json create --bundle @BUNDLE @ID";
            let _ = twins.same(create).failure();
            let _ = twins.same("--root @ROOT state @ID");
            let _ = twins.same("--root @ROOT delete --force @ID").success();
        }
    }
}
