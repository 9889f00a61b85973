//! TOML that is edited in place: comments, order, blanks and the form of each table stay.

use std::path::Path;

use toml_edit::{Array, Decor, DocumentMut, InlineTable, Item, Table, TableLike, Value};

use crate::error::HandlerError;
use crate::lines;

/// A file's text, open for edits.
#[derive(Debug)]
pub(crate) struct Toml<'a> {
    path: &'a Path,
    original: &'a str,
    /// The comments of a text that sets nothing: they stay above what is added.
    head: String,
    document: DocumentMut,
}

impl<'a> Toml<'a> {
    /// Reads a text; `path` is for messages.
    pub(crate) fn parse(path: &'a Path, original: &'a str) -> Result<Self, HandlerError> {
        let mut document = original.parse::<DocumentMut>().map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            let before = original.get(..at).unwrap_or_default();
            HandlerError::Syntax {
                path: path.to_owned(),
                line: before.matches('\n').count() + 1,
                message: error.message().replace('\n', ", "),
            }
        })?;
        let mut head = String::new();
        if document.is_empty() {
            head.push_str(lines::without_bom(original));
            document = DocumentMut::new();
        }
        Ok(Self {
            path,
            original,
            head,
            document,
        })
    }

    /// The text as it is now.
    pub(crate) fn text(&self) -> String {
        let mut head = self.head.clone();
        if !head.is_empty() && !head.ends_with('\n') && !self.document.is_empty() {
            head.push('\n');
        }
        lines::carried(self.original, &format!("{head}{}", self.document))
    }

    /// Whether nothing is set in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.document.is_empty()
    }

    /// What a key says, if it is there.
    pub(crate) fn get(&self, keys: &[&str]) -> Option<&Item> {
        keys.iter().try_fold(self.document.as_item(), |item, key| {
            item.as_table_like()?.get(key)
        })
    }

    /// A table, to be changed; made where it is missing, with its parents, in the form of what is
    /// around it. Only the last gets a header of its own.
    pub(crate) fn table(&mut self, keys: &[&str]) -> Result<&mut Item, HandlerError> {
        let mut item = self.document.as_item_mut();
        for (depth, key) in keys.iter().enumerate() {
            let wrong = || kind(self.path, &keys[..depth], "a table");
            let new = like(item).ok_or_else(wrong)?;
            let table = item.as_table_like_mut().ok_or_else(wrong)?;
            make_room(table, key);
            item = table.entry(key).or_insert(new);
        }
        if item.as_table_like().is_none() {
            return Err(kind(self.path, keys, "a table"));
        }
        Ok(item)
    }

    /// Changes an array, if it is there.
    pub(crate) fn with_array(&mut self, keys: &[&str], change: impl FnOnce(&mut Array)) {
        let root = self.document.as_item_mut();
        let found = keys
            .iter()
            .try_fold(root, |item, key| item.as_table_like_mut()?.get_mut(key));
        if let Some(array) = found.and_then(Item::as_array_mut) {
            change(array);
        }
    }

    /// Removes a key; a parent that has no header of its own goes with its last. True if it was there.
    pub(crate) fn remove(&mut self, keys: &[&str]) -> bool {
        remove(self.document.as_item_mut(), keys)
    }
}

/// A key has another type than its daemon reads.
pub(crate) fn kind(path: &Path, keys: &[&str], kind: &'static str) -> HandlerError {
    let key = if keys.is_empty() {
        "the file".to_owned()
    } else {
        keys.join(".")
    };
    let path = path.to_owned();
    HandlerError::Kind { path, key, kind }
}

