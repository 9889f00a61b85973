//! Feature gates, in the syntax of Kubernetes' components.

use std::str::FromStr;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FeatureGates {
    /// KEP-2857. If disabled, `deferFSMount` is ignored.
    pub(crate) runtime_assisted_mount: bool,
    /// KEP-3756. If disabled, volumes are reconstructed from disk only after the desired state is known.
    pub(crate) new_volume_manager_reconstruction: bool,
}

impl Default for FeatureGates {
    fn default() -> Self {
        Self {
            runtime_assisted_mount: true,
            new_volume_manager_reconstruction: true,
        }
    }
}

/// Parses `Name=true,Other=false`.
impl FromStr for FeatureGates {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut gates = Self::default();
        for gate in text
            .split(',')
            .map(str::trim)
            .filter(|gate| !gate.is_empty())
        {
            let (name, value) = gate
                .split_once('=')
                .ok_or_else(|| format!("{gate:?}: expected NAME=true or NAME=false"))?;
            let value = value
                .parse()
                .map_err(|_| format!("{gate:?}: {value:?} is neither true nor false"))?;
            match name {
                "RuntimeAssistedMount" => gates.runtime_assisted_mount = value,
                "NewVolumeManagerReconstruction" => {
                    gates.new_volume_manager_reconstruction = value;
                }
                _ => {
                    return Err(format!(
                        "unrecognized feature gate {name:?}; hint: use RuntimeAssistedMount or NewVolumeManagerReconstruction"
                    ));
                }
            }
        }
        Ok(gates)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_are_enabled_unless_disabled() {
        let enabled = FeatureGates::default();
        assert_eq!("".parse(), Ok(enabled));
        let disabled = FeatureGates {
            runtime_assisted_mount: false,
            ..enabled
        };
        let text = "RuntimeAssistedMount=false,NewVolumeManagerReconstruction=true";
        assert_eq!(text.parse(), Ok(disabled));
        for invalid in ["RuntimeAssistedMount", "RuntimeAssistedMount=yes", "X=true"] {
            assert!(invalid.parse::<FeatureGates>().is_err(), "{invalid}");
        }
    }
}
