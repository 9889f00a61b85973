//! A pod that only reads (`readOnly` on its claim) beside one that writes. They share one superblock, and each pod has
//! its own mount.

use runcrust_tests::container::end;
use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::{Container, Node, Pod, on_each_delegate};
use serde_json::{Value, json};

/// fsGroup is not applied for a reader.
const READER: [&str; 3] = ["--read-only", "--fs-group", "4242"];
const WRITER: [&str; 2] = ["--fs-group", "4343"];

/// Asserts that an app cannot write, although its mount says `rw` and it is root with the capabilities that CRI grants.
#[track_caller]
fn assert_only_reads(app: &Container) {
    let refused = app.exec(&["/bin/touch", "/data/other"]).failure();
    assert!(
        refused.stderr.contains("Read-only file system"),
        "{refused}"
    );
    for options in ["remount,rw", "remount,bind,rw"] {
        let _ = app
            .exec(&["/bin/busybox", "mount", "-o", options, "/data"])
            .failure();
    }
    let _ = app.exec(&["/bin/touch", "/data/other"]).failure();
}

fn group_of(app: &Container, path: &str) -> String {
    app.sh(&format!("busybox stat -c %g {path}"))
}

#[track_caller]
fn assert_normal(node: &Node, pod: &Pod<'_>) {
    let stats = node.stats(&pod.target).success().stdout;
    let stats: Value = serde_json::from_str(&stats).expect("JSON");
    assert_eq!(
        stats["volume_condition"]["abnormal"],
        json!(false),
        "{stats}"
    );
}

#[track_caller]
fn assert_reader_and_writer(reading: &Container, writing: &Container) {
    assert_eq!(
        reading.sh("stat -c %d /data"),
        writing.sh("stat -c %d /data")
    );
    let _ = writing.sh("echo hello > /data/file");
    assert_eq!(reading.sh("cat /data/file"), "hello");
    assert_only_reads(reading);
    let _ = writing.sh("echo more >> /data/file");
    assert_eq!(reading.sh("cat /data/file"), "hello\nmore");
    assert_eq!(group_of(reading, "/data"), "4343");
}

on_each_delegate! {
    fn a_reader_joins_a_writer(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        let writer = Pod::new(&node, "pod-writer", &device, &WRITER);
        let writing = writer.app();
        let reader = Pod::new(&node, "pod-reader", &device, &READER);
        let reading = reader.app();
        assert_reader_and_writer(&reading, &writing);
        assert!(reader.attributes(&device).starts_with("ro,"));
        assert!(writer.attributes(&device).starts_with("rw,"));
        for pod in [&reader, &writer] {
            assert_normal(&node, pod);
        }
        // A restarted container of the reader also only reads, when there is no writer.
        writer.end([writing]);
        end([reading]);
        let restarted = reader.app();
        assert_eq!(restarted.sh("cat /data/file"), "hello\nmore");
        assert_only_reads(&restarted);
        reader.end([restarted]);
        device.wait_until_free(WAIT_TIMEOUT);
    }

    fn a_writer_joins_a_reader(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        let reader = Pod::new(&node, "pod-reader", &device, &READER);
        let reading = reader.app();
        assert_eq!(group_of(&reading, "/data"), "0");
        assert_only_reads(&reading);
        let writer = Pod::new(&node, "pod-writer", &device, &WRITER);
        let writing = writer.app();
        assert_reader_and_writer(&reading, &writing);
        for pod in [&reader, &writer] {
            assert_normal(&node, pod);
        }
        reader.end([reading]);
        assert_eq!(writing.sh("echo last > /data/file; cat /data/file"), "last");
        writer.end([writing]);
        device.wait_until_free(WAIT_TIMEOUT);
    }

    /// A superblock that is read-only suffices for a reader.
    fn a_reader_joins_a_read_only_superblock(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        for (first, second) in [
            (&["--option", "ro"][..], &READER[..]),
            (&["--access-mode", "MULTI_NODE_READER_ONLY"], &["--option", "ro"]),
        ] {
            let a = Pod::new(&node, "pod-a", &device, first);
            let one = a.app();
            let b = Pod::new(&node, "pod-b", &device, second);
            let two = b.app();
            assert_eq!(one.sh("stat -c %d /data"), two.sh("stat -c %d /data"));
            for app in [&one, &two] {
                assert_only_reads(app);
            }
            // A writer would have to change the superblock for both.
            let c = Pod::new(&node, "pod-c", &device, &[]);
            let sentence = c.expect_refusal();
            assert!(sentence.contains("ext4 (ro)") && sentence.contains("ext4 (rw)"), "{sentence}");
            // Another app of the second pod finds its pod's record.
            let three = b.app();
            c.end([]);
            a.end([one]);
            b.end([two, three]);
            for pod in [a, b, c] {
                let _ = node.unstage(&pod.target).success();
            }
        }
    }

    /// In earlier versions a reader's superblock was read-only.
    fn a_reader_of_an_earlier_version_keeps_working(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        let old = Pod::new(&node, "pod-old", &device, &["--option", "ro"]);
        let running = old.app();
        // The entry that an earlier version wrote for such a pod.
        let entry = node.entry(&old.target).join("mountInfo.json");
        let text = std::fs::read_to_string(&entry).expect("mountInfo.json");
        let mut info: Value = serde_json::from_str(&text).expect("JSON");
        info["options"] = json!([]);
        info["metadata"]["readOnly"] = json!(true);
        std::fs::write(&entry, info.to_string()).expect("write");
        let second = old.app();
        let new = Pod::new(&node, "pod-new", &device, &READER);
        let joined = new.app();
        for app in [&running, &second, &joined] {
            assert_only_reads(app);
        }
        assert_normal(&node, &old);
        let writer = Pod::new(&node, "pod-writer", &device, &WRITER);
        let sentence = writer.expect_refusal();
        assert!(sentence.contains("or stop that pod first"), "{sentence}");
        old.end([running, second]);
        new.end([joined]);
        let writing = writer.app();
        assert_eq!(writing.sh("echo now > /data/file; cat /data/file"), "now");
    }
}
