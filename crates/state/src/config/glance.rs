//! A reader of a few keys in a file of plain lines. Most calls need no more of a configuration, and a reader of all
//! of TOML costs them more than everything else that runcrust does for them (docs/performance.md).

/// Some line isn't plain: TOML has to be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NotPlain;

/// Returns the strings that a file of plain lines sets `keys` to.
///
/// A line is plain that is empty, a comment, or `key = value`, the value being `true`, `false`, a string
/// without escapes or a list of such on this one line.
pub(super) fn strings<'a, const N: usize>(
    text: &'a str,
    keys: [&str; N],
) -> Result<[Option<&'a str>; N], NotPlain> {
    let mut found = [None; N];
    for line in text.split_terminator('\n') {
        let Line::Setting(key, value) = Line::read(line).ok_or(NotPlain)? else {
            continue;
        };
        for (wanted, found) in keys.iter().zip(&mut found) {
            if key == *wanted && found.replace(value.ok_or(NotPlain)?).is_some() {
                return Err(NotPlain);
            }
        }
    }
    Ok(found)
}

enum Line<'a> {
    /// Or a comment.
    Blank,
    /// A key, and its value where that is a string.
    Setting(&'a str, Option<&'a str>),
}

impl<'a> Line<'a> {
    fn read(line: &'a str) -> Option<Self> {
        if line
            .bytes()
            .any(|byte| byte.is_ascii_control() && byte != b'\t')
        {
            return None;
        }
        let line = line.trim_matches(BLANK);
        if is_end(line) {
            return Some(Self::Blank);
        }
        let (key, rest) = line.split_once('=')?;
        let key = key.trim_end_matches(BLANK);
        if key.is_empty() || !key.bytes().all(is_bare) {
            return None;
        }
        let (value, rest) = value(rest.trim_start_matches(BLANK))?;
        is_end(rest.trim_start_matches(BLANK)).then_some(Self::Setting(key, value))
    }
}

fn is_end(line: &str) -> bool {
    line.is_empty() || line.starts_with('#')
}

const BLANK: [char; 2] = [' ', '\t'];

/// Of a key without quotes.
const fn is_bare(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')
}

/// The value that `text` begins with, where it is a string; and what comes after it.
fn value(text: &str) -> Option<(Option<&str>, &str)> {
    let words = ["true", "false"];
    if let Some(rest) = words.iter().find_map(|word| text.strip_prefix(word)) {
        return Some((None, rest));
    }
    let Some(mut rest) = text.strip_prefix('[') else {
        let (string, rest) = string(text)?;
        return Some((Some(string), rest));
    };
    loop {
        rest = rest.trim_start_matches(BLANK);
        if let Some(rest) = rest.strip_prefix(']') {
            return Some((None, rest));
        }
        rest = string(rest)?.1.trim_start_matches(BLANK);
        if !rest.starts_with(']') {
            rest = rest.strip_prefix(',')?;
        }
    }
}

