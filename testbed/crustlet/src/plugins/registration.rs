//! Asks a plugin for its registration, and checks that.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crust_proto::registration::v1::registration_client::RegistrationClient;
use crust_proto::registration::v1::{InfoRequest, PluginInfo, RegistrationStatus};
use crust_serve::client::{self, CallFailure};
use crust_serve::flags;
use crust_serve::listen::{ListenError, trusted_directory};

use crate::objects::manifest::is_driver;

/// kubelet waits as long for a plugin to be connected to.
const DEADLINE: Duration = Duration::from_secs(10);

/// A driver, as it says itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Registration {
    pub(super) name: String,
    /// The driver's socket.
    pub(super) endpoint: PathBuf,
}

/// Whoever answers is no driver that can be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unfit {
    /// It is something else.
    #[error("it is a {0:?}; hint: of plugins only a CSIPlugin is known here")]
    Type(String),
    /// Its name stands in paths.
    #[error("{0:?} is no driver's name")]
    Name(String),
    /// It is too old, or too new.
    #[error("it supports CSI {0:?}, and none of these is a 1.x")]
    Versions(Vec<String>),
    /// It can't be called there.
    #[error("endpoint: {0}")]
    Endpoint(String),
    /// It is sent secrets there.
    #[error("endpoint: {0}")]
    Place(#[from] ListenError),
}

/// Asks who listens on a socket.
pub(super) async fn ask(socket: &Path) -> Result<PluginInfo, CallFailure> {
    let ask = |channel, request| async move {
        let mut client = RegistrationClient::new(channel);
        client.get_info(request).await
    };
    client::call(socket, DEADLINE, InfoRequest {}, ask).await
}

/// Tells it what became of its registration.
pub(super) async fn tell(socket: &Path, refused: Option<String>) -> Result<(), CallFailure> {
    let status = RegistrationStatus {
        plugin_registered: refused.is_none(),
        error: refused.unwrap_or_default(),
    };
    let tell = |channel, request| async move {
        let mut client = RegistrationClient::new(channel);
        client.notify_registration_status(request).await
    };
    client::call(socket, DEADLINE, status, tell).await?;
    Ok(())
}

/// A driver that can be used, and that nobody else can put another one in the place of.
pub(super) fn check(info: PluginInfo, socket: &Path) -> Result<Registration, Unfit> {
    let registration = read(info, socket)?;
    trusted_directory(&registration.endpoint)?;
    Ok(registration)
}

fn read(info: PluginInfo, socket: &Path) -> Result<Registration, Unfit> {
    let PluginInfo {
        r#type,
        name,
        endpoint,
        supported_versions,
    } = info;
    if r#type != "CSIPlugin" {
        return Err(Unfit::Type(r#type));
    }
    if !is_driver(&name) {
        return Err(Unfit::Name(name));
    }
    if !supported_versions.iter().any(|it| is_supported(it)) {
        return Err(Unfit::Versions(supported_versions));
    }
    let endpoint = match endpoint.as_str() {
        "" => socket.to_owned(),
        endpoint => flags::socket(endpoint).map_err(Unfit::Endpoint)?,
    };
    Ok(Registration { name, endpoint })
}

/// `1.12.0`, `v1.0`: each 1.x is what those before it were, and more.
fn is_supported(version: &str) -> bool {
    let version = version.trim();
    let version = version.strip_prefix('v').unwrap_or(version);
    version.split_once('.').is_some_and(|(major, minor)| {
        major == "1" && minor.starts_with(|it: char| it.is_ascii_digit())
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
            supported_versions: versions.iter().map(|&it| it.to_owned()).collect(),
        }
    }

    #[test]
    fn a_driver_listens_where_it_says_or_where_it_registers() {
        let socket = Path::new("/registry/a-reg.sock");
        for (endpoint, expected) in [
            ("", "/registry/a-reg.sock"),
            ("/plugins/a/csi.sock", "/plugins/a/csi.sock"),
            ("unix:///plugins/a/csi.sock", "/plugins/a/csi.sock"),
        ] {
            let info = info("CSIPlugin", "A.example", endpoint, &["0.3.0", "1.0.0"]);
            let registration = read(info, socket).unwrap();
            assert_eq!(registration.name, "A.example");
            assert_eq!(registration.endpoint, Path::new(expected));
        }
    }

    #[test]
    fn what_is_no_driver_of_ours_is_told_why() {
        let socket = Path::new("/registry/a-reg.sock");
        for (info, why) in [
            (
                info("DevicePlugin", "a", "", &["1.0"]),
                "it is a \"DevicePlugin\"",
            ),
            (
                info("CSIPlugin", "../a", "", &["1.0"]),
                "\"../a\" is no driver's name",
            ),
            (
                // Its directory would be kubelet's of raw block volumes.
                info("CSIPlugin", "volumeDevices", "", &["1.0"]),
                "\"volumeDevices\" is no driver's name",
            ),
            (
                info("CSIPlugin", "", "", &["1.0"]),
                "\"\" is no driver's name",
            ),
            (info("CSIPlugin", "a", "", &[]), "it supports CSI []"),
            (
                info("CSIPlugin", "a", "", &["0.3.0", "2.0.0", "1", "10.1"]),
                "none of these is a 1.x",
            ),
            (
                info("CSIPlugin", "a", "csi.sock", &["v1.0.0"]),
                "endpoint: \"csi.sock\" is no socket's absolute path",
            ),
        ] {
            let error = read(info, socket).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
