//! What `deploy/kubernetes` holds: manifests as the API server would take them, which fit each other.

mod config_map;
mod csi;
mod deletion;
mod files;
mod manifests;
