//! The target for mount options: accepted options mean the same, however they are distributed over lists.

use crust_blockfs::options::{FsOption, MountOptions, OptionsError, no_journal_replay, parse};

/// Parses a list of mount options, one per line.
pub fn options(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let list: Vec<&str> = text.split('\n').collect();
    match parse(&list) {
        Ok(options) => {
            assert_eq!(parse(&[list.join(",")]), Ok(options.clone()), "one list");
            check_kernel_limits(&options);
            check_canonical_form(&options);
            check_journal_replay(&options);
        }
        Err(error) => check_error_hides_values(&list, &error),
    }
}

/// Checks that fsconfig(2) can accept all options, and that none of them is a mount flag.
fn check_kernel_limits(options: &MountOptions) {
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

/// Checks that the superblock options stay the same if they are written and parsed again, as in a record, and if they
/// are repeated.
fn check_canonical_form(options: &MountOptions) {
    let canonical = options.superblock_options();
    let written: Vec<String> = options.fs_options.iter().map(write).collect();
    let reparsed = parse(&written);
    let reparsed = reparsed.unwrap_or_else(|error| panic!("{error}: {written:?}"));
    assert_eq!(reparsed.superblock_options(), canonical);
    assert_eq!(
        (reparsed.attributes.is_empty(), reparsed.read_only),
        (true, false)
    );
    let mut repeated = options.clone();
    repeated
        .fs_options
        .extend(options.fs_options.iter().cloned());
    assert_eq!(repeated.superblock_options(), canonical);
}

/// Writes an option so that it parses to itself. Uses quotation marks only if needed, because the value may contain
/// some.
fn write(option: &FsOption) -> String {
    let plain = option.to_string();
    let parses_to_option =
        |text: &String| parse(&[text]).is_ok_and(|it| it.fs_options == [option.clone()]);
    let quoted = match option {
        FsOption::Flag(key) => key.clone(),
        FsOption::Value { key, value } => format!("{key}=\"{value}\""),
    };
    let written = [plain, quoted].into_iter().find(parses_to_option);
    written.unwrap_or_else(|| panic!("{option:?} can't be written"))
}

/// Checks that the options without journal replay have at most one more option, and don't change a second time.
fn check_journal_replay(options: &MountOptions) {
    for fstype in ["ext3", "ext4", "xfs", "btrfs", "vfat"] {
        let once = options.without_journal_replay(fstype);
        assert_eq!(once.without_journal_replay(fstype), once);
        let added = &once.fs_options[options.fs_options.len()..];
        assert!(added.len() <= usize::from(no_journal_replay(fstype).is_some()));
        assert!(once.fs_options.starts_with(&options.fs_options));
    }
}

/// Checks that an error message doesn't depend on the values of options. A value may be a secret, and errors go to logs
/// and events.
fn check_error_hides_values(list: &[&str], error: &OptionsError) {
    let masked: Vec<String> = list.iter().map(|item| mask_values(item)).collect();
    let masked_error = parse(&masked).expect_err("masked values don't remove the error");
    assert_eq!(masked_error.to_string(), error.to_string(), "{list:?}");
}

/// Replaces the characters of values by as many others, except those that can end a value.
fn mask_values(item: &str) -> String {
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
