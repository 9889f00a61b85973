//! TOML that is edited in place: comments, order, and the form of each table are kept.

use std::path::Path;

use toml_edit::{Array, DocumentMut, InlineTable, Item, Table, TableLike, Value};

use crate::config_file::ConfigFile;
use crate::engine::Runtime;
use crate::error::HandlerError;

const BOM: &str = "\u{feff}";

/// A file's text, open for edits.
#[derive(Debug)]
pub(crate) struct Toml<'a> {
    path: &'a Path,
    original: &'a str,
    document: DocumentMut,
}

impl<'a> Toml<'a> {
    pub(crate) fn parse(path: &'a Path, original: &'a str) -> Result<Self, HandlerError> {
        let (_, text) = split_bom(original);
        let document = text.parse().map_err(|error: toml_edit::TomlError| {
            let before = text.get(..error.span().map_or(0, |span| span.start));
            let line = before.unwrap_or_default().matches('\n').count() + 1;
            let message = error.message().replace('\n', ", ");
            HandlerError::Syntax(path.to_owned(), line, message)
        })?;
        Ok(Self {
            path,
            original,
            document,
        })
    }

    /// Parses a file's text. A file that doesn't exist is empty.
    pub(crate) fn of(file: &'a ConfigFile) -> Result<Self, HandlerError> {
        Self::parse(&file.path, file.text())
    }

    /// Returns the edited text.
    pub(crate) fn text(&self) -> String {
        let (bom, original) = split_bom(self.original);
        format!(
            "{bom}{}",
            with_line_ends_of(original, &self.document.to_string())
        )
    }

