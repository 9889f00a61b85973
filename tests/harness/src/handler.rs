//! A private installation of runcrust.

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

/// An installed runcrust with its own name and configuration. The product reads `/etc/runcrust/<name it was called
/// by>.toml`, which this writes and removes on drop.
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

/// The build that a program is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// The build in `RUNCRUST_OLD_BIN_DIR`, or the build under test if that is not set.
    Old,
    /// The build under test.
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
    /// Installs a handler whose crust directory, state directory and kubelet directory are in `dir`. Several handlers
    /// in one `dir` share all of them. `extra` is appended to the configuration, for example `sandbox = "always"`.
    pub fn new(dir: &TestDir, delegate: Delegate, extra: &str) -> Self {
        let name = unique("runcrust");
        let path = dir.join(&name);
        symlink(binary("runcrust"), &path).expect("a link to the built runcrust");
        Self::at(path, binary("crust-mount-hook"), dir, delegate, extra)
    }

    /// Installs a handler that `crust_ops` runs if a volume's `runtime-cli` names it: a copy of the program in a
    /// directory that only root can change, which is not the case below `/tmp`.
    pub fn trusted(dir: &TestDir, delegate: Delegate, extra: &str) -> Self {
        let (name, home, cleanup) = create_home();
        let path = home.join(&name);
        fs::copy(binary("runcrust"), &path).expect("a copy of the built runcrust");
        let hook = binary("crust-mount-hook");
        let mut handler = Self::at(path, hook, dir, delegate, extra);
        handler.home = Some(cleanup);
        handler
    }

    /// Installs a handler whose programs are copies in one directory, as packages install them.
    pub fn installed(dir: &TestDir, delegate: Delegate, version: Version, extra: &str) -> Self {
        let (name, home, cleanup) = create_home();
        let (path, hook) = (home.join(&name), home.join("crust-mount-hook"));
        let mut handler = Self::at(path, hook, dir, delegate, extra);
        handler.home = Some(cleanup);
        handler.install(version);
        handler
    }

    /// Replaces each program of [`Self::installed`] as packages do: by a new file of the same name.
    pub fn install(&self, version: Version) {
        for (program, at) in [("runcrust", &self.path), ("crust-mount-hook", &self.hook)] {
            replace(&version.program(program), at);
        }
    }

    /// Installs or replaces `crust_ops` next to the programs of [`Self::installed`], and returns its path.
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

    /// Rewrites the configuration with other extra lines.
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

    /// Replaces the delegate in the configuration with another program.
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

    /// Returns the path of the program.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the name that the program is called by.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the path of the configuration file.
    pub fn configuration(&self) -> PathBuf {
        Path::new(CONFIGURATIONS).join(format!("{}.toml", self.name))
    }

    /// Returns the delegate of the original configuration.
    pub fn delegate(&self) -> Delegate {
        self.delegate
    }

    pub fn runtime(&self) -> Runtime {
        Runtime::at(&self.path, self.delegate)
    }

    /// Returns the configured `crust_root`.
    pub fn crust_root(&self) -> PathBuf {
        self.base.join("crust")
    }

    /// Returns the configured `state_dir`.
    pub fn state_dir(&self) -> PathBuf {
        self.base.join("run")
    }

    /// Returns the only configured directory of `kubelet_dirs`.
    pub fn kubelet_dir(&self) -> PathBuf {
        self.base.join("kubelet")
    }

    /// Returns the target path of a pod's CSI volume as kubelet names it, without creating it.
    pub fn target_path(&self, pod_uid: &str, volume: &str) -> PathBuf {
        self.kubelet_dir()
            .join("pods")
            .join(pod_uid)
            .join("volumes/kubernetes.io~csi")
            .join(volume)
            .join("mount")
    }

    /// Returns a command without arguments, in containerd's environment.
    pub fn command(&self) -> Command {
        self.runtime().command()
    }

    /// Runs `<handler> crust <arguments>`.
    pub fn crust(&self, arguments: &[&str]) -> Run {
        Run::capture(self.command().arg("crust").args(arguments))
    }
}

/// Creates a directory that only root can change. Returns it with a handler's name and a cleanup.
fn create_home() -> (String, PathBuf, Cleanup) {
    let name = unique("runcrust");
    // The directory is not in /run, which may be mounted noexec.
    let home = PathBuf::from("/var/lib").join(unique("runcrust-tests"));
    let owned = home.clone();
    let cleanup = Cleanup::register(move || remove_directory(&owned));
    fs::create_dir(&home).expect("a directory in /var/lib");
    (name, home, cleanup)
}

fn replace(program: &Path, at: &Path) {
    let temporary = at.with_extension("new");
    fs::copy(program, &temporary).unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    fs::rename(&temporary, at).expect("rename of a program");
}

/// Returns the path of a built program, from `RUNCRUST_BIN_DIR` or what `make test-programs` has built. Panics if it does
/// not exist.
pub fn binary(name: &str) -> PathBuf {
    let tested = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tested");
    let directory = std::env::var_os("RUNCRUST_BIN_DIR").map_or(tested, PathBuf::from);
    let program = directory.join(name).canonicalize();
    program.unwrap_or_else(|_| {
        panic!("no {name} in {directory:?}: run `make test-programs`, or set RUNCRUST_BIN_DIR")
    })
}

/// Returns the path of a program of the package under test. `built` is cargo's `CARGO_BIN_EXE_<name>`, where the program
/// was built. nextest's variable is preferred, because in the guest the program is elsewhere.
pub fn package_binary(name: &str, built: &str) -> PathBuf {
    let found = std::env::var_os(format!("NEXTEST_BIN_EXE_{name}"));
    found.map_or_else(|| built.into(), PathBuf::from)
}

/// Writes a configuration file. It retries, because another test may remove the empty directory.
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
        "{}: its directory was removed repeatedly by other tests",
        file.display()
    );
}

fn remove(configuration: &Path) -> Vec<String> {
    let result = fs::remove_file(configuration);
    // This fails unless the directory is empty.
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
