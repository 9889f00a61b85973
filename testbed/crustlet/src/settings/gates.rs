//! Feature gates, as Kubernetes' components have them.

use std::str::FromStr;

/// The feature gates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gates {
    /// KEP-2857: without it `deferFSMount` is ignored.
    pub(crate) runtime_assisted_mount: bool,
    /// KEP-3756: without it the disk is searched for volumes only after the desired state is known.
    pub(crate) new_volume_manager_reconstruction: bool,
}

impl Default for Gates {
    fn default() -> Self {
        Self {
            runtime_assisted_mount: true,
            new_volume_manager_reconstruction: true,
        }
    }
}

/// `Name=true,Other=false`
impl FromStr for Gates {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut gates = Self::default();
        for gate in text.split(',').map(str::trim).filter(|it| !it.is_empty()) {
            let (name, value) = gate
                .split_once('=')
                .ok_or_else(|| format!("{gate:?} has to be NAME=true or NAME=false"))?;
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
                        "{name:?} is no gate of crustlet's: RuntimeAssistedMount, NewVolumeManagerReconstruction"
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
    fn gates_are_open_but_where_they_are_said_to_be_closed() {
        let open = Gates::default();
        assert_eq!("".parse(), Ok(open));
        let closed = Gates {
            runtime_assisted_mount: false,
            ..open
        };
        let text = "RuntimeAssistedMount=false,NewVolumeManagerReconstruction=true";
        assert_eq!(text.parse(), Ok(closed));
        for wrong in ["RuntimeAssistedMount", "RuntimeAssistedMount=yes", "X=true"] {
            let refused = wrong.parse::<Gates>();
            assert!(refused.is_err(), "{wrong}");
        }
    }
}
