//! Edits TOML in place.
//!
//! A text is parsed to find the positions of its keys. An edit replaces a part of the text, and the rest is never
//! reformatted: comments, order, blanks, line ends and the form of each table stay the same byte for byte.

use std::ops::Range;
use std::path::Path;

use toml_edit::{Document, Item, Key, Table, TableLike, Value};

use crate::config_file::EngineConfigFile;
use crate::engine::Runtime;
use crate::error::{HandlerError, Result};

/// A file's text, open for edits.
#[derive(Debug)]
pub(crate) struct Toml<'a> {
    path: &'a Path,
    bom: &'a str,
    document: Document<String>,
}

/// The position at which a new key of a table is inserted.
enum InsertPosition {
    /// At an offset, as a line of its own. The text comes before the key.
    Line(usize, String),
    /// At an offset between the braces of an inline table. The flag says whether it is the first key.
    Inline(usize, bool),
    /// Below a new header at the end of the file.
    NewHeader,
}

impl<'a> Toml<'a> {
    pub(crate) fn parse(path: &'a Path, text: &'a str) -> Result<Self> {
        let (bom, text) = split_bom(text);
        let document = parse(path, text)?;
        Ok(Self {
            path,
            bom,
            document,
        })
    }

    /// Parses the text of a file. A file that doesn't exist counts as empty.
    pub(crate) fn parse_file(file: &'a EngineConfigFile) -> Result<Self> {
        Self::parse(&file.path, file.text())
    }

    /// Returns the edited text.
    pub(crate) fn text(&self) -> String {
        format!("{}{}", self.bom, self.raw())
    }

    /// Returns whether the text sets no key.
    pub(crate) fn is_empty(&self) -> bool {
        self.document.as_table().is_empty()
    }

    pub(crate) fn get(&self, keys: &[&str]) -> Option<&Item> {
        let mut keys = keys.iter();
        keys.try_fold(self.document.as_item(), |item, key| item.get(key))
    }

    /// Returns the members of a table; none if it doesn't exist or isn't a table.
    pub(crate) fn members(&self, keys: &[&str]) -> impl Iterator<Item = (&str, &Item)> {
        let table = self.get(keys).and_then(Item::as_table_like);
        table.into_iter().flat_map(TableLike::iter)
    }

    /// Returns whether the line above a table's header is this comment.
    pub(crate) fn is_below(&self, keys: &[&str], comment: &str) -> bool {
        let table = self.get(keys).and_then(Item::as_table);
        let header = table.and_then(Table::span).map_or(0, |span| span.start);
        let above = self.raw()[..self.line_start(header)].lines().last();
        above.is_some_and(|line| line.trim() == comment.trim())
    }

    pub(crate) fn begins_with(&self, list: &[&str], comment: &str) -> bool {
        let list = self.get(list).and_then(Item::as_array);
        let range = list.and_then(|list| Some(list.span()?.start..list.get(0)?.span()?.start));
        self.raw()[range.unwrap_or_default()].contains(comment.trim())
    }

    /// Sets a key. A comment behind the old value is kept. A new key is added after the other keys of its table.
    ///
    /// If the table doesn't exist, it becomes a part of its parent if that is an inline or dotted table. Otherwise it
    /// gets a header at the end of the file, below the comment `above`.
    pub(crate) fn set(
        &mut self,
        keys: &[&str],
        value: impl Into<Value>,
        above: &str,
    ) -> Result<()> {
        let value = value.into();
        let Some(old) = self.get(keys) else {
            return self.add(keys, &value.to_string(), above);
        };
        let is_same_text = old.as_str().is_some() && old.as_str() == value.as_str();
        if is_same_text || (old.as_bool().is_some() && old.as_bool() == value.as_bool()) {
            return Ok(());
        }
        match old.span().filter(|_| old.is_value()) {
            Some(span) => self.splice(span, &value.to_string()),
            None => Err(wrong_type(self.path, keys, "a value")),
        }
    }

