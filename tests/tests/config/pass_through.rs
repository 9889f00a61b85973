//! A config without a volume is passed through, however unusual it is.

use runcrust_tests::{Bundle, Delegate, Node, POD, Runtime, on_each_delegate};

use crate::with_members;

/// Creates and starts a container, and returns the mounts that it shows, or the runtime's error.
fn outcome(runtime: &Runtime, bundle: Bundle, text: &[u8]) -> Result<String, String> {
    let id = bundle.id().to_owned();
    let bundle = bundle.write_bytes(text);
    let container = runcrust_tests::Container::new(runtime, &bundle);
    let created = container.create();
    assert!(bundle.config_bytes() == text, "the config was changed");
    if !created.status.success() {
        let error = container.last_log_error().unwrap_or_default();
        return Err(error.replace(&id, "<id>"));
    }
    let started = container.start();
    if !started.status.success() {
        return Err(container
            .last_log_error()
            .unwrap_or_default()
            .replace(&id, "<id>"));
    }
    // Without mounts there is no /proc, and crun fails to exec.
    let script = "cut -d' ' -f2 /proc/mounts | sort; ls /data /proc/1/exe";
    let run = container.exec(&["/bin/sh", "-c", script]);
    Ok(format!("{}: {}", run.status, run.stdout))
}

/// A placeholder for a byte that is not UTF-8.
const ODD: char = '\u{7f}';

fn bytes(text: &str) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    let odd = bytes.iter_mut().filter(|byte| **byte == ODD as u8);
    odd.for_each(|byte| *byte = 0xff);
    bytes
}

/// Asserts that the outcome is the same with and without runcrust, and returns it.
#[track_caller]
fn assert_passes(node: &Node, members: &str) -> Result<String, String> {
    let delegate = node.handler().delegate();
    let [bare, through] = [Runtime::bare(delegate), node.handler().runtime()].map(|runtime| {
        let bundle = Bundle::plain(node.dir());
        let text = with_members(&bundle, members);
        outcome(&runtime, bundle, &bytes(&text))
    });
    assert_eq!(through, bare, "{members:.200}");
    bare
}

/// Returns a node on which another volume is staged.
fn node(delegate: Delegate) -> Node {
    let (node, device) = Node::with_ext4(delegate);
    node.stage(POD, "pv-1", &device, &[]);
    node
}

/// Returns the mounts of a plain bundle as JSON.
fn mounts(node: &Node) -> String {
    Bundle::plain(node.dir()).spec()["mounts"].to_string()
}

on_each_delegate! {
    fn duplicate_keys_are_passed_through(delegate: Delegate) {
        let node = node(delegate);
        let (mounts, host) = (mounts(&node), node.dir().subdir("host"));
        let more = format!(
            r#"{},{{"destination":"/data","type":"bind","source":{host:?},"source":"/x","source":{host:?},"options":["rbind"]}}]"#,
            &mounts[..mounts.len() - 1]
        );
        for members in [
            format!(r#""mounts":{mounts},"mounts":{more}"#),
            format!(r#""mounts":{more},"mounts":{mounts}"#),
            format!(r#""mounts":{mounts},"linux":{{"maskedPaths":[]}},"annotations":{{"a":"1","a":"2"}}"#),
            format!(r#""hooks":{{"poststop":[]}},"hooks":{{}},"mounts":{mounts},"root":{{"readonly":true}}"#),
        ] {
            let _ = assert_passes(&node, &members);
        }
    }

    fn keys_in_another_case_are_passed_through(delegate: Delegate) {
        let node = node(delegate);
        let mounts = mounts(&node);
        let only = assert_passes(&node, &format!(r#""Mounts":{mounts}"#));
        assert_eq!(only.is_ok(), delegate == Delegate::Runc, "{only:?}");
        for members in [
            format!(r#""mounts":[],"MOUNTS":{mounts}"#),
            format!(r#""mounts":{mounts},"Annotations":{{"a":"b"}},"Hooks":{{"PreStart":[]}},"LINUX":{{}}"#),
            format!(r#""mounts\u0000":[],"mounts":{mounts},"annotations":{{"a\u0000":"\u0000"}}"#),
        ] {
            let _ = assert_passes(&node, &members);
        }
    }

    /// crun accepts several of these values.
    fn values_of_other_types_are_passed_through(delegate: Delegate) {
        let node = node(delegate);
        let mounts = mounts(&node);
        let with_mount = |mount: &str| format!(r#""mounts":{},{mount}]"#, &mounts[..mounts.len() - 1]);
        for members in [
            r#""mounts":{}"#.to_owned(),
            r#""mounts":7"#.to_owned(),
            format!(r#""mounts":{mounts},"annotations":[]"#),
            format!(r#""mounts":{mounts},"annotations":{{"a":null}}"#),
            format!(r#""mounts":{mounts},"hooks":[]"#),
            format!(r#""mounts":{mounts},"hooks":{{"createContainer":"x","createRuntime":{{}}}}"#),
            with_mount("null"),
            with_mount(r#"{"destination":"/data","type":"tmpfs","source":7}"#),
            with_mount(r#"{"destination":"/data","type":"tmpfs","source":"t","options":["rw",null]}"#),
        ] {
            let _ = assert_passes(&node, &members);
        }
    }

    fn invalid_unicode_outside_of_sources_is_passed_through(delegate: Delegate) {
        let node = node(delegate);
        let mounts = mounts(&node);
        for members in [
            format!(r#""mounts":{mounts},"\ud800x":"\udfff","annotations":{{"a":"\ud800"}}"#),
            format!(r#""mounts":{mounts},"{ODD}":"{ODD}","annotations":{{"a":"{ODD}"}}"#),
        ] {
            let _ = assert_passes(&node, &members);
        }
    }

    /// A config is passed through up to the depth that the delegate accepts. Go accepts 10,000 levels.
    fn deep_nesting_is_passed_through(delegate: Delegate) {
        let node = node(delegate);
        let mounts = mounts(&node);
        let depth = match delegate {
            Delegate::Runc => 9_990,
            Delegate::Crun => 50_000,
        };
        let deep = "[".repeat(depth) + &"]".repeat(depth);
        let objects = "{\"mounts\":".repeat(depth) + "1" + &"}".repeat(depth);
        for deep in [deep, objects] {
            let mount = format!(
                r#"{},{{"destination":"/data","type":"tmpfs","source":"t","x":{deep}}}]"#,
                &mounts[..mounts.len() - 1]
            );
            // The document, the list of mounts and the mount add three levels.
            let members = format!(r#""x":{deep},"mounts":{mount},"hooks":{{"x":{deep},"createContainer":[]}}"#);
            let passed = assert_passes(&node, &members);
            assert!(passed.is_ok(), "{passed:?}");
        }
        if delegate == Delegate::Runc {
            let deeper = "[".repeat(10_001) + &"]".repeat(10_001);
            let refused = assert_passes(&node, &format!(r#""x":{deeper},"mounts":{mounts}"#));
            assert!(refused.unwrap_err().contains("exceeded max depth"));
        }
    }
}
