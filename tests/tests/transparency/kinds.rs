//! Delegates whose file is named like another delegate: `delegate_kind` says which one they are.

use std::fs;

use runcrust_tests::container::parse_log;
use runcrust_tests::{Bundle, Container, Delegate, Node, POD, Run, StagedVolume, on_each_delegate};
use serde_json::json;

/// Returns a node whose delegate is a copy under the name of another kind of delegate.
fn node(delegate: Delegate) -> Node {
    let node = Node::with(delegate, &format!("delegate_kind = \"{delegate}\""));
    let program = node.dir().join(match delegate {
        Delegate::Runc => "crun",
        Delegate::Crun => "oci-runtime",
    });
    fs::copy(delegate.program(), &program).unwrap();
    node.handler().set_delegate(&program);
    node
}

/// Creates an app with a command line that another kind of delegate would parse differently.
fn create(app: &Container, bundle: &Bundle, delegate: Delegate) -> Run {
    let mut command = app.command(&["create", "--pid-file"]);
    command.arg(bundle.path().join("init.pid"));
    match delegate {
        // crun would parse this as `-b undle`, and have one argument too many.
        Delegate::Runc => command.arg("-bundle").arg(bundle.path()),
        // runc has no `-f`.
        Delegate::Crun => {
            let other = bundle.path().join("other.json");
            fs::rename(bundle.config_path(), &other).unwrap();
            command.arg("-f").arg(other).arg("-b").arg(bundle.path())
        }
    };
    command.arg(app.id());
    app.create_with(command)
}

on_each_delegate! {
    /// Parsed as the other delegate's, runc's command line would be passed through without a look at the config, and
    /// crun's would be refused.
    fn command_lines_are_parsed_by_the_configured_kind(delegate: Delegate) {
        let volume = StagedVolume::on(node(delegate), &[]);
        let sandbox = volume.sandbox();
        let bundle = volume.app_bundle(&sandbox).write();
        let app = volume.container(&bundle);
        let _ = create(&app, &bundle, delegate).success();
        let _ = app.start().success();
        let _ = app.sh("echo hello > /data/file");
        assert_eq!(fs::read_dir(&volume.target).unwrap().count(), 0, "files are left on the host");
    }

    /// crun fails some parallel creates if a hook has a `timeout`.
    fn hooks_have_a_timeout_only_for_a_kind_that_supports_it(delegate: Delegate) {
        let node = node(delegate);
        let device = node.ext4();
        let _target = node.stage(POD, "pv-1", &device, &[]);
        let bundle = node.sandbox_bundle(POD).write();
        let sandbox = node.run(&bundle);
        let hooks = bundle.config()["hooks"]["createRuntime"].clone();
        let hooks = hooks.as_array().expect("hooks");
        let own_hooks: Vec<_> = hooks.iter().filter(|hook| hook["args"][0] == "crust-mount-hook").collect();
        assert!(!own_hooks.is_empty(), "{hooks:?}");
        for hook in own_hooks {
            assert_eq!(hook.get("timeout").is_some(), delegate == Delegate::Runc, "{hook}");
        }
        drop(sandbox);
    }

    fn a_text_log_has_the_form_of_the_configured_kind(delegate: Delegate) {
        let node = node(delegate);
        let attached = node.handler().state_dir().join("attach/0");
        // Refused, because runc treats `Mounts` as `mounts`.
        let config = json!({"Mounts": [{"source": attached}]}).to_string();
        let bundle = Bundle::plain(node.dir()).write_bytes(config.as_bytes());
        let log = node.dir().join("text.log");
        let mut command = node.handler().command();
        command.arg("--root").arg(bundle.runtime_root()).arg("--log").arg(&log);
        command.args(["create", "--bundle"]).arg(bundle.path()).arg(bundle.id());
        let refused = Run::capture(&mut command).failure();
        let text = fs::read_to_string(&log).unwrap();
        match delegate {
            Delegate::Runc => assert!(text.starts_with("time=\""), "{text}"),
            Delegate::Crun => assert_eq!(text, refused.stderr),
        }
    }

    /// A guess at the kind could pass a create through unread. So every call fails.
    fn an_unknown_kind_or_one_without_a_path_fails_every_call(delegate: Delegate) {
        let node = Node::new(delegate);
        let file = node.handler().configuration();
        let known = fs::read_to_string(&file).unwrap();
        let (line, rest) = known.split_once('\n').unwrap();
        for (text, words) in [
            (format!("{line}\ndelegate_kind = \"kata\"\n{rest}"), ["line 2: ", "`kata`"]),
            (format!("delegate_kind = \"crun\"\n{rest}"), ["delegate_kind: ", "`delegate`"]),
        ] {
            fs::write(&file, text).unwrap();
            let bundle = Bundle::plain(node.dir()).write();
            let app = node.container(&bundle);
            for mut command in [app.create_command(), app.command(&["state", app.id()])] {
                let _ = fs::remove_file(app.log_path());
                let _ = Run::capture(&mut command).failure();
                let lines = parse_log(&fs::read_to_string(app.log_path()).unwrap());
                let [line] = lines.as_slice() else {
                    panic!("{lines:?}");
                };
                assert!(line.msg.starts_with(file.to_str().unwrap()), "{}", line.msg);
                assert!(words.iter().all(|words| line.msg.contains(words)), "{}", line.msg);
            }
            assert_eq!(app.status(), None);
        }
    }
}
