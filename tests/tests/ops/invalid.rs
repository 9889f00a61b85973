//! Invalid requests, each with its code and message. Also unusual target paths that are valid.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crust_proto::v1::{
    RuntimeStageVolumeRequest, VolumeGroupChangePolicy, VolumeType, volume_type,
};
use runcrust_tests::container::end;
use runcrust_tests::node::utf8;
use runcrust_tests::ops::stage_request;
use runcrust_tests::{Bundle, Delegate, LoopDevice, Node, Ops, POD, on_each_delegate};
use tonic::Code::{self, FailedPrecondition, InvalidArgument, NotFound, Unimplemented};
use tonic_types::StatusExt as _;

use crate::{expect_error, mount_info, reason};

type Change = fn(&mut RuntimeStageVolumeRequest);

fn set_type(request: &mut RuntimeStageVolumeRequest, number: i32) {
    request.volume_type = Some(VolumeType { r#type: number });
}

/// Invalid fields that the daemon itself checks. The message starts with the field's name, which is also in the
/// details.
const FIELDS: [(Change, &str, &str); 16] = [
    (
        |it| it.volume_type = None,
        "volume_type.type",
        "it is required",
    ),
    (|it| set_type(it, 0), "volume_type.type", "it is required"),
    (|it| set_type(it, 7), "volume_type.type", "it is required"),
    (
        |it| it.volume_target_path.clear(),
        "volume_target_path",
        "it is required",
    ),
    (
        |it| it.volume_target_path = "pods/a/mount".into(),
        "volume_target_path",
        "target path \"pods/a/mount\" is relative",
    ),
    (
        |it| it.volume_target_path = "//".into(),
        "volume_target_path",
        "target path \"//\" is the root directory",
    ),
    (
        |it| it.volume_target_path += "/../b",
        "volume_target_path",
        "target path \"/",
    ),
    (
        |it| it.volume_target_path += "/..",
        "volume_target_path",
        "target path \"/",
    ),
    (
        |it| it.volume_target_path += "\0",
        "volume_target_path",
        "target path \"/",
    ),
    (
        |it| it.volume_target_path += &"/a".repeat(3000),
        "volume_target_path",
        "a path of 6",
    ),
    (
        |it| it.volume_backing_path = "/dev/".to_owned() + &"a".repeat(4091),
        "volume_backing_path",
        "a path of 4096 bytes is longer",
    ),
    (
        |it| it.volume_backing_path.clear(),
        "volume_backing_path",
        "it is required",
    ),
    (|it| it.fs_type.clear(), "fs_type", "it is required"),
    (
        |it| it.volume_supplemental_group = "staff".into(),
        "volume_supplemental_group",
        "\"staff\" isn't a gid in decimal",
    ),
    (
        |it| {
            it.volume_supplemental_group = "5".into();
            it.volume_supplemental_group_change_policy =
                Some(VolumeGroupChangePolicy { policy: 7 });
        },
        "volume_supplemental_group_change_policy.policy",
        "7 isn't a known policy",
    ),
    (
        |it| it.access_mode = "RWX".into(),
        "access_mode",
        "\"RWX\" isn't a CSI access mode",
    ),
];

/// Texts that are not a gid.
const GROUPS: [&str; 5] = ["-1", "+5", "5 ", "4294967295", "99999999999"];

/// Changes that make a volume as a whole invalid. The message names the volume.
const VOLUMES: [(Change, Code, &str); 18] = [
    (
        |it| set_type(it, volume_type::Type::Network.into()),
        InvalidArgument,
        "mountInfo: field `fstype`: ext4 isn't a network file system",
    ),
    (
        |it| it.fs_type = "nfs4".into(),
        InvalidArgument,
        "mountInfo: field `fstype`: nfs4 isn't a file system on a block device",
    ),
    (
        |it| {
            set_type(it, volume_type::Type::Network.into());
            it.fs_type = "cifs".into();
        },
        InvalidArgument,
        "mountInfo: field `fstype`: cifs can't be deferred: its credentials would be stored in clear text on the node's disk",
    ),
    (
        |it| {
            set_type(it, volume_type::Type::Network.into());
            it.fs_type = "nfs4".into();
        },
        InvalidArgument,
        "mountInfo: field `device`: \"/dev/",
    ),
    (
        |it| {
            set_type(it, volume_type::Type::Network.into());
            (it.fs_type, it.volume_backing_path) = ("nfs4".into(), "srv:/export".into());
            it.mount_flags = vec!["mounthost=other".into()];
        },
        InvalidArgument,
        "mount option mounthost: names a host or an address",
    ),
    (
        |it| it.volume_backing_path = "dev/sdf".into(),
        InvalidArgument,
        "mountInfo: field `device`: \"dev/sdf\" isn't an absolute path",
    ),
    (
        |it| it.volume_backing_path = "/dev/no-such-device".into(),
        InvalidArgument,
        "device \"/dev/no-such-device\": ENOENT: ",
    ),
    (
        |it| it.volume_backing_path = "/dev/null".into(),
        InvalidArgument,
        "device \"/dev/null\": ENOTBLK: a character device",
    ),
    (
        |it| it.volume_backing_path = "/etc/passwd".into(),
        InvalidArgument,
        "device \"/etc/passwd\": ENOTBLK: a file",
    ),
    (
        |it| it.volume_backing_path = "/dev".into(),
        InvalidArgument,
        "device \"/dev\": ENOTBLK: a directory",
    ),
    (
        |it| it.volume_backing_path = "/dev/null/".into(),
        InvalidArgument,
        "device \"/dev/null/\": ENOTDIR: a component of the path is not a directory; hint: ",
    ),
    (
        |it| it.volume_backing_path = "/dev/".to_owned() + &"a".repeat(256),
        InvalidArgument,
        "device \"/dev/a",
    ),
    (
        |it| it.volume_backing_path += "\0",
        InvalidArgument,
        "mountInfo: field `device`: the path has a NUL byte",
    ),
    (
        |it| it.fs_type = "vfat".into(),
        InvalidArgument,
        "file system \"vfat\" isn't one of those allowed (ext4, ext3, xfs, btrfs, nfs4, nfs)",
    ),
    (
        |it| it.fs_type = "../ext4".into(),
        InvalidArgument,
        "mountInfo: field `fstype`: \"../ext4\" can't be",
    ),
    (
        |it| it.fs_type += "\0",
        InvalidArgument,
        "mountInfo: field `fstype`: \"ext4\\0\" can't be",
    ),
    (
        |it| it.mount_flags = vec!["a=".to_owned() + &"b".repeat(256)],
        InvalidArgument,
        "mount option a: is 256 bytes long, and the kernel accepts at most 255",
    ),
    (
        |it| it.mount_flags = vec!["commit=5".into(); 10_000],
        InvalidArgument,
        "mountInfo: its 1",
    ),
];

/// Mount options that are refused for every volume, and the message after "mount option".
const OPTIONS: [(&[&str], &str); 23] = [
    (&["bind"], "bind: is for mounting a directory"),
    (&["noatime", "rbind"], "rbind: is for"),
    (&["noatime,bind"], "bind: is for"),
    (&["remount"], "remount: changes an existing mount"),
    (
        &["noatime", "journal_dev=0x700"],
        "journal_dev: names a second device",
    ),
    (&["usrjquota=aquota.user"], "usrjquota: names a quota file"),
    (&["usrquota=aquota"], "usrquota: names a quota file"),
    (&["sb=0x1"], "sb: its value must be a plain decimal number"),
    (&["password=hunter2"], "password: looks like a secret"),
    (&["noatime,PASSWD=hunter2"], "PASSWD: looks like a secret"),
    (
        &["credentials=/etc/hunter2"],
        "credentials: looks like a secret",
    ),
    (&["secret=hunter2"], "secret: looks like a secret"),
    (&["token=hunter2"], "token: looks like a secret"),
    (&["x-password=hunter2"], "x-password: looks like a secret"),
    (
        &["noatime,X-Passkey=hunter2"],
        "X-Passkey: looks like a secret",
    ),
    (&["pwd=hunter2"], "pwd: looks like a secret"),
    (&["passphrase=hunter2"], "passphrase: looks like a secret"),
    (&["sig=hunter2"], "sig: looks like a secret"),
    (&["accountkey=hunter2"], "accountkey: looks like a secret"),
    (&["noatime=5"], "noatime: takes no value"),
    (&["=5"], "number 1: has no name"),
    (&["a\0b"], "number 1: contains a NUL byte"),
    (&["a=\"b"], "number 1: a \" is not closed"),
];

/// A node with a device, and a target path without a staged volume.
struct Scene {
    node: Node,
    ops: Ops,
    device: LoopDevice,
    target: PathBuf,
}

impl Scene {
    fn new() -> Self {
        let (node, ops) = Ops::with_node(Delegate::Runc);
        let device = node.ext4();
        let target = node.target(POD, "pv-1");
        Self {
            node,
            ops,
            device,
            target,
        }
    }

    /// Returns a valid request with a change.
    fn changed(
        &self,
        change: impl FnOnce(&mut RuntimeStageVolumeRequest),
    ) -> RuntimeStageVolumeRequest {
        let mut request = stage_request(&self.target, &self.device);
        change(&mut request);
        request
    }
}

#[test]
fn an_invalid_field_is_named_and_nothing_is_written() {
    let scene = Scene::new();
    let fields = FIELDS.into_iter().map(|(change, field, start)| {
        let request = scene.changed(change);
        (request, field, start.to_owned())
    });
    let groups = GROUPS.into_iter().map(|group| {
        let request = scene.changed(|it| it.volume_supplemental_group = group.to_owned());
        let start = format!("{group:?} isn't");
        (request, "volume_supplemental_group", start)
    });
    for (request, field, start) in fields.chain(groups) {
        let call = scene.ops.stage(request);
        let status = call.clone().unwrap_err();
        let error = expect_error(call.clone(), InvalidArgument);
        // A volume without a valid target path has no name.
        let volume = match field {
            "volume_target_path" => "",
            _ => "volume pv-1: ",
        };
        let start = format!("{volume}{field}: {start}");
        assert!(error.starts_with(&start), "{error}");
        assert_eq!(reason(&call), "INVALID_FIELD");
        let bad = status.get_details_bad_request().expect("a BadRequest");
        let [violation] = &bad.field_violations[..] else {
            panic!("{bad:?}");
        };
        assert_eq!(violation.field, field);
        let whole = format!("{volume}{field}: {}", violation.description);
        assert_eq!(error, whole);
    }
    assert_eq!(scene.node.records(), <[PathBuf; 0]>::default());
}

#[test]
fn an_invalid_volume_is_refused_and_nothing_is_written() {
    let scene = Scene::new();
    let volumes = VOLUMES.into_iter().map(|(change, code, start)| {
        let request = scene.changed(change);
        (request, code, start.to_owned())
    });
    let options = OPTIONS.into_iter().map(|(options, start)| {
        let flags = options.iter().map(|&option| option.to_owned());
        let request = scene.changed(|it| it.mount_flags = flags.collect());
        (request, InvalidArgument, format!("mount option {start}"))
    });
    for (request, code, start) in volumes.chain(options) {
        let call = scene.ops.stage(request);
        let error = expect_error(call.clone(), code);
        let start = format!("volume pv-1: {start}");
        assert!(
            error.starts_with(&start),
            "{error} does not start with {start}"
        );
        assert!(!error.contains("hunter2"), "{error}");
        let expected = match code {
            Unimplemented => "UNSUPPORTED",
            _ => "INVALID_VOLUME",
        };
        assert_eq!(reason(&call), expected);
        let info = call.unwrap_err().get_details_error_info().unwrap();
        assert_eq!(info.metadata["volume"], utf8(&scene.target));
    }
    assert_eq!(scene.node.records(), <[PathBuf; 0]>::default());
    assert!(!scene.ops.log().contains("hunter2"));
}

#[test]
fn the_other_calls_check_their_fields_too() {
    let scene = Scene::new();
    let long = format!("/{}", "a".repeat(4095));
    for (path, start) in [
        ("", "volume_target_path: it is required"),
        ("a/b", "volume_target_path: target path \"a/b\" is relative"),
        (
            "/a/../b",
            "volume_target_path: target path \"/a/../b\" has a `..` component",
        ),
        (
            &*long,
            "volume_target_path: a path of 4096 bytes is longer than the 4095 bytes that the kernel accepts",
        ),
    ] {
        let path = Path::new(path);
        for error in [
            expect_error(scene.ops.unstage(path), InvalidArgument),
            expect_error(scene.ops.stats(path), InvalidArgument),
            expect_error(scene.ops.expand(path, 0, 0), InvalidArgument),
        ] {
            assert!(error.starts_with(start), "{error}");
        }
    }
    let unknown = scene.ops.stats(&scene.target);
    assert_eq!(reason(&unknown), "NOT_STAGED");
    assert!(expect_error(unknown, NotFound).starts_with("volume pv-1: nothing is staged at"));
    expect_error(scene.ops.expand(&scene.target, 0, 0), NotFound);
    scene.ops.unstage(&scene.target).expect("an unknown volume");

    let request = stage_request(&scene.target, &scene.device);
    scene.ops.stage(request).unwrap();
    let unused = scene.ops.stats(&scene.target);
    assert_eq!(reason(&unused), "NOT_IN_USE");
    expect_error(unused, FailedPrecondition);
    for (least, most, start) in [
        (
            -1,
            0,
            "volume pv-1: capacity_range.required_bytes: -1 is negative",
        ),
        (
            0,
            i64::MIN,
            "volume pv-1: capacity_range.limit_bytes: -9223372036854775808 is negative",
        ),
        (2, 1, "volume pv-1: "),
    ] {
        let error = expect_error(
            scene.ops.expand(&scene.target, least, most),
            InvalidArgument,
        );
        assert!(error.starts_with(start), "{error}");
    }
}

/// Asserts that a volume can be staged for the path that `make` returns, and that a container gets it.
fn assert_found(delegate: Delegate, make: impl FnOnce(&Node) -> PathBuf) {
    // Paths below a CSI volume's path are only accepted with `match_roots`.
    let roots = format!("match_roots = [{:?}]", std::env::temp_dir());
    let node = Node::trusted(delegate, &roots);
    let ops = Ops::start(&node);
    let device = node.ext4();
    let target = make(&node);
    ops.stage(stage_request(&target, &device)).unwrap();
    assert_eq!(
        mount_info(&node, &target).unwrap()["metadata"]["targetPath"],
        utf8(&target)
    );
    let app = node.run(
        &Bundle::plain(node.dir())
            .bind(&target, "/data", &[])
            .write(),
    );
    assert_eq!(
        app.sh("echo on > /data/file; df /data | tail -n 1 | cut -d ' ' -f 1"),
        utf8(device.path())
    );
    ops.stats(&target).unwrap();
    end([app]);
    ops.unstage(&target).unwrap();
    assert_eq!(
        fs::read_dir(node.handler().crust_root()).unwrap().count(),
        0
    );
}

/// Errors are sent in headers, whose size clients limit.
#[test]
fn a_long_request_has_a_short_error() {
    let scene = Scene::new();
    let mut request = stage_request(&scene.target, &scene.device);
    request.volume_target_path = "é".repeat(4000);
    let status = scene.ops.stage(request).unwrap_err();
    assert_eq!(status.code(), InvalidArgument, "{status}");
    let bad = status.get_details_bad_request().expect("a BadRequest");
    let info = status.get_details_error_info().expect("an ErrorInfo");
    for (text, start) in [
        (status.message(), "volume_target_path: "),
        (&bad.field_violations[0].description, "a path of 8000 bytes"),
        (&info.metadata["volume"], "éé"),
    ] {
        assert!(text.starts_with(start) && text.len() <= 1027, "{text}");
    }
}

on_each_delegate! {
    fn a_target_path_of_four_thousand_bytes_is_found(delegate: Delegate) {
        assert_found(delegate, |node| {
            let mut target = node.target(POD, "pv-1");
            for length in [200; 20] {
                let left = 4000 - target.as_os_str().len() - 1;
                target.push("x".repeat(left.min(length)));
                if left <= length {
                    break;
                }
            }
            assert_eq!(target.as_os_str().len(), 4000);
            fs::create_dir_all(&target).unwrap();
            target
        });
    }

    fn a_target_path_behind_a_name_that_is_not_utf8_is_found(delegate: Delegate) {
        assert_found(delegate, |node| {
            let real = node.dir().join(OsStr::from_bytes(b"real-\xff"));
            fs::create_dir(&real).unwrap();
            fs::set_permissions(&real, Permissions::from_mode(0o755)).unwrap();
            symlink(&real, node.handler().kubelet_dir()).unwrap();
            let target = node.target(POD, "pv-1");
            assert!(target.canonicalize().unwrap().to_str().is_none());
            target
        });
    }
}
