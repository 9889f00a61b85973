use proptest::prelude::*;

use super::*;

fn parse(text: &str) -> Result<MountInfo, InfoError> {
    MountInfo::parse(text.as_bytes())
}

const GOOD: &str = r#"{"volume-type":"block","device":"/dev/sdf","fstype":"xfs"}"#;

/// Returns `GOOD` with one field set to another value.
fn with(field: &str, value: &Value) -> String {
    let mut document: Value = serde_json::from_str(GOOD).unwrap();
    let mut target = &mut document;
    for name in field.split('.') {
        target = &mut target[name];
    }
    *target = value.clone();
    document.to_string()
}

#[test]
fn the_example_in_the_kep_is_parsed() {
    let info = parse(
        r#"{"volume-type": "block", "device": "/dev/sdf", "fstype": "xfs",
            "metadata": {"fsGroup": "4059"}}"#,
    )
    .unwrap();
    assert_eq!(info.volume_type, VolumeType::Block);
    assert_eq!(info.device, Path::new("/dev/sdf"));
    assert_eq!(info.fstype, "xfs");
    assert_eq!(info.fs_group, Some(4059));
    assert_eq!(info.fs_group_change_policy, FsGroupChangePolicy::Always);
    assert_eq!(info.access(), PodAccess::Shared);
}

#[test]
fn katas_spellings_are_parsed() {
    let info = parse(
        r#"{"volume_type": "directvol", "device": "/dev/sdf", "fs_type": "ext4",
            "metadata": {"fsGroup": "0", "fsGroupChangePolicy": "OnRootMismatch"},
            "options": ["noatime", "discard"]}"#,
    )
    .unwrap();
    assert_eq!(info.volume_type, VolumeType::Block);
    assert_eq!(info.fs_group, Some(0));
    assert_eq!(
        info.fs_group_change_policy,
        FsGroupChangePolicy::OnRootMismatch
    );
    assert_eq!(info.options, ["noatime", "discard"]);
}

#[test]
fn a_policy_without_a_group_is_ignored() {
    let with_policy =
        |policy: &str| parse(&with("metadata", &json!({"fsGroupChangePolicy": policy})));
    let info = with_policy("OnRootMismatch").unwrap();
    assert_eq!(info, with_policy("Always").unwrap());
    assert_eq!(info.to_json(), with_policy("Always").unwrap().to_json());
    assert!(with_policy("Sometimes").is_err(), "an unknown policy");
}

fn parse_kata_metadata(metadata: &Value) -> Result<MountInfo, InfoError> {
    MountInfo::parse_kata(with("metadata", metadata).as_bytes())
}

#[test]
fn only_katas_own_metadata_is_read_from_its_file() {
    // Written by Go's encoding/json from Kata's MountInfo.
    let info = MountInfo::parse_kata(
        br#"{"volume-type":"block","device":"/dev/sdf","fstype":"ext4","metadata":{"fsGroup":"3000","fsGroupChangePolicy":"OnRootMismatch"},"options":["ro","noatime"]}"#,
    )
    .unwrap();
    assert_eq!(info.fs_group, Some(3000));
    assert_eq!(
        info.fs_group_change_policy,
        FsGroupChangePolicy::OnRootMismatch
    );
    assert_eq!(info.options, ["ro", "noatime"]);
    // Attributes of the volume that drivers pass on.
    let attributes = json!({
        "fsGroup": "7", "deviceNode": "true", "readOnly": "true", "accessMode": "RWO",
        "targetPath": "/elsewhere", "csi.storage.k8s.io/pod.uid": "u", "size": 5,
        "diskSeq": "none",
    });
    let info = parse_kata_metadata(&attributes).unwrap();
    let expected = MountInfo {
        fs_group: Some(7),
        ..parse(GOOD).unwrap()
    };
    assert_eq!(info, expected);
    assert_eq!(
        parse_kata_metadata(&Value::Null).unwrap(),
        parse(GOOD).unwrap()
    );
    assert_eq!(
        parse_kata_metadata(&json!({"createFilesystem": "false"})).unwrap(),
        parse(GOOD).unwrap()
    );
}

