//! The target for `mountInfo.json`: an accepted file that is written and read again stays the same.

use crust_blockfs::fsgroup::FsGroupChangePolicy;
use crust_state::MountInfo;
use crust_state::info::{InfoError, VolumeType};
use serde_json::Value;

/// Parses a `mountInfo.json` in runcrust's format and in that of Kata Containers' drivers.
pub fn mount_info(bytes: &[u8]) {
    let info = MountInfo::parse(bytes);
    let kata_info = MountInfo::parse_kata(bytes);
    if let Ok(info) = &info {
        check_round_trip(info);
        check_against_json(info, bytes);
    }
    if let Ok(info) = &kata_info {
        check_round_trip(info);
        assert!(info.target_path.is_none() && !info.device_node && !info.read_only);
        assert_eq!((info.access_mode, info.disk_seq), (None, None));
    }
    match (&info, &kata_info) {
        (Ok(info), Ok(kata_info)) => assert!(info.agrees_with(kata_info), "{info:?} {kata_info:?}"),
        // The formats only differ in the metadata.
        (Err(error), Ok(_)) | (Ok(_), Err(error)) => assert!(names_metadata(error), "{error}"),
        (Err(_), Err(_)) => {}
    }
}

/// Checks that `info` stays the same if it is written and read again. Only a change policy without a group is lost,
/// because it has no effect.
fn check_round_trip(info: &MountInfo) {
    let json = info.to_json();
    let reparsed = MountInfo::parse(&json);
    let reparsed = reparsed.unwrap_or_else(|error| panic!("{error}: {info:?}"));
    let policy = info.fs_group.map(|_| info.fs_group_change_policy);
    let expected = MountInfo {
        fs_group_change_policy: policy.unwrap_or(FsGroupChangePolicy::Always),
        ..info.clone()
    };
    assert_eq!(reparsed, expected);
    assert_eq!(reparsed.to_json(), json);
    assert!(info.agrees_with(&reparsed) && reparsed.agrees_with(info));
    match info.validate() {
        Ok(()) | Err(InfoError::TooLarge(_)) => {}
        Err(error) => panic!("{error}: {info:?}"),
    }
}

/// Compares `info` with the values that `serde_json` finds in the input.
fn check_against_json(info: &MountInfo, bytes: &[u8]) {
    let value: Value = serde_json::from_slice(bytes).expect("an accepted file is JSON");
    let text = |key: &str| value.get(key).and_then(Value::as_str);
    assert_eq!(text("device"), info.device.to_str());
    assert!([text("fstype"), text("fs_type")].contains(&Some(&*info.fstype)));
    if info.volume_type == VolumeType::Block {
        assert!(info.device.is_absolute());
    }
    let options = value.get("options").and_then(Value::as_array);
    let options = options.into_iter().flatten().filter_map(Value::as_str);
    assert!(options.eq(info.options.iter().map(String::as_str)));
    let metadata = |key: &str| value.get("metadata").and_then(|it| it.get(key));
    assert_eq!(metadata("fsGroup").is_some(), info.fs_group.is_some());
    assert_ne!(
        info.fs_group,
        Some(u32::MAX),
        "chown(2) takes it as \"no change\""
    );
    let path = metadata("targetPath");
    assert_eq!(path.is_some(), info.target_path.is_some());
    assert_eq!(metadata("accessMode").is_some(), info.access_mode.is_some());
    let seq = metadata("diskSeq").and_then(Value::as_str);
    let number = seq.map(|seq| seq.parse::<u64>().expect("a number").to_string());
    assert_eq!(number, info.disk_seq.map(|seq| seq.to_string()));
    for (key, flag) in [
        ("readOnly", info.read_only),
        ("deviceNode", info.device_node),
    ] {
        let is_set = metadata(key).is_some_and(|it| *it == true || *it == "true");
        assert_eq!(is_set, flag, "{key}");
    }
}

fn names_metadata(error: &InfoError) -> bool {
    error.to_string().starts_with("field `metadata")
}
