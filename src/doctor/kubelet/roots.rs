//! Root directories of this node's kubelets.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crust_blockfs::bounded;

/// Kubelet's own (`--root-dir`).
const DEFAULT: &str = "/var/lib/kubelet";

/// Root directories that distributions use: k0s, and microk8s, in which kubelet is no process of its
/// own. k3s and RKE2 keep the default.
const PLACES: [&str; 3] = [
    DEFAULT,
    "/var/lib/k0s/kubelet",
    "/var/snap/microk8s/common/var/lib/kubelet",
];

/// Longer than any kubelet's command line.
const LONGEST: u64 = 128 * 1024;

/// Returns the root directories of kubelets that run in this process's PID namespace, each once. A
/// kubelet in a container (kind, minikube) has paths of its own.
pub(super) fn of_running() -> Vec<PathBuf> {
    let own = fs::read_link("/proc/self/ns/pid").ok();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut roots: Vec<PathBuf> = processes
        .map(|entry| entry.path())
        .filter(|process| is_pid(process))
        .filter_map(|process| {
            let line = bounded::read(&process.join("cmdline"), LONGEST).ok()?;
            let root = root(&line)?;
            let is_here = fs::read_link(process.join("ns/pid")).ok() == own;
            is_here.then_some(root)
        })
        .collect();
    roots.sort();
    roots.dedup();
    roots
}

/// Returns the known places that have a directory of pods.
pub(super) fn with_pods() -> Vec<PathBuf> {
    let places = PLACES.iter().map(PathBuf::from);
    places.filter(|place| place.join("pods").is_dir()).collect()
}

fn is_pid(process: &Path) -> bool {
    let name = process.file_name().map(OsStr::as_bytes);
    name.is_some_and(|name| name.iter().all(u8::is_ascii_digit))
}

/// Returns the root directory in the command line of a kubelet; `None` of another program.
fn root(line: &[u8]) -> Option<PathBuf> {
    let mut words = line.split(|byte| *byte == 0);
    let program = Path::new(OsStr::from_bytes(words.next()?));
    if program.file_name()? != "kubelet" {
        return None;
    }
    let mut root = PathBuf::from(DEFAULT);
    while let Some(word) = words.next() {
        // pflag takes both forms; the last one counts.
        let value = match word.strip_prefix(b"--root-dir") {
            Some(b"") => words.next(),
            Some(value) => value.strip_prefix(b"="),
            None => continue,
        };
        if let Some(value) = value {
            root = OsString::from_vec(value.to_vec()).into();
        }
    }
    Some(root)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubelets_root_is_in_its_command_line() {
        for (line, expected) in [
            ("/usr/bin/kubelet --config=/c", Some(DEFAULT)),
            ("kubelet --root-dir=/k --v=2", Some("/k")),
            ("/var/lib/k0s/bin/kubelet --v 2 --root-dir /k", Some("/k")),
            ("kubelet --root-dir=/a --root-dir=/b", Some("/b")),
            ("kubelet --root-directory=/a", Some(DEFAULT)),
            ("kubelet", Some(DEFAULT)),
            ("kubelet-wrapper --root-dir=/k", None),
            ("k3s server", None),
            ("", None),
        ] {
            let bytes = line.replace(' ', "\0") + "\0";
            let found = root(bytes.as_bytes());
            assert_eq!(found.as_deref(), expected.map(Path::new), "{line}");
        }
    }
}