#[test]
fn operations_of_katas_guest_are_refused() {
    for (metadata, expected) in [
        (
            json!({"fsGroup": "wheel"}),
            "field `metadata.fsGroup`: \"wheel\" isn't",
        ),
        (
            json!({"fsGroupChangePolicy": "Never"}),
            "`metadata.fsGroupChangePolicy`: \"Never\"",
        ),
        (
            json!({"encryptionKey": "k"}),
            "`metadata.encryptionKey`: an encrypted volume isn't",
        ),
        (
            json!({"createFilesystem": "true"}),
            "`metadata.createFilesystem`: making a file system",
        ),
        (json!([]), "`metadata`: expected an object"),
    ] {
        let error = parse_kata_metadata(&metadata).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let spdk = with("volume-type", &json!("spdkvol"));
    let error = MountInfo::parse_kata(spdk.as_bytes())
        .unwrap_err()
        .to_string();
    assert!(error.contains("\"spdkvol\" isn't a volume type"), "{error}");
}

#[test]
fn files_of_both_layouts_are_compared_by_katas_fields() {
    let (one, gid) = (
        parse(GOOD).unwrap(),
        parse_kata_metadata(&json!({"fsGroup": "7"})).unwrap(),
    );
    let crust_info = MountInfo {
        target_path: Some(TargetPath::new("/k").unwrap()),
        access_mode: Some(AccessMode::SingleNodeWriter),
        disk_seq: "7".parse().ok(),
        ..one.clone()
    };
    assert!(crust_info.agrees_with(&one));
    assert!(!crust_info.agrees_with(&gid));
    let policy = parse_kata_metadata(&json!({"fsGroupChangePolicy": "OnRootMismatch"})).unwrap();
    assert!(
        one.agrees_with(&policy),
        "without a group there is no policy"
    );
    let both =
        parse_kata_metadata(&json!({"fsGroup": "7", "fsGroupChangePolicy": "OnRootMismatch"}))
            .unwrap();
    assert!(!gid.agrees_with(&both));
}

#[test]
fn the_disk_sequence_number_is_a_string() {
    let info = parse(&with("metadata.diskSeq", &json!("7"))).unwrap();
    assert_eq!(info.disk_seq.unwrap().to_string(), "7");
    assert_eq!(parse(GOOD).unwrap().disk_seq, None);
}

#[test]
fn unknown_fields_are_ignored() {
    parse(&with("nested", &json!({"deep": [1, 2]}))).unwrap();
    parse(&with("metadata.podName", &json!(7))).unwrap();
    parse(&with("version", &json!(1))).unwrap();
}

#[test]
fn errors_name_the_field_and_the_reason() {
    let table = [
        (String::new(), "isn't JSON"),
        ("{".into(), "isn't JSON"),
        ("[]".into(), "isn't a JSON object"),
        ("{}".into(), "field `volume-type` is missing"),
        (GOOD[..GOOD.len() - 1].into(), "isn't JSON"),
        (format!("{GOOD}{GOOD}"), "isn't JSON"),
        (with("version", &json!(2)), "field `version`: 2 is unknown"),
        (
            with("version", &json!("1")),
            "field `version`: \"1\" is unknown",
        ),
        (
            with("version", &Value::Null),
            "field `version`: null is unknown",
        ),
        (
            with("volume-type", &json!("blok")),
            "field `volume-type`: \"blok\" isn't a volume type",
        ),
        (
            with("volume-type", &json!(1)),
            "field `volume-type`: expected a string, found 1",
        ),
        (
            with("volume_type", &json!("network")),
            "`volume-type` and `volume_type` differ",
        ),
        (
            with("fs_type", &json!("ext4")),
            "`fstype` and `fs_type` differ",
        ),
        (
            with("device", &Value::Null),
            "field `device`: expected a string, found null",
        ),
        (
            with("device", &json!("sdf")),
            "field `device`: \"sdf\" isn't an absolute path",
        ),
        (
            with("device", &json!("/dev/a\0b")),
            "field `device`: the path has a NUL byte",
        ),
        (
            with("volume-type", &json!("network")),
            "field `fstype`: xfs isn't a network file system that can be mounted; hint: use one of nfs4, nfs",
        ),
        (
            with("fstype", &json!("nfs4")),
            "field `fstype`: nfs4 isn't a file system on a block device",
        ),
        (with("fstype", &json!("")), "field `fstype`: \"\" can't be"),
        (
            with("fstype", &json!("../ext4")),
            "field `fstype`: \"../ext4\" can't be",
        ),
        (
            with("options", &json!("ro")),
            "field `options`: expected a list of strings",
        ),
        (
            with("options", &json!(["ro", 1])),
            "field `options`: expected a list of strings, found 1",
        ),
        (
            with("metadata", &json!([])),
            "field `metadata`: expected an object",
        ),
        (
            with("metadata.fsGroup", &json!(100)),
            "field `metadata.fsGroup`: expected a string",
        ),
        (
            with("metadata.fsGroup", &json!("")),
            "field `metadata.fsGroup`: \"\" isn't a gid",
        ),
        (
            with("metadata.fsGroup", &json!("+5")),
            "field `metadata.fsGroup`: \"+5\" isn't a gid",
        ),
        (
            with("metadata.fsGroup", &json!("-1")),
            "field `metadata.fsGroup`: \"-1\" isn't a gid",
        ),
        (
            with("metadata.fsGroup", &json!("wheel")),
            "field `metadata.fsGroup`: \"wheel\" isn't",
        ),
        (
            with("metadata.fsGroup", &json!("4294967295")),
            "\"4294967295\" isn't a gid",
        ),
        (
            with("metadata.fsGroupChangePolicy", &json!("always")),
            "field `metadata.fsGroupChangePolicy`: \"always\" isn't an fsGroupChangePolicy",
        ),
        (
            with("metadata.targetPath", &json!("a/b")),
            "field `metadata.targetPath`: target path",
        ),
        (
            with("metadata.readOnly", &json!("yes")),
            "field `metadata.readOnly`: expected true or",
        ),
        (
            with("metadata.deviceNode", &json!(1)),
            "field `metadata.deviceNode`: expected true or",
        ),
        (
            with("metadata.diskSeq", &json!(7)),
            "field `metadata.diskSeq`: expected a string, found 7",
        ),
        (
            with("metadata.diskSeq", &json!("-7")),
            "field `metadata.diskSeq`: \"-7\" is not the sequence number of a disk",
        ),
        (
            with("metadata.accessMode", &json!("RWOP")),
            "field `metadata.accessMode`: \"RWOP\" isn't a CSI access mode",
        ),
    ];
    for (text, expected) in table {
        let error = parse(&text).unwrap_err().to_string();
        assert!(
            error.contains(expected),
            "{text}\n  gave {error:?}\n  not  {expected:?}"
        );
    }
}

#[test]
fn read_write_once_pod_is_exclusive_and_nothing_else_is() {
    let access = |mode: &str| mode.parse::<AccessMode>().unwrap().access();
    assert_eq!(access("SINGLE_NODE_SINGLE_WRITER"), PodAccess::Exclusive);
    for mode in [
        "SINGLE_NODE_WRITER",
        "SINGLE_NODE_MULTI_WRITER",
        "MULTI_NODE_MULTI_WRITER",
    ] {
        assert_eq!(access(mode), PodAccess::Shared, "{mode}");
    }
}

#[test]
fn metadata_that_could_not_be_read_again_is_refused() {
    use std::os::unix::ffi::OsStringExt;
    let mut info = parse(GOOD).unwrap();
    info.device = std::ffi::OsString::from_vec(b"/dev/\xff".to_vec()).into();
    let error = info.validate().unwrap_err().to_string();
    assert_eq!(error, "field `device`: the path isn't UTF-8");
    let mut info = parse(GOOD).unwrap();
    info.options = vec!["x-y".repeat(100); 300];
    let error = info.validate().unwrap_err().to_string();
    assert!(
        error.contains("are more than the 65536 that are read"),
        "{error}"
    );
}

proptest! {
    #[test]
    fn written_metadata_is_parsed_to_the_same_value(
        fs_group in proptest::option::of(0..u32::MAX), mismatch: bool, read_only: bool, device_node: bool,
        options in proptest::collection::vec("[a-z=,0-9]{1,12}", 0..4),
        mode in proptest::option::of(proptest::sample::select(vec![
            AccessMode::SingleNodeWriter, AccessMode::SingleNodeReaderOnly, AccessMode::MultiNodeReaderOnly,
            AccessMode::MultiNodeSingleWriter, AccessMode::MultiNodeMultiWriter,
            AccessMode::SingleNodeSingleWriter, AccessMode::SingleNodeMultiWriter,
        ])),
        device in "/dev/[a-z\"\\\\ é]{1,20}",
        disk_seq: Option<u64>,
    ) {
        let policy = if mismatch { FsGroupChangePolicy::OnRootMismatch } else { FsGroupChangePolicy::Always };
        let info = MountInfo {
            volume_type: VolumeType::Block,
            device: device.into(),
            fstype: "ext4".into(),
            options,
            fs_group,
            // Without a gid, the policy is always the default.
            fs_group_change_policy: fs_group.map_or(FsGroupChangePolicy::Always, |_| policy),
            target_path: Some(TargetPath::new("/k/pods/u/v").unwrap()),
            read_only,
            access_mode: mode,
            device_node,
            disk_seq: disk_seq.map(|seq| seq.to_string().parse().unwrap()),
        };
        info.validate().unwrap();
        prop_assert_eq!(MountInfo::parse(&info.to_json()).unwrap(), info);
    }
}
