//! What the tests of all engines ask for.

use crate::entry::{Unwanted, Wanted};

pub(crate) const PROGRAM: &str = "/usr/local/bin/runcrust";

pub(crate) const WANTED: Wanted<'_> = Wanted {
    handler: "crust",
    program: PROGRAM,
    is_crun: false,
    systemd_cgroup: None,
};

pub(crate) const UNWANTED: Unwanted<'_> = Unwanted {
    handler: "crust",
    program: None,
};
