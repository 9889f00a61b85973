//! `readonly` applies to one pod: a reader beside a writer, deferred or not. Also the same request with its options
//! spelled differently while a pod runs.

use std::fs;

use crust_proto::csi::v1::NodePublishVolumeRequest;
use runcrust_tests::Csi;
use runcrust_tests::container::end;
use runcrust_tests::csi::{filesystem, mount_of};
use runcrust_tests::{Delegate, Node, host, on_each_delegate};

use crate::publish_request;
use crate::scene::deferring_driver;

const READER: &str = "adadadad-1111-2222-3333-000000000001";
const WRITER: &str = "adadadad-1111-2222-3333-000000000002";

/// Puts the reader's and the writer's value into the order in which they are used.
fn in_order<T>(reader: T, writer: T, reader_is_first: bool) -> [T; 2] {
    if reader_is_first {
        [reader, writer]
    } else {
        [writer, reader]
    }
}

on_each_delegate! {
    fn a_reader_and_a_writer_share_a_deferred_volume(delegate: Delegate) {
        let (node, _ops, csi) = deferring_driver(delegate, &[]);
        for reader_is_first in [true, false] {
            let name = if reader_is_first { "pv-1" } else { "pv-2" };
            let volume = csi.volume(name, filesystem("ext4"));
            csi.call(volume.stage()).unwrap();
            let [reader, writer] = [READER, WRITER].map(|pod| csi.target(pod, name));
            let reads = NodePublishVolumeRequest {
                readonly: true,
                ..publish_request(&volume, &reader, true)
            };
            let writes = publish_request(&volume, &writer, true);
            let pods = in_order((READER, &reader, &reads), (WRITER, &writer, &writes), reader_is_first);
            let started = pods.map(|(pod, target, request)| {
                csi.call(request.clone()).unwrap();
                let sandbox = node.sandbox(pod);
                (node.app(&sandbox, target, "/data"), sandbox)
            });
            let [(one, first), (two, second)] = started;
            let [reading, writing] = in_order(&one, &two, reader_is_first);
            let _ = writing.sh("echo hello > /data/file");
            assert_eq!(reading.sh("cat /data/file"), "hello");
            let expect_error = reading.exec(&["/bin/touch", "/data/file"]).failure();
            assert!(expect_error.stderr.contains("Read-only file system"), "{expect_error}");
            for request in [&reads, &writes] {
                csi.call(request.clone()).expect("the repeated call");
            }
            end([one, two]);
            end([first, second]);
            for target in [&reader, &writer] {
                csi.call(volume.unpublish(target)).unwrap();
            }
            csi.call(volume.unstage()).unwrap();
        }
    }

    fn the_same_options_in_another_spelling_are_accepted(delegate: Delegate) {
        let (node, _ops, csi) = deferring_driver(delegate, &[]);
        let mut volume = csi.volume("pv-1", filesystem("ext4"));
        let mut with = |flags: &[&str]| {
            mount_of(&mut volume.capability).mount_flags = flags.iter().map(ToString::to_string).collect();
            volume.clone()
        };
        let staged = with(&["noatime", "commit=7"]);
        csi.call(staged.stage()).unwrap();
        let target = csi.target(WRITER, "pv-1");
        csi.call(publish_request(&staged, &target, true)).unwrap();
        let sandbox = node.sandbox(WRITER);
        let app = node.app(&sandbox, &target, "/data");
        let entry = node.entry(&target).join("mountInfo.json");
        let before = fs::read(&entry).unwrap();
        for flags in [&["commit=7", "noatime"][..], &["rw,noatime", "commit=7", "_netdev"]] {
            let respelled = with(flags);
            csi.call(respelled.stage()).unwrap();
            csi.call(publish_request(&respelled, &target, true)).unwrap();
            assert_eq!(fs::read(&entry).unwrap(), before, "{flags:?}");
        }
        assert_eq!(app.sh("echo on > /data/file; cat /data/file"), "on");
        end([app, sandbox]);
        csi.call(staged.unpublish(&target)).unwrap();
        csi.call(staged.unstage()).unwrap();
    }
}

#[test]
fn a_reader_and_a_writer_share_a_volume_on_the_host() {
    let node = Node::trusted(Delegate::Runc, "");
    let csi = Csi::start(&node);
    for reader_is_first in [true, false] {
        let name = if reader_is_first { "pv-1" } else { "pv-2" };
        let volume = csi.volume(name, filesystem("ext4"));
        csi.call(volume.stage()).unwrap();
        let [reader, writer] = [READER, WRITER].map(|pod| csi.target(pod, name));
        let reads = NodePublishVolumeRequest {
            readonly: true,
            ..volume.publish(&reader)
        };
        for request in in_order(reads, volume.publish(&writer), reader_is_first) {
            csi.call(request).unwrap();
        }
        fs::write(writer.join("file"), "hello").unwrap();
        assert_eq!(fs::read_to_string(reader.join("file")).unwrap(), "hello");
        let expect_error = fs::write(reader.join("file"), "").unwrap_err();
        assert_eq!(expect_error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        // Only the reader's mount is read-only, so the file system can grow.
        csi.call(volume.expand(&reader, 0)).unwrap();
        for target in [&reader, &writer] {
            csi.call(volume.unpublish(target)).unwrap();
            assert_eq!(host::mounts_below(target).len(), 0);
        }
        csi.call(volume.unstage()).unwrap();
    }
}
