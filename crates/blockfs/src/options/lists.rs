//! Splits lists of mount options at commas, and prepares them to be stored until the mount.

use super::OptionsError;
use super::table::{self, OptionMeaning};

/// The largest number of options that a volume may have. Real volumes have fewer than twenty.
const MAX_OPTIONS: usize = 128;

/// The largest total length of a volume's options in bytes, including commas. mount(2) accepts at most a page, too.
const MAX_LENGTH: usize = 4096;

/// Returns the options as they are stored until the mount. Options that aren't passed to the kernel (`defaults`, `x-*`
/// and others) are removed, the others are kept as they are written. Fails if there are too many options, or if they
/// are too long in total.
pub fn for_storage<S: AsRef<str>>(list: &[S]) -> Result<Vec<String>, OptionsError> {
    let length: usize = list.iter().map(|item| item.as_ref().len() + 1).sum();
    if length > MAX_LENGTH {
        return Err(OptionsError::TooMuch {
            length,
            most: MAX_LENGTH,
        });
    }
    let (mut stored, mut count) = (Vec::new(), 0);
    for (index, item) in list.iter().enumerate() {
        let position = index + 1;
        let options: Option<Vec<&str>> = split_at_commas(item.as_ref()).collect();
        let mut options = options.ok_or(OptionsError::Quote { position })?;
        count += options.len();
        let all = options.len();
        options.retain(|option| !is_ignored(option));
        if options.is_empty() {
            continue;
        }
        stored.push(if options.len() == all {
            item.as_ref().to_owned()
        } else {
            options.join(",")
        });
    }
    if count > MAX_OPTIONS {
        let most = MAX_OPTIONS;
        return Err(OptionsError::TooMany { count, most });
    }
    Ok(stored)
}

fn is_ignored(option: &str) -> bool {
    let key = option.split_once('=').map_or(option, |(key, _)| key);
    table::meaning(key) == OptionMeaning::Ignored
}

/// Splits `item` at its commas and leaves out empty options. Returns `None` for an option whose quotation isn't closed.
pub(super) fn split_at_commas(item: &str) -> impl Iterator<Item = Option<&str>> {
    let mut rest = Some(item);
    std::iter::from_fn(move || {
        loop {
            let text = rest?;
            let Some(end) = first_option_end(text) else {
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

/// Returns the end of the first option: a comma outside of quotation marks, or the end of the text. `None` if a
/// quotation isn't closed.
fn first_option_end(text: &str) -> Option<usize> {
    let mut is_quoted = false;
    for (index, byte) in text.bytes().enumerate() {
        match byte {
            b'"' => is_quoted = !is_quoted,
            b',' if !is_quoted => return Some(index),
            _ => {}
        }
    }
    (!is_quoted).then_some(text.len())
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
    fn options_that_are_not_for_the_kernel_are_not_stored() {
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
    fn the_number_and_the_length_of_options_are_limited() {
        let many = vec!["a"; MAX_OPTIONS];
        assert_eq!(for_storage(&many).unwrap().len(), MAX_OPTIONS);
        let commas = [many.join(","), "x-b".to_owned()];
        let (count, most) = (MAX_OPTIONS + 1, MAX_OPTIONS);
        assert_eq!(
            for_storage(&commas),
            Err(OptionsError::TooMany { count, most })
        );
        let padded = |length| ["x-".to_owned() + &"a".repeat(length - 3)];
        assert_eq!(for_storage(&padded(MAX_LENGTH)), Ok(Vec::new()));
        let (length, most) = (MAX_LENGTH + 1, MAX_LENGTH);
        let refused = for_storage(&padded(length));
        assert_eq!(refused, Err(OptionsError::TooMuch { length, most }));
        let position = 2;
        let open = for_storage(&["a", "b=\"c"]);
        assert_eq!(open, Err(OptionsError::Quote { position }));
    }
}
