//! `docs/testing.md` describes every suite in the words of its source.

use std::env;
use std::fs;
use std::path::Path;

use crate::document;

#[test]
fn the_table_of_suites_has_the_first_sentences_of_the_sources() {
    let package = env::var_os("CARGO_MANIFEST_DIR").unwrap();
    let entries = fs::read_dir(Path::new(&package).join("tests")).unwrap();
    let suites = entries.map(|entry| entry.unwrap().path());
    let expected: Vec<String> = suites.map(|suite| row(&suite)).collect();
    let page = document("docs/testing.md");
    let (_, table) = page.split_once("\n## Suites\n").unwrap();
    let (_, table) = table.split_once("|---|---|\n").unwrap();
    let (table, _) = table.split_once("\n\n").unwrap();
    let rows: Vec<&str> = table.lines().collect();
    for row in &expected {
        let is_shown = rows.contains(&row.as_str());
        assert!(is_shown, "docs/testing.md lacks the row: {row}");
    }
    assert_eq!(rows.len(), expected.len());
}

/// Returns the row of a suite: its name, and the first sentence of its documentation without the full stop.
fn row(suite: &Path) -> String {
    let source = if suite.is_dir() {
        suite.join("main.rs")
    } else {
        suite.to_path_buf()
    };
    let source = fs::read_to_string(source).unwrap();
    let lines = source.lines().map_while(|line| line.strip_prefix("//! "));
    let text = lines.collect::<Vec<_>>().join(" ");
    let sentence = text.split(". ").next().unwrap().trim_end_matches('.');
    let name = suite.file_stem().unwrap().to_str().unwrap();
    format!("| `{name}` | {sentence} |")
}
