//! A rewritten config differs from the original only where a volume requires it. A config without a
//! volume is not changed, and a rewritten bundle can be created a second time.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::odd_json::{EditablePlaces, PlaceChange, Template, write};
use runcrust_tests::volume::with_mounted;
use runcrust_tests::{Bundle, Container, Delegate, LoopDevice, Node, POD, on_each_delegate, xattr};
use serde_json::{Value, json};

/// A staged volume that contains a file.
struct Volume {
    target: PathBuf,
    device: LoopDevice,
    node: Node,
}

impl Volume {
    fn new(node: Node) -> Self {
        let device = node.ext4();
        with_mounted(device.path(), |root| {
            fs::write(root.join("file"), "in the volume").unwrap();
        });
        Self {
            target: node.stage(POD, "pv-1", &device, &[]),
            device,
            node,
        }
    }

    /// Returns an app with two mounts of the volume, a host mount below one of them, and unusual fields.
    fn app(&self, sandbox: &Container) -> Bundle {
        let mut bundle = self
            .node
            .app_bundle(sandbox)
            .bind(&self.target, "/data", &[])
            .bind(self.node.dir().subdir("host"), "/data/host", &[])
            .bind(self.target.join("sub/path"), "/sub", &["rbind", "ro"]);
        // The app gets namespaces of its own, so that its config can be used with another sandbox too.
        for kind in ["ipc", "uts", "network"] {
            bundle = bundle.namespace(kind, None);
        }
        add_new_fields(bundle.spec_mut());
        bundle
    }

    fn sandbox(&self) -> Bundle {
        let mut bundle = self.node.sandbox_bundle(POD);
        add_new_fields(bundle.spec_mut());
        bundle
    }

    /// Asserts that the app sees the volume's content at both mounts.
    #[track_caller]
    fn assert_mounted_in(app: &Container) {
        let output = app.sh("cat /data/file; echo; ls /data /sub | xargs");
        assert_eq!(
            output,
            "in the volume\n/data: file host lost+found sub /sub:"
        );
    }
}

/// Hooks that don't belong to runcrust; each one writes a line to a file.
struct ForeignHooks {
    traces: PathBuf,
}

impl ForeignHooks {
    fn add_to(bundle: &mut Bundle, traces: PathBuf) -> Self {
        let hook = |text: &str| {
            json!({
                "path": "/bin/sh",
                // crun dies of SIGPIPE when a hook ends without having read the state.
                "args": ["sh", "-c", format!("cat >/dev/null; echo {text} >> \"$TRACES\"")],
                "env": [format!("TRACES={}", traces.display()), "PATH=/bin:/usr/bin"],
                "timeout": 20,
            })
        };
        bundle.spec_mut()["hooks"] = json!({
            "prestart": [],
            "createRuntime": [hook("one"), hook("two")],
            "createContainer": [],
            "poststop": [hook("three")],
        });
        Self { traces }
    }

    #[track_caller]
    fn assert_run(&self, expected: &str) {
        let traces = fs::read_to_string(&self.traces).unwrap_or_default();
        assert_eq!(
            traces.split_whitespace().collect::<Vec<_>>().join(" "),
            expected
        );
    }
}

/// Adds fields of runtime-spec 1.1 to 1.3 with values that change nothing, whether the delegate knows
/// the fields or not.
fn add_new_fields(spec: &mut Value) {
    spec["process"]["execCPUAffinity"] = json!({"initial": "0", "final": "0"});
    spec["process"]["scheduler"] = json!({"policy": "SCHED_OTHER", "nice": 0});
    spec["process"]["ioPriority"] = json!({"class": "IOPRIO_CLASS_BE", "priority": 4});
    spec["linux"]["netDevices"] = json!({});
    spec["linux"]["memoryPolicy"] = json!({"mode": "MPOL_DEFAULT"});
    spec["annotations"]["org.example/ünïcode \"quoted\\"] = json!("a/b\n\u{1}😀");
}

/// Returns the places that the rewrite of an app's config may change, with or without existing hooks.
fn app_places(bundle: &Bundle, target: &Path) -> (Vec<String>, Vec<&'static str>) {
    let mounts = bundle.spec()["mounts"].as_array().unwrap();
    let volume_mounts = mounts.iter().enumerate().filter(|(_, mount)| {
        mount["source"]
            .as_str()
            .is_some_and(|source| Path::new(source).starts_with(target))
    });
    let sources = volume_mounts.map(|(index, _)| format!("/mounts/{index}/source"));
    let ends: &[&str] = if bundle.spec().get("hooks").is_some() {
        &["/hooks/createRuntime", "/hooks/poststop"]
    } else {
        &[""]
    };
    (sources.collect(), ends.to_vec())
}

