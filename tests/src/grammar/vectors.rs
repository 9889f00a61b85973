//! The command lines that are tried: every spelling in every position, the cases of runcrust's parser tests, and random
//! ones.

use std::collections::HashSet;

use super::spellings::{
    BUNDLES, CLUSTERS, CONFIGURATIONS, FRAMES, FRONTS, OTHERS, REPEATED, TOKENS,
};
use super::table::words;
use super::{grammar_name, options};
use crate::Delegate;
use crate::random::Random;

/// Rows with a common title.
#[derive(Debug, Clone)]
pub struct Section {
    pub title: String,
    /// The arguments of each row.
    pub rows: Vec<Vec<String>>,
}

/// The number of command lines that are built from the spellings and positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// A few hundred, for the committed tables: each spelling in the positions that distinguish different parsers, and
    /// each position with the plainest spellings.
    Table,
    /// Every spelling in every position, and random rows. A test compares them with the programs themselves.
    Product,
}

impl Extent {
    /// Returns the positions to try. The first `few` distinguish most parsers.
    fn positions<T>(self, all: &[T], few: usize) -> &[T] {
        match self {
            Self::Table => &all[..few],
            Self::Product => all,
        }
    }
}

const CASES: &str = include_str!("../../../src/invocation/cases.txt");

const VERBS: [&str; 3] = ["create", "run", "restore"];

/// The number of random rows for each beginning.
const RANDOM_ROWS: usize = 150;

/// Returns the rows for a delegate. The delegate's help lists its options.
pub fn sections(delegate: Delegate, extent: Extent) -> Vec<Section> {
    let mut sections = vec![
        section("the cases of src/invocation/cases.txt", case_rows(delegate)),
        section(
            "every spelling of a bundle, and every place",
            bundle_rows(extent),
        ),
        section("more than one bundle", verb_rows(&REPEATED, extent)),
        section("another configuration", verb_rows(&CONFIGURATIONS, extent)),
    ];
    let mut known = HashSet::new();
    for verb in VERBS {
        let mut options = options::from_help(delegate, Some(verb));
        // All verbs parse an option in the same way.
        options.retain(|option| known.insert(option.clone()) || extent == Extent::Product);
        let rows = options
            .iter()
            .flat_map(|option| option_rows(verb, option, extent));
        sections.push(section(&format!("the options of {verb}"), rows.collect()));
    }
    let globals = options::from_help(delegate, None).into_iter();
    let globals = globals.flat_map(|option| global_option_rows(&option, extent));
    sections.push(section("the global options", globals.collect()));
    sections.push(section("before the subcommand", front_rows(extent)));
    if delegate == Delegate::Crun {
        let clusters = CLUSTERS.iter().map(|row| words(row)).collect();
        sections.push(section("joined short options", clusters));
        let abbreviations = abbreviations(delegate, extent);
        sections.push(section("options cut short", abbreviations));
    }
    sections.push(section("other subcommands", other_subcommand_rows(extent)));
    if extent == Extent::Product {
        sections.push(section("at random", random_rows()));
    }
    remove_duplicates(&mut sections);
    sections
}

fn section(title: &str, rows: Vec<Vec<String>>) -> Section {
    Section {
        title: title.to_owned(),
        rows,
    }
}

/// Returns the rows of runcrust's own cases for the program in a delegate's place. Cases that only newer delegates
/// accept are included, because the installed one has its own error for them.
fn case_rows(delegate: Delegate) -> Vec<Vec<String>> {
    let name_column = format!("{} | ", grammar_name(delegate));
    let lines = CASES
        .lines()
        .filter_map(|line| line.strip_prefix(&name_column));
    let rows = lines.map(|line| line.split(" | ").collect::<Vec<_>>());
    // runcrust's own subcommands never reach a delegate, and would change this host.
    let own_subcommands = ["crust ", "install ", "uninstall "];
    let rows = rows.filter(|columns| {
        !own_subcommands
            .iter()
            .any(|word| columns[1].starts_with(word))
    });
    rows.map(|columns| words(columns[0])).collect()
}

fn bundle_rows(extent: Extent) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for (at, bundle) in BUNDLES.iter().enumerate() {
        // The plainest spellings are tried in every position.
        let extent = if at < 2 { Extent::Product } else { extent };
        for frame in extent.positions(&FRAMES, 2) {
            rows.push(words(&format!("create {}", frame.replace("{}", bundle))));
        }
        for start in extent.positions(&["restore", "run", "run -d", "restore --image-path i"], 1) {
            rows.push(words(&format!("{start} {bundle} x")));
        }
    }
    rows
}