/// An empty table of a parent's form.
fn like(parent: &Item) -> Option<Item> {
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

/// `{ a = 1 }`: the blank before the brace is the last value's, and goes on being the last's.
fn make_room(table: &mut dyn TableLike, key: &str) {
    if table.contains_key(key) {
        return;
    }
    if let Some((_, Item::Value(last))) = table.iter_mut().last() {
        let suffix = last.decor().suffix().and_then(|suffix| suffix.as_str());
        if suffix.is_some_and(|suffix| !suffix.is_empty() && suffix.trim().is_empty()) {
            last.decor_mut().set_suffix("");
        }
    }
}

/// The other way round.
fn give_room(table: &mut dyn TableLike, removed: Option<&Item>) {
    let Some(Item::Value(removed)) = removed else {
        return;
    };
    let Some(suffix) = removed.decor().suffix().and_then(|suffix| suffix.as_str()) else {
        return;
    };
    if let Some((_, Item::Value(last))) = table.iter_mut().last() {
        let own = last.decor().suffix().and_then(|suffix| suffix.as_str());
        if suffix.trim().is_empty() && own.is_none_or(str::is_empty) {
            last.decor_mut().set_suffix(suffix);
        }
    }
}

fn remove(item: &mut Item, keys: &[&str]) -> bool {
    let Some((key, rest)) = keys.split_first() else {
        return false;
    };
    let Some(table) = item.as_table_like_mut() else {
        return false;
    };
    if rest.is_empty() {
        let removed = table.remove(key);
        give_room(table, removed.as_ref());
        return removed.is_some();
    }
    table.get_mut(key).is_some_and(|child| remove(child, rest))
}

/// Gives a table a header of its own, with what stands before it.
pub(crate) fn give_header(item: &mut Item, prefix: &str) {
    if let Item::Table(table) = item
        && !table.is_dotted()
    {
        table.set_implicit(false);
        table.decor_mut().set_prefix(prefix);
    }
}

/// Sets a key: what is written around its value, a comment mostly, stays. A new one is indented by
/// `indent`, where it has a line of its own.
pub(crate) fn set(item: &mut Item, key: &str, value: impl Into<Value>, indent: &str) {
    let has_lines = matches!(item, Item::Table(_));
    let Some(table) = item.as_table_like_mut() else {
        return;
    };
    let mut value = value.into();
    if let Some(Item::Value(old)) = table.get_mut(key) {
        let decor: Decor = old.decor().clone();
        *value.decor_mut() = decor;
        *old = value;
        return;
    }
    make_room(table, key);
    table.insert(key, Item::Value(value));
    if has_lines
        && !table.is_dotted()
        && let Some(mut key) = table.key_mut(key)
    {
        key.leaf_decor_mut().set_prefix(indent);
    }
}

/// How a table and its keys are indented.
#[derive(Debug, Clone, Default)]
pub(crate) struct Indent {
    /// Its header.
    pub(crate) header: String,
    /// Its keys, and the header of a table in it.
    pub(crate) keys: String,
    /// The keys of a table in it.
    pub(crate) inner: String,
}

impl Indent {
    /// As another table is.
    pub(crate) fn of(table: &Item) -> Self {
        let Item::Table(table) = table else {
            return Self::default();
        };
        let header = last_line(table.decor().prefix().and_then(|prefix| prefix.as_str()));
        let first = table.iter().find(|(_, item)| item.is_value());
        let key = first.and_then(|(name, _)| table.key(name));
        let prefix = key.and_then(|key| key.leaf_decor().prefix());
        let keys = key.map_or_else(
            || header.clone(),
            |_| last_line(prefix.and_then(|prefix| prefix.as_str())),
        );
        let step = keys.strip_prefix(header.as_str()).unwrap_or_default();
        let inner = format!("{keys}{step}");
        Self {
            header,
            keys,
            inner,
        }
    }
}

/// The blanks at the end of what stands before a header or key.
fn last_line(prefix: Option<&str>) -> String {
    let last = prefix.unwrap_or_default().rsplit('\n').next();
    let last = last.unwrap_or_default();
    last.chars().filter(|c| matches!(c, ' ' | '\t')).collect()
}
