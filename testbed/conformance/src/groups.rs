//! The requirements, by group. The check of a deferred requirement always sees the volume in a container: neither a
//! runtime that ignores volumes nor one that refuses every container may pass. A check that expects a refusal
//! therefore repairs the cause in the same scene, and then expects success.

mod cli;
mod device;
mod entries;
mod fsgroup;
mod life;
mod matching;
mod mount;
mod network;
mod oci;
mod options;
mod resize;

use crate::requirement::Group;

/// All groups, in the order of the report.
pub(crate) const ALL: &[&Group] = &[
    &oci::GROUP,
    &matching::GROUP,
    &entries::GROUP,
    &mount::GROUP,
    &options::GROUP,
    &fsgroup::GROUP,
    &device::GROUP,
    &cli::GROUP,
    &resize::GROUP,
    &life::GROUP,
    &network::GROUP,
];

/// The documents that requirements come from.
mod sources {
    pub(super) const OVERVIEW: &str = "KEP-2857, Overview of Interactions";
    pub(super) const SHARED: &str = "KEP-2857, Potential data corruption";
    pub(super) const API: &str = "KEP-2857, Runtime API";
    pub(super) const DIRECTORY: &str = "protocol.md, The crust directory";
    pub(super) const INFO: &str = "protocol.md, mountInfo.json";
    pub(super) const USE: &str = "protocol.md, runtime-cli, runcrust.json";
    pub(super) const MATCHING: &str = "protocol.md, Matching";
    pub(super) const STOCK: &str = "protocol.md, Stock kubelets' subPaths";
    pub(super) const SECOND: &str = "protocol.md, A second pod on the device";
    pub(super) const FSGROUP: &str = "protocol.md, fsGroup";
    pub(super) const SUBPATH: &str = "protocol.md, subPath";
    pub(super) const CLI: &str = "protocol.md, Command line";
    pub(super) const RESIZE: &str = "protocol.md, resize";
    pub(super) const OCI: &str = "OCI runtime specification";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const PROTOCOL: &str = include_str!("../../../docs/protocol.md");
    const CONFORMANCE: &str = include_str!("../../../docs/conformance.md");

    #[test]
    fn each_source_is_a_section_of_the_protocol() {
        let headings = PROTOCOL.lines().filter(|line| line.starts_with('#'));
        let headings: BTreeSet<String> = headings
            .map(|line| line.trim_start_matches(['#', ' ']).replace('`', ""))
            .collect();
        for requirement in ALL.iter().flat_map(|group| group.requirements) {
            if let Some(section) = requirement.source.strip_prefix("protocol.md, ") {
                assert!(headings.contains(section), "{}: {section}", requirement.id);
            }
        }
    }

    #[test]
    fn the_documentation_explains_each_group() {
        for group in ALL {
            let row = format!("| `{}` | ", group.name);
            assert!(CONFORMANCE.contains(&row), "{row}");
        }
    }

    #[test]
    fn ids_and_group_names_are_unique() {
        let groups = ALL.iter().map(|group| group.name);
        let requirements = ALL.iter().flat_map(|group| group.requirements);
        let names: Vec<&str> = groups
            .chain(requirements.map(|requirement| requirement.id))
            .collect();
        let unique: BTreeSet<&str> = names.iter().copied().collect();
        assert_eq!(unique.len(), names.len());
        for name in names {
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            assert!(name.chars().all(plain), "{name}");
        }
    }
}
