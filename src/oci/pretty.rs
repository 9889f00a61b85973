//! A configuration with a line for each value, for people: a caller's is one line.

use super::json::WHITE_SPACE;

/// The text with other white space between its tokens, which all stay as they are written: what an
/// object would drop, a second key or a number's last digits, is there.
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

/// Up to and with the second quote; all of it where there is none.
fn string_length(text: &str) -> usize {
    let mut escaped = false;
    let end = text.bytes().skip(1).position(|byte| {
        let is_end = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        is_end
    });
    end.map_or(text.len(), |end| end + 2)
}

/// Deeper than anything that people read: the text would grow with the square of its depth.
const DEEPEST: usize = 32;

fn new_line(pretty: &mut String, depth: usize) {
    pretty.push('\n');
    pretty.extend(std::iter::repeat_n("  ", depth.min(DEEPEST)));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_value_has_a_line_and_no_token_changes() {
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
    fn an_empty_list_after_a_brace_in_a_string_stays_one() {
        assert_eq!(pretty(r#"{"{":"["}"#), "{\n  \"{\": \"[\"\n}\n");
        assert_eq!(pretty(r#"["{"]"#), "[\n  \"{\"\n]\n");
    }

    proptest! {
        /// serde_json writes what it reads in the same form.
        #[test]
        fn it_is_what_others_write(numbers in prop::collection::vec(any::<i64>(), 0..4),
                                   texts in prop::collection::btree_map(".*", ".*", 0..4)) {
            let value = serde_json::json!({"numbers": numbers, "texts": texts, "none": [{}, []]});
            let expected = serde_json::to_string_pretty(&value).unwrap() + "\n";
            prop_assert_eq!(pretty(&value.to_string()), expected);
        }

        #[test]
        fn whatever_the_text_it_has_an_end(text in ".*") {
            pretty(&text);
        }
    }
}