fn string(text: &str) -> Option<(&str, &str)> {
    let (string, rest) = text.strip_prefix('"')?.split_once('"')?;
    (!string.contains('\\')).then_some((string, rest))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;
    use serde::Deserialize;

    use super::*;

    const KEYS: [&str; 2] = ["delegate", "delegate_kind"];

    #[derive(Deserialize)]
    struct Only {
        delegate: Option<String>,
        delegate_kind: Option<String>,
    }

    fn delegate(text: &str) -> Result<Option<&str>, NotPlain> {
        strings(text, KEYS).map(|[delegate, _]| delegate)
    }

    fn by_toml(text: &str) -> Option<Only> {
        super::super::parse(Path::new("/x"), text).ok()
    }

    #[test]
    fn plain_files_are_read_and_others_left() {
        for (text, expected) in [
            ("", Ok(None)),
            ("# delegate = \"/a\"\n\n\t\n", Ok(None)),
            ("delegate = \"/a\"", Ok(Some("/a"))),
            (" delegate=\"/a b\" # \"x\"\n", Ok(Some("/a b"))),
            (
                "kata_layout = true\nfstypes = [ \"a\",\"b\", ]\nx = []\ndelegate\t= \"/#\"",
                Ok(Some("/#")),
            ),
            ("delegate = \"/a\"\ndelegate = \"/b\"", Err(NotPlain)),
            ("delegate = '/a'", Err(NotPlain)),
            ("delegate = \"/a\\n\"", Err(NotPlain)),
            ("delegate = \"\"\"/a\"\"\"", Err(NotPlain)),
            ("delegate = true", Err(NotPlain)),
            ("delegate = [\"/a\"]", Err(NotPlain)),
            ("\"delegate\" = \"/a\"", Err(NotPlain)),
            ("[table]\ndelegate = \"/a\"", Err(NotPlain)),
            ("x = {}\ndelegate = \"/a\"", Err(NotPlain)),
            ("x = [\"a\" \"b\"]", Err(NotPlain)),
            ("x = [,]", Err(NotPlain)),
            ("x = [\n\"a\"]", Err(NotPlain)),
            ("x = 1", Err(NotPlain)),
            ("x", Err(NotPlain)),
            ("= \"a\"", Err(NotPlain)),
            ("delegate = \"/a\" b", Err(NotPlain)),
            ("delegate = \"/a\"\r\n", Err(NotPlain)),
            ("# \u{7f}", Err(NotPlain)),
        ] {
            assert_eq!(delegate(text), expected, "{text:?}");
        }
    }

    #[test]
    fn each_key_has_its_own_value() {
        for (text, expected) in [
            ("", Ok([None, None])),
            ("delegate_kind = \"a\"", Ok([None, Some("a")])),
            (
                "delegate_kind = \"a\"\ndelegate = \"b\"",
                Ok([Some("b"), Some("a")]),
            ),
            (
                "delegate_kind = \"a\"\ndelegate_kind = \"a\"",
                Err(NotPlain),
            ),
            ("delegate = \"a\"\ndelegate_kind = true", Err(NotPlain)),
        ] {
            assert_eq!(strings(text, KEYS), expected, "{text:?}");
        }
    }

    /// The file that is installed is one of them, with whatever is switched on.
    #[test]
    fn the_installed_file_is_plain() {
        let installed = include_str!("../../../../deploy/etc/config.toml");
        assert_eq!(delegate(installed), Ok(None));
        let on = installed.replace("\n# delegate", "\ndelegate");
        let expected = by_toml(&on).unwrap();
        let expected = [
            expected.delegate.as_deref(),
            expected.delegate_kind.as_deref(),
        ];
        assert!(expected.iter().all(Option::is_some));
        assert_eq!(strings(&on, KEYS), Ok(expected));
    }

    /// Pieces that plain lines are made of, and what makes them something else.
    fn pieces() -> impl Strategy<Value = String> {
        let piece = prop::sample::select(vec![
            "delegate",
            "delegate_kind",
            "key",
            " ",
            "\t",
            "=",
            " = ",
            "\"",
            "\"/a\"",
            "\"b c\"",
            "\"\"",
            "'",
            "[",
            "]",
            ", ",
            ",",
            "#",
            "\n",
            "\n",
            "\r",
            "true",
            "false",
            "1",
            ".",
            "\\",
            "é",
            "\u{1}",
            "\"\"\"",
        ]);
        prop::collection::vec(piece, 0..14).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        /// Compares the two readers on text that both accept. What TOML refuses for something else in the file
        /// (a key that stands twice) is no reason not to stop a container.
        #[test]
        fn what_is_read_at_a_glance_is_what_toml_says(text in pieces()) {
            if let (Ok(read), Some(expected)) = (strings(&text, KEYS), by_toml(&text)) {
                let expected = [expected.delegate.as_deref(), expected.delegate_kind.as_deref()];
                prop_assert_eq!(read, expected);
            }
        }
    }
}
