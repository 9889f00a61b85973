//! Texts line by line.

use similar::{DiffOp, TextDiff};

/// What every comment of ours begins with.
pub(crate) const OURS: &str = "# Added by runcrust install";

const BOM: &str = "\u{feff}";

/// The mark that some editors begin a text with, if this one has it.
pub(crate) fn bom(text: &str) -> &str {
    &text[..text.len() - without_bom(text).len()]
}

/// A text without the mark that some editors begin one with.
pub(crate) fn without_bom(text: &str) -> &str {
    text.strip_prefix(BOM).unwrap_or(text)
}

/// `edited`, an edit of `original`, with what it should have kept: the line ends, comments that stood
/// above a table that was removed, and those at the end of one that another was added after.
pub(crate) fn carried(original: &str, edited: &str) -> String {
    let mark = bom(original);
    let (original, edited) = (without_bom(original), without_bom(edited));
    let (plain, edited) = (original.replace("\r\n", "\n"), edited.replace("\r\n", "\n"));
    let is_crlf = original.contains("\r\n");
    let diff = TextDiff::from_lines(plain.as_str(), edited.as_str());
    let lines: Vec<&str> = original.split_inclusive('\n').collect();
    let new: Vec<&str> = edited.split_inclusive('\n').collect();
    let mut text = String::with_capacity(original.len().max(edited.len()));
    text.push_str(mark);
    let mut early = 0;
    for (at, op) in diff.ops().iter().enumerate() {
        let (old, new) = (&lines[op.old_range()], &new[op.new_range()]);
        match op {
            DiffOp::Equal { .. } => text.extend(old[std::mem::take(&mut early)..].iter().copied()),
            DiffOp::Delete { .. } => text.extend(comments_above(old).iter().copied()),
            DiffOp::Insert { .. } => {
                let next = diff.ops().get(at + 1);
                if let Some(next @ DiffOp::Equal { .. }) = next.filter(|_| is_table(new)) {
                    let end = end_of_table(&text, &lines[next.old_range()]);
                    text.extend(end.iter().copied());
                    early = end.len();
                }
                text.extend(new.iter().map(|line| ended(line, is_crlf)));
            }
            DiffOp::Replace { .. } => {
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

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with('#')
}

fn is_blank(line: &str) -> bool {
    line.trim().is_empty()
}

/// Whether what is in the lines first is a table's header.
fn is_table(lines: &[&str]) -> bool {
    let mut said = lines
        .iter()
        .filter(|line| !is_blank(line) && !is_comment(line));
    said.next()
        .is_some_and(|line| line.trim_start().starts_with('['))
}

/// The comments that `rest` begins with, where they follow a table's last key: what is above the next
/// header belongs to that.
fn end_of_table<'a, 'b>(text: &str, rest: &'b [&'a str]) -> &'b [&'a str] {
    let count = rest.iter().take_while(|line| is_comment(line)).count();
    let is_end = rest.get(count).is_none_or(|line| is_blank(line));
    let indent = |line: &str| line.len() - line.trim_start().len();
    let first = rest.first().copied().unwrap_or_default();
    let last = text.lines().last().filter(|line| !is_blank(line));
    let follows = last.is_some_and(|last| indent(first) >= indent(last));
    &rest[..if is_end && follows { count } else { 0 }]
}

/// The operator's, of lines that begin with them; what stands right above a table is about it, and
/// goes with it.
fn comments_above<'a, 'b>(lines: &'b [&'a str]) -> &'b [&'a str] {
    let is_above = |line: &&&str| is_blank(line) || is_comment(line);
    let mut above = lines.iter().take_while(is_above).count();
    if is_table(lines) {
        let about = lines[..above].iter().rev();
        above -= about.take_while(|line| is_comment(line)).count();
    }
    let is_operators = |line: &&str| is_comment(line) && !line.trim_start().starts_with(OURS);
    let last = lines[..above].iter().rposition(is_operators);
    let mut kept = last.map_or(0, |last| last + 1);
    // The blank line that goes may be the one below the table, which stands for that above it.
    let goes_below = lines.last().is_some_and(|line| is_blank(line));
    if kept > 0 && goes_below && lines.get(kept).is_some_and(|line| is_blank(line)) {
        kept += 1;
    }
    &lines[..kept]
}

/// The difference as `diff -u` shows it; a file that isn't there is `/dev/null`.
#[must_use]
pub fn unified(path: &str, before: Option<&str>, after: Option<&str>) -> String {
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
    fn a_note_on_what_is_removed_goes_with_it() {
        let old = "a\n\n# one\n\n# about b\n[b]\nc\n\n# about d\n[d]\n";
        let new = "a\n\n# about d\n[d]\n";
        assert_eq!(carried(old, new), "a\n\n# one\n\n# about d\n[d]\n");
        // A key's may be another key that is off.
        assert_eq!(carried("[a]\n# b = 1\nc = 1\n", "[a]\n"), "[a]\n# b = 1\n");
    }

    #[test]
    fn a_comment_at_a_tables_end_stays_there() {
        let added = |old: &str, new: &str| {
            let once = carried(old, new);
            // As a table's comments go with it.
            let back = once.replace("\n[b]\nc\n", "").replace("  # last\n", "");
            assert_eq!(carried(&once, &back), old, "{once}");
            once
        };
        let (old, new) = ("[a]\n  x\n  # last\n", "[a]\n  x\n\n[b]\nc\n  # last\n");
        assert_eq!(added(old, new), "[a]\n  x\n  # last\n\n[b]\nc\n");
        let (old, new) = (
            "[a]\n  x\n  # last\n\n# d\n[d]\n",
            "[a]\n  x\n\n[b]\nc\n  # last\n\n# d\n[d]\n",
        );
        assert_eq!(
            added(old, new),
            "[a]\n  x\n  # last\n\n[b]\nc\n\n# d\n[d]\n"
        );
        let (old, new) = ("[a]\nx\n# d\n[d]\n", "[a]\nx\n\n[b]\nc\n# d\n[d]\n");
        assert_eq!(carried(old, new), new);
    }

    #[test]
    fn an_editors_mark_stays() {
        assert_eq!(carried("\u{feff}a\n", "a\nb\n"), "\u{feff}a\nb\n");
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
