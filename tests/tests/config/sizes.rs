//! Configs that are far larger than any real one.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use runcrust_tests::fault_injection::traced;
use runcrust_tests::node::utf8;
use runcrust_tests::{Bundle, Delegate, LoopDevice, Node, POD, Run, on_each_delegate, refusal};
use serde_json::json;

use crate::{MountLists, Scene, data, with_members};

const MIB: usize = 1 << 20;

/// A target path that is neither staged nor exists.
const VOLUME: &str = "/nowhere/pods/u/volumes/kubernetes.io~csi/pv/mount";

/// Returns what `one` returns for 0, 1, …, separated by commas, until there are this many bytes.
fn many(bytes: usize, one: impl Fn(usize) -> String) -> String {
    let mut text = one(0);
    for number in 1.. {
        // Writing to a String cannot fail.
        let _ = write!(text, ",{}", one(number));
        if text.len() >= bytes {
            break;
        }
    }
    text
}

/// The size of a large config in bytes.
const LARGE: usize = 20_000_000;

/// Returns members of about [`LARGE`] bytes, in each form that could make a parser use more memory.
fn large_members() -> Vec<(&'static str, String)> {
    let size = LARGE;
    vec![
        (
            "one annotation",
            format!(r#""annotations":{{"a":"{}"}}"#, "x".repeat(size)),
        ),
        (
            "annotations",
            format!(
                r#""annotations":{{{}}}"#,
                many(size, |n| format!("\"k{n}\":\"{n}\""))
            ),
        ),
        ("unknown keys", many(size, |n| format!("\"k{n}\":0"))),
        (
            "empty mounts",
            format!(r#""mounts":[{}]"#, many(size, |_| "{}".to_owned())),
        ),
        (
            "mounts",
            format!(
                r#""mounts":[{}]"#,
                many(size, |n| format!(
                    r#"{{"destination":"/{n}","type":"tmpfs","source":"tmpfs"}}"#
                ))
            ),
        ),
        (
            "a mount's options",
            format!(
                r#""mounts":[{{"source":"x","options":[{}]}}]"#,
                many(size, |_| "\"\"".to_owned())
            ),
        ),
        (
            "lists of mounts",
            many(size, |_| r#""mounts":[0]"#.to_owned()),
        ),
        (
            "lists of mounts in any case",
            many(size, |_| r#""Mounts":[{"source":"x"}]"#.to_owned()),
        ),
        (
            "hooks",
            format!(
                r#""hooks":{{"createContainer":[{}]}}"#,
                many(size, |_| "{}".to_owned())
            ),
        ),
        (
            "sources",
            format!(
                r#""mounts":[{{{}}}]"#,
                many(size, |_| r#""source":"x""#.to_owned())
            ),
        ),
        (
            "a source",
            format!(
                r#""mounts":[{}]"#,
                data(&json!(VOLUME.to_owned() + &"/a".repeat(size / 2)).to_string())
            ),
        ),
        (
            "depth",
            format!(r#""x":{}{}"#, "[".repeat(size / 2), "]".repeat(size / 2)),
        ),
    ]
}

/// Returns members of about `size` bytes with many sources, each of which needs a lookup by the kernel.
fn sources(size: usize) -> [(&'static str, String); 6] {
    let sources = |one: &dyn Fn(usize) -> String| {
        let source = |n| format!(r#"{{"source":"{}"}}"#, one(n));
        format!(r#""mounts":[{}]"#, many(size, source))
    };
    [
        (
            "sources with thousands of components",
            sources(&|n| format!("{VOLUME}{}/{n}", "/a".repeat(2000))),
        ),
        (
            "sources with sixty components",
            sources(&|n| format!("{VOLUME}{}/{n}", "/a".repeat(50))),
        ),
        (
            "sources below target paths",
            sources(&|n| VOLUME.replace("/pv/", &format!("/{n}/")) + "/a/b/c"),
        ),
        (
            "sources of kubelet's subPaths",
            sources(&|n| format!("/nowhere/pods/u/volume-subpaths/pv/c/{n}")),
        ),
        (
            "existing sources",
            sources(&|n| "/.".repeat(n % 1000) + "/etc"),
        ),
        (
            "two alternating sources",
            sources(&|n| ["/etc", "/usr"][n % 2].to_owned()),
        ),
    ]
}

/// Returns a node with a staged volume, and with a delegate that only prints `passed`. Mounts of volumes that are not
/// staged are passed through.
fn node_with_printing_delegate() -> (Node, LoopDevice) {
    let node = Node::with(Delegate::Runc, "unstaged = \"pass\"");
    let device = node.ext4();
    node.stage(POD, "pv-1", &device, &[]);
    let delegate = node.dir().join("runc");
    fs::write(&delegate, "#!/bin/sh\necho passed\n").unwrap();
    fs::set_permissions(&delegate, fs::Permissions::from_mode(0o755)).unwrap();
    node.handler().set_delegate(&delegate);
    (node, device)
}

/// Asserts that each config is passed through with three times its size as the limit of memory.
#[track_caller]
fn assert_pass_in_three_times_the_memory(shapes: impl IntoIterator<Item = (&'static str, String)>) {
    let (node, _device) = node_with_printing_delegate();
    for (what, members) in shapes {
        let bundle = Bundle::plain(node.dir());
        let text = with_members(&bundle, &members);
        let bundle = bundle.write_bytes(text.as_bytes());
        let limit = 3 * text.len() / 1024;
        let mut command = Command::new("/bin/sh");
        let script = format!("ulimit -d {limit}; exec \"$0\" create --bundle \"$1\" id");
        command.args([
            "-ec",
            &script,
            utf8(node.handler().path()),
            utf8(bundle.path()),
        ]);
        let run = Run::capture(&mut command).success();
        assert_eq!(run.stdout, "passed\n", "{what}: {run}");
    }
}

#[test]
fn twenty_megabytes_need_three_times_the_memory() {
    assert_pass_in_three_times_the_memory(large_members());
}

#[test]
fn twenty_megabytes_of_sources_need_three_times_the_memory() {
    assert_pass_in_three_times_the_memory(sources(LARGE));
}

/// The kernel resolves each source, whatever the number of sources and of their components, and the rest costs no more
/// than with a small config. Calls of the memory allocator are not counted.
#[test]
fn a_source_takes_few_calls() {
    /// Open, readlink and close, and in a debug build a check before.
    const PER_SOURCE: usize = 4;
    /// Calls of the loader and of the delegate, and the first lookups.
    const CONSTANT: usize = 1500;
    let (node, _device) = node_with_printing_delegate();
    for (what, members) in sources(200_000) {
        let bundle = Bundle::plain(node.dir());
        let text = with_members(&bundle, &members);
        let bundle = bundle.write_bytes(text.as_bytes());
        let mut create = Command::new(node.handler().path());
        create.args(["create", "--bundle", utf8(bundle.path()), "id"]);
        let file = bundle.path().join("calls");
        let run = Run::capture(&mut traced(
            &create,
            "!brk,mmap,munmap,mremap,madvise",
            &file,
        ))
        .success();
        assert_eq!(run.stdout, "passed\n", "{what}: {run}");
        let calls = fs::read_to_string(file).unwrap().lines().count();
        let sources = members.matches(r#""source":"#).count();
        println!("{what}: {sources} sources, {calls} calls");
        assert!(
            calls <= PER_SOURCE * sources + CONSTANT,
            "{what}: {calls} calls for {sources} sources"
        );
    }
}

on_each_delegate! {
    fn twenty_megabytes_of_annotations_are_passed_through(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        node.stage(POD, "pv-1", &device, &[]);
        let mut bundle = Bundle::plain(node.dir());
        let annotations = (0..20_000).map(|n| (format!("key-{n}"), json!("x".repeat(1000))));
        bundle.spec_mut()["annotations"] = annotations.collect();
        let bundle = bundle.write();
        let before = bundle.config_bytes();
        let container = node.run(&bundle);
        assert_eq!(container.sh("echo runs"), "runs");
        assert!(bundle.config_bytes() == before, "config.json was changed");
    }

    fn more_than_16_mebibytes_with_a_volume_are_refused(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let with_size = |size: usize| {
            let with_filler = |filler: usize| {
                scene.app(|lists| {
                    let filler = "x".repeat(filler);
                    format!(r#""mounts":{},"annotations":{{"filler":"{filler}"}}"#, lists.volume())
                })
            };
            let without = with_filler(0).config_bytes().len();
            let bundle = with_filler(size - without);
            // The config has the key `annotations` twice: first with the filler, then with the pod's own annotations.
            assert_eq!(bundle.config_bytes().len(), size);
            bundle
        };
        // The delegate passes the state, with all annotations, to each hook.
        let app = scene.assert_sees(&with_size(16 * MIB), "of-the-volume");
        app.end();
        let refused = refusal::create_refused(&scene.node, &with_size(16 * MIB + 1));
        let _ = refused.naming_volume("pv-1").containing(&["config.json", "16777217 bytes", "hint: "]).message();
    }

    /// This is tested without a volume and with a volume among the mounts.
    fn ten_thousand_mounts_work(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let host = json!(scene.host).to_string();
        let many = |lists: &MountLists, last: &str| {
            let bind = |n| data(&host).replace("/data", &format!("/many/{n}"));
            let binds: Vec<String> = (0..10_000).map(bind).collect();
            let rest = lists.with_mount(&binds.join(","));
            format!(r#""mounts":{},{last}]"#, &rest[..rest.len() - 1])
        };
        let plain = scene.app(|lists| many(lists, &data(&host)));
        let before = plain.config_bytes();
        let app = scene.assert_sees(&plain, "of-the-host");
        assert_eq!(app.sh("grep -c ' /many/' /proc/self/mountinfo"), "10000");
        assert!(plain.config_bytes() == before, "config.json was changed");
        app.end();
        let with = scene.app(|lists| many(lists, &data(&json!(lists.target).to_string())));
        let app = scene.assert_sees(&with, "of-the-volume");
        assert_eq!(app.sh("ls /many/9999 | grep of-the"), "of-the-host");
    }

    /// 100,000 is the kernel's default limit of mounts in a namespace.
    fn more_than_100_000_mounts_with_a_volume_are_refused(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let bundle = scene.app(|lists| {
            let more = vec![r#"{"destination":"/x","type":"tmpfs"}"#; 100_000].join(",");
            let volume = lists.volume();
            format!(r#""mounts":{},{more}]"#, &volume[..volume.len() - 1])
        });
        let refused = refusal::create_refused(&scene.node, &bundle);
        let _ = refused.naming_volume("pv-1").containing(&["mounts has more than 100000"]).message();
    }
}
