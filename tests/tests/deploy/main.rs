//! The manifests in `deploy/kubernetes`, which the API server would accept and which refer to each other correctly, and
//! `make release`.

mod config_map;
mod csi;
mod csi_nfs;
mod deletion;
mod files;
mod manifests;
mod release;