/// Returns an unusually formatted text of an app's config.
fn app_template(bundle: &Bundle, target: &Path, seed: u64) -> Template {
    let (sources, ends) = app_places(bundle, target);
    assert_eq!(sources.len(), 2);
    let values: Vec<&str> = sources.iter().map(String::as_str).collect();
    let places = EditablePlaces {
        ends: &ends,
        values: &values,
    };
    write(bundle.spec(), &places, seed).followed_by("\n\n\t")
}

const SANDBOX_ARRAYS: [&str; 3] = ["/mounts", "/hooks/createRuntime", "/hooks/poststop"];

fn sandbox_template(bundle: &Bundle, ends: &[&str], seed: u64) -> Template {
    write(bundle.spec(), &EditablePlaces { ends, values: &[] }, seed).followed_by(" \r\n")
}

fn config(bundle: &Bundle) -> String {
    String::from_utf8(bundle.config_bytes()).unwrap()
}

/// Asserts that a list contains exactly one hook, and that it is runcrust's.
#[track_caller]
fn assert_our_hook(hooks: &[Value]) {
    let [hook] = hooks else {
        panic!("expected one hook: {hooks:?}")
    };
    let path = Path::new(hook["path"].as_str().unwrap());
    assert!(
        path.is_absolute() && path.ends_with("crust-mount-hook"),
        "{hook}"
    );
}

#[track_caller]
fn assert_app_changes(volume: &Volume, bundle: &Bundle, changes: &BTreeMap<&str, PlaceChange>) {
    let attach = volume.node.handler().state_dir().join("attach");
    let (sources, ends) = app_places(bundle, &volume.target);
    for pointer in sources {
        let index = pointer.split('/').nth(2).unwrap();
        let expected = json!(attach.join(index)).to_string();
        assert_eq!(changes[pointer.as_str()].after, expected, "{pointer}");
    }
    for end in ends {
        if end.is_empty() {
            let members = changes[end].members();
            assert_eq!(members.as_object().unwrap().len(), 1, "{members}");
            let hooks = members["hooks"].as_object().unwrap();
            assert_eq!(
                hooks.keys().collect::<Vec<_>>(),
                ["createRuntime", "poststop"]
            );
            for hooks in hooks.values() {
                assert_our_hook(hooks.as_array().unwrap());
            }
        } else {
            assert_our_hook(&changes[end].elements());
        }
    }
}

#[track_caller]
fn assert_sandbox_elements(elements: &BTreeMap<&str, Vec<Value>>) {
    let options = json!(["nosuid", "nodev", "noexec", "mode=0700", "size=64k"]);
    let [mount] = &elements["/mounts"][..] else {
        panic!("expected one mount: {elements:?}")
    };
    assert_eq!(
        (&mount["destination"], &mount["type"]),
        (&json!("/.crust"), &json!("tmpfs"))
    );
    assert_eq!(mount["options"], options);
    assert_our_hook(&elements["/hooks/createRuntime"]);
    assert_our_hook(&elements["/hooks/poststop"]);
}

/// Returns the elements that the rewrite inserted into each array of a config, if the config had all these arrays.
fn inserted<'a>(changes: &BTreeMap<&'a str, PlaceChange>) -> BTreeMap<&'a str, Vec<Value>> {
    let all = changes.iter();
    all.map(|(name, change)| (*name, change.elements()))
        .collect()
}

/// Returns a sandbox whose config already has an element in each array that the rewrite extends.
fn sandbox_with_arrays(volume: &Volume) -> (Bundle, ForeignHooks) {
    let mut bundle = volume.sandbox();
    let hooks = ForeignHooks::add_to(&mut bundle, volume.node.dir().join("traces-sandbox"));
    let linux = &mut bundle.spec_mut()["linux"];
    linux["devices"] = json!([{
        "path": "/dev/others", "type": "c", "major": 1, "minor": 3, "fileMode": 438, "uid": 0, "gid": 0,
    }]);
    let rules = linux["resources"]["devices"].as_array_mut().unwrap();
    rules.push(json!({"allow": true, "type": "c", "major": 1, "minor": 3, "access": "rwm"}));
    (bundle, hooks)
}

