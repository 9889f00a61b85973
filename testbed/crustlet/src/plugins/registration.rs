//! Gets the registration of a plugin, and checks it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crust_proto::registration::v1::registration_client::RegistrationClient;
use crust_proto::registration::v1::{InfoRequest, PluginInfo, RegistrationStatus};
use crust_serve::client::{self, CallFailure};
use crust_serve::flags;
use crust_serve::listen::{ListenError, check_trusted_directory};

use crate::objects::manifest::is_driver_name;

/// The timeout of a call. kubelet has the same timeout for connecting to a plugin.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Registration {
    pub(super) name: String,
    /// The driver's socket.
    pub(super) endpoint: PathBuf,
}

/// The reason why a registration can't be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum InvalidRegistration {
    #[error("unsupported plugin type {0:?}; hint: register as CSIPlugin")]
    PluginType(String),
    /// The name can't be part of a path.
    #[error("{0:?} is not a valid driver name")]
    DriverName(String),
    #[error("the driver supports CSI {0:?}, but crustlet needs 1.x")]
    Versions(Vec<String>),
    #[error("endpoint: {0}")]
    Endpoint(String),
    /// A user other than root could replace the driver, which gets secrets.
    #[error("endpoint: {0}")]
    Untrusted(#[from] ListenError),
}

/// Calls `GetInfo` of the plugin that listens on a socket.
pub(super) async fn get_info(socket: &Path) -> Result<PluginInfo, CallFailure> {
    let call = |channel, request| async move {
        let mut client = RegistrationClient::new(channel);
        client.get_info(request).await
    };
    client::call(socket, CALL_TIMEOUT, InfoRequest {}, call).await
}

/// Calls `NotifyRegistrationStatus` of a plugin. `error` is the reason if it was not registered.
pub(super) async fn notify_status(socket: &Path, error: Option<String>) -> Result<(), CallFailure> {
    let status = RegistrationStatus {
        plugin_registered: error.is_none(),
        error: error.unwrap_or_default(),
    };
    let call = |channel, request| async move {
        let mut client = RegistrationClient::new(channel);
        client.notify_registration_status(request).await
    };
    client::call(socket, CALL_TIMEOUT, status, call).await?;
    Ok(())
}

/// Checks a registration, and that only root can replace the driver's socket.
pub(super) fn check(info: PluginInfo, socket: &Path) -> Result<Registration, InvalidRegistration> {
    let registration = parse(info, socket)?;
    check_trusted_directory(&registration.endpoint)?;
    Ok(registration)
}

fn parse(info: PluginInfo, socket: &Path) -> Result<Registration, InvalidRegistration> {
    let PluginInfo {
        r#type,
        name,
        endpoint,
        supported_versions,
    } = info;
    if r#type != "CSIPlugin" {
        return Err(InvalidRegistration::PluginType(r#type));
    }
    if !is_driver_name(&name) {
        return Err(InvalidRegistration::DriverName(name));
    }
    if !supported_versions
        .iter()
        .any(|supported_version| is_supported(supported_version))
    {
        return Err(InvalidRegistration::Versions(supported_versions));
    }
    let endpoint = match endpoint.as_str() {
        "" => socket.to_owned(),
        endpoint => flags::parse_socket_path(endpoint).map_err(InvalidRegistration::Endpoint)?,
    };
    Ok(Registration { name, endpoint })
}

/// Returns whether a version of CSI, such as `1.12.0` or `v1.0`, is 1.x. All of these are compatible.
fn is_supported(version: &str) -> bool {
    let version = version.trim();
    let version = version.strip_prefix('v').unwrap_or(version);
    version.split_once('.').is_some_and(|(major, minor)| {
        major == "1" && minor.starts_with(|first: char| first.is_ascii_digit())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(r#type: &str, name: &str, endpoint: &str, versions: &[&str]) -> PluginInfo {
        PluginInfo {
            r#type: r#type.to_owned(),
            name: name.to_owned(),
            endpoint: endpoint.to_owned(),
            supported_versions: versions.iter().map(|&version| version.to_owned()).collect(),
        }
    }

    #[test]
    fn the_endpoint_defaults_to_the_registration_socket() {
        let socket = Path::new("/registry/a-reg.sock");
        for (endpoint, expected) in [
            ("", "/registry/a-reg.sock"),
            ("/plugins/a/csi.sock", "/plugins/a/csi.sock"),
            ("unix:///plugins/a/csi.sock", "/plugins/a/csi.sock"),
        ] {
            let info = info("CSIPlugin", "A.example", endpoint, &["0.3.0", "1.0.0"]);
            let registration = parse(info, socket).unwrap();
            assert_eq!(registration.name, "A.example");
            assert_eq!(registration.endpoint, Path::new(expected));
        }
    }

    #[test]
    fn an_invalid_registration_is_refused() {
        let socket = Path::new("/registry/a-reg.sock");
        for (info, expected) in [
            (
                info("DevicePlugin", "a", "", &["1.0"]),
                "unsupported plugin type \"DevicePlugin\"",
            ),
            (
                info("CSIPlugin", "../a", "", &["1.0"]),
                "\"../a\" is not a valid driver name",
            ),
            (
                // kubelet's directory for raw block volumes has this name.
                info("CSIPlugin", "volumeDevices", "", &["1.0"]),
                "\"volumeDevices\" is not a valid driver name",
            ),
            (
                info("CSIPlugin", "", "", &["1.0"]),
                "\"\" is not a valid driver name",
            ),
            (
                info("CSIPlugin", "a", "", &[]),
                "the driver supports CSI []",
            ),
            (
                info("CSIPlugin", "a", "", &["0.3.0", "2.0.0", "1", "10.1"]),
                "crustlet needs 1.x",
            ),
            (
                info("CSIPlugin", "a", "csi.sock", &["v1.0.0"]),
                "endpoint: \"csi.sock\" is not an absolute path of a unix socket",
            ),
        ] {
            let error = parse(info, socket).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
