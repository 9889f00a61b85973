//! The driver for shares (`--driver nfs`). Tests with a server need the kernel's NFS, and run in the guest.

mod servers;

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;

use crust_proto::csi::v1::volume_capability::AccessType;
use crust_proto::csi::v1::volume_capability::access_mode::Mode;
use crust_proto::csi::v1::{CreateVolumeRequest, GetPluginInfoRequest, VolumeCapability};
use runcrust_tests::csi::{CsiVolume, block, capability, filesystem};
use runcrust_tests::{Csi, Delegate, Node, POD, Run, binary, host};
use tonic::Code;

use crate::identity::{controller_capabilities, node_capabilities, plugin_capabilities};
use crate::scene::deferring_driver;
use crate::{deferred_publish_request, expect_error};

const DEFER: (&str, &str) = ("crust.dev/defer", "true");

/// Starts the driver for shares, without `crust_ops`.
fn driver() -> (Csi, Node) {
    let node = Node::trusted(Delegate::Runc, "");
    (Csi::with(&node, &["--driver", "nfs"]), node)
}

/// Makes a capability of a share that many nodes can use.
fn shared() -> VolumeCapability {
    let mount = filesystem("").access_type.expect("a file system");
    capability(mount, Mode::MultiNodeMultiWriter)
}

fn keys(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    pairs.iter().map(owned).collect()
}

/// A volume as in a `PersistentVolume` that was written by hand.
fn static_volume(id: &str, attributes: &[(&str, &str)]) -> CsiVolume {
    CsiVolume {
        id: id.to_owned(),
        context: keys(attributes),
        capacity: 0,
        capability: shared(),
        staging: PathBuf::new(),
    }
}

fn create_request(name: &str, parameters: &[(&str, &str)]) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.to_owned(),
        volume_capabilities: vec![shared()],
        parameters: keys(parameters),
        ..CreateVolumeRequest::default()
    }
}

const ELSEWHERE: [(&str, &str); 2] = [("server", "srv.example.com"), ("share", "/export")];

#[test]
fn a_driver_for_shares_reports_what_it_can_do() {
    let (csi, _node) = driver();
    let node = node_capabilities(&csi);
    for missing in ["STAGE_UNSTAGE_VOLUME", "EXPAND_VOLUME", "GET_VOLUME_HEALTH"] {
        assert!(!node.contains(missing), "{node:?}");
    }
    for there in ["GET_VOLUME_STATS", "VOLUME_MOUNT_GROUP", "DEFER_FS_OPS"] {
        assert!(node.contains(there), "{node:?}");
    }
    let controller: Vec<String> = controller_capabilities(&csi).into_iter().collect();
    assert_eq!(
        controller,
        ["CREATE_DELETE_VOLUME", "SINGLE_NODE_MULTI_WRITER"]
    );
    assert_eq!(plugin_capabilities(&csi).1.len(), 0, "no expansion");
    let volume = static_volume("pv-1", &ELSEWHERE);
    let message = expect_error(csi.call(volume.stage()), Code::Unimplemented);
    assert!(message.contains("NodeStageVolume"), "{message}");
    expect_error(csi.call(volume.grow(1 << 20)), Code::Unimplemented);
    let target = csi.target(POD, "pv-1");
    expect_error(
        csi.call(volume.expand(&target, 1 << 20)),
        Code::Unimplemented,
    );
}

#[test]
fn both_drivers_can_run_with_their_default_names() {
    let help = Run::capture(std::process::Command::new(binary("crust-csi")).arg("--help"));
    assert!(help.success().stdout.contains("csi.crust.dev"));
    let (csi, node) = driver();
    csi.kill();
    // Without --driver-name, and so with the default.
    let mut command = std::process::Command::new(binary("crust-csi"));
    command
        .args(["--driver", "nfs", "--node-id", "node"])
        .args(["--data-dir", csi.data().to_str().expect("UTF-8")])
        .arg(format!("--endpoint=unix://{}", csi.socket().display()));
    csi.spawn(command);
    assert_eq!(
        csi.call_ok(GetPluginInfoRequest {}).name,
        "nfs.csi.crust.dev"
    );
    drop(node);
    let refused = csi.run_another(&["--driver", "nfs", "--capacity", "1"]);
    let message = refused.failure().stderr;
    assert!(
        message.contains("--capacity") && message.contains("--driver nfs"),
        "{message}"
    );
}

#[test]
fn an_invalid_publish_names_volume_field_and_next_step() {
    let (csi, _node) = driver();
    let target = csi.target(POD, "pv-1");
    for (attributes, words) in [
        (&[][..], "server is required"),
        (&ELSEWHERE[..1], "share is required"),
        (
            &[ELSEWHERE[0], ("share", "export")],
            "isn't an absolute path",
        ),
        (
            &[ELSEWHERE[0], ELSEWHERE[1], ("subdirectory", "x")],
            "unknown key \"subdirectory\"",
        ),
    ] {
        let volume = static_volume("pv-1", attributes);
        let message = expect_error(csi.call(volume.publish(&target)), Code::InvalidArgument);
        for part in ["volume pv-1: volume_context: ", words, "; hint: "] {
            assert!(message.contains(part), "{part:?} isn't in: {message}");
        }
    }
    let mut volume = static_volume("pv-1", &ELSEWHERE);
    for (capability, words) in [
        (block(), "volumeMode Filesystem"),
        (filesystem("ext4"), "use nfs4 or nfs"),
    ] {
        volume.capability = capability;
        let message = expect_error(csi.call(volume.publish(&target)), Code::InvalidArgument);
        assert!(
            message.contains("volume pv-1: volume_capability: ") && message.contains(words),
            "{message}"
        );
    }
    assert!(!target.exists());
    assert_eq!(csi.leftovers(), Vec::<PathBuf>::new());
}

