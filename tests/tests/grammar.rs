//! The tables of `src/invocation/observed/`, against the programs that they are about.

use std::fmt::Write as _;

use runcrust_tests::grammar::{Row, Table, every_row, observe_delegate, observe_runcrust, version};
use runcrust_tests::on_each_delegate;

/// Fails with the rows for which `wrong` holds, and what was seen instead.
#[track_caller]
fn none_is(rows: &[Row], seen: &[String], wrong: impl Fn(&Row, &str) -> bool) {
    assert_eq!(rows.len(), seen.len());
    let mut found = String::new();
    for (row, seen) in rows.iter().zip(seen).filter(|(row, seen)| wrong(row, seen)) {
        let _ = write!(found, "\n{row:?}\n    but: {seen}");
    }
    assert!(found.is_empty(), "{found}");
}

fn arguments(table: &Table) -> Vec<Vec<String>> {
    assert!(table.rows.len() > 300, "{} rows", table.rows.len());
    table.rows.iter().map(|row| row.arguments.clone()).collect()
}

on_each_delegate! {
    /// Whatever it is: a youki in runc's place too, of which there is no table.
    fn the_delegate_opens_what_runcrust_opens_or_nothing(delegate: Delegate) {
        let rows = every_row(delegate);
        let theirs = observe_delegate(delegate, &rows);
        let ours = observe_runcrust(delegate, &rows);
        let opened = |outcomes: &[String]| outcomes.iter().filter(|outcome| outcome.contains("config.json")).count();
        assert!(2 * opened(&theirs) > opened(&ours), "the delegate opens next to none: {theirs:?}");
        let rows = rows.into_iter().zip(&theirs).zip(ours);
        let rows = rows.map(|((arguments, delegate), runcrust)| Row { arguments, delegate: delegate.clone(), runcrust });
        none_is(&rows.collect::<Vec<_>>(), &theirs, |row, seen| !row.sees(seen));
    }

    /// Whatever version it is.
    fn the_delegate_opens_no_configuration_that_runcrust_overlooks(delegate: Delegate) {
        let table = Table::of(delegate);
        let seen = observe_delegate(delegate, &arguments(&table));
        none_is(&table.rows, &seen, |row, seen| !row.sees(seen));
        if table.version == version(delegate) {
            none_is(&table.rows, &seen, |row, seen| row.delegate != seen);
        }
    }

    fn runcrust_does_with_every_row_what_the_table_says(delegate: Delegate) {
        let table = Table::of(delegate);
        let seen = observe_runcrust(delegate, &arguments(&table));
        none_is(&table.rows, &seen, |row, seen| row.runcrust != seen);
    }
}
