//! Compares the tables in `src/invocation/observed/` with the programs that they describe.

use std::fmt::Write as _;

use runcrust_tests::grammar::{Row, Table, every_row, observe_delegate, observe_runcrust, version};
use runcrust_tests::on_each_delegate;

/// Fails with the rows for which `is_wrong` holds, and with what was observed.
#[track_caller]
fn assert_no_row(rows: &[Row], seen: &[String], is_wrong: impl Fn(&Row, &str) -> bool) {
    assert_eq!(rows.len(), seen.len());
    let mut found = String::new();
    for (row, seen) in rows
        .iter()
        .zip(seen)
        .filter(|(row, seen)| is_wrong(row, seen))
    {
        let _ = write!(found, "\n{row:?}\n    but observed: {seen}");
    }
    assert!(found.is_empty(), "{found}");
}

fn arguments(table: &Table) -> Vec<Vec<String>> {
    assert!(table.rows.len() > 300, "{} rows", table.rows.len());
    table.rows.iter().map(|row| row.arguments.clone()).collect()
}

on_each_delegate! {
    /// This holds for every delegate, also for a youki in runc's place, for which no table exists.
    fn the_delegate_opens_what_runcrust_opens_or_nothing(delegate: Delegate) {
        let rows = every_row(delegate);
        let theirs = observe_delegate(delegate, &rows);
        let ours = observe_runcrust(delegate, &rows);
        let opened = |outcomes: &[String]| outcomes.iter().filter(|outcome| outcome.contains("config.json")).count();
        assert!(2 * opened(&theirs) > opened(&ours), "the delegate opens too few configs: {theirs:?}");
        let rows = rows.into_iter().zip(&theirs).zip(ours);
        let rows = rows.map(|((arguments, delegate), runcrust)| Row { arguments, delegate: delegate.clone(), runcrust });
        assert_no_row(&rows.collect::<Vec<_>>(), &theirs, |row, seen| !row.agrees_with(seen));
    }

    /// This holds for every version of the delegate.
    fn the_delegate_opens_no_config_that_runcrust_misses(delegate: Delegate) {
        let table = Table::for_delegate(delegate);
        let seen = observe_delegate(delegate, &arguments(&table));
        assert_no_row(&table.rows, &seen, |row, seen| !row.agrees_with(seen));
        if table.version == version(delegate) {
            assert_no_row(&table.rows, &seen, |row, seen| row.delegate != seen);
        }
    }

    fn runcrust_matches_every_row_of_the_table(delegate: Delegate) {
        let table = Table::for_delegate(delegate);
        let seen = observe_runcrust(delegate, &arguments(&table));
        assert_no_row(&table.rows, &seen, |row, seen| row.runcrust != seen);
    }
}
