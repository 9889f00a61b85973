//! The settings in `crust_ops.toml`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crust_serve::http::is_host_name;
use crust_serve::log::LogLevel;
use crust_state::config::ConfigError;
use crust_state::{Config, config, ops};
use serde::Deserialize;

/// The ranges of the numeric settings: (key, minimum, maximum). Larger numbers are mistakes, and some would overflow a
/// clock or counter.
const RANGES: [(&str, i64, i64); 10] = [
    ("cli_timeout", 1, 3600),
    ("unstage_timeout", 1, 3600),
    ("drain_timeout", 0, 3600),
    ("max_message", 1024, 16 * 1024 * 1024),
    ("max_streams", 1, 10_000),
    ("max_calls", 1, 10_000),
    ("max_connections", 1, 100_000),
    // The crust directory is counted by listing at most 100,000 entries, and a volume behind a symbolic link has two.
    ("max_staged", 1, 50_000),
    ("max_staged_bytes", 65_536, 1024 * 1024 * 1024),
    ("reconcile_interval", 0, 86_400),
];

/// The settings. An unknown key in the file is an error.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Settings {
    /// The file that was read. `None` if it doesn't exist.
    #[serde(skip)]
    pub(crate) source: Option<PathBuf>,
    /// The socket of `crust.v1.Runtime`.
    pub(crate) listen: PathBuf,
    /// The socket of `crust.runtime.v1alpha1`. Empty for none.
    pub(crate) crust_listen: PathBuf,
    /// The address of the metrics: a loopback address with a port, or the path of a socket. Empty for none.
    pub(crate) metrics_listen: String,
    /// Host names that requests to the metrics port may use, in addition to its address and the loopback names.
    pub(crate) metrics_hosts: Vec<String>,
    /// The runtime, whose configuration sets the crust directory. The default is `runcrust` in the directory of the
    /// real path of `crust_ops`.
    pub(crate) runtime: PathBuf,
    /// Further programs that a `runtime-cli` may name, such as runtimes under other names.
    pub(crate) allowed_clis: Vec<PathBuf>,
    /// The timeout of a `runtime-cli`, in seconds.
    pub(crate) cli_timeout: u64,
    /// The time that an unstage waits for the device, in seconds.
    pub(crate) unstage_timeout: u64,
    /// The time that calls in progress get at shutdown, in seconds.
    pub(crate) drain_timeout: u64,
    /// The maximum size of a request, in bytes.
    pub(crate) max_message: usize,
    /// The maximum number of concurrent calls on a connection.
    pub(crate) max_streams: u32,
    /// The maximum number of concurrent calls. Further calls are refused.
    pub(crate) max_calls: usize,
    /// The maximum number of connections. Further connections are closed.
    pub(crate) max_connections: usize,
    /// The maximum number of volumes staged over the sockets.
    pub(crate) max_staged: u64,
    /// The maximum total size of the volumes' `mountInfo.json` files, in bytes.
    pub(crate) max_staged_bytes: u64,
    /// The time between two reconciliations, in seconds; 0 for none.
    pub(crate) reconcile_interval: u64,
    /// `error`, `warn`, `info`, `debug` or `trace`.
    pub(crate) log_level: LogLevel,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            source: None,
            listen: ops::DEFAULT_SOCKET.into(),
            crust_listen: "/run/runcrust/crust.sock".into(),
            metrics_listen: String::new(),
            metrics_hosts: Vec::new(),
            runtime: runtime_beside(std::env::current_exe().ok()),
            allowed_clis: Vec::new(),
            cli_timeout: 30,
            unstage_timeout: 30,
            drain_timeout: 20,
            max_message: 256 * 1024,
            max_streams: 128,
            max_calls: 256,
            max_connections: crust_serve::DEFAULT_MAX_CONNECTIONS,
            max_staged: 4096,
            max_staged_bytes: 64 * 1024 * 1024,
            reconcile_interval: 300,
            log_level: LogLevel::default(),
        }
    }
}

