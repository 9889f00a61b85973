//! Finds a staged volume by its target path, digest or device, as a user names it on a command line.

use std::path::PathBuf;

use crust_blockfs::DeviceNumber;
use crust_nfs::Share;
use crust_state::crust::SurveyedVolume;
use crust_state::files::FileError;
use crust_state::{Backing, TargetPath};

use super::context::Context;
use super::error::GrpcCode;
use super::mount_source;
use super::overview::{VolumeOverview, overviews};

use crust_blockfs::device::{Device, DeviceFacts, LoopDeviceCache};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeQuery {
    /// A path: the target path as it was staged or with links resolved, or any path of the volume's device.
    Path(TargetPath),
    /// The digest of the target path, or the first digits of it.
    Digest(String),
    /// The device, or another device with the same data.
    Device(DeviceNumber),
    /// The share of a file server.
    Share(Share),
}

/// The error of a query that doesn't match exactly one volume.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// No volume matches. The field describes the query, such as "at /path".
    #[error("nothing is staged {0}; hint: list the staged volumes with `runcrust crust list`")]
    NotFound(String),
    /// The query matches several volumes, and none of them is chosen.
    #[error("several volumes are staged {query}: {}; hint: name one of them by its target path", .volumes.join(", "))]
    Ambiguous {
        /// A description of the query, such as "at /path".
        query: String,
        /// The target paths of the volumes, or the paths of their entries if those are unknown.
        volumes: Vec<String>,
    },
    /// The staged volumes can't be listed.
    #[error(transparent)]
    File(#[from] FileError),
}

impl FindError {
    #[must_use]
    pub fn code(&self) -> GrpcCode {
        match self {
            Self::NotFound(_) => GrpcCode::NotFound,
            Self::Ambiguous { .. } => GrpcCode::InvalidArgument,
            Self::File(_) => GrpcCode::Internal,
        }
    }
}

/// Finds the volume that a query matches. Devices may be read, so this can block on a device that hangs.
pub fn find_volume(
    context: &Context<'_>,
    query: &VolumeQuery,
) -> Result<VolumeOverview, FindError> {
    let mut volumes = overviews(context)?;
    let (matches, query) = match query {
        VolumeQuery::Digest(prefix) => (
            indices(&volumes, |volume| has_digest(&volume.found, prefix)),
            format!("under {prefix}"),
        ),
        VolumeQuery::Device(number) => (
            indices_by_device(&volumes, *number),
            format!("with device {number}"),
        ),
        VolumeQuery::Share(share) => (
            indices(&volumes, |volume| {
                volume.backing == Some(Backing::Share(share.clone()))
            }),
            format!("with share {share}"),
        ),
        VolumeQuery::Path(path) => {
            let target = context.staged_target(path);
            let by_target = indices(&volumes, |volume| is_target(&volume.found, path, &target));
            (
                if by_target.is_empty() {
                    indices_by_device_path(&volumes, path)
                } else {
                    by_target
                },
                format!("at {path}"),
            )
        }
    };
    match matches[..] {
        [] => Err(FindError::NotFound(query)),
        [index] => Ok(volumes.swap_remove(index)),
        _ => Err(FindError::Ambiguous {
            query,
            volumes: matches
                .iter()
                .map(|index| name(&volumes[*index].found))
                .collect(),
        }),
    }
}

fn indices(volumes: &[VolumeOverview], matches: impl Fn(&VolumeOverview) -> bool) -> Vec<usize> {
    let matching = volumes
        .iter()
        .enumerate()
        .filter(|(_, volume)| matches(volume));
    matching.map(|(index, _)| index).collect()
}

fn name(found: &SurveyedVolume) -> String {
    match found.target() {
        Some(target) => target.to_string(),
        None => found.entry_path().display().to_string(),
    }
}

/// Returns true if a volume was staged by `path` or by `target`, or if its target path resolves to `path`.
fn is_target(found: &SurveyedVolume, path: &TargetPath, target: &TargetPath) -> bool {
    let is_staged_by = [path.digest(), target.digest()].contains(&found.digest);
    let resolved = || found.target()?.resolved().ok();
    is_staged_by || resolved().is_some_and(|resolved| resolved == *path)
}

