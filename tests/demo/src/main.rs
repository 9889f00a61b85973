//! `make demo`: a deferred volume from end to end, without Kubernetes: with runc and with crun, through the runtime's
//! command line and through a private containerd's CRI. All programs are real. Everything is removed at the end, also
//! if the demo is interrupted.

mod command_line;
mod cri;
mod transcript;

use std::panic::{catch_unwind, resume_unwind};
use std::process::Command;
use std::time::Instant;

use runcrust_harness::{Delegate, Run, cleanup};

use crate::transcript::Transcript;

fn main() {
    cleanup::announce_interruption("Interrupted. The demo removes what it created.");
    if let Err(panic) = catch_unwind(show) {
        cleanup::end_if_interrupted();
        resume_unwind(panic);
    }
}

fn show() {
    let start = Instant::now();
    let out = Transcript::new();
    println!(
        "runcrust mounts a pod's CSI volume inside the pod's sandbox, not on the host. This demo uses\n\
         a disk image of its own, and removes everything at the end, also after Ctrl-C.",
    );
    println!("It uses {}.", engines().join(", "));

    out.title("One volume, two containers, nothing on the host");
    command_line::show(Delegate::Runc, Transcript::new());
    out.title("The same pod in Kubernetes' way: containerd's CRI, with the handler `crust`");
    cri::show(Delegate::Runc, Transcript::new());
    out.title("The same steps with crun instead of runc, checked without showing their results");
    command_line::show(Delegate::Crun, Transcript::brief());
    cri::show(Delegate::Crun, Transcript::brief());

    out.title(&format!(
        "Done in {} s, and everything is removed",
        start.elapsed().as_secs()
    ));
    println!(
        "What to try next:\n\
         \n\
         \x20 make test TEST=subpath          the tests of subPath; builds everything first, in minutes\n\
         \x20 make install                    then: runcrust install containerd --dry-run\n\
         \x20 docs/crustlet.md                pods, claims and a CSI driver on this machine, without Kubernetes\n\
         \x20 docs/operators.md               runcrust on your nodes",
    );
}

/// Returns the names and versions of the programs that the demo runs.
fn engines() -> Vec<String> {
    let version = |program: &str, place: usize| {
        let shown = Run::capture(Command::new(program).arg("--version"))
            .success()
            .stdout;
        let words = shown.lines().next().unwrap_or_default();
        let word = words.split_whitespace().nth(place).unwrap_or_default();
        format!("{program} {}", word.trim_start_matches('v'))
    };
    let kernel = Run::capture(Command::new("uname").arg("-r"))
        .success()
        .stdout;
    vec![
        version("runc", 2),
        version("crun", 2),
        version("containerd", 2),
        format!("Linux {}", kernel.trim()),
    ]
}
