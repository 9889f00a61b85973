//! `mountInfo.json`: whatever is accepted is written, and read again the same.

use crust_blockfs::fsgroup::FsGroupChangePolicy;
use crust_state::MountInfo;
use crust_state::info::{InfoError, VolumeType};
use serde_json::Value;

/// A `mountInfo.json`, ours and as Kata's drivers write it.
pub fn mount_info(bytes: &[u8]) {
    let ours = MountInfo::parse(bytes);
    let katas = MountInfo::parse_kata(bytes);
    if let Ok(info) = &ours {
        survives(info);
        agrees_with_the_text(info, bytes);
    }
    if let Ok(info) = &katas {
        survives(info);
        assert!(info.target_path.is_none() && !info.device_node && !info.read_only);
        assert_eq!((info.access_mode, info.disk_seq), (None, None));
    }
    match (&ours, &katas) {
        (Ok(ours), Ok(katas)) => assert!(ours.agrees_with(katas), "{ours:?} {katas:?}"),
        // What it takes beside the KEP's is Kata's own metadata, and only that isn't read.
        (Err(error), Ok(_)) | (Ok(_), Err(error)) => assert!(names_metadata(error), "{error}"),
        (Err(_), Err(_)) => {}
    }
}

/// Written and read it is the same, but for a policy of no group, which means nothing.
fn survives(info: &MountInfo) {
    let json = info.to_json();
    let again = MountInfo::parse(&json);
    let again = again.unwrap_or_else(|error| panic!("{error}: {info:?}"));
    let policy = info.fs_group.map(|_| info.fs_group_change_policy);
    let expected = MountInfo {
        fs_group_change_policy: policy.unwrap_or(FsGroupChangePolicy::Always),
        ..info.clone()
    };
    assert_eq!(again, expected);
    assert_eq!(again.to_json(), json);
    assert!(info.agrees_with(&again) && again.agrees_with(info));
    match info.validate() {
        Ok(()) | Err(InfoError::TooLarge(_)) => {}
        Err(error) => panic!("{error}: {info:?}"),
    }
}

/// What another reader finds in the text.
fn agrees_with_the_text(info: &MountInfo, bytes: &[u8]) {
    let value: Value = serde_json::from_slice(bytes).expect("what was read is JSON");
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
    assert_ne!(info.fs_group, Some(u32::MAX), "chown(2) takes it for none");
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
        let said = metadata(key).is_some_and(|it| *it == true || *it == "true");
        assert_eq!(said, flag, "{key}");
    }
}

fn names_metadata(error: &InfoError) -> bool {
    error.to_string().starts_with("field `metadata")
}
