//! Lists of mount options: splitting them at commas, and the form in which they are stored until the mount.

use super::OptionsError;
use super::table::{self, Meaning};

/// The most options of a volume. Lists of real volumes have fewer than twenty.
const MOST: usize = 128;

/// The most bytes of a volume's options, commas included: mount(2) takes no more than a page either.
const LONGEST: usize = 4096;

/// Returns the options without those that no mount takes (`defaults`, `x-*`, …), which would only fill
/// memory. What is kept is kept as it is written. Fails where there are too many, or they are too long.
pub fn for_storage<S: AsRef<str>>(list: &[S]) -> Result<Vec<String>, OptionsError> {
    let length: usize = list.iter().map(|item| item.as_ref().len() + 1).sum();
    if length > LONGEST {
        return Err(OptionsError::TooMuch {
            length,
            most: LONGEST,
        });
    }
    let (mut stored, mut count) = (Vec::new(), 0);
    for (index, item) in list.iter().enumerate() {
        let position = index + 1;
        let options: Option<Vec<&str>> = at_commas(item.as_ref()).collect();
        let mut options = options.ok_or(OptionsError::Quote { position })?;
        count += options.len();
        let all = options.len();
        options.retain(|option| !is_dropped(option));
        if options.is_empty() {
            continue;
        }
        stored.push(if options.len() == all {
            item.as_ref().to_owned()
        } else {
            options.join(",")
        });
    }
    if count > MOST {
        return Err(OptionsError::TooMany { count, most: MOST });
    }
    Ok(stored)
}

fn is_dropped(option: &str) -> bool {
    let key = option.split_once('=').map_or(option, |(key, _)| key);
    table::meaning(key) == Meaning::Dropped
}

/// Splits `item` at its commas and leaves out empty options; `None` stands for an option whose quotation isn't closed.
pub(super) fn at_commas(item: &str) -> impl Iterator<Item = Option<&str>> {
    let mut rest = Some(item);
    std::iter::from_fn(move || {
        loop {
            let text = rest?;
            let Some(end) = end_of_first(text) else {
                rest = None;
                return Some(None);
            };
            rest = text.get(end + 1..);
            let option = text[..end].trim();
            if !option.is_empty() {
                return Some(Some(option));
            }
        }
    })
}

/// Returns the end of the first option: a comma outside of quotation marks, or the end of the text.
fn end_of_first(text: &str) -> Option<usize> {
    let mut quoted = false;
    for (index, byte) in text.bytes().enumerate() {
        match byte {
            b'"' => quoted = !quoted,
            b',' if !quoted => return Some(index),
            _ => {}
        }
    }
    (!quoted).then_some(text.len())
}

/// Removes the quotation marks around a value, if it has them.
pub(super) fn unquote(value: &str) -> &str {
    value
        .strip_prefix('"')
        .and_then(|value| value.strip_suffix('"'))
        .unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_mount_takes_is_not_kept() {
        for (given, expected) in [
            (&[][..], &[][..]),
            (&["noatime", "commit=30"], &["noatime", "commit=30"]),
            (&["defaults", "", "_netdev,nofail", "x-a=b"], &[]),
            (
                &["ro,x-systemd.automount,noload", " noatime"],
                &["ro,noload", " noatime"],
            ),
            (
                &[r#"x-a="1,2",context="u:r:t:s0:c1,c2""#],
                &[r#"context="u:r:t:s0:c1,c2""#],
            ),
        ] {
            assert_eq!(for_storage(given).unwrap(), expected, "{given:?}");
        }
    }

    #[test]
    fn options_are_bounded_in_number_and_length() {
        let many = vec!["a"; MOST];
        assert_eq!(for_storage(&many).unwrap().len(), MOST);
        let commas = [many.join(","), "x-b".to_owned()];
        let (count, most) = (MOST + 1, MOST);
        assert_eq!(
            for_storage(&commas),
            Err(OptionsError::TooMany { count, most })
        );
        let padded = |length| ["x-".to_owned() + &"a".repeat(length - 3)];
        assert_eq!(for_storage(&padded(LONGEST)), Ok(Vec::new()));
        let (length, most) = (LONGEST + 1, LONGEST);
        let refused = for_storage(&padded(length));
        assert_eq!(refused, Err(OptionsError::TooMuch { length, most }));
        let position = 2;
        let open = for_storage(&["a", "b=\"c"]);
        assert_eq!(open, Err(OptionsError::Quote { position }));
    }
}
