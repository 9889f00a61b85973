//! The difference of two texts as `diff -u` shows it.

use std::fmt::Write as _;

use similar::algorithms::{Capture, Compact, Replace, myers};
use similar::group_diff_ops;
use similar::udiff::UnifiedHunkHeader;

/// Returns the difference of a file's texts. A text that is `None` is shown as `/dev/null`.
#[must_use]
pub fn unified(path: &str, before: Option<&str>, after: Option<&str>) -> String {
    let (old, new) = (before.unwrap_or_default(), after.unwrap_or_default());
    if old == new {
        return String::new();
    }
    let name = |text: Option<&str>| text.map_or("/dev/null", |_| path);
    let mut text = format!("--- {}\n+++ {}\n", name(before), name(after));
    let (old, new): (Vec<&str>, Vec<&str>) = (
        old.split_inclusive('\n').collect(),
        new.split_inclusive('\n').collect(),
    );
    // `TextDiff` would link all of the library's algorithms into a program that starts with every container.
    let mut found = Compact::new(Replace::new(Capture::new()), &*old, &*new);
    let Ok(()) = myers::diff(&mut found, &*old, 0..old.len(), &*new, 0..new.len());
    for hunk in group_diff_ops(found.into_inner().into_inner().into_ops(), 3) {
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
    fn a_difference_is_shown_as_the_library_shows_one() {
        let texts = [
            "",
            "a\n",
            "a",
            "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\n",
            "a\nb\nC\nd\ne\nf\ng\nh\ni\nj\n",
            "x\na\nb\nc\nd\ne\nf\ng\nh\nj\nk",
        ];
        for (old, new) in texts.iter().flat_map(|old| texts.map(|new| (*old, new))) {
            let diff = similar::TextDiff::from_lines(old, new);
            let shown = diff.unified_diff().header("/etc/x", "/etc/x").to_string();
            assert_eq!(unified("/etc/x", Some(old), Some(new)), shown);
        }
        let new = unified("/etc/x", None, Some("a\n"));
        assert_eq!(new, "--- /dev/null\n+++ /etc/x\n@@ -0,0 +1 @@\n+a\n");
    }
}
