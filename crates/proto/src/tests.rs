//! What clients were generated from must stay as it is.

use prost::Message;
use prost_types::{DescriptorProto, FileDescriptorProto, FileDescriptorSet};

fn files() -> Vec<FileDescriptorProto> {
    let sets = [
        crate::DESCRIPTORS,
        crate::csi::DESCRIPTORS,
        crate::crustlet::DESCRIPTORS,
    ];
    let sets = sets.map(|set| FileDescriptorSet::decode(set).unwrap());
    let files = sets.into_iter().flat_map(|set| set.file);
    files
        .filter(|file| !file.package().starts_with("google."))
        .collect()
}

/// `Message.field = number` and `Message.Enum.VALUE = number`, in their order.
fn numbers(prefix: &str, message: &DescriptorProto, lines: &mut Vec<String>) {
    let name = format!("{prefix}{}", message.name());
    for field in &message.field {
        lines.push(format!("{name}.{} = {}", field.name(), field.number()));
    }
    for kind in &message.enum_type {
        for value in &kind.value {
            let (kind, value, number) = (kind.name(), value.name(), value.number());
            lines.push(format!("{name}.{kind}.{value} = {number}"));
        }
    }
    for nested in &message.nested_type {
        numbers(&format!("{name}."), nested, lines);
    }
}

#[test]
fn names_and_numbers_are_those_of_the_first_version() {
    let mut lines = Vec::new();
    for file in files() {
        lines.push(format!("package {}", file.package()));
        for service in &file.service {
            for method in &service.method {
                lines.push(format!("rpc {}.{}", service.name(), method.name()));
            }
        }
        for message in &file.message_type {
            numbers("", message, &mut lines);
        }
    }
    let text = lines.join("\n") + "\n";
    assert_eq!(text, include_str!("../api.txt"), "only add to it");
}

/// Each message, field, value and method says what it means.
#[test]
fn everything_is_documented() {
    for file in files() {
        let info = file.source_code_info.as_ref().expect("comments");
        for location in &info.location {
            // Of descriptor.proto: messages 4, services 6; in a message fields 2, nested 3, enums 4
            // and their values 2; in a service methods 2.
            let is_element = match location.path.as_slice() {
                [4 | 6, _] | [6, _, 2, _] => true,
                [4, _, rest @ ..] => is_in_message(rest),
                _ => false,
            };
            if is_element {
                let comment = location.leading_comments().trim();
                assert!(!comment.is_empty(), "{}: {:?}", file.name(), location.span);
            }
        }
    }
}

fn is_in_message(path: &[i32]) -> bool {
    match path {
        [2..=4, _] | [4, _, 2, _] => true,
        [3, _, rest @ ..] => is_in_message(rest),
        _ => false,
    }
}
