//! Checks that `kubelet_dirs` names the root directories of this node's kubelets, where a new sandbox's volumes are
//! looked for.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crust_blockfs::bounded;
use crust_state::Config;
use crust_state::check::Finding;

const WHAT: &str = "kubelet's directories";

/// State of a configured directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Missing,
    /// It has no directory of pods: perhaps it came with a package.
    Unused,
    Used,
}

/// Directories of kubelets, by whether `kubelet_dirs` names them.
#[derive(Debug, Default)]
struct Seen {
    configured: Vec<(PathBuf, State)>,
    /// Root directories of kubelets that run, and aren't configured.
    running: Vec<PathBuf>,
    /// Places of distributions' kubelets that have pods, and aren't configured.
    elsewhere: Vec<PathBuf>,
}

pub(super) fn check(config: &Config) -> Finding {
    judge(&look(config))
}

fn look(config: &Config) -> Seen {
    let running = of_running();
    let configured = &config.kubelet_dirs;
    let is_configured = |path: &Path| configured.iter().any(|it| is_same(it, path));
    let others = |paths: Vec<PathBuf>| -> Vec<PathBuf> {
        let others = paths.into_iter().filter(|path| !is_configured(path));
        others.collect()
    };
    let state = |path: &Path| {
        if !path.is_dir() {
            State::Missing
        } else if path.join("pods").is_dir() || running.iter().any(|it| is_same(it, path)) {
            State::Used
        } else {
            State::Unused
        }
    };
    let seen = configured.iter().map(|path| (path.clone(), state(path)));
    Seen {
        configured: seen.collect(),
        elsewhere: others(with_pods()),
        running: others(running),
    }
}

/// A link to it will do: target paths are matched as they are given and with their links resolved.
fn is_same(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| fs::canonicalize(path).ok();
    one == other || real(one).is_some_and(|it| Some(it) == real(other))
}

/// A volume that isn't below one of `kubelet_dirs` isn't found, so a kubelet that runs elsewhere starts
/// no pod with one. A directory alone proves no kubelet.
fn judge(seen: &Seen) -> Finding {
    let listed = |paths: &[PathBuf]| {
        let paths: Vec<String> = paths.iter().map(|it| it.display().to_string()).collect();
        paths.join(", ")
    };
    let in_state = |wanted: State| -> Vec<PathBuf> {
        let those = seen.configured.iter().filter(|(_, state)| *state == wanted);
        those.map(|(path, _)| path.clone()).collect()
    };
    let fix = |paths: &[PathBuf]| {
        let all = seen.configured.iter().filter(|(_, it)| *it == State::Used);
        let all: Vec<&PathBuf> = all.map(|(path, _)| path).chain(paths).collect();
        format!("set kubelet_dirs = {all:?} in runcrust's configuration, and restart crust_ops")
    };
    if !seen.running.is_empty() {
        let running = listed(&seen.running);
        let found = format!(
            "a kubelet runs with root directory {running}, which `kubelet_dirs` doesn't name: its \
             pods' volumes aren't found"
        );
        return Finding::fail(WHAT, found, fix(&seen.running));
    }
    if !seen.elsewhere.is_empty() {
        let elsewhere = listed(&seen.elsewhere);
        let found = format!(
            "{elsewhere} has pods of a kubelet, and `kubelet_dirs` doesn't name it: their volumes \
             aren't found"
        );
        return Finding::warn(WHAT, found, fix(&seen.elsewhere));
    }
    let (missing, unused) = (in_state(State::Missing), in_state(State::Unused));
    let hint = "set `kubelet_dirs` in runcrust's configuration to kubelet's root directory \
                (--root-dir); without a kubelet none is needed";
    if !missing.is_empty() {
        let missing = listed(&missing);
        let found =
            format!("{missing}: there is no such directory, so no pod's volumes are found in it");
        return Finding::warn(WHAT, found, hint);
    }
    if !unused.is_empty() && in_state(State::Used).is_empty() {
        let unused = listed(&unused);
        let found = format!("{unused}: no kubelet has used it: there is no directory `pods` in it");
        return Finding::warn(WHAT, found, hint);
    }
    let all: Vec<PathBuf> = seen.configured.iter().map(|it| it.0.clone()).collect();
    Finding::pass(WHAT, listed(&all))
}

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
fn of_running() -> Vec<PathBuf> {
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
fn with_pods() -> Vec<PathBuf> {
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
    fn the_kubelet_of_the_node_has_to_be_named() {
        use State::{Missing, Unused, Used};
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
            let finding = judge(&Seen {
                configured: configured
                    .iter()
                    .map(|(path, state)| (path.into(), *state))
                    .collect(),
                running: paths(running),
                elsewhere: paths(elsewhere),
            });
            let line = finding.to_string();
            assert!(line.starts_with(expected), "{line}");
            let is_elsewhere = !running.is_empty() || !elsewhere.is_empty();
            assert_eq!(line.contains("\"/k\"]"), is_elsewhere, "{line}");
        }
    }

    #[test]
    fn a_link_names_what_it_leads_to() {
        let lab = tempfile::tempdir().unwrap();
        let (real, link) = (lab.path().join("real"), lab.path().join("link"));
        fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink("real", &link).unwrap();
        assert!(is_same(&real, &link));
        assert!(!is_same(&real, lab.path()));
        assert!(is_same(Path::new("/no/such"), Path::new("/no/such")));
        assert!(!is_same(Path::new("/no/such"), Path::new("/no/other")));
    }

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