/// Returns true if the name of one of the volume's entries starts with `prefix`.
fn has_digest(found: &SurveyedVolume, prefix: &str) -> bool {
    let mut names: Vec<String> = vec![found.digest.to_string()];
    let entries = found.entry_paths().into_iter();
    names.extend(entries.filter_map(|entry| Some(entry.file_name()?.to_str()?.to_owned())));
    names.iter().any(|name| name.starts_with(prefix))
}

/// Finds the volumes on the device at a path. If the device is gone, the path is compared with the staged paths.
fn indices_by_device_path(volumes: &[VolumeOverview], path: &TargetPath) -> Vec<usize> {
    match Device::open(path.as_path()) {
        Ok(device) => indices_by_device(volumes, device.number()),
        Err(_) => indices(volumes, |volume| {
            volume
                .info()
                .is_some_and(|info| info.device == path.as_path())
        }),
    }
}

/// Finds the volumes on a device. If there are none, finds the volumes on devices with the same data.
fn indices_by_device(volumes: &[VolumeOverview], number: DeviceNumber) -> Vec<usize> {
    let exact = indices(volumes, |volume| volume_devices(volume).contains(&number));
    if !exact.is_empty() {
        return exact;
    }
    let aliases = aliases(number, volumes.iter().flat_map(volume_devices).collect());
    indices(volumes, |volume| {
        volume_devices(volume)
            .iter()
            .any(|other| aliases.contains(other))
    })
}

/// Returns which of the devices have the same data as the device `number`. Returns none if that can't be determined.
fn aliases(number: DeviceNumber, devices: Vec<DeviceNumber>) -> Vec<DeviceNumber> {
    let device = Device::find_by_number(number).ok().flatten();
    let device = device.map(DeviceFacts::from);
    let aliases = device.and_then(|device| {
        device
            .conflicting(devices, &LoopDeviceCache::default())
            .ok()
    });
    aliases.unwrap_or_default()
}

/// Returns the device that a volume is mounted from, and the staged one.
fn volume_devices(volume: &VolumeOverview) -> Vec<DeviceNumber> {
    let staged = volume.info().and_then(mount_source::staged_backing);
    let backings = volume.backing.iter().chain(&staged);
    backings.filter_map(Backing::device).collect()
}

/// Parses a query: an absolute path, a device number `major:minor`, a share `server:/export`, or at least 12 digits of a
/// digest. `None` for any other text.
#[must_use]
pub fn parse_query(text: &str) -> Option<VolumeQuery> {
    /// The length of a digest in the names below `/dev/crust`.
    const MIN_DIGEST_LENGTH: usize = 12;
    const DIGEST_LENGTH: usize = 64;
    if text.starts_with('/') {
        return TargetPath::new(PathBuf::from(text))
            .ok()
            .map(VolumeQuery::Path);
    }
    if let Ok(number) = text.parse() {
        return Some(VolumeQuery::Device(number));
    }
    if let Ok(share) = text.parse() {
        return Some(VolumeQuery::Share(share));
    }
    let is_hex = text
        .bytes()
        .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let is_digest = is_hex && (MIN_DIGEST_LENGTH..=DIGEST_LENGTH).contains(&text.len());
    is_digest.then(|| VolumeQuery::Digest(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_a_path_a_digest_a_device_or_a_share() {
        let path = |path| VolumeQuery::Path(TargetPath::new(path).unwrap());
        let digest = "0123456789abcdef".repeat(4);
        for (text, expected) in [
            ("/pods/a/mount/", Some(path("/pods/a/mount"))),
            ("/dev/loop0", Some(path("/dev/loop0"))),
            ("7:3", Some(VolumeQuery::Device(DeviceNumber::new(7, 3)))),
            (&digest, Some(VolumeQuery::Digest(digest.clone()))),
            (
                &digest[..12],
                Some(VolumeQuery::Digest(digest[..12].into())),
            ),
            (
                "SRV:/export/",
                Some(VolumeQuery::Share("srv:/export".parse().unwrap())),
            ),
            (&digest[..11], None),
            (&format!("{digest}0"), None),
            (&digest.to_uppercase(), None),
            ("pods/a", None),
            ("/pods/../a", None),
            ("/", None),
            ("", None),
        ] {
            assert_eq!(parse_query(text), expected, "{text:?}");
        }
    }
}
