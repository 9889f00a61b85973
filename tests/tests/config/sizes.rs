//! Configs as large as nobody writes them.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use runcrust_tests::fault_injection::traced;
use runcrust_tests::node::utf8;
use runcrust_tests::{Bundle, Delegate, LoopDevice, Node, POD, Run, on_each_delegate, refusal};
use serde_json::json;

use crate::{Lists, Scene, data, with_members};

const MIB: usize = 1 << 20;

/// One that isn't staged, nor there.
const VOLUME: &str = "/nowhere/pods/u/volumes/kubernetes.io~csi/pv/mount";

/// About this many bytes of what `one` writes for each number, with commas between.
fn many(bytes: usize, one: impl Fn(usize) -> String) -> String {
    let mut text = one(0);
    for number in 1.. {
        // A String takes everything.
        let _ = write!(text, ",{}", one(number));
        if text.len() >= bytes {
            break;
        }
    }
    text
}

/// The bytes of what is large.
const LARGE: usize = 20_000_000;

/// Members that come to about that, in each of the ways that could make a reader keep more.
fn large() -> Vec<(&'static str, String)> {
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
            "mounts that say nothing",
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

/// Members that come to about so many bytes, of sources: about each the kernel is asked.
fn sources(size: usize) -> [(&'static str, String); 6] {
    let sources = |one: &dyn Fn(usize) -> String| {
        let source = |n| format!(r#"{{"source":"{}"}}"#, one(n));
        format!(r#""mounts":[{}]"#, many(size, source))
    };
    [
        (
            "sources of thousands of names",
            sources(&|n| format!("{VOLUME}{}/{n}", "/a".repeat(2000))),
        ),
        (
            "sources of sixty names",
            sources(&|n| format!("{VOLUME}{}/{n}", "/a".repeat(50))),
        ),
        (
            "sources of volumes",
            sources(&|n| VOLUME.replace("/pv/", &format!("/{n}/")) + "/a/b/c"),
        ),
        (
            "sources of kubelet's subPaths",
            sources(&|n| format!("/nowhere/pods/u/volume-subpaths/pv/c/{n}")),
        ),
        (
            "sources that are there",
            sources(&|n| "/.".repeat(n % 1000) + "/etc"),
        ),
        (
            "two sources by turns",
            sources(&|n| ["/etc", "/usr"][n % 2].to_owned()),
        ),
    ]
}

/// A node where volumes are looked for, and where those that aren't staged pass, to a delegate that
/// says so.
fn passing() -> (Node, LoopDevice) {
    let node = Node::with(Delegate::Runc, "unstaged = \"pass\"");
    let device = node.ext4();
    node.stage(POD, "pv-1", &device, &[]);
    let delegate = node.dir().join("runc");
    fs::write(&delegate, "#!/bin/sh\necho passed\n").unwrap();
    fs::set_permissions(&delegate, fs::Permissions::from_mode(0o755)).unwrap();
    node.handler().set_delegate(&delegate);
    (node, device)
}

/// No program holds more than it read, and a little, whatever it read: three times the file's size is
/// all that it may have.
#[track_caller]
fn assert_pass_in_three_times_the_memory(shapes: impl IntoIterator<Item = (&'static str, String)>) {
    let (node, _device) = passing();
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
        let run = Run::of(&mut command).success();
        assert_eq!(run.stdout, "passed\n", "{what}: {run}");
    }
}

#[test]
fn twenty_megabytes_pass_in_three_times_the_memory() {
    assert_pass_in_three_times_the_memory(large());
}

#[test]
fn twenty_megabytes_of_sources_pass_in_three_times_the_memory() {
    assert_pass_in_three_times_the_memory(sources(LARGE));
}

/// However many sources there are, and names in them: the kernel is asked where each leads, and the rest
/// is no more than a small config's. What is asked for memory is the allocator's matter.
#[test]
fn a_mount_that_passes_takes_few_calls() {
    /// It is opened, read as a link, closed; and looked at before that in a debug build.
    const A_SOURCE: usize = 4;
    /// The loader's and the delegate's own calls, and what is asked before it is listed.
    const ELSE: usize = 1500;
    let (node, _device) = passing();
    for (what, members) in sources(200_000) {
        let bundle = Bundle::plain(node.dir());
        let text = with_members(&bundle, &members);
        let bundle = bundle.write_bytes(text.as_bytes());
        let mut create = Command::new(node.handler().path());
        create.args(["create", "--bundle", utf8(bundle.path()), "id"]);
        let file = bundle.path().join("calls");
        let run = Run::of(&mut traced(
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
            calls <= A_SOURCE * sources + ELSE,
            "{what}: {calls} calls for {sources} sources"
        );
    }
}

on_each_delegate! {
    fn twenty_megabytes_of_annotations_pass(delegate: Delegate) {
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

    fn sixteen_mebibytes_with_a_volume_are_too_many(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let of_size = |size: usize| {
            let with = |filler: usize| {
                scene.app(|lists| {
                    let filler = "x".repeat(filler);
                    format!(r#""mounts":{},"annotations":{{"filler":"{filler}"}}"#, lists.volume())
                })
            };
            let without = with(0).config_bytes().len();
            let bundle = with(size - without);
            // Annotations come twice, and the pod's own are the last.
            assert_eq!(bundle.config_bytes().len(), size);
            bundle
        };
        // Its state, with all annotations, is each hook's input.
        let app = scene.assert_sees(&of_size(16 * MIB), "of-the-volume");
        app.end();
        let refused = refusal::create_refused(&scene.node, &of_size(16 * MIB + 1));
        let _ = refused.naming_volume("pv-1").containing(&["config.json", "16777217 bytes", "hint: "]).message();
    }

    /// With nothing of ours among them, and with a volume.
    fn of_ten_thousand_mounts_one_may_be_a_volume(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let host = json!(scene.host).to_string();
        let many = |lists: &Lists, last: &str| {
            let bind = |n| data(&host).replace("/data", &format!("/many/{n}"));
            let binds: Vec<String> = (0..10_000).map(bind).collect();
            let rest = lists.and(&binds.join(","));
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

    /// More than that no mount namespace can have.
    fn a_hundred_thousand_mounts_with_a_volume_are_too_many(delegate: Delegate) {
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