    /// Adds a key that doesn't exist yet. `value` is TOML, and `above` is as in [`Self::set`].
    pub(crate) fn add(&mut self, keys: &[&str], value: &str, above: &str) -> Result<()> {
        let depth = (0..keys.len())
            .rev()
            .find(|depth| self.get(&keys[..*depth]).is_some());
        let (parents, rest) = keys.split_at(depth.unwrap_or_default());
        match self.insert_position(parents, rest.len() == 1)? {
            InsertPosition::Line(at, before) => {
                let blanks = &before[..before.len() - before.trim_start().len()];
                let value = value.replace('\n', &format!("\n{blanks}"));
                self.insert_lines(at, &format!("{before}{} = {value}\n", dotted(rest)))
            }
            InsertPosition::Inline(at, is_first) => {
                let comma = if is_first { "" } else { ", " };
                let (tables, key) = rest.split_at(rest.len() - 1);
                let key = dotted(key);
                let open: String = tables.iter().map(|key| dotted(&[key]) + " = { ").collect();
                let close = " }".repeat(tables.len());
                self.splice(at..at, &format!("{comma}{open}{key} = {value}{close}"))
            }
            InsertPosition::NewHeader => {
                let (table, key) = keys.split_at(keys.len() - 1);
                let (table, key, end) = (dotted(table), dotted(key), self.raw().len());
                self.insert_lines(end, &format!("\n{above}[{table}]\n{key} = {value}\n"))
            }
        }
    }

    /// Removes a key, or a table with its members and the comments directly above its header.
    pub(crate) fn remove(&mut self, keys: &[&str]) -> Result<()> {
        let Some((key, parents)) = keys.split_last() else {
            return Ok(());
        };
        let parent = self.get(parents);
        let table = parent.and_then(Item::as_table_like);
        let (Some(table), Some(item)) = (table, self.get(keys)) else {
            return Ok(());
        };
        if parent.is_some_and(Item::is_inline_table) {
            let before = table.iter().take_while(|(name, _)| name != key).last();
            let before = before.map(|(_, item)| value_end(item));
            return self.remove_element(before, key_start(table, key)..value_end(item));
        }
        let mut lines = Vec::new();
        collect_lines(table, key, &mut lines);
        lines.sort_by_key(|(span, _)| span.start);
        for (span, is_header) in lines.into_iter().rev() {
            self.cut_lines(span, is_header)?;
        }
        Ok(())
    }

    /// Removes the header of a table that has no keys of its own, or an inline table that is empty.
    pub(crate) fn remove_header(&mut self, keys: &[&str]) -> Result<()> {
        match self.get(keys) {
            Some(Item::Value(Value::InlineTable(table))) if table.is_empty() => self.remove(keys),
            Some(Item::Table(table)) if is_header(table) && last_value_end(table).is_none() => {
                self.cut_lines(table.span().unwrap_or_default(), true)
            }
            _ => Ok(()),
        }
    }

    /// Adds a name to the end of a list.
    pub(crate) fn push(&mut self, keys: &[&str], name: &str) -> Result<()> {
        let Some(list) = self.get(keys).and_then(Item::as_array) else {
            return Ok(());
        };
        let start = list.span().unwrap_or_default().start + 1;
        let (at, comma) = match list.iter().last().and_then(Value::span) {
            Some(name) => (name.end, ", "),
            None => (start, ""),
        };
        self.splice(at..at, &format!("{comma}{}", Value::from(name)))
    }

    /// Removes every occurrence of a name from a list.
    pub(crate) fn remove_from(&mut self, keys: &[&str], name: &str) -> Result<()> {
        while let Some(list) = self.get(keys).and_then(Item::as_array) {
            let Some(at) = list.iter().position(|value| value.as_str() == Some(name)) else {
                break;
            };
            let span = |at: usize| list.get(at).and_then(Value::span).unwrap_or_default();
            let before = at.checked_sub(1).map(|before| span(before).end);
            self.remove_element(before, span(at))?;
        }
        Ok(())
    }

    /// Removes an element of a list or of an inline table, together with one comma. `before` is the end of the previous
    /// element.
    fn remove_element(&mut self, before: Option<usize>, element: Range<usize>) -> Result<()> {
        let text = self.raw();
        if let Some(before) = before.filter(|before| !text[*before..element.start].contains('#')) {
            return self.splice(before..element.end, "");
        }
        let after = &text[element.end..];
        let length = after.trim_start().strip_prefix(',').map_or(0, |rest| {
            after.len() - rest.trim_start_matches([' ', '\t']).len()
        });
        self.splice(element.start..element.end + length, "")
    }

