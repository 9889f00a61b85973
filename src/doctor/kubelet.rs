//! Checks that `kubelet_dirs` names the root directories of this node's kubelets. The create of a sandbox looks for the
//! pod's volumes there.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crust_blockfs::bounded;
use crust_state::Config;
use crust_state::check::Finding;

const CHECK: &str = "kubelet's directories";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KubeletDirectoryState {
    Missing,
    /// The directory has no `pods` directory. A package may have installed it.
    Unused,
    Used,
}

/// The kubelet directories of this node.
#[derive(Debug, Default)]
struct KubeletDirectories {
    configured: Vec<(PathBuf, KubeletDirectoryState)>,
    /// Root directories of running kubelets that `kubelet_dirs` doesn't name.
    running_unconfigured: Vec<PathBuf>,
    /// Root directories used by distributions that have pods, and that `kubelet_dirs` doesn't name.
    with_pods_unconfigured: Vec<PathBuf>,
}

pub(super) fn check(config: &Config) -> Finding {
    judge(&find_directories(config))
}

fn find_directories(config: &Config) -> KubeletDirectories {
    let running = running_kubelet_roots();
    let configured = &config.kubelet_dirs;
    let is_configured = |path: &Path| configured.iter().any(|it| is_same(it, path));
    let unconfigured = |paths: Vec<PathBuf>| -> Vec<PathBuf> {
        let paths = paths.into_iter().filter(|path| !is_configured(path));
        paths.collect()
    };
    let state = |path: &Path| {
        if !path.is_dir() {
            KubeletDirectoryState::Missing
        } else if path.join("pods").is_dir() || running.iter().any(|it| is_same(it, path)) {
            KubeletDirectoryState::Used
        } else {
            KubeletDirectoryState::Unused
        }
    };
    let with_state = configured.iter().map(|path| (path.clone(), state(path)));
    KubeletDirectories {
        configured: with_state.collect(),
        with_pods_unconfigured: unconfigured(known_roots_with_pods()),
        running_unconfigured: unconfigured(running),
    }
}

/// Returns whether two paths lead to the same directory. Target paths are matched as given and with their links
/// resolved, so a symbolic link to kubelet's directory suffices.
fn is_same(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| fs::canonicalize(path).ok();
    one == other || real(one).is_some_and(|it| Some(it) == real(other))
}

/// Returns the finding about the directories. A volume that isn't below one of `kubelet_dirs` isn't found, so a kubelet
/// with another root directory can't start a pod with that volume. The existence of a directory alone doesn't prove
/// that a kubelet uses it.
fn judge(directories: &KubeletDirectories) -> Finding {
    let listed = |paths: &[PathBuf]| {
        let paths: Vec<String> = paths.iter().map(|it| it.display().to_string()).collect();
        paths.join(", ")
    };
    let in_state = |expected: KubeletDirectoryState| -> Vec<PathBuf> {
        let configured = directories.configured.iter();
        let matching = configured.filter(|(_, state)| *state == expected);
        matching.map(|(path, _)| path.clone()).collect()
    };
    let fix = |paths: &[PathBuf]| {
        let configured = directories.configured.iter();
        let all = configured.filter(|(_, state)| *state == KubeletDirectoryState::Used);
        let all: Vec<&PathBuf> = all.map(|(path, _)| path).chain(paths).collect();
        format!("set kubelet_dirs = {all:?} in runcrust's configuration, and restart crust_ops")
    };
    if !directories.running_unconfigured.is_empty() {
        let running = listed(&directories.running_unconfigured);
        let found = format!(
            "a kubelet runs with root directory {running}, which `kubelet_dirs` doesn't name: its \
             pods' volumes aren't found"
        );
        return Finding::fail(CHECK, found, fix(&directories.running_unconfigured));
    }
    if !directories.with_pods_unconfigured.is_empty() {
        let elsewhere = listed(&directories.with_pods_unconfigured);
        let found = format!(
            "{elsewhere} has pods of a kubelet, but `kubelet_dirs` doesn't name it: the pods' volumes \
             aren't found"
        );
        return Finding::warn(CHECK, found, fix(&directories.with_pods_unconfigured));
    }
    let (missing, unused) = (
        in_state(KubeletDirectoryState::Missing),
        in_state(KubeletDirectoryState::Unused),
    );
    let hint = "set `kubelet_dirs` in runcrust's configuration to kubelet's root directory \
                (--root-dir); ignore this on a node without kubelet";
    if !missing.is_empty() {
        let missing = listed(&missing);
        let found =
            format!("{missing}: there is no such directory, so no pod's volumes are found in it");
        return Finding::warn(CHECK, found, hint);
    }
    if !unused.is_empty() && in_state(KubeletDirectoryState::Used).is_empty() {
        let unused = listed(&unused);
        let found = format!("{unused}: no kubelet has used it: it has no directory `pods`");
        return Finding::warn(CHECK, found, hint);
    }
    let all: Vec<PathBuf> = directories
        .configured
        .iter()
        .map(|it| it.0.clone())
        .collect();
    Finding::pass(CHECK, listed(&all))
}

/// Kubelet's default for `--root-dir`.
const DEFAULT_ROOT: &str = "/var/lib/kubelet";

