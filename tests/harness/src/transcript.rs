//! Comparison of transcripts in documents with what programs print.

/// Returns a line without everything that differs between runs: numbers, months and days, and the width of columns.
pub fn normalize(line: &str) -> String {
    const MONTHS: &str = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec";
    const DAYS: &str = "Mon Tue Wed Thu Fri Sat Sun";
    let words = line.split_whitespace().map(|word| {
        let mut normalized = String::new();
        for character in word.chars() {
            match character {
                '0'..='9' if normalized.ends_with('0') => {}
                '0'..='9' => normalized.push('0'),
                other => normalized.push(other),
            }
        }
        for (names, name) in [(MONTHS, "month"), (DAYS, "day")] {
            if names.split(' ').any(|it| it == word) {
                return name.to_owned();
            }
        }
        normalized
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Reports whether `shortened` is `line` with some parts replaced by `…`.
pub fn matches_shortened(shortened: &str, line: &str) -> bool {
    let mut rest = line;
    shortened.split('…').all(|part| {
        let found = rest.find(part);
        rest = &rest[found.map_or(rest.len(), |at| at + part.len())..];
        found.is_some()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortened_line_matches_only_its_whole_line() {
        assert!(matches_shortened("pod a…has it", "pod a-b has it"));
        assert!(!matches_shortened("has it…pod a", "pod a-b has it"));
        assert!(!matches_shortened("pod c", "pod a-b has it"));
        assert_eq!(normalize("x  12 Nov 22 00:28"), "x 0 month 0 0:0");
    }
}