/// Returns the path of the runtime in the directory of this program. `program` is the real path of the program as
/// `/proc` shows it, which has the suffix ` (deleted)` after an upgrade has replaced the program.
fn runtime_beside(program: Option<PathBuf>) -> PathBuf {
    program
        .unwrap_or_else(|| "/usr/bin/crust_ops".into())
        .with_file_name("runcrust")
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MetricsAddress {
    /// A loopback address.
    Tcp(SocketAddr),
    /// A socket with mode 0600.
    Unix(PathBuf),
}

impl Settings {
    /// Reads the settings from a file. If the file doesn't exist, the defaults apply, unless `is_explicit` says that
    /// the command line names the file.
    pub(crate) fn load(path: &Path, is_explicit: bool) -> Result<Self, ConfigError> {
        match config::read(path)? {
            Some(text) => Ok(Self {
                source: Some(path.to_path_buf()),
                ..Self::parse(path, &text)?
            }),
            None if is_explicit => Err(config::not_found(path)),
            None => Ok(Self::default()),
        }
    }

    fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        // The ranges are checked first, because an out-of-range number may not fit into its field's type.
        check_numbers(path, &config::parse(path, text)?)?;
        let settings: Self = config::parse(path, text)?;
        settings.check(path)?;
        Ok(settings)
    }

    fn check(&self, path: &Path) -> Result<(), ConfigError> {
        let refuse = |key, reason| Err(invalid_value(path, key, reason));
        let paths = [
            ("listen", &self.listen),
            ("runtime", &self.runtime),
            ("crust_listen", &self.crust_listen),
        ];
        let listed = self.allowed_clis.iter().map(|path| ("allowed_clis", path));
        for (key, value) in paths.into_iter().chain(listed) {
            let is_off = key == "crust_listen" && value.as_os_str().is_empty();
            if !value.is_absolute() && !is_off {
                return refuse(key, format!("{} isn't an absolute path", value.display()));
            }
        }
        let mut hosts = self.metrics_hosts.iter();
        if let Some(host) = hosts.find(|host| !is_host_name(host)) {
            let reason = format!("{host:?} isn't a host name without a port");
            return refuse("metrics_hosts", reason);
        }
        match self.metrics() {
            Ok(_) => Ok(()),
            Err(reason) => refuse("metrics_listen", reason),
        }
    }

    /// Returns the address of the metrics; `None` if they aren't served.
    pub(crate) fn metrics(&self) -> Result<Option<MetricsAddress>, String> {
        let text = self.metrics_listen.as_str();
        if text.is_empty() {
            return Ok(None);
        }
        if text.starts_with('/') {
            return Ok(Some(MetricsAddress::Unix(text.into())));
        }
        let address: SocketAddr = text.parse().map_err(|_| {
            format!("{text:?} is neither address:port nor a socket's absolute path")
        })?;
        // Clients aren't authenticated.
        if !address.ip().is_loopback() {
            return Err(format!("{address} isn't a loopback address"));
        }
        Ok(Some(MetricsAddress::Tcp(address)))
    }

    /// Returns the settings that need a restart, each with whether it differs in `other`.
    pub(crate) fn restart_changes(&self, other: &Self) -> [(&'static str, bool); 9] {
        [
            ("listen", self.listen != other.listen),
            ("crust_listen", self.crust_listen != other.crust_listen),
            (
                "metrics_listen",
                self.metrics_listen != other.metrics_listen,
            ),
            ("metrics_hosts", self.metrics_hosts != other.metrics_hosts),
            ("max_message", self.max_message != other.max_message),
            ("max_streams", self.max_streams != other.max_streams),
            ("max_calls", self.max_calls != other.max_calls),
            (
                "max_connections",
                self.max_connections != other.max_connections,
            ),
            ("log_level", self.log_level != other.log_level),
        ]
    }

    /// Loads the runtime's configuration.
    pub(crate) fn runtime_config(&self) -> Result<Config, ConfigError> {
        Config::load(Some(&self.runtime.clone().into_os_string()))
    }

    /// Returns the limits on staging over the sockets.
    pub(crate) fn staging_limits(&self) -> crate::staging_limits::StagingLimits {
        crate::staging_limits::StagingLimits {
            volumes: self.max_staged,
            bytes: self.max_staged_bytes,
        }
    }

    /// Returns the programs that may be run as `runtime-cli`, and their timeout.
    pub(crate) fn policy(&self) -> crate::cli::Policy {
        let mut allowed = vec![self.runtime.clone()];
        allowed.extend(self.allowed_clis.iter().cloned());
        crate::cli::Policy {
            allowed,
            timeout: Duration::from_secs(self.cli_timeout),
        }
    }
}

fn check_numbers(path: &Path, table: &toml::Table) -> Result<(), ConfigError> {
    for (key, min, max) in RANGES {
        let value = table.get(key).and_then(toml::Value::as_integer);
        if let Some(value) = value
            && !(min..=max).contains(&value)
        {
            let reason = format!("{value} isn't in the range {min} to {max}");
            return Err(invalid_value(path, key, reason));
        }
    }
    Ok(())
}

fn invalid_value(path: &Path, key: &'static str, reason: String) -> ConfigError {
    ConfigError::Value {
        path: path.to_owned(),
        key,
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Settings, String> {
        Settings::parse(Path::new("/etc/x.toml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn an_empty_file_means_the_documented_defaults() {
        let settings = parse("").unwrap();
        assert_eq!(settings, Settings::default());
        let documented = include_str!("../../../docs/crust_ops.md");
        let rows = documented_defaults(documented);
        assert_eq!(rows.lines().count(), 16, "{rows}");
        for row in rows.lines() {
            let with_row = parse(row).unwrap();
            assert_eq!(with_row, settings, "docs/crust_ops.md says: {row}");
        }
    }

    #[test]
    fn a_file_that_does_not_exist_is_not_the_source() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("crust_ops.toml");
        assert_eq!(Settings::load(&file, false).unwrap().source, None);
        std::fs::write(&file, "").unwrap();
        let settings = Settings::load(&file, false).unwrap();
        assert_eq!(settings.source, Some(file));
    }

    /// Returns the documented defaults as the text of a configuration file.
    fn documented_defaults(documented: &str) -> String {
        let rows = documented.lines().filter_map(|line| {
            let (key, rest) = line.strip_prefix("| `")?.split_once("` | `")?;
            let (default, _) = rest.split_once("` | ")?;
            Some(format!("{key} = {default}\n"))
        });
        // Only rows of settings have a TOML value.
        let rows = rows.filter(|row| toml::from_str::<toml::Table>(row).is_ok());
        rows.collect()
    }

    #[test]
    fn the_installed_file_shows_the_defaults() {
        let installed = include_str!("../../../deploy/etc/crust_ops.toml");
        let settings = Settings::default();
        assert_eq!(
            parse(installed).unwrap(),
            settings,
            "deploy/etc/crust_ops.toml"
        );
        // Text has a space after the `#`, and settings don't.
        let commented = installed.lines().filter_map(|line| line.strip_prefix('#'));
        let commented: Vec<&str> = commented.filter(|line| !line.starts_with(' ')).collect();
        let commented = commented.join("\n");
        assert_eq!(parse(&commented).unwrap(), settings);
        let documented = documented_defaults(include_str!("../../../docs/crust_ops.md"));
        let table = |text: &str| toml::from_str::<toml::Table>(text).unwrap();
        let files = "deploy/etc/crust_ops.toml (left) and docs/crust_ops.md (right)";
        assert_eq!(table(&commented), table(&documented), "{files}");
    }

    #[test]
    fn services_stop_later_than_calls_in_progress() {
        let unit = include_str!("../../../deploy/systemd/crust_ops.service");
        let daemon_set = include_str!("../../../deploy/kubernetes/base/daemonset.yaml");
        for (text, key) in [
            (unit, "TimeoutStopSec="),
            (daemon_set, "terminationGracePeriodSeconds: "),
        ] {
            let mut lines = text.lines();
            let seconds = lines.find_map(|line| line.trim_start().strip_prefix(key));
            let seconds: u64 = seconds.unwrap().parse().unwrap();
            let drain_timeout = Settings::default().drain_timeout;
            assert!(drain_timeout < seconds, "{key}{seconds}: {drain_timeout}");
        }
    }

    #[test]
    fn mistakes_name_the_file_and_the_key() {
        for (text, expected) in [
            ("listn = '/x'", "unknown field `listn`"),
            ("listen = 'x'", "listen: x isn't an absolute path"),
            ("allowed_clis = ['runcrust']", "allowed_clis: "),
            (
                "cli_timeout = 0",
                "cli_timeout: 0 isn't in the range 1 to 3600",
            ),
            ("cli_timeout = '1'", "line 1: invalid type: string"),
            ("cli_timeout = 9223372036854775808", "line 1: "),
            ("metrics_listen = '0.0.0.0:9'", "isn't a loopback address"),
            ("metrics_listen = 'here'", "is neither"),
            (
                "metrics_hosts = ['a', 'b:9742']",
                "metrics_hosts: \"b:9742\"",
            ),
            (
                "metrics_hosts = ['']",
                "metrics_hosts: \"\" isn't a host name",
            ),
            (
                "metrics_hosts = ['10.0.0.1']",
                "metrics_hosts: \"10.0.0.1\"",
            ),
            ("log_level = 'loud'", "loud"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(
                error.starts_with("/etc/x.toml: ") && error.contains(expected),
                "{error}"
            );
        }
    }

    #[test]
    fn numbers_are_limited_to_the_documented_ranges() {
        let documented = include_str!("../../../docs/crust_ops.md");
        let defaults = toml::from_str::<toml::Table>(documented_defaults(documented).as_str());
        let defaults = defaults.unwrap();
        let numbers = defaults.values().filter(|value| value.is_integer());
        assert_eq!(numbers.count(), RANGES.len(), "each number has a range");
        for (key, min, max) in RANGES {
            let row = format!(
                "| `{key}` | `{}` | {min} to {max} | ",
                defaults[key].as_integer().unwrap()
            );
            assert!(documented.contains(&row), "{row}");
            for value in [min, max] {
                let settings = parse(&format!("{key} = {value}"));
                settings.unwrap_or_else(|error| panic!("{error}"));
            }
            for value in [min - 1, max + 1, i64::MIN, i64::MAX] {
                let error = parse(&format!("{key} = {value}")).unwrap_err();
                let expected =
                    format!("/etc/x.toml: {key}: {value} isn't in the range {min} to {max}");
                assert_eq!(error, expected);
            }
        }
    }

    #[test]
    fn metrics_are_served_on_the_loopback_or_a_socket() {
        let metrics = |text: &str| {
            parse(&format!("metrics_listen = '{text}'"))
                .unwrap()
                .metrics()
        };
        assert_eq!(metrics(""), Ok(None));
        let tcp = MetricsAddress::Tcp("[::1]:9".parse().unwrap());
        assert_eq!(metrics("[::1]:9"), Ok(Some(tcp)));
        let unix = MetricsAddress::Unix("/run/m".into());
        assert_eq!(metrics("/run/m"), Ok(Some(unix)));
    }

    #[test]
    fn the_runtime_is_beside_the_daemon_even_after_an_upgrade() {
        for program in ["/opt/bin/crust_ops", "/opt/bin/crust_ops (deleted)"] {
            assert_eq!(
                runtime_beside(Some(program.into())),
                Path::new("/opt/bin/runcrust")
            );
        }
        let own = std::env::current_exe().unwrap();
        assert_eq!(parse("").unwrap().runtime, own.with_file_name("runcrust"));
    }

    #[test]
    fn the_crust_socket_can_be_off() {
        assert!(parse("crust_listen = ''").is_ok());
    }
}
