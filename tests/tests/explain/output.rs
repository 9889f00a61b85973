//! The text output, and bundles that cannot be explained.

use std::fs;

use runcrust_tests::node::utf8;
use runcrust_tests::{Bundle, Delegate, Node, POD, Run, StagedVolume, on_each_delegate};
use serde_json::Value;

use crate::scene::parse;

/// Asserts a failure, and returns the code and message of the error.
#[track_caller]
fn error(run: Run) -> (String, String) {
    let run = run.failure();
    assert_eq!(run.stdout, "", "{run}");
    let answer: Value = serde_json::from_str(&run.stderr).unwrap_or_else(|_| panic!("{run}"));
    let text = |key: &str| answer["error"][key].as_str().expect("a string").to_owned();
    (text("code"), text("message"))
}

on_each_delegate! {
    fn the_text_output_shows_the_plan(delegate: Delegate) {
        let volume = StagedVolume::with(delegate, &["--fs-group", "2000"]);
        let sandbox = volume.sandbox();
        let lost = volume.node.target(POD, "pv-2");
        let bundle = volume
            .app_bundle(&sandbox)
            .bind(volume.target.join("sub"), "/sub", &["rbind", "ro"])
            .write();
        let explain = |bundle: &Bundle| {
            volume.handler().crust(&["explain", utf8(bundle.path())]).success().stdout
        };
        let text = explain(&bundle);
        let sandbox_id = sandbox.id();
        for expected in [
            format!("config  {}", bundle.config_path().display()),
            format!("a container in sandbox {sandbox_id}"),
            "io.kubernetes.cri.container-type=container".to_owned(),
            format!("mounted in sandbox {sandbox_id} (process {})", sandbox.pid()),
            "pv-1, by the exact source".to_owned(),
            format!("pv-1, by the parent {}; subPath sub; read-only", volume.target.display()),
            format!("{} ({})  ext4 (rw)", volume.device.path().display(), volume.device.number()),
            "already mounted; fsGroup 2000, Always".to_owned(),
            format!("--- {}\n", bundle.config_path().display()),
            format!("\n-      \"source\": {:?},\n+      \"source\": {:?},\n", utf8(&volume.target),
                format!("{}/attach/{}", volume.handler().state_dir().display(),
                    bundle.spec()["mounts"].as_array().unwrap().len() - 2)),
            "\n+          \"publish\",\n".to_owned(),
        ] {
            assert!(text.contains(&expected), "{expected:?} is missing in:\n{text}");
        }
        assert!(!text.contains("refused"), "{text}");
        let refused = volume.node.app_bundle(&sandbox).bind(&lost, "/data", &[]).write();
        let text = explain(&refused);
        let expected = "refused  mount /data: volume pv-2: nothing is staged for";
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn a_bundle_can_be_given_by_any_path() {
    let node = Node::new(Delegate::Runc);
    let bundle = Bundle::plain(node.dir()).write();
    let explained = |directory: &std::path::Path, arguments: &[&str]| {
        let mut command = node.handler().command();
        command
            .args(["crust", "explain"])
            .args(arguments)
            .current_dir(directory);
        Run::capture(&mut command)
    };
    let parent = bundle.path().parent().unwrap();
    let name = utf8(bundle.path()).rsplit('/').next().unwrap();
    for (directory, path) in [
        (parent, name),
        (bundle.path(), "."),
        (bundle.path(), "rootfs/.."),
    ] {
        let explanation = parse(explained(directory, &[path, "--json"]));
        assert_eq!(explanation["plan"]["kind"], "pass-on", "{explanation:#}");
    }
    // Like create, relative to the working directory.
    let other = node.dir().join("other.json");
    fs::rename(bundle.config_path(), &other).unwrap();
    let explanation = parse(explained(
        node.dir().path(),
        &[utf8(bundle.path()), "--config", "other.json", "--json"],
    ));
    assert_eq!(explanation["config"], "other.json");

    let missing = error(explained(parent, &[name]));
    assert_eq!(missing.0, "NOT_FOUND");
    assert!(
        missing
            .1
            .contains("config.json: there is no such file; hint: "),
        "{missing:?}"
    );
    let missing = error(explained(parent, &["no-such-bundle"]));
    assert_eq!(missing.0, "NOT_FOUND");
    assert!(missing.1.contains("no-such-bundle"), "{missing:?}");
    fs::rename(&other, bundle.config_path()).unwrap();
    let file = error(explained(parent, &[utf8(&bundle.config_path())]));
    assert_eq!(file.0, "INVALID_ARGUMENT");
    let hint = format!(
        "hint: give the bundle, the directory with config.json: {}",
        bundle.path().display()
    );
    assert!(file.1.contains(&hint), "{file:?}");
}

#[test]
fn an_invalid_configuration_is_an_error() {
    let node = Node::new(Delegate::Runc);
    let bundle = Bundle::plain(node.dir()).write();
    node.handler().reconfigure("no_such_key = 1");
    let run = node.handler().crust(&["explain", utf8(bundle.path())]);
    let (code, message) = error(run);
    assert_eq!(code, "INTERNAL");
    assert!(message.contains("no_such_key"), "{message}");
}
