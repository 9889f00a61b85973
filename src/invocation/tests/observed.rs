//! Compares the parser with the tables in `observed/`, which record how the real delegates parse each command line.

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

use super::{CASES, Command, CreateCommand, DelegateKind, argv, lines, parse, split_arguments};
use crate::invocation::{OwnSubcommand, properties};

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

/// The arguments, the delegate's result and runcrust's result.
type Row<'a> = (&'a str, &'a str, &'a str);

fn rows(table: &str) -> impl Iterator<Item = Row<'_>> {
    lines(table).map(|line| {
        let mut columns = line.split(" | ");
        let arguments = columns.next().expect("a first column");
        let delegate = columns.next().expect("a second column");
        (arguments, delegate, columns.next().unwrap_or(delegate))
    })
}

/// Returns the config's path from a result, without the log that may follow it.
fn config_path(result: &str) -> String {
    let path = result.split(" > ").next().unwrap_or_default();
    path.trim_matches('\'').to_owned()
}

/// Returns the configs that existed when the table was written, relative to the caller's working directory.
fn existing_configs(table: &str) -> Vec<OsString> {
    let line = table
        .lines()
        .find_map(|line| line.strip_prefix("# configurations: "));
    split_arguments(line.expect("a line of configurations"))
}

/// Returns runcrust's result for the arguments: the config that it would open, `refuse`, or `-` for none.
fn runcrust_result(kind: DelegateKind, arguments: &str, existing: &[OsString]) -> String {
    let mut argv = argv(&[]);
    argv.extend(split_arguments(arguments));
    match parse(kind, &argv).command {
        Err(_) => "refuse".to_owned(),
        Ok(Command::PassThrough | Command::Own(..) | Command::Update(_)) => "-".to_owned(),
        Ok(Command::Create(create)) => opened_config(create, existing),
    }
}

fn opened_config(create: CreateCommand, existing: &[OsString]) -> String {
    let in_bundle = create.bundle.join("config.json");
    let path = normalized(&create.config.unwrap_or(in_bundle));
    let exists = |path: &Path| existing.iter().any(|file| *file == *path);
    if exists(&path) {
        path.display().to_string()
    } else if exists(&path.join("config.json")) {
        // The path is a directory, not a config.
        "refuse".to_owned()
    } else {
        "-".to_owned()
    }
}

/// Removes `.` and `..`, and the `@` that the tables have in place of the caller's working directory.
fn normalized(path: &Path) -> PathBuf {
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
fn every_row_is_parsed_like_the_delegate_or_refused() {
    for (kind, name, table) in TABLES {
        let (existing, mut wrong) = (existing_configs(table), Vec::new());
        for (arguments, delegate, runcrust) in rows(table) {
            let got = runcrust_result(kind, arguments, &existing);
            let missed = delegate != "-" && got != "refuse" && got != config_path(delegate);
            if missed || got != config_path(runcrust) {
                wrong.push(format!(
                    "{name} {arguments}\n    {delegate} | {runcrust}, got: {got}"
                ));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

/// The opposite isn't checked: the models accept command lines that the delegates reject, because they don't check
/// the values of flags.
#[test]
fn a_model_creates_every_container_that_its_delegate_creates() {
    for ((kind, name, table), version) in TABLES.into_iter().zip(["1.22.9", "1.8.1"]) {
        let existing = existing_configs(table);
        let (mut missed, mut count) = (Vec::new(), 0);
        for (arguments, delegate, _) in rows(table).filter(|(_, delegate, _)| *delegate != "-") {
            let mut argv = argv(&[]);
            argv.extend(split_arguments(arguments));
            let mut created = properties::created_by_versions(kind, &argv);
            let agrees = |(model, create): (&str, Option<CreateCommand>)| {
                let opened = create.map(|create| opened_config(create, &existing));
                model == version && opened == Some(config_path(delegate))
            };
            if !created.any(agrees) {
                missed.push(format!("{name} {arguments}: {delegate}"));
            }
            count += 1;
        }
        assert!(missed.is_empty(), "{}", missed.join("\n"));
        assert!(count > 100, "{name}: {count} rows");
    }
}

/// Every case of runc and crun in `cases.txt` was run with the installed delegate. Cases that only newer delegates
/// accept are marked `newer`.
#[test]
fn every_case_was_observed() {
    for (_, name, table) in TABLES {
        let cases = CASES.lines().filter_map(|line| line.split_once(" | "));
        for (_, case) in cases.filter(|(kind, _)| *kind == name) {
            let columns: Vec<&str> = case.split(" | ").collect();
            let is_own = OwnSubcommand::ALL
                .iter()
                .any(|own| columns[1].split(' ').next() == Some(own.name()));
            if is_own || columns[1] == "refuse" {
                continue;
            }
            let arguments = split_arguments(columns[0]);
            let row = rows(table).find(|(observed, ..)| split_arguments(observed) == arguments);
            let (_, delegate, runcrust) =
                row.unwrap_or_else(|| panic!("{name}: {case}: not observed; run `make grammar`"));
            let same = config_path(delegate) == config_path(runcrust);
            assert_eq!(columns.get(2) == Some(&"newer"), !same, "{name}: {case}");
        }
    }
}
