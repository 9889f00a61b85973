//! CRI-O: `[crio.runtime.runtimes.<handler>]` (`crio.conf(5)`).

use std::path::Path;

use toml_edit::Item;

use crate::config_file::{EngineConfigFile, MARK};
#[cfg(test)]
use crate::engine::Samples;
use crate::engine::{Engine, EngineInfo, FileEdit, HandlerSpec, Runtime};
use crate::error::Result;
use crate::node_root::{DropIns, NodeRoot};
use crate::service::Service;
use crate::toml::{self, Toml};

const FILES: DropIns = DropIns {
    files: &["/etc/crio/crio.conf"],
    directory: "/etc/crio/crio.conf.d",
    suffix: "",
};

const RUNTIMES: [&str; 3] = ["crio", "runtime", "runtimes"];

#[derive(Debug)]
pub(crate) struct Crio;

impl Engine for Crio {
    fn info(&self) -> EngineInfo {
        EngineInfo {
            name: "crio",
            title: "CRI-O",
            file: "/etc/crio/crio.conf.d/99-runcrust.conf",
            service: Some(Service {
                unit: "crio.service",
                reloads: false,
            }),
            has_systemd_cgroup: false,
            merges_entries: false,
        }
    }

    fn read(&self, node: &NodeRoot, first: &Path) -> Result<Vec<EngineConfigFile>> {
        FILES.read(node, first)
    }

    fn runtimes(&self, file: &EngineConfigFile) -> Result<Vec<Runtime>> {
        toml::runtimes(file, [RUNTIMES], |entry| {
            let program = entry.get("runtime_path").and_then(Item::as_str);
            let mismatch = match program {
                Some(_) => None,
                None => Some("it has no runtime_path".to_owned()),
            };
            (program.into_iter().collect(), mismatch)
        })
    }

    fn defaults(&self, file: &EngineConfigFile) -> Result<Vec<(String, String)>> {
        toml::defaults(file, [["crio", "runtime", "default_runtime"]])
    }

    fn install(&self, files: &[EngineConfigFile], spec: &HandlerSpec<'_>) -> Result<FileEdit> {
        let file = &files[0];
        let mut toml = Toml::parse(&file.path, file.text.as_deref().unwrap_or(MARK))?;
        let keys = [&RUNTIMES[..], &[spec.name]].concat();
        let is_new = toml.get(&keys).is_none();
        let root = format!("/run/runcrust-{}", spec.name);
        let mut set = |key, value: &str| toml.set(&[&keys[..], &[key]].concat(), value, "");
        set("runtime_path", spec.program)?;
        if is_new {
            // CRI-O's default is /run/<handler>, which for the usual handler is the crust directory.
            set("runtime_root", &root)?;
            set("runtime_type", "oci")?;
        }
        Ok(FileEdit::new(&file.path, toml.text()))
    }

    fn uninstall(&self, file: &EngineConfigFile, handler: &str) -> Result<Option<String>> {
        let mut toml = Toml::parse_file(file)?;
        toml.remove(&[&RUNTIMES[..], &[handler]].concat())?;
        Ok(file.remaining(toml.text()))
    }

    #[cfg(test)]
    fn samples(&self) -> Samples {
        Samples {
            foreign: &[
                (
                    "[crio.runtime.runtimes.crust]\nruntime_path = \"/usr/bin/crun\"\n",
                    "it runs /usr/bin/crun",
                ),
                ("[crio.runtime.runtimes.crust]\n", "it has no runtime_path"),
                (
                    "[crio.runtime.runtimes]\ncrust = 1\n",
                    "it has no runtime_path",
                ),
            ],
            default: "[crio.runtime]\ndefault_runtime = \"crust\"\n",
            kept: &[
                "",
                "# Comments alone.\n",
                "[crio]\n# The default.\n[crio.runtime]\ndefault_runtime = \"runc\"\n\n\
                 [crio.runtime.runtimes.runc]\nruntime_path = \"\" # PATH\n\n[crio.network]\nx = 1\n",
            ],
            outdated: &[
                "[crio.runtime.runtimes.crust]\nruntime_path = \"/opt/runcrust\" # old\n\
                         runtime_type = \"vm\"\nmonitor_env = [\"A=b\"]\n",
            ],
            refused: &[("[crio\n", "hint: "), ("crio = 1\n", "crio isn't a table")],
        }
    }
}

#[test]
fn a_new_file_contains_only_the_handler() {
    let expected = format!(
        "{MARK}\n[crio.runtime.runtimes.crust]\nruntime_path = \"/usr/local/bin/runcrust\"\n\
         runtime_root = \"/run/runcrust-crust\"\nruntime_type = \"oci\"\n"
    );
    assert_eq!(crate::handler::tests::install_into(&Crio, None), expected);
}
