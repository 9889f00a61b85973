//! Documents match the programs that they describe.

mod crustlet;
mod makefile;
mod suites;
mod test_names;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use prost_reflect::DescriptorPool;
use runcrust_tests::flags;

fn document(name: &str) -> String {
    // The runner's variable, because in the guest the tests are not where they were built.
    let package = std::env::var_os("CARGO_MANIFEST_DIR").unwrap();
    fs::read_to_string(Path::new(&package).join("..").join(name)).unwrap()
}

/// Returns a field's name in Go: `VolumeTargetPath` for `volume_target_path`.
fn go_name(name: &str) -> String {
    let parts = name.split('_').map(|part| {
        let (first, rest) = part.split_at(1);
        first.to_uppercase() + rest
    });
    parts.collect()
}

#[test]
fn the_go_example_uses_names_of_the_protocol() {
    let text = document("docs/csi-drivers.md");
    let (_, example) = text.split_once("```go\n").unwrap();
    let (example, _) = example.split_once("```").unwrap();
    let pool = DescriptorPool::decode(crust_proto::FILE_DESCRIPTOR_SET).unwrap();
    let service = pool.get_service_by_name("crust.v1.Runtime").unwrap();
    let mut known: Vec<String> = vec![format!("New{}Client", service.name())];
    let mut fields = Vec::new();
    for message in pool.all_messages() {
        known.push(message.name().to_owned());
        fields.extend(message.fields().map(|field| go_name(field.name())));
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

/// Returns the cells of each row of the table whose head starts with `head`.
fn table(text: &str, head: &str) -> Vec<Vec<String>> {
    let mut lines = text.lines().skip_while(|line| !line.starts_with(head));
    assert!(lines.next().is_some(), "no table {head}");
    let rows = lines.skip(1).take_while(|line| line.starts_with('|'));
    let cells = rows.map(|row| {
        let cells = row.trim_matches('|').split(" |");
        cells.map(|cell| cell.trim().to_owned()).collect()
    });
    cells.collect()
}

/// Returns the parts of a cell in backquotes.
fn quoted(cell: &str) -> Vec<String> {
    let parts = cell.split('`').skip(1).step_by(2);
    parts.map(str::to_owned).collect()
}

#[test]
fn the_flags_of_the_csi_driver_are_documented() {
    let text = document("docs/crust-csi.md");
    let rows = table(&text, "| flag |");
    let mut documented = BTreeMap::new();
    for row in &rows {
        let name = quoted(&row[0]).remove(0);
        let name = name.trim_start_matches("--").to_owned();
        documented.insert(name, quoted(&row[1]).into_iter().next());
    }
    let mut actual = flags::long_options("crust-csi");
    for common in ["help", "version"] {
        actual.remove(common);
    }
    // The default of this flag depends on each call.
    let default = documented.remove("quarantine-dir").flatten();
    assert!(default.is_some_and(|it| it.starts_with('<')));
    assert_eq!(actual.remove("quarantine-dir"), Some(None));
    assert_eq!(documented, actual);
}

/// The tables of the field numbers that belong to CSI, and of those that runcrust assigned.
#[test]
fn field_numbers_in_the_csi_documents_match_the_proto_file() {
    let pool = DescriptorPool::decode(crust_proto::csi::FILE_DESCRIPTOR_SET).unwrap();
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
                    let value = value.unwrap_or_else(|| panic!("{path}: no {name}"));
                    assert_eq!(u32::try_from(value.number()), Ok(*number), "{path}: {name}");
                    checked += 1;
                }
                for message in quoted(&row[1]) {
                    let mut all = pool.all_messages();
                    let found = all.find(|it| it.name() == message);
                    let found = found.unwrap_or_else(|| panic!("no message {message}"));
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

/// Only `make pictures` has the program that draws, so somebody could change the source and not the picture.
#[test]
fn the_picture_shows_every_label_of_its_source() {
    let source = document("docs/pictures/overview.dot");
    let picture = document("docs/pictures/overview.svg");
    let picture = picture.replace("&quot;", "\"").replace("&#39;", "'");
    let texts = picture
        .split("</text>")
        .filter_map(|it| it.rsplit_once('>'));
    let texts: Vec<&str> = texts.map(|(_, text)| text.trim()).collect();
    let labels = source.lines().filter_map(|line| {
        let (_, rest) = line.split_once("label = \"")?;
        let mut quotes = rest.match_indices('"').map(|(at, _)| at);
        let end = quotes.find(|&at| !rest[..at].ends_with('\\'))?;
        Some(rest[..end].replace("\\\"", "\""))
    });
    let labels: Vec<String> = labels.collect();
    assert!(labels.len() > 10, "{labels:?}");
    for line in labels.iter().flat_map(|label| label.split("\\n")) {
        let line = line.trim();
        assert!(
            texts.contains(&line),
            "{line:?} is not in the picture; hint: make pictures"
        );
    }
}
