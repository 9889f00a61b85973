//! The sizes of the programs that are started for each container.

use std::fs;
use std::process::Command;

use runcrust_tests::{Run, binary};

use super::Row;
use crate::effort::Effort;
use crate::measure::{Measure, Target, Unit};

pub(super) const ROW: Row = Row {
    name: "binary",
    about: "the sizes of the programs; each has to be static",
    run,
};

fn run(_effort: &Effort) -> Vec<Measure> {
    let sizes = [("runcrust", 1.2), ("crust-mount-hook", 1.0)];
    sizes
        .map(|(name, most)| {
            let program = binary(name);
            let headers = Run::capture(
                Command::new("readelf")
                    .arg("--program-headers")
                    .arg(&program),
            );
            let headers = headers.success().stdout;
            assert!(!headers.contains("INTERP"), "{name} isn't static");
            let size = fs::metadata(&program).expect("a program").len() as f64 / 1e6;
            Measure::with_target(name, Unit::Size, vec![size], Target::AtMost(most))
        })
        .into()
}
