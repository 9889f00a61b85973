//! A directory with bundles that no runtime can start, and a watch that reports which of them a runtime opens.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};
use serde_json::{Map, Value};

use super::table::quoted;
use crate::{Run, Runtime, mounts};

/// The bundles, each in a directory of this name in the working directory, which is a bundle itself. Some have names
/// that only a wrong parse of a row would open.
const BUNDLES: [&str; 14] = [
    "", "A", "B", "--", "-A", "=A", "A=B", " A", "A ", "x", "create", "-b", "true", "d",
];

/// Files in the working directory that can be given as a configuration.
const FILES: [&str; 2] = ["cfg", "A/cfg"];

/// Returns all configurations, relative to the working directory.
pub(super) fn configurations() -> Vec<String> {
    let bundles = BUNDLES
        .iter()
        .map(|name| Path::new(name).join("config.json"));
    let all = bundles.chain(FILES.iter().map(PathBuf::from));
    all.map(|path| path.display().to_string()).collect()
}

/// The observed effects of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Observation {
    /// The configuration that was opened, relative to the working directory.
    pub(super) reads: Option<String>,
    /// The path and the format of the log that was written.
    log: Option<String>,
    pub(super) success: bool,
}

impl Observation {
    /// Formats the outcome for the table. A log is included only if a configuration was read, because otherwise it
    /// contains runcrust's own errors.
    pub(super) fn outcome(&self) -> String {
        match (&self.reads, &self.log) {
            (None, _) => "-".to_owned(),
            (Some(reads), None) => quoted([reads]),
            (Some(reads), Some(log)) => format!("{} > {log}", quoted([reads])),
        }
    }
}

/// The working directory of one thread.
pub(super) struct WatchedDirectory {
    base: PathBuf,
    watch: Inotify,
    directories: HashMap<WatchDescriptor, &'static str>,
}

impl WatchedDirectory {
    /// Creates the bundles, and gives the calling thread a mount namespace with an empty `/run`, so that no row can
    /// affect a container of the host.
    pub(super) fn new(base: &Path) -> Self {
        hide_run();
        let watch = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC).expect("inotify");
        let mut directories = HashMap::new();
        for name in BUNDLES {
            fs::create_dir_all(base.join(name)).expect("mkdir of a bundle");
        }
        for file in configurations() {
            fs::write(base.join(file), "no JSON").expect("a configuration");
        }
        let events = AddWatchFlags::IN_OPEN | AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO;
        for name in BUNDLES {
            let descriptor = watch.add_watch(&base.join(name), events);
            directories.insert(descriptor.expect("inotify_add_watch"), name);
        }
        Self {
            base: base.to_owned(),
            watch,
            directories,
        }
    }

    /// Calls a runtime with these arguments, in which `@` stands for the working directory. Panics if it opens two
    /// configurations or writes two logs.
    pub(super) fn run(&self, runtime: &Runtime, arguments: &[String]) -> Observation {
        let base = crate::node::utf8(&self.base);
        let mut command = runtime.command();
        command.args(arguments.iter().map(|word| word.replace('@', base)));
        // Discard the events of the cleanup after the last row.
        let _ = self.events();
        let run = Run::capture(command.current_dir(&self.base));
        let (mut opened, mut made) = (BTreeSet::new(), BTreeSet::new());
        for event in self.events() {
            let name = event.name.as_deref().and_then(|name| name.to_str());
            let Some(name) = name else { continue };
            let path = Path::new(self.directories[&event.wd]).join(name);
            let is_new = AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO;
            if event.mask.intersects(is_new) {
                made.insert(path);
            } else if !event.mask.contains(AddWatchFlags::IN_ISDIR) {
                opened.insert(path);
            }
        }
        let mut reads = opened.difference(&made);
        let mut logs: Vec<String> = Vec::new();
        for path in &made {
            logs.extend(self.log(path));
            self.remove(path);
        }
        let seen = Observation {
            reads: reads.next().map(|path| path.display().to_string()),
            log: logs.pop(),
            success: run.status.success(),
        };
        assert!(
            reads.next().is_none() && logs.is_empty(),
            "{opened:?}: {run}"
        );
        seen
    }

    fn events(&self) -> Vec<InotifyEvent> {
        let mut all = Vec::new();
        while let Ok(events) = self.watch.read_events() {
            all.extend(events);
        }
        all
    }

    /// Returns the name of a log file and the format of its content; `None` for a directory.
    fn log(&self, path: &Path) -> Option<String> {
        let text = fs::read_to_string(self.base.join(path)).ok()?;
        // crun 1.28 writes its objects over several lines.
        let first = serde_json::Deserializer::from_str(&text)
            .into_iter::<Map<String, Value>>()
            .next();
        let is_json = matches!(first, Some(Ok(_)));
        let form = match text.lines().next() {
            None => "empty",
            Some(_) if is_json => "json",
            Some(line) if line.starts_with("time=") => "logrus",
            Some(_) => "plain",
        };
        Some(format!("{} {form}", path.display()))
    }

    fn remove(&self, path: &Path) {
        let path = self.base.join(path);
        let removed = fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path));
        removed.unwrap_or_else(|error| panic!("rm {}: {error}", path.display()));
    }
}

fn hide_run() {
    mounts::unshare_mounts();
    mounts::tmpfs(Path::new("/run"));
}
