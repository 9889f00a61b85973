//! Checks and conversions of fields that both drivers' requests have.

use crust_proto::csi::v1::validate_volume_capabilities_response::Confirmed;
use crust_proto::csi::v1::{
    CreateVolumeRequest, ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse,
    VolumeCapability,
};
use crust_state::TargetPath;

use crate::refusal::Refusal;

/// CSI's limit on the length of a string field in bytes.
const MAX_NAME_BYTES: usize = 128;

/// Fails if a required field is empty. The form of a volume id is checked when its record is looked up.
pub(crate) fn check_present(field: &'static str, value: &str) -> Result<(), Refusal> {
    if value.is_empty() {
        return Err(Refusal::field(field, "is required"));
    }
    Ok(())
}

/// Parses a path from a request.
pub(crate) fn parse_path(field: &'static str, text: &str) -> Result<TargetPath, Refusal> {
    check_present(field, text)?;
    crust_serve::check_path_length(text).map_err(|error| Refusal::field(field, error))?;
    TargetPath::new(text).map_err(|error| Refusal::field(field, error))
}

/// Parses a `volume_path`. If it can't be a target path, no volume is there.
pub(crate) fn parse_volume_path(id: &str, text: &str) -> Result<TargetPath, Refusal> {
    let not_at_path = |_| Refusal::NotAtPath {
        volume: id.to_owned(),
        path: text.into(),
        hint: "set volume_path to the target path of NodePublishVolume, or to the staging path",
    };
    TargetPath::new(text).map_err(not_at_path)
}

/// Returns the path as a key of [`ByPath`](crate::store::ByPath).
pub(crate) fn path_key(path: &TargetPath) -> String {
    path.as_path().to_string_lossy().into_owned()
}

/// Fails if a request has a field that neither driver supports.
pub(crate) fn check_unsupported_fields(request: &CreateVolumeRequest) -> Result<(), Refusal> {
    if request.volume_content_source.is_some() {
        let reason = "volumes can't be created from snapshots or from other volumes";
        return Err(Refusal::field("volume_content_source", reason));
    }
    if !request.mutable_parameters.is_empty() {
        return Err(Refusal::field(
            "mutable_parameters",
            "has keys, but this driver has no mutable parameters",
        ));
    }
    Ok(())
}

/// Fails if the name of a new volume is one that CSI forbids.
pub(crate) fn check_name(name: &str) -> Result<(), Refusal> {
    check_present("name", name)?;
    if name.len() > MAX_NAME_BYTES {
        let reason = format!(
            "has {} bytes, and the limit is {MAX_NAME_BYTES}",
            name.len()
        );
        return Err(Refusal::field("name", reason));
    }
    let is_forbidden =
        |character: char| character.is_control() && !matches!(character, '\t' | '\n' | '\r');
    if name.chars().any(is_forbidden) {
        return Err(Refusal::field("name", "contains control characters"));
    }
    Ok(())
}

/// Fails if a field that CSI requires of `ValidateVolumeCapabilities` is missing.
pub(crate) fn check_validation_request(
    request: &ValidateVolumeCapabilitiesRequest,
) -> Result<(), Refusal> {
    check_present("volume_id", &request.volume_id)?;
    let capabilities = &request.volume_capabilities;
    let missing = |it: &VolumeCapability| it.access_type.is_none() || it.access_mode.is_none();
    if capabilities.is_empty() || capabilities.iter().any(missing) {
        return Err(Refusal::field(
            "volume_capabilities",
            "is required, with an access_mode and an access_type in each capability",
        ));
    }
    Ok(())
}

/// Returns the response to a request whose capabilities were `checked`.
pub(crate) fn validation_response(
    request: ValidateVolumeCapabilitiesRequest,
    checked: Result<(), Refusal>,
) -> ValidateVolumeCapabilitiesResponse {
    match checked {
        Ok(()) => ValidateVolumeCapabilitiesResponse {
            confirmed: Some(Confirmed {
                volume_context: request.volume_context,
                volume_capabilities: request.volume_capabilities,
                parameters: request.parameters,
            }),
            message: String::new(),
        },
        Err(refusal) => ValidateVolumeCapabilitiesResponse {
            confirmed: None,
            message: refusal.to_string(),
        },
    }
}

/// Converts a size to CSI's type, which is signed.
pub(crate) fn to_signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_must_not_be_long_or_contain_control_characters() {
        let longest = "a".repeat(MAX_NAME_BYTES);
        for name in ["pvc-1", "käse/../x", "two\nlines", &longest] {
            assert!(check_name(name).is_ok(), "{name:?}");
        }
        let too_long = "a".repeat(MAX_NAME_BYTES + 1);
        for name in ["", "a\0", "\u{1b}[2J", "\u{85}", &too_long] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
    }
}
