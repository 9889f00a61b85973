//! What `deploy/kubernetes` holds: manifests as the API server would take them, which fit each other.

mod csi;
mod files;
mod manifests;
