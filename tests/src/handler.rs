//! A private installation of runcrust for one test.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cleanup::{Cleanup, OperationGuard};
use crate::dir::unique;
use crate::{Delegate, Run, Runtime, TestDir};

const CONFIGURATIONS: &str = "/etc/runcrust";

/// runcrust under a name of its own, with a configuration of its own: the product reads
/// `/etc/runcrust/<name it was called by>.toml`, which this writes and removes again.
#[derive(Debug)]
pub struct Handler {
    name: String,
    path: PathBuf,
    hook: PathBuf,
    base: PathBuf,
    delegate: Delegate,
    home: Option<Cleanup>,
    _cleanup: Cleanup,
}

/// Which build a program is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// The one in `RUNCRUST_OLD_BIN_DIR`; where that isn't set, the same as the other.
    Old,
    /// The one under test.
    New,
}

impl Version {
    fn program(self, name: &str) -> PathBuf {
        match (self, std::env::var_os("RUNCRUST_OLD_BIN_DIR")) {
            (Self::Old, Some(directory)) => Path::new(&directory).join(name),
            _ => binary(name),
        }
    }
}

impl Handler {
    /// Installs a handler whose crust root, state and kubelet directory are in `dir`: one a test,
    /// or several that share all of them.
    /// `extra` is appended to its configuration (`sandbox = "always"`).
    pub fn new(dir: &TestDir, delegate: Delegate, extra: &str) -> Self {
        let name = unique("runcrust");
        let path = dir.join(&name);
        symlink(binary("runcrust"), &path).expect("a link to the built runcrust");
        Self::at(path, binary("crust-mount-hook"), dir, delegate, extra)
    }

    /// One that `crust_ops` runs when a volume's `runtime-cli` names it: a copy of the program where
    /// only root can change anything, which isn't so below `/tmp`.
    pub fn trusted(dir: &TestDir, delegate: Delegate, extra: &str) -> Self {
        let (name, home, cleanup) = home();
        let path = home.join(&name);
        fs::copy(binary("runcrust"), &path).expect("a copy of the built runcrust");
        let hook = binary("crust-mount-hook");
        let mut handler = Self::at(path, hook, dir, delegate, extra);
        handler.home = Some(cleanup);
        handler
    }

    /// One whose programs are files of its own, in one directory, as packages install them.
    pub fn installed(dir: &TestDir, delegate: Delegate, version: Version, extra: &str) -> Self {
        let (name, home, cleanup) = home();
        let (path, hook) = (home.join(&name), home.join("crust-mount-hook"));
        let mut handler = Self::at(path, hook, dir, delegate, extra);
        handler.home = Some(cleanup);
        handler.install(version);
        handler
    }

    /// Replaces each program of [`Self::installed`] as packages do: by a new file under its name.
    pub fn install(&self, version: Version) {
        for (program, at) in [("runcrust", &self.path), ("crust-mount-hook", &self.hook)] {
            replace(&version.program(program), at);
        }
    }

    /// The same with `crust_ops`, for tests that run it; where it is.
    pub fn install_ops(&self, version: Version) -> PathBuf {
        let at = self.path.with_file_name("crust_ops");
        replace(&version.program("crust_ops"), &at);
        at
    }

    fn at(path: PathBuf, hook: PathBuf, dir: &TestDir, delegate: Delegate, extra: &str) -> Self {
        let name = path.file_name().and_then(OsStr::to_str);
        let name = name.expect("a program's name").to_owned();
        let configuration = Path::new(CONFIGURATIONS).join(format!("{name}.toml"));
        let handler = Self {
            name,
            path,
            hook,
            base: dir.path().to_owned(),
            delegate,
            home: None,
            _cleanup: Cleanup::register(move || remove(&configuration)),
        };
        handler.reconfigure(extra);
        handler
    }

    /// Writes the configuration anew, with other extra lines.
    pub fn reconfigure(&self, extra: &str) {
        let text = format!(
            "delegate = {:?}\nhook = {:?}\ncrust_root = {:?}\nstate_dir = {:?}\nkubelet_dirs = [{:?}]\n{extra}\n",
            self.delegate.program(),
            self.hook,
            self.crust_root(),
            self.state_dir(),
            self.kubelet_dir(),
        );
        write(&self.configuration(), &text);
    }

