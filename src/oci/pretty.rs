//! Formats a config for people: callers write it in one line.

use super::json::WHITE_SPACE;

/// Indents JSON text. Only the white space between tokens changes. Duplicate keys and all digits of numbers are kept,
/// which parsing and serializing would lose.
pub(crate) fn pretty(text: &str) -> String {
    let mut pretty = String::with_capacity(text.len() * 2);
    let mut depth = 0;
    let mut rest = text.trim_start_matches(WHITE_SPACE);
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '"' => string_length(rest),
            '{' | '[' | '}' | ']' | ',' | ':' => 1,
            _ => {
                let ends = |c: char| WHITE_SPACE.contains(&c) || "{}[],:\"".contains(c);
                rest.find(ends).unwrap_or(rest.len())
            }
        };
        let (token, after) = rest.split_at(length);
        rest = after.trim_start_matches(WHITE_SPACE);
        match token {
            "{" | "[" => {
                pretty.push_str(token);
                depth += 1;
                if !rest.starts_with(['}', ']']) {
                    new_line(&mut pretty, depth);
                }
            }
            "}" | "]" => {
                depth = depth.saturating_sub(1);
                if !pretty.ends_with(['{', '[']) {
                    new_line(&mut pretty, depth);
                }
                pretty.push_str(token);
            }
            "," => {
                pretty.push(',');
                new_line(&mut pretty, depth);
            }
            ":" => pretty.push_str(": "),
            token => pretty.push_str(token),
        }
    }
    pretty.push('\n');
    pretty
}

/// Returns the length in bytes of the string at the start of `text`, with its quotes. Returns the length of `text` if
/// the string isn't terminated.
fn string_length(text: &str) -> usize {
    let mut escaped = false;
    let end = text.bytes().skip(1).position(|byte| {
        let is_end = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        is_end
    });
    end.map_or(text.len(), |end| end + 2)
}

/// Deepest level of indentation. Without a limit the output could grow with the square of the depth.
const MAX_INDENT: usize = 32;

fn new_line(pretty: &mut String, depth: usize) {
    pretty.push('\n');
    pretty.extend(std::iter::repeat_n("  ", depth.min(MAX_INDENT)));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_value_gets_a_line_and_no_token_changes() {
        let text = r#" {"a" :1e400,"a":"x:{ \"[,\\",
            "b":[ ] , "c":{},"d":[true,{"e":null}]} }"#;
        let expected = r#"{
  "a": 1e400,
  "a": "x:{ \"[,\\",
  "b": [],
  "c": {},
  "d": [
    true,
    {
      "e": null
    }
  ]
}
}
"#;
        assert_eq!(pretty(text), expected);
    }

    #[test]
    fn braces_in_strings_are_ignored() {
        assert_eq!(pretty(r#"{"{":"["}"#), "{\n  \"{\": \"[\"\n}\n");
        assert_eq!(pretty(r#"["{"]"#), "[\n  \"{\"\n]\n");
    }

    proptest! {
        #[test]
        fn the_format_is_serde_jsons(numbers in prop::collection::vec(any::<i64>(), 0..4),
                                   texts in prop::collection::btree_map(".*", ".*", 0..4)) {
            let value = serde_json::json!({"numbers": numbers, "texts": texts, "none": [{}, []]});
            let expected = serde_json::to_string_pretty(&value).unwrap() + "\n";
            prop_assert_eq!(pretty(&value.to_string()), expected);
        }

        #[test]
        fn no_text_panics(text in ".*") {
            pretty(&text);
        }
    }
}
