//! One staged volume, by what a person calls it.

use std::path::PathBuf;

use crust_blockfs::DeviceNumber;
use crust_state::TargetPath;
use crust_state::crust::FoundVolume;
use crust_state::files::FileError;

use super::context::Context;
use super::error::Code;
use super::overview::{Overview, overviews};

use crust_blockfs::device::{Device, DeviceFacts, Neighbours};

/// The name of a volume in a query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeQuery {
    /// Its target path, as given or resolved; or its device, by whatever link.
    Path(TargetPath),
    /// The digest of its target path, or how that begins.
    Digest(String),
    /// Its device, or one that shows the same.
    Device(DeviceNumber),
}

/// The error of a query that no volume or several match.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// None is called so.
    #[error("nothing is staged {0}; hint: `runcrust crust list` shows what is")]
    Unknown(String),
    /// More than one is.
    #[error("{what} is {}; hint: name one of them by its target path", .volumes.join(", and "))]
    Ambiguous {
        /// The name as it was given.
        what: String,
        /// The target paths of the volumes, or their entries.
        volumes: Vec<String>,
    },
    /// It can't be told what is staged.
    #[error(transparent)]
    File(#[from] FileError),
}

impl FindError {
    /// Returns the code for a caller of the CLI.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Unknown(_) => Code::NotFound,
            Self::Ambiguous { .. } => Code::InvalidArgument,
            Self::File(_) => Code::Internal,
        }
    }
}

/// Finds the volume.
pub fn find_volume(context: &Context<'_>, query: &VolumeQuery) -> Result<Overview, FindError> {
    let mut all = overviews(context)?;
    let (found, what) = match query {
        VolumeQuery::Digest(start) => (
            indices(&all, |it| has_digest(&it.found, start)),
            format!("under {start}"),
        ),
        VolumeQuery::Device(number) => (of_device(&all, *number), format!("with device {number}")),
        VolumeQuery::Path(path) => {
            let target = context.as_given(path);
            let named = indices(&all, |it| is_target(&it.found, path, &target));
            (
                if named.is_empty() {
                    by_device_path(&all, path)
                } else {
                    named
                },
                format!("at {path}"),
            )
        }
    };
    match found[..] {
        [] => Err(FindError::Unknown(what)),
        [index] => Ok(all.swap_remove(index)),
        _ => Err(FindError::Ambiguous {
            what: format!("what is staged {what}"),
            volumes: found.iter().map(|index| name(&all[*index].found)).collect(),
        }),
    }
}

fn indices(all: &[Overview], is_it: impl Fn(&Overview) -> bool) -> Vec<usize> {
    let those = all.iter().enumerate().filter(|(_, it)| is_it(it));
    those.map(|(index, _)| index).collect()
}

fn name(found: &FoundVolume) -> String {
    match found.target() {
        Some(target) => target.to_string(),
        None => found.place().display().to_string(),
    }
}

/// Whether a volume is the one that `target` is the target path of, or `path` the resolved form.
fn is_target(found: &FoundVolume, path: &TargetPath, target: &TargetPath) -> bool {
    let is_given = [path.digest(), target.digest()].contains(&found.digest);
    let resolved = || found.target()?.resolved().ok();
    is_given || resolved().is_some_and(|resolved| resolved == *path)
}

/// Whether any of the volume's entries has the digest.
fn has_digest(found: &FoundVolume, start: &str) -> bool {
    let mut names: Vec<String> = vec![found.digest.to_string()];
    let places = found.places().into_iter();
    names.extend(places.filter_map(|place| Some(place.file_name()?.to_str()?.to_owned())));
    names.iter().any(|name| name.starts_with(start))
}

/// A device that is gone is known by its path alone.
fn by_device_path(all: &[Overview], path: &TargetPath) -> Vec<usize> {
    match Device::open(path.as_path()) {
        Ok(device) => of_device(all, device.number()),
        Err(_) => indices(all, |it| {
            it.info().is_some_and(|info| info.device == path.as_path())
        }),
    }
}

/// The device itself goes before those that show the same.
fn of_device(all: &[Overview], number: DeviceNumber) -> Vec<usize> {
    let exactly = indices(all, |it| numbers(it).contains(&number));
    if !exactly.is_empty() {
        return exactly;
    }
    let same = same_as(number, all.iter().flat_map(numbers).collect());
    indices(all, |it| {
        numbers(it).iter().any(|other| same.contains(other))
    })
}

/// Those of the devices that show the same; none where that can't be told.
fn same_as(number: DeviceNumber, devices: Vec<DeviceNumber>) -> Vec<DeviceNumber> {
    let device = Device::of_number(number).ok().flatten();
    let device = device.map(DeviceFacts::from);
    let same = device.and_then(|device| device.conflicting(devices, &Neighbours::default()).ok());
    same.unwrap_or_default()
}

/// Returns the devices that it is mounted from, and the staged one.
fn numbers(it: &Overview) -> Vec<DeviceNumber> {
    let staged = it.info().and_then(|info| Device::open(&info.device).ok());
    let staged = staged.map(|device| device.number());
    it.device.into_iter().chain(staged).collect()
}

/// Parses a query from a command line; `None` if no volume can have such a name.
#[must_use]
pub fn parse_query(text: &str) -> Option<VolumeQuery> {
    /// The length of a name below `/dev/crust`.
    const SHORT: usize = 12;
    const WHOLE: usize = 64;
    if text.starts_with('/') {
        return TargetPath::new(PathBuf::from(text))
            .ok()
            .map(VolumeQuery::Path);
    }
    if let Ok(number) = text.parse() {
        return Some(VolumeQuery::Device(number));
    }
    let is_hex = text
        .bytes()
        .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let is_digest = is_hex && (SHORT..=WHOLE).contains(&text.len());
    is_digest.then(|| VolumeQuery::Digest(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_called_by_its_path_its_digest_or_its_device() {
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