#[test]
fn a_share_in_the_spec_of_a_pod_is_refused() {
    let (csi, _node) = driver();
    let inline = [
        ELSEWHERE[0],
        ELSEWHERE[1],
        ("csi.storage.k8s.io/ephemeral", "true"),
    ];
    let volume = static_volume("csi-1", &inline);
    let message = expect_error(
        csi.call(volume.publish(&csi.target(POD, "pv-1"))),
        Code::InvalidArgument,
    );
    assert!(message.contains("must not choose a server"), "{message}");
}

/// In the guest the kernel has a client, and the volume is staged.
#[test]
fn a_share_is_deferred_if_the_kernel_has_a_client() {
    let (node, _ops, csi) = deferring_driver(Delegate::Runc, &["--driver", "nfs"]);
    let by_class = static_volume("by-class", &[ELSEWHERE[0], ELSEWHERE[1], DEFER]);
    let by_kubelet = static_volume("by-kubelet", &ELSEWHERE);
    for (volume, name) in [(&by_class, "pv-1"), (&by_kubelet, "pv-2")] {
        let target = csi.target(POD, name);
        let published = if name == "pv-1" {
            csi.call(volume.publish(&target))
        } else {
            csi.call(deferred_publish_request(volume, &target))
        };
        if host::kernel_mounts("nfs") {
            published.unwrap();
            let listed = node.handler().crust(&["list"]).success().stdout;
            assert!(listed.contains("srv.example.com:/export"), "{listed}");
            expect_error(csi.call(volume.stats(&target)), Code::FailedPrecondition);
        } else {
            let message = expect_error(published, Code::Unimplemented);
            for part in [
                &volume.id,
                "crust_ops: ",
                "this kernel has no nfs",
                "srv.example.com:/export",
                "hint: ",
            ] {
                assert!(message.contains(part), "{part:?} isn't in: {message}");
            }
            expect_error(csi.call(volume.stats(&target)), Code::NotFound);
        }
        csi.call_ok(volume.unpublish(&target));
        csi.call_ok(volume.unpublish(&target));
        assert!(!target.exists());
    }
    assert_eq!(csi.leftovers(), Vec::<PathBuf>::new());
}

#[test]
fn a_share_that_cannot_be_mounted_leaves_nothing() {
    let (csi, _node) = driver();
    let volume = static_volume("pv-1", &[("server", "127.0.0.1"), ("share", "/export")]);
    let target = csi.target(POD, "pv-1");
    let message = expect_error(csi.call(volume.publish(&target)), Code::Internal);
    for part in ["volume pv-1: ", "127.0.0.1:/export", "; hint: "] {
        assert!(message.contains(part), "{part:?} isn't in: {message}");
    }
    assert_eq!(csi.leftovers(), Vec::<PathBuf>::new());
    let parameters = [("server", "127.0.0.1"), ("share", "/export")];
    let created = csi.call(create_request("pvc-1", &parameters));
    let message = expect_error(created, Code::Internal);
    assert!(message.contains("127.0.0.1:/export"), "{message}");
    csi.call_ok(volume.unpublish(&target));
    assert!(!target.exists());
}

#[test]
fn a_class_without_a_directory_for_each_volume_is_refused() {
    let (csi, _node) = driver();
    for (parameter, words) in [
        (
            ("subDir", "fixed"),
            "each would be deleted with any of them",
        ),
        (("subDir", "../${pv.metadata.name}"), "component"),
        (
            ("mountPermissions", "0777"),
            "unknown key \"mountPermissions\"",
        ),
    ] {
        let request = create_request("pvc-1", &[ELSEWHERE[0], ELSEWHERE[1], parameter]);
        let message = expect_error(csi.call(request), Code::InvalidArgument);
        for part in ["pvc-1", "parameters: ", words] {
            assert!(message.contains(part), "{part:?} isn't in: {message}");
        }
    }
}

#[test]
fn volumes_of_others_are_not_deleted() {
    let (csi, _node) = driver();
    for id in [
        "pv-1",
        "srv.example.com:/export",
        "srv.example.com:/export#",
    ] {
        csi.call_ok(static_volume(id, &[]).delete());
    }
    assert!(csi.log().contains("nothing is deleted"), "{}", csi.log());
}

#[test]
fn files_in_a_shares_target_path_are_kept() {
    let (csi, node) = driver();
    let volume = static_volume("pv-1", &ELSEWHERE);
    let target = csi.target(POD, "pv-1");
    fs::create_dir(&target).unwrap();
    fs::write(target.join("file"), "data").unwrap();
    csi.call_ok(volume.unpublish(&target));
    assert!(!target.exists());
    assert_eq!(
        crate::scene::find_files(node.handler().kubelet_dir().as_ref(), "file").len(),
        1
    );
    let elsewhere = node.dir().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join("file"), "data").unwrap();
    let message = expect_error(
        csi.call(volume.publish(&elsewhere)),
        Code::FailedPrecondition,
    );
    assert!(message.contains("would be removed"), "{message}");
    csi.call_ok(volume.unpublish(&elsewhere));
    assert!(elsewhere.join("file").exists());
}

/// Returns the file system part of a capability with this mode.
fn with_mode(mode: Mode) -> VolumeCapability {
    let Some(AccessType::Mount(mount)) = shared().access_type else {
        panic!("a file system");
    };
    capability(AccessType::Mount(mount), mode)
}
