//! The C programs that a row measures by, or against: `programs/`, built where they are used.

use std::path::{Path, PathBuf};
use std::process::Command;

use runcrust_tests::{Run, TestDir};

/// One of `programs/`, by its name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Program {
    name: &'static str,
    text: &'static str,
}

macro_rules! program {
    ($name:literal) => {
        Program {
            name: $name,
            text: include_str!(concat!("../programs/", $name, ".c")),
        }
    };
}

/// It becomes the delegate, as [`PASSTHROUGH`] does, after looking at what a wrapper of root's has to look at.
pub(crate) const CHECKED: Program = program!("checked");
/// It reads or writes a file and takes the time.
pub(crate) const IO: Program = program!("io");
/// It mounts a device, and ends.
pub(crate) const MOUNT: Program = program!("mount");
/// A delegate that does nothing.
pub(crate) const NOOP: Program = program!("noop");
/// It becomes the delegate, and does nothing else.
pub(crate) const PASSTHROUGH: Program = program!("passthrough");
/// It prints how much memory a program had when it became another.
pub(crate) const PEAK: Program = program!("peak");
/// It writes a file anew.
pub(crate) const REWRITE: Program = program!("rewrite");
/// It starts programs and takes the time.
pub(crate) const STARTER: Program = program!("starter");
/// It takes idle loop devices off the machine.
pub(crate) const UNLOOP: Program = program!("unloop");

impl Program {
    /// Builds it, static; where it is.
    #[track_caller]
    pub(crate) fn build(self, dir: &TestDir) -> PathBuf {
        self.build_with(dir, &[])
    }

    /// The same with files by these names.
    #[track_caller]
    pub(crate) fn build_with(self, dir: &TestDir, files: &[(&str, &Path)]) -> PathBuf {
        let source = dir.join(format!("{}.c", self.name));
        let program = dir.join(self.name);
        std::fs::write(&source, self.text).expect("a program's text");
        // By musl, as ours: a static glibc asks the processor what it is at each start, and where that is a
        // virtual machine's, each question goes to the hypervisor. Such a pass-through is slower than runcrust.
        let mut gcc = Command::new("musl-gcc");
        gcc.args(["-static", "-O2", "-Wall", "-Werror", "-o"])
            .arg(&program);
        let define = |(name, file): &(&str, &Path)| format!("-D{name}=\"{}\"", file.display());
        gcc.args(files.iter().map(define)).arg(&source);
        let _ = Run::of(&mut gcc).success();
        program
    }
}