fn verb_rows(ends: &[&str], extent: Extent) -> Vec<Vec<String>> {
    let verbs = extent.positions(&VERBS, 2).iter();
    let rows = verbs.flat_map(|verb| ends.iter().map(move |end| words(&format!("{verb} {end}"))));
    rows.collect()
}

fn option_rows(verb: &str, option: &str, extent: Extent) -> Vec<Vec<String>> {
    let frames = [
        "{} -b A x",
        "{} v -b A x",
        "{}=v -b A x",
        "-b A x {}",
        "{}=true -b A x",
        "{}=false -b A x",
        "{}= -b A x",
        "-b A {} x",
        "-b A {} 1 x",
        "-b A x {} v",
        "-b A {} -- x",
    ];
    let frames = extent.positions(&frames, 4).iter();
    let rows = frames.map(|frame| words(&format!("{verb} {}", frame.replace("{}", option))));
    rows.collect()
}

fn global_option_rows(option: &str, extent: Extent) -> Vec<Vec<String>> {
    let frames = [
        "{} create -b A x",
        "{} v create -b A x",
        "{}=v create -b A x",
        "create {} -b A x",
        "{} state x",
        "{}=true create -b A x",
        "{}=false create -b A x",
        "{} create create -b A x",
        "{} -- create -b A x",
        "create {}=v -b A x",
        "create -b A x {} v",
        "{} v state x",
        "{}",
    ];
    let frames = extent.positions(&frames, 5).iter();
    let rows = frames.map(|frame| words(&frame.replace("{}", option)));
    rows.collect()
}

fn front_rows(extent: Extent) -> Vec<Vec<String>> {
    let ends = [
        "create -b A x",
        "run -b A x",
        "create x",
        "state x",
        "create --frob -b A x",
    ];
    let ends = extent.positions(&ends, 1).iter();
    let rows = ends.flat_map(|end| {
        FRONTS
            .iter()
            .map(move |front| words(&format!("{front} {end}")))
    });
    rows.collect()
}

/// Returns each abbreviation of each long option, before and after the subcommand. A table has only those at which the
/// number of matching options changes.
fn abbreviations(delegate: Delegate, extent: Extent) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for (verb, frames) in [
        (None, ["{} v create -b A x", "{} create -b A x"]),
        (Some("create"), ["create {} v -b A x", "create {} -b A x"]),
    ] {
        let options = options::from_help(delegate, verb);
        let fit = |start: &str| options.iter().filter(|it| it.starts_with(start)).count();
        for option in &options {
            // From two dashes and one letter to all but the last letter.
            for length in 3..option.len() {
                let short = &option[..length];
                let changes = length == 3 || fit(short) != fit(&option[..length - 1]);
                if changes || extent == Extent::Product {
                    let frames = extent.positions(&frames, 1).iter();
                    rows.extend(frames.map(|frame| words(&frame.replace("{}", short))));
                }
            }
        }
    }
    rows
}

fn other_subcommand_rows(extent: Extent) -> Vec<Vec<String>> {
    let frames = [
        "{} -b A x",
        "{} create",
        "{} --bundle=A x",
        "{} create -b A x",
        "--debug {} x",
    ];
    let frames = extent.positions(&frames, 2);
    let words_and_frames = words(OTHERS).into_iter().flat_map(|word| {
        let rows = frames
            .iter()
            .map(move |frame| words(&frame.replace("{}", &word)));
        rows.collect::<Vec<_>>()
    });
    words_and_frames.collect()
}

fn random_rows() -> Vec<Vec<String>> {
    let (mut random, tokens) = (Random::new(2857), words(TOKENS));
    let mut rows = Vec::new();
    for (start, end) in [("create", ""), ("run", ""), ("", "create -b A x")] {
        for _ in 0..RANDOM_ROWS {
            let count = 1 + random.below(5);
            let some = (0..count).map(|_| random.pick(&tokens).clone());
            rows.push([words(start), some.collect(), words(end)].concat());
        }
    }
    rows
}

/// Removes rows that an earlier section contains.
fn remove_duplicates(sections: &mut [Section]) {
    let mut known = HashSet::new();
    for section in sections {
        section.rows.retain(|row| known.insert(row.clone()));
    }
}