    /// Replaces the delegate in its configuration with another program.
    pub fn set_delegate(&self, program: &Path) {
        let file = self.configuration();
        let text = fs::read_to_string(&file).expect("the configuration");
        let lines = text.lines().filter(|line| !line.starts_with("delegate "));
        let rest: Vec<&str> = lines.collect();
        write(
            &file,
            &format!("delegate = {program:?}\n{}\n", rest.join("\n")),
        );
    }

    /// The program: a link to the built runcrust.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The name it is called by.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its configuration file.
    pub fn configuration(&self) -> PathBuf {
        Path::new(CONFIGURATIONS).join(format!("{}.toml", self.name))
    }

    /// The delegate in its configuration.
    pub fn delegate(&self) -> Delegate {
        self.delegate
    }

    /// It, as a runtime.
    pub fn runtime(&self) -> Runtime {
        Runtime::at(&self.path, self.delegate)
    }

    /// `crust_root`.
    pub fn crust_root(&self) -> PathBuf {
        self.base.join("crust")
    }

    /// `state_dir`.
    pub fn state_dir(&self) -> PathBuf {
        self.base.join("run")
    }

    /// The only one of `kubelet_dirs`.
    pub fn kubelet_dir(&self) -> PathBuf {
        self.base.join("kubelet")
    }

    /// A CSI volume's target path for a pod, as kubelet names it. Nothing is made.
    pub fn target_path(&self, pod_uid: &str, volume: &str) -> PathBuf {
        self.kubelet_dir()
            .join("pods")
            .join(pod_uid)
            .join("volumes/kubernetes.io~csi")
            .join(volume)
            .join("mount")
    }

    /// A command of it, without arguments, in containerd's environment.
    pub fn command(&self) -> Command {
        self.runtime().command()
    }

    /// Runs `<handler> crust <arguments>`.
    pub fn crust(&self, arguments: &[&str]) -> Run {
        Run::of(self.command().arg("crust").args(arguments))
    }
}

/// A handler's name, and a directory of its own where only root can change anything.
fn home() -> (String, PathBuf, Cleanup) {
    let name = unique("runcrust");
    // Not /run: programs there may not be run (noexec).
    let home = PathBuf::from("/var/lib").join(unique("runcrust-tests"));
    let owned = home.clone();
    let cleanup = Cleanup::register(move || remove_directory(&owned));
    fs::create_dir(&home).expect("a directory in /var/lib");
    (name, home, cleanup)
}

fn replace(program: &Path, at: &Path) {
    let beside = at.with_extension("new");
    fs::copy(program, &beside).unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    fs::rename(&beside, at).expect("a program in another's place");
}

/// A built program: from `RUNCRUST_BIN_DIR`, or else from the workspace's last release build.
pub fn binary(name: &str) -> PathBuf {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
    let directories = match std::env::var_os("RUNCRUST_BIN_DIR") {
        Some(directory) => vec![PathBuf::from(directory)],
        None => vec![
            target.join("x86_64-unknown-linux-musl/release"),
            target.join("release"),
        ],
    };
    let found = directories
        .iter()
        .find_map(|directory| directory.join(name).canonicalize().ok());
    found.unwrap_or_else(|| {
        panic!("no {name} in {directories:?}: run `make build`, or set RUNCRUST_BIN_DIR")
    })
}

/// Another test may just have removed the directory, as the last one to leave.
fn write(file: &Path, text: &str) {
    let _operation = OperationGuard::begin();
    for _ in 0..100 {
        fs::create_dir_all(CONFIGURATIONS).expect("mkdir /etc/runcrust");
        match fs::write(file, text) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            result => return result.unwrap_or_else(|error| panic!("{}: {error}", file.display())),
        }
    }
    panic!(
        "{}: its directory is removed again and again",
        file.display()
    );
}

fn remove(configuration: &Path) -> Vec<String> {
    let result = fs::remove_file(configuration);
    // Only when it is empty.
    let _ = fs::remove_dir(CONFIGURATIONS);
    match result {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            vec![format!("rm {}: {error}", configuration.display())]
        }
        _ => Vec::new(),
    }
}

fn remove_directory(directory: &Path) -> Vec<String> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            vec![format!("{}: {error}", directory.display())]
        }
        _ => Vec::new(),
    }
}
