//! The laws of private rooms, for whatever bytes `fuzz/` comes up with. No release has this.

use crate::laws;

/// containerd's, CRI-O's and podman's configuration.
pub fn toml(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        laws::toml(text);
    }
}

/// docker's `daemon.json`.
pub fn json(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        laws::json(text);
    }
}
