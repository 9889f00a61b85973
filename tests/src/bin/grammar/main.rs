//! `make grammar`: records how the installed runc and crun parse their command lines.

use std::fs;

use runcrust_tests::grammar::Extent;
use runcrust_tests::{Delegate, grammar};

fn main() {
    for delegate in [Delegate::Runc, Delegate::Crun] {
        let sections = grammar::sections(delegate, Extent::Table);
        let rows = sections.iter().flat_map(|section| section.rows.clone());
        let rows: Vec<Vec<String>> = rows.collect();
        let delegate_outcomes = grammar::observe_delegate(delegate, &rows);
        let runcrust_outcomes = grammar::observe_runcrust(delegate, &rows);
        let text = grammar::text(delegate, &sections, &delegate_outcomes, &runcrust_outcomes);
        fs::write(grammar::path(delegate), text).expect("write a table");
        println!("{}: {} rows", grammar::version(delegate), rows.len());
    }
}