    /// Returns the position at which the next member of a table is inserted. `is_key` is false if the member is a
    /// table.
    fn insert_position(&self, keys: &[&str], is_key: bool) -> Result<InsertPosition> {
        let wrong = || wrong_type(self.path, keys, "a table");
        let item = self.get(keys).ok_or_else(wrong)?;
        let table = item.as_table_like().ok_or_else(wrong)?;
        let span = item.span().unwrap_or_default();
        if item.is_inline_table() {
            let last = table.iter().last().map(|(_, item)| value_end(item));
            let at = last.unwrap_or(span.start + 1);
            return Ok(InsertPosition::Inline(at, last.is_none()));
        }
        let is_dotted = table.is_dotted();
        if keys.is_empty() || !(is_dotted || (is_key && item.as_table().is_some_and(is_header))) {
            return Ok(InsertPosition::NewHeader);
        }
        let lines = table.iter().filter(|(_, item)| has_line(item)).last();
        Ok(match lines {
            Some((name, item)) => {
                let key = key_start(table, name);
                let before = self.raw()[self.line_start(key)..key].to_owned();
                InsertPosition::Line(self.line_end(value_end(item)), before)
            }
            None => InsertPosition::Line(self.line_end(span.end), String::new()),
        })
    }

    fn raw(&self) -> &str {
        self.document.raw()
    }

    fn line_start(&self, at: usize) -> usize {
        let newline = self.raw()[..at].rfind('\n');
        newline.map_or(0, |newline| newline + 1)
    }

    fn line_end(&self, at: usize) -> usize {
        let newline = self.raw()[at..].find('\n');
        newline.map_or(self.raw().len(), |newline| at + newline + 1)
    }

    /// Inserts lines, with the same kind of line end as the previous line.
    fn insert_lines(&mut self, at: usize, lines: &str) -> Result<()> {
        let before = &self.raw()[..at];
        let is_ended = before.is_empty() || before.ends_with('\n');
        let last = before.strip_suffix('\n').unwrap_or(before);
        let is_crlf = last.ends_with('\r') || (!is_ended && before.contains("\r\n"));
        let mut lines = format!("{}{lines}", if is_ended { "" } else { "\n" });
        if is_crlf {
            lines = lines.replace('\n', "\r\n");
        }
        self.splice(at..at, &lines)
    }

    /// Removes lines. With `is_header`, also removes the comments directly above them.
    fn cut_lines(&mut self, lines: Range<usize>, is_header: bool) -> Result<()> {
        let above = &self.raw()[..self.line_start(lines.start)];
        let kept = if is_header { kept_above(above) } else { above };
        self.splice(kept.len()..self.line_end(lines.end), "")
    }

    fn splice(&mut self, at: Range<usize>, new: &str) -> Result<()> {
        let (head, tail) = (&self.raw()[..at.start], &self.raw()[at.end..]);
        self.document = parse(self.path, &format!("{head}{new}{tail}"))?;
        Ok(())
    }
}

fn parse(path: &Path, text: &str) -> Result<Document<String>> {
    Document::parse(text.to_owned()).map_err(|error| {
        let before = text.get(..error.span().map_or(0, |span| span.start));
        let line = before.unwrap_or_default().matches('\n').count() + 1;
        let message = error.message().replace('\n', ", ");
        HandlerError::Syntax(path.to_owned(), line, message)
    })
}

