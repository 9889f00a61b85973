//! What documents show is what there is.

mod crustlet;
mod makefile;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use prost_reflect::DescriptorPool;
use runcrust_tests::{Run, flags};

fn document(name: &str) -> String {
    // As the runner has it: the guest's isn't where this was built.
    let package = std::env::var_os("CARGO_MANIFEST_DIR").unwrap();
    fs::read_to_string(Path::new(&package).join("..").join(name)).unwrap()
}

/// A line without what differs from run to run: numbers, months and days, and how wide columns are.
fn lasting(line: &str) -> String {
    const MONTHS: &str = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec";
    const DAYS: &str = "Mon Tue Wed Thu Fri Sat Sun";
    let words = line.split_whitespace().map(|word| {
        let mut lasting = String::new();
        for character in word.chars() {
            match character {
                '0'..='9' if lasting.ends_with('0') => {}
                '0'..='9' => lasting.push('0'),
                other => lasting.push(other),
            }
        }
        for (names, name) in [(MONTHS, "month"), (DAYS, "day")] {
            if names.split(' ').any(|it| it == word) {
                return name.to_owned();
            }
        }
        lasting
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Whether a line is what another one says with parts left out: `…`.
fn says(shortened: &str, line: &str) -> bool {
    let mut rest = line;
    shortened.split('…').all(|part| {
        let found = rest.find(part);
        rest = &rest[found.map_or(rest.len(), |at| at + part.len())..];
        found.is_some()
    })
}

#[test]
fn a_shortened_line_says_what_the_whole_one_does_and_no_other() {
    assert!(says("pod a…has it", "pod a-b has it"));
    assert!(!says("has it…pod a", "pod a-b has it"));
    assert!(!says("pod c", "pod a-b has it"));
    assert_eq!(lasting("x  12 Nov 22 00:28"), "x 0 month 0 0:0");
}

#[test]
fn the_readmes_transcript_is_the_demos() {
    let readme = document("README.md");
    let (_, shown) = readme.split_once("long paths shortened:\n\n").unwrap();
    let shown: Vec<String> = shown
        .lines()
        .take_while(|line| line.starts_with("    "))
        .map(lasting)
        .collect();
    assert!(shown.len() > 10, "{shown:?}");
    let demo = Run::of(&mut Command::new(env!("CARGO_BIN_EXE_demo"))).success();
    let mut printed = demo.stdout.lines().map(lasting);
    for line in shown {
        assert!(
            printed.any(|printed| says(&line, &printed)),
            "the demo doesn't say, or not in this place: {line}\n{demo}"
        );
    }
}

/// Where a name in Go's spelling is one of the protocol's: `volume_target_path`, `VolumeTargetPath`.
fn spelt_in_go(name: &str) -> String {
    let parts = name.split('_').map(|part| {
        let (first, rest) = part.split_at(1);
        first.to_uppercase() + rest
    });
    parts.collect()
}

#[test]
fn the_go_example_calls_what_the_protocol_has() {
    let text = document("docs/csi-drivers.md");
    let (_, example) = text.split_once("```go\n").unwrap();
    let (example, _) = example.split_once("```").unwrap();
    let pool = DescriptorPool::decode(crust_proto::DESCRIPTORS).unwrap();
    let service = pool.get_service_by_name("crust.v1.Runtime").unwrap();
    let mut known: Vec<String> = vec![format!("New{}Client", service.name())];
    let mut fields = Vec::new();
    for message in pool.all_messages() {
        known.push(message.name().to_owned());
        fields.extend(message.fields().map(|field| spelt_in_go(field.name())));
        for kind in message.child_enums() {
            let values = kind.values();
            known.extend(values.map(|value| format!("{}_{}", message.name(), value.name())));
        }
    }
    let is_name = |character: char| character.is_alphanumeric() || character == '_';
    let names = example.split("crustv1.").skip(1).map(|rest| {
        let end = rest.find(|it| !is_name(it)).unwrap_or(rest.len());
        &rest[..end]
    });
    let names: Vec<&str> = names.collect();
    assert!(names.contains(&"RuntimeStageVolumeRequest"), "{names:?}");
    for name in names {
        assert!(known.iter().any(|it| it == name), "{name}");
    }
    let set = example.lines().filter_map(|line| {
        let (name, _) = line.trim().split_once(": ")?;
        name.chars().all(is_name).then_some(name)
    });
    let set: Vec<&str> = set.collect();
    assert!(set.contains(&"VolumeTargetPath"), "{set:?}");
    for name in set {
        assert!(fields.iter().any(|it| it == name), "{name}");
    }
    let (_, called) = example.split_once("(conn).").unwrap();
    let called = called.split('(').next().unwrap();
    assert!(
        service.methods().any(|method| method.name() == called),
        "{called}"
    );
}

/// The rows of a document's table whose head begins so, as their cells.
fn table(text: &str, head: &str) -> Vec<Vec<String>> {
    let mut lines = text.lines().skip_while(|line| !line.starts_with(head));
    assert!(lines.next().is_some(), "there is no table {head}");
    let rows = lines.skip(1).take_while(|line| line.starts_with('|'));
    let cells = rows.map(|row| {
        let cells = row.trim_matches('|').split(" |");
        cells.map(|cell| cell.trim().to_owned()).collect()
    });
    cells.collect()
}

/// What stands in backquotes.
fn quoted(cell: &str) -> Vec<String> {
    let parts = cell.split('`').skip(1).step_by(2);
    parts.map(str::to_owned).collect()
}

#[test]
fn the_flags_of_the_csi_driver_are_those_in_its_document() {
    let text = document("docs/crust-csi.md");
    let rows = table(&text, "| flag |");
    let mut told = BTreeMap::new();
    for row in &rows {
        let name = quoted(&row[0]).remove(0);
        let name = name.trim_start_matches("--").to_owned();
        told.insert(name, quoted(&row[1]).into_iter().next());
    }
    let mut there = flags::long_options("crust-csi");
    for of_every_program in ["help", "version"] {
        there.remove(of_every_program);
    }
    // One is made of what each call says.
    let made = told.remove("quarantine-dir").flatten();
    assert!(made.is_some_and(|it| it.starts_with('<')));
    assert_eq!(there.remove("quarantine-dir"), Some(None));
    assert_eq!(told, there);
}

/// The tables of CSI's own numbers, and of those that runcrust gives to what isn't CSI's.
#[test]
fn field_numbers_in_the_csi_documents_match_the_proto_file() {
    let pool = DescriptorPool::decode(crust_proto::csi::DESCRIPTORS).unwrap();
    let capabilities = pool.get_enum_by_name("csi.v1.NodeServiceCapability.RPC.Type");
    let capabilities = capabilities.expect("node capabilities");
    let mut checked = 0;
    for (path, head, column) in [
        ("docs/crust-csi.md", "| | in | number |", 2),
        ("docs/csi-drivers.md", "| | in | KEP-2857 | here |", 3),
    ] {
        for row in table(&document(path), head) {
            let names = quoted(&row[0]);
            let numbers = row[column].split(", ");
            let numbers: Vec<u32> = numbers.map(|it| it.parse().unwrap()).collect();
            for (name, number) in names.iter().zip(&numbers) {
                if row[1].starts_with("node") {
                    let value = capabilities.get_value_by_name(name);
                    let value = value.unwrap_or_else(|| panic!("{path}: there is no {name}"));
                    assert_eq!(u32::try_from(value.number()), Ok(*number), "{path}: {name}");
                    checked += 1;
                }
                for message in quoted(&row[1]) {
                    let mut all = pool.all_messages();
                    let found = all.find(|it| it.name() == message);
                    let found = found.unwrap_or_else(|| panic!("there is no message {message}"));
                    let field = found.get_field_by_name(name);
                    let field = field.unwrap_or_else(|| panic!("{message} has no {name}"));
                    assert_eq!(field.number(), *number, "{path}: {message}.{name}");
                    checked += 1;
                }
            }
        }
    }
    assert_eq!(checked, 12);
}
