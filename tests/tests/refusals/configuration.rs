//! Invalid configs of a container, and invalid configurations of runcrust.

use std::fs;
use std::os::unix::fs::symlink;

use runcrust_tests::{Bundle, Delegate, Node, Run, StagedVolume, binary, on_each_delegate};
use serde_json::Value;

use crate::refusal;

/// Renames a key.
fn rename(object: &mut Value, from: &str, to: &str) {
    let object = object.as_object_mut().expect("an object");
    let value = object.remove(from).expect("an existing key");
    object.insert(to.to_owned(), value);
}

/// Changes a config.
type Change = fn(&mut Value);

on_each_delegate! {
    /// runc, which is written in Go, reads `Mounts` as `mounts`; a reader that compares keys exactly would miss it.
    fn keys_that_only_some_parsers_accept_are_refused(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        let cases: [(&str, Change); 6] = [
            ("Mounts", |spec| rename(spec, "mounts", "Mounts")),
            ("MOUNTS", |spec| rename(spec, "mounts", "MOUNTS")),
            ("Annotations", |spec| rename(spec, "annotations", "Annotations")),
            ("Linux", |spec| rename(spec, "linux", "Linux")),
            ("Namespaces", |spec| rename(&mut spec["linux"], "namespaces", "Namespaces")),
            ("Source", |spec| {
                let mounts = spec["mounts"].as_array_mut().expect("mounts");
                rename(mounts.last_mut().expect("a mount"), "source", "Source");
            }),
        ];
        for (key, change) in cases {
            let mut bundle = volume.app_bundle(&sandbox);
            change(bundle.spec_mut());
            let refused = refusal::create_refused(&volume, &bundle.write());
            let _ = refused.containing(&["config.json", &format!("{key:?}")]).message();
        }
    }

    fn a_config_that_is_not_a_json_object_is_refused(delegate: Delegate) {
        let node = Node::new(delegate);
        for (text, named) in [
            ("{", "JSON"),
            ("", "JSON"),
            ("[]", "object"),
        ] {
            let bundle = Bundle::plain(node.dir()).write_bytes(text.as_bytes());
            let _ = refusal::create_refused(&node, &bundle).containing(&["config.json", named]).message();
        }
    }

    fn an_unknown_configuration_key_fails_every_create(delegate: Delegate) {
        let volume = StagedVolume::on(Node::with(delegate, "sandbox = \"always\""), &[]);
        let sandbox = volume.sandbox();
        let file = volume.handler().configuration();
        volume.handler().reconfigure("\nunstagd = \"pass\"");
        let line = fs::read_to_string(&file).unwrap();
        let line = 1 + line.lines().position(|line| line.starts_with("unstagd")).unwrap();
        for bundle in [
            Bundle::plain(volume.dir()),
            volume.sandbox_bundle("pod-b"),
            volume.node.app_bundle(&sandbox),
            volume.app_bundle(&sandbox),
        ] {
            let refused = refusal::create_refused(&volume, &bundle.write());
            let (file, line) = (file.to_str().unwrap(), format!("line {line}"));
            let _ = refused.containing(&[file, &line, "`unstagd`"]).message();
        }
        volume.handler().reconfigure("");
        let _ = volume.app(&sandbox);
    }

    fn a_configuration_writable_by_others_fails_every_create(delegate: Delegate) {
        use std::os::unix::fs::PermissionsExt;

        let node = Node::new(delegate);
        let file = node.handler().configuration();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
        let refused = refusal::create_refused(&node, &Bundle::plain(node.dir()).write());
        let _ = refused.containing(&[file.to_str().unwrap(), "root"]).message();
    }
}

#[test]
fn runcrust_as_its_own_delegate_is_refused() {
    let node = Node::new(Delegate::Runc);
    let real = binary("runcrust");
    let (symbolic, hard) = (node.dir().join("runc"), node.dir().join("crun"));
    symlink(&real, &symbolic).unwrap();
    // A hard link needs the same file system, so the program is copied first.
    let installed = node.dir().join("installed");
    fs::copy(&real, &installed).unwrap();
    fs::hard_link(&installed, &hard).unwrap();

    for (program, delegate) in [
        (node.handler().path(), real.as_path()),
        (node.handler().path(), &symbolic),
        (node.handler().path(), node.handler().path()),
        (&installed, &hard),
    ] {
        node.handler().set_delegate(delegate);
        let bundle = Bundle::plain(node.dir()).write();
        let log = bundle.path().join("log.json");
        let mut command = std::process::Command::new(program);
        // The name in argv selects the configuration.
        std::os::unix::process::CommandExt::arg0(&mut command, node.handler().path());
        command
            .arg("--root")
            .arg(bundle.runtime_root())
            .arg("--log")
            .arg(&log)
            .args(["--log-format", "json"]);
        command
            .args(["create", "--bundle"])
            .arg(bundle.path())
            .arg(bundle.id());
        // Cleans up if the create should succeed.
        let _guard = node.container(&bundle);
        let run = Run::capture(&mut command).failure();
        let lines = runcrust_tests::container::parse_log(&fs::read_to_string(&log).unwrap());
        let [line] = lines.as_slice() else {
            panic!("{lines:?} of {run}");
        };
        assert_eq!(line.level, "error");
        let delegate = delegate.to_str().unwrap();
        assert!(line.msg.contains(delegate), "{}", line.msg);
        assert!(line.msg.contains("runcrust itself"), "{}", line.msg);
        assert_eq!(
            (run.stdout.as_str(), run.stderr),
            ("", format!("{}\n", line.msg))
        );
    }
}

#[test]
fn a_delegate_that_cannot_be_run_is_refused_by_name() {
    let node = Node::new(Delegate::Runc);
    let data = node.dir().join("data");
    fs::write(&data, "").unwrap();
    let missing = node.dir().join("no-such-runc");
    for delegate in [&data, &missing, &node.dir().path().to_owned()] {
        node.handler().set_delegate(delegate);
        let bundle = Bundle::plain(node.dir()).write();
        let container = node.container(&bundle);
        let error = container.expect_refusal();
        assert!(error.contains(delegate.to_str().unwrap()), "{error}");

        // This command line is valid for crun only, and must not be parsed as if the delegate were crun.
        let mut run = container.command(&["run", "--bundle"]);
        run.arg(bundle.path())
            .args(["-f", "config.json", bundle.id()]);
        let _ = Run::capture(&mut run).failure();
        let error = container.last_log_error().expect("an error in the log");
        assert!(error.contains(delegate.to_str().unwrap()), "{error}");
    }
}
