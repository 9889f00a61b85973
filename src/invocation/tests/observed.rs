//! The tables of `observed/`: what the real delegates do with a row of arguments, and what is made
//! of it here.

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

use super::{CASES, Command, DelegateKind, Start, argv, lines, parse, words};
use crate::invocation::{OwnVerb, properties};

pub(super) const TABLES: [(DelegateKind, &str, &str); 2] = [
    (
        DelegateKind::Runc,
        "runc",
        include_str!("../observed/runc.txt"),
    ),
    (
        DelegateKind::Crun,
        "crun",
        include_str!("../observed/crun.txt"),
    ),
];

/// Arguments, what the delegate does, what runcrust does.
type Row<'a> = (&'a str, &'a str, &'a str);

fn rows(table: &str) -> impl Iterator<Item = Row<'_>> {
    lines(table).map(|line| {
        let mut columns = line.split(" | ");
        let arguments = columns.next().expect("a first column");
        let delegate = columns.next().expect("a second column");
        (arguments, delegate, columns.next().unwrap_or(delegate))
    })
}

/// The configuration alone; its log is `report`'s.
fn configuration(outcome: &str) -> String {
    let path = outcome.split(" > ").next().unwrap_or_default();
    path.trim_matches('\'').to_owned()
}

/// The configurations that there were, relative to the caller's directory.
fn configurations(table: &str) -> Vec<OsString> {
    let line = table
        .lines()
        .find_map(|line| line.strip_prefix("# configurations: "));
    words(line.expect("a line of configurations"))
}

/// Which of them would be read. The caller's directory is `@` where a path is absolute.
fn read_by(kind: DelegateKind, arguments: &str, there_are: &[OsString]) -> String {
    let mut argv = argv(&[]);
    argv.extend(words(arguments));
    match parse(kind, &argv).command {
        Err(_) => "refuse".to_owned(),
        Ok(Command::PassOn | Command::Own(..) | Command::Update(_)) => "-".to_owned(),
        Ok(Command::Start(start)) => read_to(start, there_are),
    }
}

fn read_to(start: Start, there_are: &[OsString]) -> String {
    let bundles = start.bundle.join("config.json");
    let path = plain(&start.config.unwrap_or(bundles));
    let is_there = |path: &Path| there_are.iter().any(|file| *file == *path);
    if is_there(&path) {
        path.display().to_string()
    } else if is_there(&path.join("config.json")) {
        // A directory is no configuration.
        "refuse".to_owned()
    } else {
        "-".to_owned()
    }
}

fn plain(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for component in path.strip_prefix("@").unwrap_or(path).components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                out.pop();
            }
            other => out.push(other),
        }
    }
    out
}

#[test]
fn every_row_is_read_as_the_delegate_reads_it_or_refused() {
    for (kind, name, table) in TABLES {
        let (there_are, mut wrong) = (configurations(table), Vec::new());
        for (arguments, delegate, runcrust) in rows(table) {
            let got = read_by(kind, arguments, &there_are);
            let overlooked = delegate != "-" && got != "refuse" && got != configuration(delegate);
            if overlooked || got != configuration(runcrust) {
                wrong.push(format!(
                    "{name} {arguments}\n    {delegate} | {runcrust}, got: {got}"
                ));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

/// The models start more than the delegates do, of which the tables are: values are no matter
/// to them.
#[test]
fn what_a_delegate_reads_its_model_reads_too() {
    for ((kind, name, table), version) in TABLES.into_iter().zip(["1.22.9", "1.8.1"]) {
        let there_are = configurations(table);
        let (mut overlooked, mut count) = (Vec::new(), 0);
        for (arguments, delegate, _) in rows(table).filter(|(_, delegate, _)| *delegate != "-") {
            let mut argv = argv(&[]);
            argv.extend(words(arguments));
            let mut started = properties::started(kind, &argv);
            let does_so = |(of, start): (&str, Option<Start>)| {
                let read = start.map(|start| read_to(start, &there_are));
                of == version && read == Some(configuration(delegate))
            };
            if !started.any(does_so) {
                overlooked.push(format!("{name} {arguments}: {delegate}"));
            }
            count += 1;
        }
        assert!(overlooked.is_empty(), "{}", overlooked.join("\n"));
        assert!(count > 100, "{name}: {count} rows");
    }
}

/// What the table of cases says of a delegate was seen, or is of a newer one.
#[test]
fn every_case_was_seen() {
    for (_, name, table) in TABLES {
        let cases = CASES.lines().filter_map(|line| line.split_once(" | "));
        for (_, case) in cases.filter(|(kind, _)| *kind == name) {
            let columns: Vec<&str> = case.split(" | ").collect();
            let is_own = OwnVerb::ALL
                .iter()
                .any(|own| columns[1].split(' ').next() == Some(own.name()));
            if is_own || columns[1] == "refuse" {
                continue;
            }
            let row = rows(table).find(|(arguments, ..)| words(arguments) == words(columns[0]));
            let (_, delegate, runcrust) =
                row.unwrap_or_else(|| panic!("{name}: {case}: not seen; run `make grammar`"));
            let same = configuration(delegate) == configuration(runcrust);
            assert_eq!(columns.get(2) == Some(&"newer"), !same, "{name}: {case}");
        }
    }
}