/// Returns a container of the same bundle with another id and another path to the bundle.
fn under_another_id(node: &Node, bundle: &Bundle) -> Container {
    let other = bundle.clone().with_id(&format!("{}-other", bundle.id()));
    symlink(bundle.path(), other.path()).unwrap();
    node.container(&other)
}

#[track_caller]
fn run(container: &Container) {
    let _ = container.create().success();
    let _ = container.start().success();
}

/// Returns every property of a file that a write or a replacement would change.
fn identity(path: &Path) -> (u64, i64, i64, i64, i64, Vec<u8>) {
    let info = fs::metadata(path).unwrap();
    let (modified, changed) = (
        (info.mtime(), info.mtime_nsec()),
        (info.ctime(), info.ctime_nsec()),
    );
    (
        info.ino(),
        modified.0,
        modified.1,
        changed.0,
        changed.1,
        fs::read(path).unwrap(),
    )
}

on_each_delegate! {
    fn only_sources_and_hooks_of_an_app_config_change(delegate: Delegate) {
        let volume = Volume::new(Node::new(delegate));
        let sandbox = volume.node.sandbox(POD);
        for seed in [1, 2, 3] {
            let mut bundle = volume.app(&sandbox);
            let traces = volume.node.dir().join(format!("traces-{seed}"));
            let hooks = ForeignHooks::add_to(&mut bundle, traces);
            let template = app_template(&bundle, &volume.target, seed);
            let bundle = bundle.write_bytes(template.text().as_bytes());
            let app = volume.node.run(&bundle);
            hooks.assert_run("one two");
            Volume::assert_mounted_in(&app);
            assert_app_changes(&volume, &bundle, &template.changes(&config(&bundle)));
            app.end();
            hooks.assert_run("one two three");
        }
    }

    fn hooks_are_added_at_the_end_of_an_app_config(delegate: Delegate) {
        let volume = Volume::new(Node::new(delegate));
        let sandbox = volume.node.sandbox(POD);
        for seed in [4, 5, 6] {
            let bundle = volume.app(&sandbox);
            let template = app_template(&bundle, &volume.target, seed);
            let bundle = bundle.write_bytes(template.text().as_bytes());
            let app = volume.node.run(&bundle);
            Volume::assert_mounted_in(&app);
            assert_app_changes(&volume, &bundle, &template.changes(&config(&bundle)));
        }
    }

    fn only_three_arrays_of_a_sandbox_config_are_extended(delegate: Delegate) {
        let volume = Volume::new(Node::new(delegate));
        let (bundle, hooks) = sandbox_with_arrays(&volume);
        let template = sandbox_template(&bundle, &SANDBOX_ARRAYS, 7);
        let bundle = bundle.write_bytes(template.text().as_bytes());
        let sandbox = volume.node.run(&bundle);
        hooks.assert_run("one two");
        assert_sandbox_elements(&inserted(&template.changes(&config(&bundle))));
        Volume::assert_mounted_in(&volume.node.run(&volume.app(&sandbox).write()));
        sandbox.end();
        hooks.assert_run("one two three");
    }

    fn hooks_are_added_at_the_end_of_a_sandbox_config(delegate: Delegate) {
        let volume = Volume::new(Node::new(delegate));
        let bundle = volume.sandbox();
        let template = sandbox_template(&bundle, &["/mounts", ""], 8);
        let bundle = bundle.write_bytes(template.text().as_bytes());
        let sandbox = volume.node.run(&bundle);
        let text = config(&bundle);
        let changes = template.changes(&text);
        let top = changes[""].members();
        assert_eq!(top.as_object().unwrap().len(), 1, "{top}");
        let list = |value: &Value| value.as_array().unwrap().clone();
        let elements = BTreeMap::from([
            ("/mounts", changes["/mounts"].elements()),
            ("/hooks/createRuntime", list(&top["hooks"]["createRuntime"])),
            ("/hooks/poststop", list(&top["hooks"]["poststop"])),
        ]);
        assert_sandbox_elements(&elements);
        Volume::assert_mounted_in(&volume.node.run(&volume.app(&sandbox).write()));
    }

    fn a_rewritten_file_keeps_mode_owner_and_attributes(delegate: Delegate) {
        let volume = Volume::new(Node::new(delegate));
        let sandbox = volume.node.sandbox(POD);
        let bundle = volume.app(&sandbox).write();
        let path = bundle.config_path();
        xattr::write_file(&path, &bundle.config_bytes(), "user.runcrust", "kept");
        chown(&path, Some(1234), Some(2345)).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        let before = (identity(&path), xattr::read(&path));
        let names = || {
            let entries = fs::read_dir(bundle.path()).unwrap();
            let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            names.filter(|name| name.contains("config")).collect::<Vec<_>>()
        };

        let app = volume.node.run(&bundle);

        Volume::assert_mounted_in(&app);
        let info = fs::metadata(&path).unwrap();
        assert_ne!(info.ino(), before.0.0, "the file was overwritten in place");
        assert_eq!((info.uid(), info.gid(), info.mode() & 0o7777), (1234, 2345, 0o640));
        assert_eq!(xattr::read(&path), before.1);
        assert_eq!(names(), ["config.json"], "a temporary file is left");
    }

    fn a_config_without_a_volume_is_not_changed(delegate: Delegate) {
        let volume = Volume::new(Node::new(delegate));
        let node = &volume.node;
        let sandbox = node.sandbox(POD);
        let host = node.dir().subdir("host");
        let mut bundles = [
            Bundle::plain(node.dir()).bind(&host, "/data", &[]),
            node.app_bundle(&sandbox).bind(&host, "/data", &[]),
            // A sandbox of another pod, for which nothing is staged.
            node.sandbox_bundle("99999999-8888-7777-6666-555555555555"),
        ];
        for (bundle, seed) in bundles.iter_mut().zip(9..) {
            bundle.spec_mut()["annotations"]["org.example"] = json!("");
            add_new_fields(bundle.spec_mut());
            let places = EditablePlaces { ends: &[], values: &[] };
            let text = write(bundle.spec(), &places, seed).followed_by("\n").text();
            let bundle = bundle.clone().write_bytes(text.as_bytes());
            let before = identity(&bundle.config_path());
            let records = node.records();
            let container = node.run(&bundle);
            assert_eq!(identity(&bundle.config_path()), before, "{}", bundle.id());
            container.end();
            assert_eq!(identity(&bundle.config_path()), before, "{}", bundle.id());
            assert_eq!(node.records(), records, "{}", bundle.id());
        }
    }

    fn an_app_is_recreated_under_the_same_and_another_id(delegate: Delegate) {
        let volume = Volume::new(Node::new(delegate));
        let sandbox = volume.node.sandbox(POD);
        for (with_hooks, seed) in [(true, 12), (false, 13)] {
            let mut bundle = volume.app(&sandbox);
            if with_hooks {
                ForeignHooks::add_to(&mut bundle, volume.node.dir().join("traces"));
            }
            let text = app_template(&bundle, &volume.target, seed).text();
            let bundle = bundle.write_bytes(text.as_bytes());
            let app = volume.node.run(&bundle);
            let first = config(&bundle);
            assert_ne!(first, text);
            app.end();
            let other = under_another_id(&volume.node, &bundle);
            for container in [&app, &other, &app] {
                run(container);
                Volume::assert_mounted_in(container);
                assert_eq!(config(&bundle), first);
                container.end();
            }
        }
    }

    fn a_sandbox_is_recreated_under_the_same_and_another_id(delegate: Delegate) {
        let volume = Volume::new(Node::new(delegate));
        let (with_arrays, _) = sandbox_with_arrays(&volume);
        for (bundle, seed) in [(with_arrays, 14), (volume.sandbox(), 15)] {
            let text = sandbox_template(&bundle, &[], seed).text();
            let bundle = bundle.write_bytes(text.as_bytes());
            let sandbox = volume.node.run(&bundle);
            let first = config(&bundle);
            assert_ne!(first, text);
            sandbox.end();
            let other = under_another_id(&volume.node, &bundle);
            for container in [&sandbox, &other, &sandbox] {
                run(container);
                let app = volume.node.run(&volume.app(container).write());
                Volume::assert_mounted_in(&app);
                assert_eq!(config(&bundle), first);
                app.end();
                container.end();
            }
        }
    }

    fn the_original_config_is_restored_after_unstage(delegate: Delegate) {
        let volume = Volume::new(Node::with(delegate, "unstaged = \"pass\""));
        let node = &volume.node;
        let (sandbox_bundle, _) = sandbox_with_arrays(&volume);
        let sandbox_text = sandbox_template(&sandbox_bundle, &SANDBOX_ARRAYS, 16).text();
        let sandbox_bundle = sandbox_bundle.write_bytes(sandbox_text.as_bytes());
        let sandbox = node.run(&sandbox_bundle);
        let mut app_bundle = volume.app(&sandbox);
        ForeignHooks::add_to(&mut app_bundle, node.dir().join("traces"));
        let app_text = app_template(&app_bundle, &volume.target, 17).text();
        let app_bundle = app_bundle.write_bytes(app_text.as_bytes());
        let app = node.run(&app_bundle);
        let rewritten = (config(&sandbox_bundle), config(&app_bundle));
        app.end();
        sandbox.end();
        volume.device.wait_until_free(WAIT_TIMEOUT);
        let _ = node.unstage(&volume.target).success();
        fs::create_dir_all(volume.target.join("sub/path")).unwrap();

        run(&sandbox);
        assert_eq!(config(&sandbox_bundle), sandbox_text);
        run(&app);
        assert_eq!(config(&app_bundle), app_text);
        assert_eq!(app.sh("ls /data"), "host\nsub", "the app must see the host's directory");
        app.end();
        sandbox.end();

        fs::remove_dir_all(&volume.target).unwrap();
        node.stage(POD, "pv-1", &volume.device, &[]);
        run(&sandbox);
        run(&app);
        Volume::assert_mounted_in(&app);
        assert_eq!((config(&sandbox_bundle), config(&app_bundle)), rewritten);
    }

    fn empty_hook_lists_remain_in_a_restored_config(delegate: Delegate) {
        let volume = Volume::new(Node::with(delegate, "unstaged = \"pass\""));
        let node = &volume.node;
        let sandbox = node.sandbox(POD);
        let bundle = volume.app(&sandbox);
        let template = app_template(&bundle, &volume.target, 18);
        let bundle = bundle.write_bytes(template.text().as_bytes());
        let app = node.run(&bundle);
        app.end();
        sandbox.end();
        volume.device.wait_until_free(WAIT_TIMEOUT);
        let _ = node.unstage(&volume.target).success();
        fs::create_dir_all(volume.target.join("sub/path")).unwrap();

        run(&sandbox);
        run(&app);

        let text = config(&bundle);
        let mut changes = template.changes(&text);
        let hooks = changes.remove("").unwrap().members();
        assert_eq!(hooks, json!({"hooks": {"createRuntime": [], "poststop": []}}));
        assert!(changes.values().all(PlaceChange::is_unchanged), "{changes:?}");
    }

    fn an_attached_source_without_a_record_is_refused(delegate: Delegate) {
        let volume = Volume::new(Node::new(delegate));
        let node = &volume.node;
        let sandbox = node.sandbox(POD);
        let attached = node.handler().state_dir().join("attach/7");
        let forged = node.app_bundle(&sandbox).bind(&attached, "/data", &[]).write();
        // A copy of a bundle is another bundle, for which no record exists.
        let rewritten = volume.app(&sandbox).write();
        node.run(&rewritten).end();
        let copy = volume.app(&sandbox).write_bytes(&rewritten.config_bytes());
        let marked = node.sandbox_bundle(POD).mount(json!({
            "destination": "/.crust", "type": "tmpfs", "source": "runcrust", "options": ["nosuid"],
        }));
        let marked = marked.write();
        for (bundle, named_source) in [(forged, "attach"), (copy, "attach"), (marked, "/.crust")] {
            let (before, records) = (identity(&bundle.config_path()), node.records());
            let container = node.container(&bundle);
            let failed = container.create().failure();
            let message = container.last_log_error().unwrap_or_else(|| panic!("{failed}"));
            assert!(message.contains(named_source) && message.contains("the record of that create is missing"), "{message}");
            assert!(message.contains("hint: ") && !message.contains('\n'), "{message}");
            assert_eq!(identity(&bundle.config_path()), before, "{message}");
            assert_eq!(node.records(), records, "{message}");
            assert_eq!(container.state(), None, "the delegate was called");
        }
    }
}

#[test]
fn trailing_data_that_runc_ignores_is_kept() {
    let volume = Volume::new(Node::new(Delegate::Runc));
    let sandbox = volume.node.sandbox(POD);
    let bundle = volume.app(&sandbox);
    let template =
        app_template(&bundle, &volume.target, 19).followed_by("\n} garbage {\"mounts\":[]");
    let bundle = bundle.write_bytes(template.text().as_bytes());
    let app = volume.node.run(&bundle);
    Volume::assert_mounted_in(&app);
    assert_app_changes(&volume, &bundle, &template.changes(&config(&bundle)));
}