/// Lists the runtimes in tables of a file. `describe` returns the programs of an entry, and the reason why `install`
/// can't have written it.
pub(crate) fn runtimes(
    file: &EngineConfigFile,
    tables: impl IntoIterator<Item = impl AsRef<[&'static str]>>,
    describe: impl Fn(&Item) -> (Vec<&str>, Option<String>),
) -> Result<Vec<Runtime>> {
    let toml = Toml::parse_file(file)?;
    let mut found = Vec::new();
    for keys in tables {
        found.extend(toml.members(keys.as_ref()).map(|(name, entry)| {
            let (programs, mismatch) = describe(entry);
            let programs = programs.into_iter().map(str::to_owned);
            Runtime::new(name, programs, mismatch)
        }));
    }
    Ok(found)
}

/// Returns the elements of `keys` that a file sets to a string, with their values.
pub(crate) fn defaults(
    file: &EngineConfigFile,
    keys: impl IntoIterator<Item = impl AsRef<[&'static str]>>,
) -> Result<Vec<(String, String)>> {
    let toml = Toml::parse_file(file)?;
    let found = keys.into_iter().filter_map(|keys| {
        let name = toml.get(keys.as_ref())?.as_str()?;
        Some((keys.as_ref().join("."), name.to_owned()))
    });
    Ok(found.collect())
}

/// Returns the error for a key whose value has the wrong type.
pub(crate) fn wrong_type(path: &Path, keys: &[&str], expected: &'static str) -> HandlerError {
    HandlerError::Type(path.to_owned(), keys.join("."), expected)
}

/// Splits off the byte order mark that some editors write at the beginning of a text.
pub(crate) fn split_bom(text: &str) -> (&str, &str) {
    let rest = text.strip_prefix('\u{feff}').unwrap_or(text);
    text.split_at(text.len() - rest.len())
}

fn dotted(keys: &[&str]) -> String {
    let keys = keys
        .iter()
        .map(|key| Key::new(*key).display_repr().into_owned());
    keys.collect::<Vec<_>>().join(".")
}

fn is_header(table: &Table) -> bool {
    !table.is_implicit() && !table.is_dotted()
}

/// Returns whether an item is on lines of its table and has no header of its own.
fn has_line(item: &Item) -> bool {
    item.is_value() || item.as_table().is_some_and(Table::is_dotted)
}

/// Returns the end of a value, or of the last value of a dotted table.
fn value_end(item: &Item) -> usize {
    match item {
        Item::Table(table) => last_value_end(table).unwrap_or_default(),
        item => item.span().unwrap_or_default().end,
    }
}

fn last_value_end(table: &Table) -> Option<usize> {
    let values = table.iter().filter(|(_, item)| has_line(item));
    values.map(|(_, item)| value_end(item)).max()
}

/// Returns the start of a member's key.
fn key_start(table: &dyn TableLike, name: &str) -> usize {
    let key = table.key(name).and_then(Key::span);
    key.unwrap_or_default().start
}

/// Collects the lines of a member, and recursively those of its members. The flag in `lines` says whether the lines
/// begin with a header.
fn collect_lines(parent: &dyn TableLike, name: &str, lines: &mut Vec<(Range<usize>, bool)>) {
    match parent.get(name) {
        Some(Item::Table(table)) => collect_table_lines(table, lines),
        Some(Item::ArrayOfTables(tables)) => {
            for table in tables {
                collect_table_lines(table, lines);
            }
        }
        Some(item) if item.is_value() => {
            lines.push((key_start(parent, name)..value_end(item), false));
        }
        _ => {}
    }
}

fn collect_table_lines(table: &Table, lines: &mut Vec<(Range<usize>, bool)>) {
    if is_header(table) {
        let span = table.span().unwrap_or_default();
        lines.push((span.start..last_value_end(table).unwrap_or(span.end), true));
    }
    // The range of a header includes the lines below it.
    let inner = table.iter().filter(|(_, item)| {
        let has_header = item.is_table() || item.is_array_of_tables();
        !is_header(table) || (has_header && !has_line(item))
    });
    for (name, _) in inner {
        collect_lines(table, name, lines);
    }
}

/// Returns the part of the text above a header that is kept when the header is removed. The comments directly above it,
/// and the blank line before those, are removed as well.
fn kept_above(above: &str) -> &str {
    let mut kept = above;
    let mut lines = above.split_inclusive('\n').rev().peekable();
    while let Some(comment) = lines.next_if(|line| line.trim_start().starts_with('#')) {
        kept = &kept[..kept.len() - comment.len()];
    }
    match lines.next() {
        Some(blank) if blank.trim().is_empty() => &kept[..kept.len() - blank.len()],
        _ => kept,
    }
}