    /// Returns whether the text sets nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.document.is_empty()
    }

    pub(crate) fn get(&self, keys: &[&str]) -> Option<&Item> {
        let root = self.document.as_item();
        keys.iter()
            .try_fold(root, |item, key| item.as_table_like()?.get(key))
    }

    fn get_mut(&mut self, keys: &[&str]) -> Option<&mut Item> {
        let root = self.document.as_item_mut();
        keys.iter()
            .try_fold(root, |item, key| item.as_table_like_mut()?.get_mut(key))
    }

    pub(crate) fn array_mut(&mut self, keys: &[&str]) -> Option<&mut Array> {
        self.get_mut(keys)?.as_array_mut()
    }

    /// Returns a table's members. There are none if it doesn't exist or isn't a table.
    pub(crate) fn members(&self, keys: &[&str]) -> impl Iterator<Item = (&str, &Item)> {
        let table = self.get(keys).and_then(Item::as_table_like);
        table.into_iter().flat_map(TableLike::iter)
    }

    /// Returns a table, which is made if it doesn't exist. In an inline or dotted table it becomes a part of that. Else
    /// it gets a header at the end of the file, below the comment `above`, and nothing that is there is moved.
    pub(crate) fn table(&mut self, keys: &[&str], above: &str) -> Result<&mut Item, HandlerError> {
        let mut prefix = self
            .document
            .trailing()
            .as_str()
            .unwrap_or_default()
            .to_owned();
        if !prefix.is_empty() && !prefix.ends_with('\n') {
            prefix.push('\n');
        }
        prefix.push('\n');
        if let Item::Table(table) = self.make(keys)?
            && table.is_implicit()
            && !table.is_dotted()
        {
            table.set_implicit(false);
            table.set_position(Some(isize::MAX));
            table.decor_mut().set_prefix(prefix + above);
            self.document.set_trailing("");
        }
        self.make(keys)
    }

    fn make(&mut self, keys: &[&str]) -> Result<&mut Item, HandlerError> {
        let mut item = self.document.as_item_mut();
        for (depth, key) in keys.iter().enumerate() {
            let wrong = || wrong_type(self.path, &keys[..depth], "a table");
            let new = child_of(item).ok_or_else(wrong)?;
            let table = item.as_table_like_mut().ok_or_else(wrong)?;
            item = table.entry(key).or_insert(new);
        }
        if item.is_table_like() {
            Ok(item)
        } else {
            Err(wrong_type(self.path, keys, "a table"))
        }
    }

    /// Removes a key or table, with the comments right above it. Those further above stay, before whatever is next.
    pub(crate) fn remove(&mut self, keys: &[&str]) {
        let Some((key, parents)) = keys.split_last() else {
            return;
        };
        let Some(parent) = self.get_mut(parents) else {
            return;
        };
        let parent_position = parent.as_table().and_then(Table::position);
        let Some(table) = parent.as_table_like_mut() else {
            return;
        };
        let prefix = table.key(key).and_then(|key| key.leaf_decor().prefix());
        let prefix = prefix
            .and_then(|prefix| prefix.as_str())
            .unwrap_or_default();
        let prefix = prefix.to_owned();
        let end = take_inline_end(table);
        let removed = table.remove(key);
        give_inline_end(table, end);
        match removed {
            Some(mut removed) if removed.is_table() => {
                if let Some((position, prefix)) = headers(&mut removed).into_iter().min() {
                    self.put_before_next(kept_above(&prefix), position);
                }
            }
            Some(_) => {
                self.put_before_next(kept_above(&prefix), parent_position.unwrap_or_default());
            }
            None => {}
        }
    }

    /// Removes a table that has no keys of its own if `install` made it: the comment above it ends with `mark`, or
    /// `is_ours` says so. Only its header goes if other tables are in it.
    pub(crate) fn remove_if_added(&mut self, keys: &[&str], mark: &str, is_ours: bool) {
        let above = self.above(keys);
        let is_added = is_ours || above.trim_end().ends_with(mark.trim_end());
        let kept = kept_above(above).to_owned();
        match self.get_mut(keys) {
            Some(Item::Value(Value::InlineTable(table))) if table.is_empty() => self.remove(keys),
            Some(Item::Table(table)) if is_added && table.iter().all(|it| !it.1.is_value()) => {
                if table.is_empty() {
                    self.remove(keys);
                } else if !table.is_implicit() && !table.is_dotted() {
                    table.set_implicit(true);
                    let position = table.position().unwrap_or_default();
                    self.put_before_next(&kept, position);
                }
            }
            _ => {}
        }
    }

    /// Returns the blank lines and comments above a table's header.
    pub(crate) fn above(&self, keys: &[&str]) -> &str {
        let table = self.get(keys).and_then(Item::as_table);
        let prefix = table.and_then(|table| table.decor().prefix());
        prefix.and_then(|it| it.as_str()).unwrap_or_default()
    }

    /// Puts comments before the first header below a position, or at the end of the file.
    fn put_before_next(&mut self, comments: &str, position: isize) {
        if comments.is_empty() {
            return;
        }
        let root = self.document.as_table_mut();
        let headers = root.iter_mut().flat_map(|(_, item)| headers(item));
        let Some((next, prefix)) = headers.filter(|it| it.0 > position).min() else {
            let trailing = self.document.trailing().as_str().unwrap_or_default();
            let trailing = format!("{comments}{trailing}");
            return self.document.set_trailing(trailing);
        };
        for (_, item) in self.document.iter_mut() {
            each_header(item, &mut |table| {
                if table.position() == Some(next) {
                    table.decor_mut().set_prefix(format!("{comments}{prefix}"));
                }
            });
        }
    }
}

/// Lists the runtimes in a table of a file. `describe` returns an entry's programs, and why `install` can't have written
/// it.
pub(crate) fn runtimes(
    file: &ConfigFile,
    keys: &[&str],
    describe: impl Fn(&Item) -> (Vec<&str>, Option<String>),
) -> Result<Vec<Runtime>, HandlerError> {
    let toml = Toml::of(file)?;
    let found = toml.members(keys).map(|(name, entry)| {
        let (programs, mismatch) = describe(entry);
        Runtime {
            name: name.to_owned(),
            programs: programs.into_iter().map(str::to_owned).collect(),
            mismatch,
        }
    });
    Ok(found.collect())
}

