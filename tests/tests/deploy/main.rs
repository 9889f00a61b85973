//! The manifests in `deploy/kubernetes`: the API server would accept them, and they refer to each other correctly.

mod config_map;
mod csi;
mod deletion;
mod files;
mod manifests;
