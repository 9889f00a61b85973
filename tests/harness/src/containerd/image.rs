//! The images of pods: an OCI layout in a tar archive, with busybox as its only layer.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

use crate::Run;
use crate::bundle::{IDLE, rootfs};
use crate::cri::Cri;
use crate::wait::holds_within;

/// The image of apps: busybox with a program that sleeps.
pub const APP_IMAGE: &str = "runcrust.test/app:1";

/// The image of sandboxes, with the same content.
pub const PAUSE_IMAGE: &str = "runcrust.test/pause:1";

/// The longest time that the CRI may take to list imported images.
const IMPORT_TIMEOUT: Duration = Duration::from_secs(60);

/// Imports both images into the containerd at `socket` from a temporary archive. Returns whether its CRI lists them.
pub fn import(socket: &Path, cri: &Cri, archive: &Path) -> bool {
    write_archive(archive);
    let is_imported = import_archive(socket, cri, archive, &[APP_IMAGE, PAUSE_IMAGE]);
    let _ = fs::remove_file(archive);
    is_imported
}

/// Imports an archive with these images. Returns whether the CRI lists them.
pub fn import_archive(socket: &Path, cri: &Cri, archive: &Path, images: &[&str]) -> bool {
    let mut import = Command::new("ctr");
    import.arg("--address").arg(socket);
    import.args(["--namespace", "k8s.io", "images", "import", "--no-unpack"]);
    let _ = Run::capture(import.arg(archive)).success();
    // The CRI updates its own list from containerd's events.
    holds_within(IMPORT_TIMEOUT, || {
        images.iter().all(|image| cri.has_image(image))
    })
}

/// Writes an archive of both images, which share one layer.
fn write_archive(path: &Path) {
    let mut archive = Builder::new(File::create(path).expect("create the images' archive"));
    let layer = app_layer();
    let mut manifests = Vec::new();
    for name in [APP_IMAGE, PAUSE_IMAGE] {
        let config = json!({
            "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
            "os": "linux",
            "config": {"Cmd": IDLE, "Env": ["PATH=/bin"], "Labels": {"name": name}},
            "rootfs": {"type": "layers", "diff_ids": [digest(&layer)]},
        });
        let config = bytes(&config);
        let manifest = bytes(&json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
            "layers": [descriptor("application/vnd.oci.image.layer.v1.tar", &layer)],
        }));
        let mut entry = descriptor("application/vnd.oci.image.manifest.v1+json", &manifest);
        entry["annotations"] = json!({"io.containerd.image.name": name});
        manifests.push(entry);
        append_blob(&mut archive, &config);
        append_blob(&mut archive, &manifest);
    }
    append_blob(&mut archive, &layer);
    append(
        &mut archive,
        "oci-layout",
        &bytes(&json!({"imageLayoutVersion": "1.0.0"})),
    );
    append(
        &mut archive,
        "index.json",
        &bytes(&json!({"schemaVersion": 2, "manifests": manifests})),
    );
    archive.finish().expect("finish the images' archive");
}

/// Returns a layer with the same files as a bundle's root file system.
pub fn app_layer() -> Vec<u8> {
    let mut layer = Builder::new(Vec::new());
    for directory in rootfs::DIRECTORIES {
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Directory);
        header.set_mode(if directory == "tmp" { 0o1777 } else { 0o755 });
        header.set_size(0);
        layer
            .append_data(&mut header, format!("{directory}/"), &[][..])
            .expect("a directory");
    }
    let busybox = fs::read(rootfs::BUSYBOX).expect("busybox (of the package busybox-static)");
    append_with_mode(&mut layer, "bin/busybox", &busybox, 0o755);
    for applet in rootfs::APPLETS {
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Symlink);
        header.set_mode(0o777);
        header.set_size(0);
        layer
            .append_link(&mut header, format!("bin/{applet}"), "busybox")
            .expect("a link");
    }
    for (path, content) in rootfs::FILES {
        append(&mut layer, path, content.as_bytes());
    }
    layer.into_inner().expect("a layer in memory")
}

fn append_blob<W: std::io::Write>(archive: &mut Builder<W>, blob: &[u8]) {
    append(
        archive,
        &format!("blobs/{}", digest(blob).replace(':', "/")),
        blob,
    );
}

fn append<W: std::io::Write>(archive: &mut Builder<W>, path: &str, content: &[u8]) {
    append_with_mode(archive, path, content, 0o644);
}

fn append_with_mode<W: std::io::Write>(
    archive: &mut Builder<W>,
    path: &str,
    content: &[u8],
    mode: u32,
) {
    let mut header = Header::new_gnu();
    header.set_mode(mode);
    header.set_size(content.len().try_into().expect("a length"));
    archive
        .append_data(&mut header, path, content)
        .expect("a file in an archive");
}

fn descriptor(media_type: &str, content: &[u8]) -> Value {
    json!({"mediaType": media_type, "digest": digest(content), "size": content.len()})
}

fn digest(content: &[u8]) -> String {
    use std::fmt::Write as _;
    Sha256::digest(content)
        .iter()
        .fold("sha256:".to_owned(), |mut text, byte| {
            write!(text, "{byte:02x}").expect("writing to a string");
            text
        })
}

fn bytes(value: &Value) -> Vec<u8> {
    serde_json::to_vec(value).expect("a Value is JSON")
}
