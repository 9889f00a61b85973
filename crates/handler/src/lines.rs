//! Texts line by line.

use similar::{DiffOp, TextDiff};

/// What every comment of ours begins with.
pub(crate) const OURS: &str = "# Added by runcrust install";

/// `edited`, an edit of `original`, with what it should have kept: the line ends, and comments that
/// stood above a table that was removed.
pub(crate) fn carried(original: &str, edited: &str) -> String {
    let (plain, edited) = (original.replace("\r\n", "\n"), edited.replace("\r\n", "\n"));
    let is_crlf = original.contains("\r\n");
    let diff = TextDiff::from_lines(plain.as_str(), edited.as_str());
    let old: Vec<&str> = original.split_inclusive('\n').collect();
    let new: Vec<&str> = edited.split_inclusive('\n').collect();
    let mut text = String::with_capacity(original.len().max(edited.len()));
    for op in diff.ops() {
        let (old, new) = (&old[op.old_range()], &new[op.new_range()]);
        match op {
            DiffOp::Equal { .. } => text.extend(old.iter().copied()),
            DiffOp::Delete { .. } => text.extend(comments_above(old).iter().copied()),
            DiffOp::Insert { .. } | DiffOp::Replace { .. } => {
                text.extend(new.iter().map(|line| ended(line, is_crlf)));
            }
        }
    }
    text
}

fn ended(line: &str, is_crlf: bool) -> String {
    match line.strip_suffix('\n') {
        Some(line) if is_crlf => format!("{line}\r\n"),
        _ => line.to_owned(),
    }
}

/// The operator's, of lines that begin with them.
fn comments_above<'a, 'b>(lines: &'b [&'a str]) -> &'b [&'a str] {
    let is_comment = |line: &str| line.trim_start().starts_with('#');
    let is_above = |line: &&&str| line.trim().is_empty() || is_comment(line);
    let above = lines.iter().take_while(is_above).count();
    let is_operators = |line: &&str| is_comment(line) && !line.trim_start().starts_with(OURS);
    let last = lines[..above].iter().rposition(is_operators);
    &lines[..last.map_or(0, |last| last + 1)]
}

/// The difference as `diff -u` shows it; a file that isn't there is `/dev/null`.
pub(crate) fn unified(path: &str, before: Option<&str>, after: Option<&str>) -> String {
    let name = |text: Option<&str>| text.map_or("/dev/null", |_| path).to_owned();
    let (old, new) = (before.unwrap_or_default(), after.unwrap_or_default());
    let diff = TextDiff::from_lines(old, new);
    let mut unified = diff.unified_diff();
    unified
        .context_radius(3)
        .header(&name(before), &name(after))
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_ends_stay_as_they_were_and_new_lines_get_the_same() {
        let (old, new) = ("a\r\nb\nc\r\n", "a\nb\nx\nc\n");
        assert_eq!(carried(old, new), "a\r\nb\nx\r\nc\r\n");
        assert_eq!(carried("a\nb\n", "a\nc\n"), "a\nc\n");
        assert_eq!(carried("a\r\nb", "a\nb\nc\n"), "a\r\nb\r\nc\r\n");
    }

    #[test]
    fn comments_above_what_is_removed_stay_but_not_ours() {
        let old = format!("a\n\n# one\n\n# two\n\n{OURS}.\n[b]\n# three\nc\n");
        assert_eq!(carried(&old, "a\n"), "a\n\n# one\n\n# two\n");
        assert_eq!(carried(&format!("a\n\n{OURS}\n[b]\n"), "a\n"), "a\n");
    }

    #[test]
    fn a_new_file_is_shown_as_one() {
        assert_eq!(
            unified("/etc/x", None, Some("a\n")),
            "--- /dev/null\n+++ /etc/x\n@@ -0,0 +1 @@\n+a\n"
        );
        assert_eq!(unified("/etc/x", Some("a\n"), Some("a\n")), "");
    }
}
