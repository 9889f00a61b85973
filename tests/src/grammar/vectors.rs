//! Which rows are run: systematically, every spelling of what matters in every place; those of
//! runcrust's own cases; and some at random.

use super::spellings::{
    BUNDLES, CLUSTERS, CONFIGURATIONS, FRAMES, FRONTS, OTHERS, REPEATED, TOKENS,
};
use super::table::words;
use super::{flavour, options};
use crate::Delegate;
use crate::random::Random;

/// Rows with a title.
#[derive(Debug, Clone)]
pub struct Section {
    /// What they have in common.
    pub title: String,
    /// Their arguments.
    pub rows: Vec<Vec<String>>,
}

const CASES: &str = include_str!("../../../src/invocation/cases.txt");

const VERBS: [&str; 3] = ["create", "run", "restore"];

/// Rows at random, for each start.
const AT_RANDOM: usize = 150;

/// The rows for a delegate; which options there are, it says itself.
pub fn sections(delegate: Delegate) -> Vec<Section> {
    let mut sections = vec![
        section("the cases of src/invocation/cases.txt", cases(delegate)),
        section("every spelling of a bundle in every place", bundles()),
        section("more than one bundle", verbs_with(&REPEATED)),
        section("another configuration", verbs_with(&CONFIGURATIONS)),
    ];
    for verb in VERBS {
        let rows = options::of(delegate, Some(verb)).into_iter();
        let rows = rows.flat_map(|option| option_of(verb, &option));
        sections.push(section(&format!("the options of {verb}"), rows.collect()));
    }
    let globals = options::of(delegate, None).into_iter();
    let globals = globals.flat_map(|option| global(&option));
    sections.push(section("the global options", globals.collect()));
    sections.push(section("before the subcommand", fronts()));
    if delegate == Delegate::Crun {
        let clusters = CLUSTERS.iter().map(|row| words(row)).collect();
        sections.push(section("joined short options", clusters));
        sections.push(section("options cut short", abbreviations(delegate)));
    }
    sections.push(section("other subcommands", others()));
    sections.push(section("at random", at_random()));
    without_doubles(&mut sections);
    sections
}

fn section(title: &str, rows: Vec<Vec<String>>) -> Section {
    Section {
        title: title.to_owned(),
        rows,
    }
}

/// The rows of runcrust's own cases for the program that stands in a delegate's place. Of those that only newer
/// delegates accept, too: the installed one has its own words for them.
pub(super) fn cases(delegate: Delegate) -> Vec<Vec<String>> {
    let flavour = format!("{} | ", flavour(delegate));
    let lines = CASES.lines().filter_map(|line| line.strip_prefix(&flavour));
    let rows = lines.map(|line| line.split(" | ").collect::<Vec<_>>());
    // Its own words never reach a delegate; and they would be done here, to this very host.
    let own = ["crust ", "install ", "uninstall "];
    let rows = rows.filter(|columns| !own.iter().any(|word| columns[1].starts_with(word)));
    rows.map(|columns| words(columns[0])).collect()
}

fn bundles() -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for bundle in BUNDLES {
        for frame in FRAMES {
            rows.push(words(&format!("create {}", frame.replace("{}", bundle))));
        }
        for start in ["run", "run -d", "restore", "restore --image-path i"] {
            rows.push(words(&format!("{start} {bundle} x")));
        }
    }
    rows
}

fn verbs_with(ends: &[&str]) -> Vec<Vec<String>> {
    let rows = VERBS
        .iter()
        .flat_map(|verb| ends.iter().map(move |end| words(&format!("{verb} {end}"))));
    rows.collect()
}

fn option_of(verb: &str, option: &str) -> Vec<Vec<String>> {
    let frames = [
        "{} -b A x",
        "{} v -b A x",
        "{}=v -b A x",
        "{}=true -b A x",
        "{}=false -b A x",
        "{}= -b A x",
        "-b A {} x",
        "-b A {} 1 x",
        "-b A x {}",
        "-b A x {} v",
        "-b A {} -- x",
    ];
    let rows = frames
        .iter()
        .map(|frame| words(&format!("{verb} {}", frame.replace("{}", option))));
    rows.collect()
}

fn global(option: &str) -> Vec<Vec<String>> {
    let frames = [
        "{} create -b A x",
        "{} v create -b A x",
        "{}=v create -b A x",
        "{}=true create -b A x",
        "{}=false create -b A x",
        "{} create create -b A x",
        "{} -- create -b A x",
        "create {} -b A x",
        "create {}=v -b A x",
        "create -b A x {} v",
        "{} state x",
        "{} v state x",
        "{}",
    ];
    let rows = frames
        .iter()
        .map(|frame| words(&frame.replace("{}", option)));
    rows.collect()
}

fn fronts() -> Vec<Vec<String>> {
    let ends = [
        "create -b A x",
        "run -b A x",
        "create x",
        "state x",
        "create --frob -b A x",
    ];
    let rows = FRONTS
        .iter()
        .flat_map(|front| ends.iter().map(move |end| words(&format!("{front} {end}"))));
    rows.collect()
}

/// Each beginning of each long option, before and after the subcommand.
fn abbreviations(delegate: Delegate) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for (verb, frames) in [
        (None, ["{} create -b A x", "{} v create -b A x"]),
        (Some("create"), ["create {} -b A x", "create {} v -b A x"]),
    ] {
        for option in options::of(delegate, verb) {
            // From two dashes and a letter to all but one.
            for length in 3..option.len() {
                let short = &option[..length];
                rows.extend(frames.map(|frame| words(&frame.replace("{}", short))));
            }
        }
    }
    rows
}

fn others() -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for word in words(OTHERS) {
        for frame in [
            "{} -b A x",
            "{} --bundle=A x",
            "{} create -b A x",
            "{} create",
            "--debug {} x",
        ] {
            rows.push(words(&frame.replace("{}", &word)));
        }
    }
    rows
}

fn at_random() -> Vec<Vec<String>> {
    let (mut random, tokens) = (Random::new(2857), words(TOKENS));
    let mut rows = Vec::new();
    for (start, end) in [("create", ""), ("run", ""), ("", "create -b A x")] {
        for _ in 0..AT_RANDOM {
            let count = 1 + random.below(5);
            let some = (0..count).map(|_| random.pick(&tokens).clone());
            rows.push([words(start), some.collect(), words(end)].concat());
        }
    }
    rows
}

/// A row belongs to the first section that has it.
fn without_doubles(sections: &mut [Section]) {
    let mut known = std::collections::HashSet::new();
    for section in sections {
        section.rows.retain(|row| known.insert(row.clone()));
    }
}