/// Root directories that distributions use: the default (k3s and RKE2 use it, too), the directory of k0s, and the
/// directory of microk8s, where kubelet is not a process of its own.
const KNOWN_ROOTS: [&str; 3] = [
    DEFAULT_ROOT,
    "/var/lib/k0s/kubelet",
    "/var/snap/microk8s/common/var/lib/kubelet",
];

/// The number of bytes that are read of a command line. Kubelet's is shorter.
const MAX_CMDLINE_BYTES: u64 = 128 * 1024;

/// Returns the root directories of the kubelets that run in this process's PID namespace, each once. A kubelet in a
/// container (kind, minikube) is left out, because its paths are the container's.
fn running_kubelet_roots() -> Vec<PathBuf> {
    let own_namespace = fs::read_link("/proc/self/ns/pid").ok();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut roots: Vec<PathBuf> = processes
        .map(|entry| entry.path())
        .filter(|process| is_pid(process))
        .filter_map(|process| {
            let line = bounded::read(&process.join("cmdline"), MAX_CMDLINE_BYTES).ok()?;
            let root = root_of_command_line(&line)?;
            let is_in_own_namespace = fs::read_link(process.join("ns/pid")).ok() == own_namespace;
            is_in_own_namespace.then_some(root)
        })
        .collect();
    roots.sort();
    roots.dedup();
    roots
}

/// Returns the known root directories that have a directory of pods.
fn known_roots_with_pods() -> Vec<PathBuf> {
    let roots = KNOWN_ROOTS.iter().map(PathBuf::from);
    roots.filter(|root| root.join("pods").is_dir()).collect()
}

fn is_pid(process: &Path) -> bool {
    let name = process.file_name().map(OsStr::as_bytes);
    name.is_some_and(|name| name.iter().all(u8::is_ascii_digit))
}

/// Returns the root directory in the command line of a kubelet; `None` for other programs.
fn root_of_command_line(line: &[u8]) -> Option<PathBuf> {
    let mut words = line.split(|byte| *byte == 0);
    let program = Path::new(OsStr::from_bytes(words.next()?));
    if program.file_name()? != "kubelet" {
        return None;
    }
    let mut root = PathBuf::from(DEFAULT_ROOT);
    while let Some(word) = words.next() {
        // pflag accepts `--root-dir PATH` and `--root-dir=PATH`. The last one counts.
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
    fn the_nodes_kubelet_has_to_be_configured() {
        use KubeletDirectoryState::{Missing, Unused, Used};
        let paths = |paths: &[&str]| paths.iter().map(PathBuf::from).collect();
        for (configured, running, elsewhere, expected) in [
            (
                &[("/a", Used)][..],
                &[][..],
                &[][..],
                "pass  kubelet's directories: /a",
            ),
            (
                &[("/a", Used), ("/b", Unused)],
                &[],
                &[],
                "pass  kubelet's directories: /a, /b",
            ),
            (
                &[("/a", Unused)],
                &[],
                &[],
                "warn  kubelet's directories: /a: no kubelet has used it",
            ),
            (
                &[("/a", Used), ("/b", Missing)],
                &[],
                &[],
                "warn  kubelet's directories: /b: there is no",
            ),
            (
                &[("/a", Unused)],
                &["/k"],
                &["/k"],
                "FAIL  kubelet's directories: a kubelet runs with root directory /k, which",
            ),
            (
                &[("/a", Used)],
                &["/k"],
                &[],
                "FAIL  kubelet's directories: a kubelet runs",
            ),
            (
                &[("/a", Missing)],
                &[],
                &["/k"],
                "warn  kubelet's directories: /k has pods",
            ),
        ] {
            let finding = judge(&KubeletDirectories {
                configured: configured
                    .iter()
                    .map(|(path, state)| (path.into(), *state))
                    .collect(),
                running_unconfigured: paths(running),
                with_pods_unconfigured: paths(elsewhere),
            });
            let line = finding.to_string();
            assert!(line.starts_with(expected), "{line}");
            let is_elsewhere = !running.is_empty() || !elsewhere.is_empty();
            assert_eq!(line.contains("\"/k\"]"), is_elsewhere, "{line}");
        }
    }

    #[test]
    fn a_link_is_the_same_as_its_target() {
        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("real"), dir.path().join("link"));
        fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink("real", &link).unwrap();
        assert!(is_same(&real, &link));
        assert!(!is_same(&real, dir.path()));
        assert!(is_same(Path::new("/no/such"), Path::new("/no/such")));
        assert!(!is_same(Path::new("/no/such"), Path::new("/no/other")));
    }

    #[test]
    fn a_kubelets_root_is_read_from_its_command_line() {
        for (line, expected) in [
            ("/usr/bin/kubelet --config=/c", Some(DEFAULT_ROOT)),
            ("kubelet --root-dir=/k --v=2", Some("/k")),
            ("/var/lib/k0s/bin/kubelet --v 2 --root-dir /k", Some("/k")),
            ("kubelet --root-dir=/a --root-dir=/b", Some("/b")),
            ("kubelet --root-directory=/a", Some(DEFAULT_ROOT)),
            ("kubelet", Some(DEFAULT_ROOT)),
            ("kubelet-wrapper --root-dir=/k", None),
            ("k3s server", None),
            ("", None),
        ] {
            let bytes = line.replace(' ', "\0") + "\0";
            let found = root_of_command_line(bytes.as_bytes());
            assert_eq!(found.as_deref(), expected.map(Path::new), "{line}");
        }
    }
}
