//! Texts line by line.

use std::fmt::Write as _;

use similar::algorithms::{Capture, Compact, Replace, myers};
use similar::udiff::UnifiedHunkHeader;
use similar::{DiffOp, group_diff_ops};

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
    let (lines, new) = (of(original), of(&edited));
    let ops = operations(&of(&plain), &new);
    let mut text = String::with_capacity(original.len().max(edited.len()));
    text.push_str(mark);
    let mut early = 0;
    for (at, op) in ops.iter().enumerate() {
        let (old, new) = (&lines[op.old_range()], &new[op.new_range()]);
        match op {
            DiffOp::Equal { .. } => text.extend(old[std::mem::take(&mut early)..].iter().copied()),
            DiffOp::Delete { .. } => text.extend(comments_above(old).iter().copied()),
            DiffOp::Insert { .. } => {
                let next = ops.get(at + 1);
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

/// With their ends.
fn of(text: &str) -> Vec<&str> {
    text.split_inclusive('\n').collect()
}

/// What makes the new lines of the old. By the one algorithm that is named here: who passes it to the library as
/// a value, as `TextDiff` does, has all of them in the program.
fn operations(old: &[&str], new: &[&str]) -> Vec<DiffOp> {
    let mut found = Compact::new(Replace::new(Capture::new()), old, new);
    let Ok(()) = myers::diff(&mut found, old, 0..old.len(), new, 0..new.len());
    found.into_inner().into_inner().into_ops()
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
    let (old, new) = (before.unwrap_or_default(), after.unwrap_or_default());
    if old == new {
        return String::new();
    }
    let name = |text: Option<&str>| text.map_or("/dev/null", |_| path);
    let mut text = format!("--- {}\n+++ {}\n", name(before), name(after));
    let (old, new) = (of(old), of(new));
    for hunk in group_diff_ops(operations(&old, &new), 3) {
        let _ = writeln!(text, "{}", UnifiedHunkHeader::new(&hunk));
        for (tag, lines) in hunk.iter().flat_map(|op| op.iter_slices(&*old, &*new)) {
            for line in lines {
                let end = if line.ends_with('\n') {
                    ""
                } else {
                    "\n\\ No newline at end of file\n"
                };
                let _ = write!(text, "{tag}{line}{end}");
            }
        }
    }
    text
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

    #[test]
    fn a_difference_is_shown_as_the_library_shows_one() {
        let texts = [
            "",
            "a\n",
            "a",
            "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\n",
            "a\nb\nC\nd\ne\nf\ng\nh\ni\nj\n",
            "x\na\nb\nc\nd\ne\nf\ng\nh\nj\nk",
            "j\ni\nh\ng\n\nf\n\ne\nd\n",
        ];
        for (old, new) in texts.iter().flat_map(|old| texts.map(|new| (*old, new))) {
            let diff = similar::TextDiff::from_lines(old, new);
            let shown = diff.unified_diff().header("/etc/x", "/etc/x").to_string();
            assert_eq!(unified("/etc/x", Some(old), Some(new)), shown);
        }
    }

    #[test]
    fn a_carriage_return_alone_ends_no_line() {
        assert_eq!(carried("a\rb\r\nc\n", "a\rb\nx\nc\n"), "a\rb\r\nx\r\nc\n");
    }
}
