//! The C programs in `programs/`, which rows use for measurements or as comparisons. They are built before they are
//! used.

use std::path::{Path, PathBuf};
use std::process::Command;

use runcrust_tests::{Run, TestDir};

/// The source of a C program in `programs/`.
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

/// Execs the delegate, as [`PASSTHROUGH`] does, after checking the files that a wrapper for root has to check.
pub(crate) const CHECKED: Program = program!("checked");
/// Reads or writes a file and prints the time.
pub(crate) const IO: Program = program!("io");
/// Mounts a device, and ends.
pub(crate) const MOUNT: Program = program!("mount");
/// A delegate that does nothing.
pub(crate) const NOOP: Program = program!("noop");
/// Execs the delegate and does nothing else.
pub(crate) const PASSTHROUGH: Program = program!("passthrough");
/// Prints how much memory a program has used when it execs another one.
pub(crate) const PEAK: Program = program!("peak");
/// Replaces a file by a copy.
pub(crate) const REWRITE: Program = program!("rewrite");
/// Starts programs and prints their times.
pub(crate) const STARTER: Program = program!("starter");
/// Removes loop devices without a file.
pub(crate) const UNLOOP: Program = program!("unloop");

impl Program {
    /// Builds the program statically and returns its path.
    #[track_caller]
    pub(crate) fn build(self, dir: &TestDir) -> PathBuf {
        self.build_with(dir, &[])
    }

    /// Builds the program with macros that name these files.
    #[track_caller]
    pub(crate) fn build_with(self, dir: &TestDir, files: &[(&str, &Path)]) -> PathBuf {
        let source = dir.join(format!("{}.c", self.name));
        let program = dir.join(self.name);
        std::fs::write(&source, self.text).expect("a program's text");
        // musl, as runcrust uses it. A static glibc executes CPUID at each start, and in a virtual machine each of
        // these traps to the hypervisor, so such a pass-through would be slower than runcrust.
        let mut gcc = Command::new("musl-gcc");
        gcc.args(["-static", "-O2", "-Wall", "-Werror", "-o"])
            .arg(&program);
        let define = |(name, file): &(&str, &Path)| format!("-D{name}=\"{}\"", file.display());
        gcc.args(files.iter().map(define)).arg(&source);
        let _ = Run::capture(&mut gcc).success();
        program
    }
}
