//! Mount options: whatever is accepted has one meaning, however it is put into lists.

use crust_blockfs::options::{FsOption, MountOptions, OptionsError, no_journal_replay, parse};

/// A list of mount options, one a line.
pub fn options(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let list: Vec<&str> = text.split('\n').collect();
    match parse(&list) {
        Ok(options) => {
            assert_eq!(parse(&[list.join(",")]), Ok(options.clone()), "one list");
            is_what_the_kernel_takes(&options);
            has_one_form(&options);
            leaves_journals_alone(&options);
        }
        Err(error) => tells_no_value(&list, &error),
    }
}

fn is_what_the_kernel_takes(options: &MountOptions) {
    for option in &options.fs_options {
        let (key, value) = match option {
            FsOption::Flag(key) => (key, ""),
            FsOption::Value { key, value } => (key, value.as_str()),
        };
        assert!(!key.is_empty() && !key.contains('='), "{option:?}");
        assert!(key.len() < 256 && value.len() < 256, "{option:?}");
        assert!(!key.contains('\0') && !value.contains('\0'), "{option:?}");
        assert!(!matches!(&**key, "ro" | "rw" | "nosuid" | "bind"));
    }
}

/// Written down, as in a record, the superblock's options ask for the same superblock.
fn has_one_form(options: &MountOptions) {
    let form = options.superblock_options();
    let written: Vec<String> = options.fs_options.iter().map(written).collect();
    let again = parse(&written);
    let again = again.unwrap_or_else(|error| panic!("{error}: {written:?}"));
    assert_eq!(again.superblock_options(), form);
    assert_eq!(
        (again.attributes.is_empty(), again.read_only),
        (true, false)
    );
    let mut twice = options.clone();
    twice.fs_options.extend(options.fs_options.iter().cloned());
    assert_eq!(twice.superblock_options(), form);
}

/// As somebody writes it, with or without quotation marks: the value may have had some of its own.
fn written(option: &FsOption) -> String {
    let plain = option.to_string();
    let is_it = |text: &String| parse(&[text]).is_ok_and(|it| it.fs_options == [option.clone()]);
    let quoted = match option {
        FsOption::Flag(key) => key.clone(),
        FsOption::Value { key, value } => format!("{key}=\"{value}\""),
    };
    let found = [plain, quoted].into_iter().find(is_it);
    found.unwrap_or_else(|| panic!("{option:?} can't be written"))
}

fn leaves_journals_alone(options: &MountOptions) {
    for fstype in ["ext3", "ext4", "xfs", "btrfs", "vfat"] {
        let once = options.without_journal_replay(fstype);
        assert_eq!(once.without_journal_replay(fstype), once);
        let added = &once.fs_options[options.fs_options.len()..];
        assert!(added.len() <= usize::from(no_journal_replay(fstype).is_some()));
        assert!(once.fs_options.starts_with(&options.fs_options));
    }
}

/// An error goes to logs and events, and a value may be a secret: whatever values say, the sentence
/// is the same.
fn tells_no_value(list: &[&str], error: &OptionsError) {
    let hidden: Vec<String> = list.iter().map(|item| without_values(item)).collect();
    let again = parse(&hidden).expect_err("the same mistake");
    assert_eq!(again.to_string(), error.to_string(), "{list:?}");
}

/// Every value replaced by one that is as long, as far as it doesn't matter to where options end.
fn without_values(item: &str) -> String {
    let mut out = String::with_capacity(item.len());
    let (mut in_quotes, mut in_value) = (false, false);
    for letter in item.chars() {
        in_quotes ^= letter == '"';
        if letter == ',' && !in_quotes {
            in_value = false;
        }
        let structure = matches!(letter, '"' | ',' | '=' | '\0') || letter.is_whitespace();
        if in_value && !structure {
            out.extend(std::iter::repeat_n('v', letter.len_utf8()));
        } else {
            out.push(letter);
        }
        in_value |= letter == '=';
    }
    out
}
