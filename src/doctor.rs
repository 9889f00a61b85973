//! What is wrong with this node, as far as it can be seen without changing anything. Each check is a
//! look, and a judgement over what was seen.

mod cgroups;
mod configuration;
mod crust_ops;
mod delegate;
mod file_systems;
mod handler;
mod hook;
mod kernel;
mod kubelet;
mod leftovers;
mod log;
mod mount_api;
mod patience;
mod propagation;

use std::ffi::OsString;
use std::sync::Arc;

use crust_state::Config;
use crust_state::check::{self, Finding};
use crust_state::config::ConfigError;
use crust_volume::capabilities;

use patience::Check;

/// Looks at everything. What the configuration says where to look for isn't looked for where that
/// can't be read. `argv0` is what this program was called by: its name selects the configuration.
pub(crate) fn examine(
    config: Result<Config, ConfigError>,
    argv0: Option<OsString>,
) -> Vec<Finding> {
    let mut checks = vec![
        Check::new("kernel", || vec![kernel::check()]),
        Check::new("mount API", || vec![mount_api::check()]),
        Check::new("user", || vec![check::user()]),
        Check::new("capabilities", || vec![capabilities::check()]),
    ];
    let told = configuration::check(&config, argv0.as_ref());
    checks.push(Check::new("configuration", || vec![told]));
    match config {
        Ok(config) => checks.extend(configured(&Arc::new(config))),
        // Its delegate is enough for all but a create.
        Err(_) => checks.push(Check::new("delegate", move || {
            vec![delegate::check_only(argv0.as_ref())]
        })),
    }
    checks.push(Check::new("handler", handler::check));
    checks.push(Check::new("crust_ops", || vec![crust_ops::check()]));
    patience::answers(checks)
}

/// What is where the configuration says.
fn configured(config: &Arc<Config>) -> Vec<Check> {
    let of = |what, look: fn(&Config) -> Vec<Finding>| {
        let config = Arc::clone(config);
        Check::new(what, move || look(&config))
    };
    vec![
        of("file systems", |config| vec![file_systems::check(config)]),
        of("delegate", delegate::check),
        of("hook", |config| vec![hook::check(config)]),
        of("crust directory", |config| {
            vec![check::directory("crust directory", &config.crust_root)]
        }),
        of("state directory", |config| {
            vec![check::directory("state directory", &config.state_dir)]
        }),
        of("leftovers", |config| vec![leftovers::check(config)]),
        of("log", |config| vec![log::check(config)]),
        of("kubelet's directories", |config| {
            vec![kubelet::check(config)]
        }),
        of("propagation", |config| vec![propagation::check(config)]),
    ]
}