/// Returns a key that names the default runtime, and the name.
pub(crate) fn default(
    file: &ConfigFile,
    keys: &[&str],
) -> Result<Option<(String, String)>, HandlerError> {
    let toml = Toml::of(file)?;
    let name = toml.get(keys).and_then(Item::as_str);
    Ok(name.map(|name| (keys.join("."), name.to_owned())))
}

/// Sets a key. The text around an old value, a comment mostly, stays. A new key is indented like the one above it.
pub(crate) fn set(item: &mut Item, key: &str, value: impl Into<Value>) {
    let has_lines = item.as_table().is_some_and(|table| !table.is_dotted());
    let Some(table) = item.as_table_like_mut() else {
        return;
    };
    let mut value = value.into();
    if let Some(Item::Value(old)) = table.get_mut(key) {
        if is_same(old, &value) {
            return;
        }
        *value.decor_mut() = old.decor().clone();
        *old = value;
        return;
    }
    let indent = indent(table);
    let end = take_inline_end(table);
    table.insert(key, Item::Value(value));
    give_inline_end(table, end);
    if has_lines && let Some(mut key) = table.key_mut(key) {
        key.leaf_decor_mut().set_prefix(indent);
    }
}

fn is_same(one: &Value, two: &Value) -> bool {
    let is_same_text = one.as_str().is_some() && one.as_str() == two.as_str();
    is_same_text || (one.as_bool().is_some() && one.as_bool() == two.as_bool())
}

/// Adds a name to a list. What is before the closing bracket stays there.
pub(crate) fn push(list: &mut Array, name: &str) {
    let end = list.iter_mut().last().and_then(take_end);
    list.push(name);
    give_end(list.iter_mut().last(), end);
}

/// Removes a name from a list. What is before the closing bracket stays there.
pub(crate) fn remove_from(list: &mut Array, name: &str) {
    let end = list.iter_mut().last().and_then(take_end);
    list.retain(|value| value.as_str() != Some(name));
    if list.is_empty() {
        list.set_trailing(end.unwrap_or_default());
    } else {
        give_end(list.iter_mut().last(), end);
    }
}

/// Takes the blanks before the closing brace of an inline table: the library has them behind the last value.
fn take_inline_end(table: &mut dyn TableLike) -> Option<String> {
    let (_, last) = table.iter_mut().last()?;
    last.as_value_mut().and_then(take_end)
}

fn give_inline_end(table: &mut dyn TableLike, end: Option<String>) {
    let last = table.iter_mut().last();
    give_end(last.and_then(|(_, last)| last.as_value_mut()), end);
}

fn take_end(last: &mut Value) -> Option<String> {
    let suffix = last.decor().suffix()?.as_str()?.to_owned();
    let is_blank = !suffix.is_empty() && suffix.trim().is_empty();
    is_blank.then(|| last.decor_mut().set_suffix(""));
    is_blank.then_some(suffix)
}

fn give_end(last: Option<&mut Value>, end: Option<String>) {
    if let (Some(last), Some(end)) = (last, end) {
        last.decor_mut().set_suffix(end);
    }
}

/// Returns the indentation of a table's last key.
pub(crate) fn indent(table: &dyn TableLike) -> String {
    let values = table.iter().filter(|(_, item)| item.is_value());
    let key = values.last().and_then(|(name, _)| table.key(name));
    let prefix = key.and_then(|key| key.leaf_decor().prefix()?.as_str());
    let line = prefix.and_then(|prefix| prefix.rsplit('\n').next());
    line.unwrap_or_default().to_owned()
}

