//! Commas and quotation marks.

/// The options in `item`, empty ones left out; `None` for one whose quotation isn't closed.
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

/// Where the first option ends: at a comma outside of quotation marks or at the end of the text.
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

/// The value without the quotation marks around it, if it has them.
pub(super) fn unquote(value: &str) -> &str {
    value
        .strip_prefix('"')
        .and_then(|value| value.strip_suffix('"'))
        .unwrap_or(value)
}
