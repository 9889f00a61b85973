//! The configuration.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crust_serve::http::is_host_name;
use crust_serve::log::LogLevel;
use crust_state::config::ConfigError;
use crust_state::{Config, config, ops};
use serde::Deserialize;

/// The numbers, and what each can be: (key, least, most). More would be a mistake, and some of it
/// more than a clock or a counter takes.
const RANGES: [(&str, i64, i64); 10] = [
    ("cli_timeout", 1, 3600),
    ("unstage_timeout", 1, 3600),
    ("drain_timeout", 0, 3600),
    ("max_message", 1024, 16 * 1024 * 1024),
    ("max_streams", 1, 10_000),
    ("max_calls", 1, 10_000),
    ("max_connections", 1, 100_000),
    // A count is a listing of at most 100,000 entries, of which a volume behind a symbolic link has two.
    ("max_staged", 1, 50_000),
    ("max_staged_bytes", 65_536, 1024 * 1024 * 1024),
    ("reconcile_interval", 0, 86_400),
];

/// The file. An unknown key is an error.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Settings {
    /// The socket of `crust.v1.Runtime`.
    pub(crate) listen: PathBuf,
    /// The socket of `crust.runtime.v1alpha1`. Empty means none.
    pub(crate) crust_listen: PathBuf,
    /// The address of the metrics: of the loopback, or a socket's path. Empty means none.
    pub(crate) metrics_listen: String,
    /// Host names that requests for metrics to a port may give, beside its address and the loopback.
    pub(crate) metrics_hosts: Vec<String>,
    /// The runtime, whose configuration says where volumes are staged; unset, `runcrust` beside the
    /// real path of `crust_ops`.
    pub(crate) runtime: PathBuf,
    /// Further programs that a `runtime-cli` may name: runtimes by other names.
    pub(crate) allowed_clis: Vec<PathBuf>,
    /// The seconds that a run of a `runtime-cli` may take.
    pub(crate) cli_timeout: u64,
    /// How long an unstage waits for the device, in seconds.
    pub(crate) unstage_timeout: u64,
    /// The seconds that calls under way have at the end of the daemon.
    pub(crate) drain_timeout: u64,
    /// The largest request, in bytes.
    pub(crate) max_message: usize,
    /// Calls under way on a connection.
    pub(crate) max_streams: u32,
    /// Calls under way in all; more are told to try again.
    pub(crate) max_calls: usize,
    /// Connections in all; more are closed.
    pub(crate) max_connections: usize,
    /// Volumes staged at a time; more are refused.
    pub(crate) max_staged: u64,
    /// Bytes of their `mountInfo.json` files together.
    pub(crate) max_staged_bytes: u64,
    /// Between two reconciliations, in seconds; 0 is never.
    pub(crate) reconcile_interval: u64,
    /// `error`, `warn`, `info`, `debug` or `trace`.
    pub(crate) log_level: LogLevel,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: ops::DEFAULT_SOCKET.into(),
            crust_listen: "/run/runcrust/crust.sock".into(),
            metrics_listen: String::new(),
            metrics_hosts: Vec::new(),
            runtime: beside(std::env::current_exe().ok()),
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

/// Returns the path of the runtime in the directory of this program, whose real path `/proc` has. The path ends with
/// ` (deleted)` after an upgrade has replaced the program, in the same directory.
fn beside(program: Option<PathBuf>) -> PathBuf {
    program
        .unwrap_or_else(|| "/usr/bin/crust_ops".into())
        .with_file_name("runcrust")
}

/// The address of the metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MetricsAddress {
    /// An address of the loopback.
    Tcp(SocketAddr),
    /// A socket, mode 0600.
    Unix(PathBuf),
}

impl Settings {
    /// Reads the file, which must be there if it was `named`.
    pub(crate) fn load(path: &Path, named: bool) -> Result<Self, ConfigError> {
        let settings = match config::read(path)? {
            Some(text) => Self::parse(path, &text)?,
            None if named => return Err(config::not_found(path)),
            None => Self::default(),
        };
        Ok(settings)
    }

    fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        // Before a number is made one that it may not fit into.
        check_numbers(path, &config::parse(path, text)?)?;
        let settings: Self = config::parse(path, text)?;
        settings.check(path)?;
        Ok(settings)
    }

    fn check(&self, path: &Path) -> Result<(), ConfigError> {
        let wrong = |key, reason| Err(wrong(path, key, reason));
        let paths = [
            ("listen", &self.listen),
            ("runtime", &self.runtime),
            ("crust_listen", &self.crust_listen),
        ];
        let listed = self.allowed_clis.iter().map(|path| ("allowed_clis", path));
        for (key, value) in paths.into_iter().chain(listed) {
            let is_off = key == "crust_listen" && value.as_os_str().is_empty();
            if !value.is_absolute() && !is_off {
                return wrong(key, format!("{} isn't an absolute path", value.display()));
            }
        }
        let mut hosts = self.metrics_hosts.iter();
        if let Some(host) = hosts.find(|host| !is_host_name(host)) {
            let reason = format!("{host:?} isn't a host name without a port");
            return wrong("metrics_hosts", reason);
        }
        match self.metrics() {
            Ok(_) => Ok(()),
            Err(reason) => wrong("metrics_listen", reason),
        }
    }

    /// Returns the address of the metrics, if there is one.
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
        // Nobody is asked who he is there.
        if !address.ip().is_loopback() {
            return Err(format!("{address} isn't an address of the loopback"));
        }
        Ok(Some(MetricsAddress::Tcp(address)))
    }

    /// The keys that only count at the start, and whether they differ from others'.
    pub(crate) fn fixed_changes(&self, other: &Self) -> [(&'static str, bool); 9] {
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

    /// The runtime's own configuration.
    pub(crate) fn runtimes(&self) -> Result<Config, ConfigError> {
        Config::load(Some(&self.runtime.clone().into_os_string()))
    }

    /// How much may be staged over the sockets.
    pub(crate) fn staging_limits(&self) -> crate::staging_limits::StagingLimits {
        crate::staging_limits::StagingLimits {
            volumes: self.max_staged,
            bytes: self.max_staged_bytes,
        }
    }

    /// Returns the programs that may be run as `runtime-cli`, and for how long.
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
    for (key, least, most) in RANGES {
        let value = table.get(key).and_then(toml::Value::as_integer);
        if let Some(value) = value
            && !(least..=most).contains(&value)
        {
            let reason = format!("{value} isn't one of {least} to {most}");
            return Err(wrong(path, key, reason));
        }
    }
    Ok(())
}

fn wrong(path: &Path, key: &'static str, reason: String) -> ConfigError {
    ConfigError::Value {
        path: path.to_owned(),
        key,
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(text: &str) -> Result<Settings, String> {
        Settings::parse(Path::new("/etc/x.toml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn an_empty_file_is_the_defaults_of_the_documentation() {
        let settings = checked("").unwrap();
        assert_eq!(settings, Settings::default());
        let documented = include_str!("../../../docs/crust_ops.md");
        let rows = documented_defaults(documented);
        assert_eq!(rows.lines().count(), 16, "{rows}");
        assert_eq!(checked(&rows).unwrap(), settings);
    }

    /// The documentation's defaults, as a configuration.
    fn documented_defaults(documented: &str) -> String {
        let rows = documented.lines().filter_map(|line| {
            let (key, rest) = line.strip_prefix("| `")?.split_once("` | `")?;
            let (default, _) = rest.split_once("` | ")?;
            Some(format!("{key} = {default}\n"))
        });
        // Only a key has a value that is TOML.
        let rows = rows.filter(|row| toml::from_str::<toml::Table>(row).is_ok());
        rows.collect()
    }

    #[test]
    fn the_installed_file_shows_the_defaults() {
        let installed = include_str!("../../../deploy/etc/crust_ops.toml");
        let settings = Settings::default();
        assert_eq!(checked(installed).unwrap(), settings);
        // Prose has a space after its `#`.
        let shown = installed.lines().filter_map(|line| line.strip_prefix('#'));
        let shown: Vec<&str> = shown.filter(|line| !line.starts_with(' ')).collect();
        let shown = shown.join("\n");
        assert_eq!(checked(&shown).unwrap(), settings);
        let documented = documented_defaults(include_str!("../../../docs/crust_ops.md"));
        let table = |text: &str| toml::from_str::<toml::Table>(text).unwrap();
        assert_eq!(table(&shown), table(&documented));
    }

    #[test]
    fn mistakes_name_the_file_and_the_key() {
        for (text, expected) in [
            ("listn = '/x'", "unknown field `listn`"),
            ("listen = 'x'", "listen: x isn't an absolute path"),
            ("allowed_clis = ['runcrust']", "allowed_clis: "),
            ("cli_timeout = 0", "cli_timeout: 0 isn't one of 1 to 3600"),
            ("cli_timeout = '1'", "line 1: invalid type: string"),
            ("cli_timeout = 9223372036854775808", "line 1: "),
            (
                "metrics_listen = '0.0.0.0:9'",
                "isn't an address of the loopback",
            ),
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
            let error = checked(text).unwrap_err();
            assert!(
                error.starts_with("/etc/x.toml: ") && error.contains(expected),
                "{error}"
            );
        }
    }

    #[test]
    fn a_number_is_what_its_key_can_be() {
        let documented = include_str!("../../../docs/crust_ops.md");
        let defaults = toml::from_str::<toml::Table>(documented_defaults(documented).as_str());
        let defaults = defaults.unwrap();
        let numbers = defaults.values().filter(|value| value.is_integer());
        assert_eq!(numbers.count(), RANGES.len(), "each number has a range");
        for (key, least, most) in RANGES {
            let row = format!(
                "| `{key}` | `{}` | {least} to {most} | ",
                defaults[key].as_integer().unwrap()
            );
            assert!(documented.contains(&row), "{row}");
            for value in [least, most] {
                let settings = checked(&format!("{key} = {value}"));
                settings.unwrap_or_else(|error| panic!("{error}"));
            }
            for value in [least - 1, most + 1, i64::MIN, i64::MAX] {
                let error = checked(&format!("{key} = {value}")).unwrap_err();
                let expected =
                    format!("/etc/x.toml: {key}: {value} isn't one of {least} to {most}");
                assert_eq!(error, expected);
            }
        }
    }

    #[test]
    fn metrics_are_told_on_the_loopback_or_a_socket() {
        let metrics = |text: &str| {
            checked(&format!("metrics_listen = '{text}'"))
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
    fn the_runtime_is_beside_the_daemon_also_after_an_upgrade() {
        for program in ["/opt/bin/crust_ops", "/opt/bin/crust_ops (deleted)"] {
            assert_eq!(beside(Some(program.into())), Path::new("/opt/bin/runcrust"));
        }
        let own = std::env::current_exe().unwrap();
        assert_eq!(checked("").unwrap().runtime, own.with_file_name("runcrust"));
    }

    #[test]
    fn no_second_crust_socket_is_fine() {
        assert!(checked("crust_listen = ''").is_ok());
    }
}