/// Returns the error for a key whose value is of another type than the engine reads.
pub(crate) fn wrong_type(path: &Path, keys: &[&str], expected: &'static str) -> HandlerError {
    HandlerError::Type(path.to_owned(), keys.join("."), expected)
}

/// Returns the byte order mark that some editors put before a text, and the rest.
pub(crate) fn split_bom(text: &str) -> (&str, &str) {
    let rest = text.strip_prefix(BOM).unwrap_or(text);
    text.split_at(text.len() - rest.len())
}

/// Returns an empty table of its parent's form: inline, dotted, or with headers.
fn child_of(parent: &Item) -> Option<Item> {
    match parent {
        Item::Value(Value::InlineTable(_)) => Some(Item::Value(InlineTable::new().into())),
        Item::Table(parent) => {
            let mut table = Table::new();
            table.set_implicit(true);
            table.set_dotted(parent.is_dotted());
            Some(Item::Table(table))
        }
        _ => None,
    }
}

/// Calls a function for each table in an item that has a header.
fn each_header(item: &mut Item, call: &mut dyn FnMut(&mut Table)) {
    match item {
        Item::Table(table) => {
            if !table.is_implicit() && !table.is_dotted() {
                call(table);
            }
            table
                .iter_mut()
                .for_each(|(_, item)| each_header(item, call));
        }
        Item::ArrayOfTables(tables) => {
            for table in tables.iter_mut() {
                call(table);
                table
                    .iter_mut()
                    .for_each(|(_, item)| each_header(item, call));
            }
        }
        _ => {}
    }
}

/// Returns the positions of an item's headers, and what is above each of them.
fn headers(item: &mut Item) -> Vec<(isize, String)> {
    let mut found = Vec::new();
    each_header(item, &mut |table| {
        let prefix = table.decor().prefix().and_then(|prefix| prefix.as_str());
        let prefix = prefix.unwrap_or_default().to_owned();
        found.extend(table.position().map(|position| (position, prefix)));
    });
    found
}

/// Returns what stays of the text above a removed item: not the comments right above it, and not the blank line before
/// those.
fn kept_above(prefix: &str) -> &str {
    let mut kept = &prefix[..prefix.rfind('\n').map_or(0, |at| at + 1)];
    let last = |text: &str| text.split_inclusive('\n').next_back().map(str::len);
    let starts = |text: &str, at: usize| text[text.len() - at..].trim_start().starts_with('#');
    while let Some(length) = last(kept).filter(|length| starts(kept, *length)) {
        kept = &kept[..kept.len() - length];
    }
    match last(kept) {
        Some(length) if kept[kept.len() - length..].trim().is_empty() => {
            &kept[..kept.len() - length]
        }
        _ => kept,
    }
}

/// Returns an edited text with the line ends of the original, which the library has changed to `\n`. Lines that were kept
/// have the end that they had, and new lines that of the line before.
fn with_line_ends_of(original: &str, edited: &str) -> String {
    if !original.contains("\r\n") {
        return edited.to_owned();
    }
    let old: Vec<&str> = original.split_inclusive('\n').collect();
    let new: Vec<&str> = edited.split_inclusive('\n').collect();
    let is_kept = |(old, new): &(&&str, &&str)| {
        let text = |line: &str| line.strip_suffix("\r\n").map(str::to_owned);
        old == new || text(old).is_some_and(|text| new.strip_suffix('\n') == Some(&text))
    };
    let head = old.iter().zip(&new).take_while(is_kept).count();
    let tail = old[head..].iter().rev().zip(new[head..].iter().rev());
    let tail = tail.take_while(is_kept).count();
    let ended = old.iter().take(head + 1).rfind(|line| line.ends_with('\n'));
    let mut added = new[head..new.len() - tail].concat();
    if ended.is_some_and(|line| line.ends_with("\r\n")) {
        added = added.replace('\n', "\r\n");
    }
    [
        old[..head].concat(),
        added,
        old[old.len() - tail..].concat(),
    ]
    .concat()
}
