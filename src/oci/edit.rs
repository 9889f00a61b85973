//! Edits of a configuration.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::json::{Json, WHITE_SPACE};
use super::object::Object;
use super::schema::{DOCUMENT, Level, MOUNT, SchemaNode};
use super::splice::Splices;
use super::value::{check, elements};
use super::{ArrayPath, Document, DocumentError};

/// One change. Indices are those of the document that is edited, whatever else is in the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Edit {
    /// Gives a mount another source, which is added where it has none, and appends options.
    ReplaceMountSource {
        /// [`Mount::index`](super::Mount::index)
        index: usize,
        /// The new source.
        source: String,
        /// The options that come after those that it has.
        options: Vec<String>,
    },
    /// Puts back a mount as [`Mount::json`](super::Mount::json) gave it, byte for byte.
    ReplaceMountJson {
        /// [`Mount::index`](super::Mount::index)
        index: usize,
        /// One JSON value.
        json: String,
    },
    /// The same with a source as it is written in JSON: puts back what
    /// [`Mount::source_json`](super::Mount::source_json) gave, byte for byte.
    ReplaceMountSourceJson {
        /// [`Mount::index`](super::Mount::index)
        index: usize,
        /// One JSON value.
        json: String,
    },
    /// Appends an element, in the order of the list; the array and the objects above it are
    /// made where they are missing or null.
    Push {
        /// The array.
        array: ArrayPath,
        /// One JSON value.
        json: String,
    },
    /// Puts an element before another, in the order of the list; at the end where there is no
    /// such other. The array is made where it is missing or null.
    Insert {
        /// The array.
        array: ArrayPath,
        /// Before which one.
        before: usize,
        /// One JSON value.
        json: String,
    },
    /// Removes an element; twice is once, and a source for a removed mount is of no matter.
    Remove {
        /// The array.
        array: ArrayPath,
        /// The index of the element.
        index: usize,
    },
}

impl Document<'_> {
    /// The text with all `edits` made, and nothing else changed. The removal of what was pushed
    /// onto an array that was there gives the bytes from before the push.
    pub(crate) fn apply(&self, edits: &[Edit]) -> Result<Vec<u8>, DocumentError> {
        let plan = Plan::of(edits)?;
        let mut splices = Splices::new(self.text);
        let open = self.text.len() - self.text.trim_start_matches(WHITE_SPACE).len();
        plan.edit_object(&self.top, open, &DOCUMENT, &mut splices)?;
        Ok(splices.apply())
    }
}

/// The edits of one array.
#[derive(Default)]
struct ArrayEdits<'e> {
    pushes: Vec<&'e str>,
    /// New elements, by the index of the element that they come before.
    inserts: BTreeMap<usize, Vec<&'e str>>,
    /// Changes to elements that are there, by their index.
    elements: BTreeMap<usize, Change>,
}

enum Change {
    Removed,
    Replaced(String),
    Mount(MountChange),
}

/// A mount's new source, and the options that are appended to its own; all are JSON.
struct MountChange {
    source: String,
    options: Vec<String>,
}

struct Plan<'e>(BTreeMap<ArrayPath, ArrayEdits<'e>>);

impl<'e> Plan<'e> {
    fn of(edits: &'e [Edit]) -> Result<Self, DocumentError> {
        let mut plan: BTreeMap<ArrayPath, ArrayEdits<'e>> = BTreeMap::new();
        for edit in edits {
            let (array, index, change) = match edit {
                Edit::Push { array, json } => {
                    checked(*array, json)?;
                    plan.entry(*array).or_default().pushes.push(json);
                    continue;
                }
                Edit::Insert {
                    array,
                    before,
                    json,
                } => {
                    checked(*array, json)?;
                    let inserts = &mut plan.entry(*array).or_default().inserts;
                    inserts.entry(*before).or_default().push(json);
                    continue;
                }
                Edit::Remove { array, index } => (*array, *index, Change::Removed),
                Edit::ReplaceMountSource {
                    index,
                    source,
                    options,
                } => {
                    let json = |text: &String| serde_json::Value::from(text.as_str()).to_string();
                    let change = MountChange {
                        source: json(source),
                        options: options.iter().map(json).collect(),
                    };
                    (ArrayPath::Mounts, *index, Change::Mount(change))
                }
                Edit::ReplaceMountSourceJson { index, json } => {
                    checked(ArrayPath::Mounts, json)?;
                    let change = MountChange {
                        source: json.clone(),
                        options: Vec::new(),
                    };
                    (ArrayPath::Mounts, *index, Change::Mount(change))
                }
                Edit::ReplaceMountJson { index, json } => {
                    checked(ArrayPath::Mounts, json)?;
                    (ArrayPath::Mounts, *index, Change::Replaced(json.clone()))
                }
            };
            let elements = &mut plan.entry(array).or_default().elements;
            if !matches!(elements.get(&index), Some(Change::Removed)) {
                elements.insert(index, change);
            }
        }
        Ok(Self(plan))
    }

    fn edit_object<'a>(
        &self,
        object: &Object<'a>,
        open: usize,
        level: &Level,
        splices: &mut Splices<'a>,
    ) -> Result<(), DocumentError> {
        let mut members = String::new();
        for (key, node) in level.children {
            match (object.get_or_null(key), node) {
                _ if !self.touches(node) => {}
                (Some(there), _) if there.is_null() => {
                    if let Some(value) = self.fresh(node)? {
                        splices.replace(there.span(splices.text()), value);
                    }
                }
                (Some(there), SchemaNode::Array(array, _)) => {
                    self.edit_array(there, *array, splices)?;
                }
                (Some(there), SchemaNode::Object(level)) => {
                    let object = Object::read(there, level.keys, format_args!("{}", level.place))?;
                    let open = there.span(splices.text()).start;
                    self.edit_object(&object, open, level, splices)?;
                }
                (Some(_), SchemaNode::List(..)) => {}
                (None, _) => {
                    if let Some(value) = self.fresh(node)? {
                        add_member(&mut members, key, &value);
                    }
                }
            }
        }
        insert_members(object, open, members, splices);
        Ok(())
    }

    fn edit_array<'a>(
        &self,
        there: Json<'a>,
        array: ArrayPath,
        splices: &mut Splices<'a>,
    ) -> Result<(), DocumentError> {
        let Some(edits) = self.0.get(&array) else {
            return Ok(());
        };
        let text = splices.text();
        let list = elements(there, format_args!("{array}"))?;
        edits.check_indices(array, list.len())?;
        let spans: Vec<_> = list.iter().map(|element| element.span(text)).collect();
        let mut kept = false;
        for (index, element) in spans.iter().enumerate() {
            let inserts = edits.inserts.get(&index).map(|inserts| inserts.join(","));
            match edits.elements.get(&index) {
                // With the comma before it, or, up to the first that stays, the one after it.
                Some(Change::Removed) if kept => {
                    let inserts = inserts.map(|inserts| format!(",{inserts}"));
                    let gap = spans[index - 1].end..element.end;
                    splices.replace(gap, inserts.unwrap_or_default());
                }
                Some(Change::Removed) => {
                    if let Some(inserts) = inserts {
                        kept = true;
                        splices.replace(element.clone(), inserts);
                    } else {
                        let end = spans.get(index + 1).map_or(element.end, |next| next.start);
                        splices.delete(element.start..end);
                    }
                }
                other => {
                    kept = true;
                    if let Some(inserts) = inserts {
                        splices.insert(element.start, format!("{inserts},"));
                    }
                    match other {
                        Some(Change::Mount(change)) => change.make(list[index], index, splices)?,
                        Some(Change::Replaced(json)) => {
                            splices.replace(element.clone(), json.clone());
                        }
                        _ => {}
                    }
                }
            }
        }
        let appended = edits.at_the_end(spans.len());
        if !appended.is_empty() {
            let comma = if kept { "," } else { "" };
            let end = spans
                .last()
                .map_or(there.span(text).start + 1, |last| last.end);
            splices.insert(end, format!("{comma}{}", appended.join(",")));
        }
        Ok(())
    }

    fn touches(&self, node: &SchemaNode) -> bool {
        match node {
            SchemaNode::Array(array, _) => self.0.contains_key(array),
            SchemaNode::List(..) => false,
            SchemaNode::Object(level) => level.children.iter().any(|(_, node)| self.touches(node)),
        }
    }

    /// The JSON of something that isn't there yet.
    fn fresh(&self, node: &SchemaNode) -> Result<Option<String>, DocumentError> {
        match node {
            SchemaNode::List(..) => Ok(None),
            SchemaNode::Array(array, _) => {
                let Some(edits) = self.0.get(array) else {
                    return Ok(None);
                };
                edits.check_indices(*array, 0)?;
                Ok(Some(format!("[{}]", edits.at_the_end(0).join(","))))
            }
            SchemaNode::Object(level) => {
                let mut members = String::new();
                for (key, node) in level.children {
                    if let Some(value) = self.fresh(node)? {
                        add_member(&mut members, key, &value);
                    }
                }
                Ok((!members.is_empty()).then(|| format!("{{{members}}}")))
            }
        }
    }
}

impl<'e> ArrayEdits<'e> {
    /// Returns the elements that are added at the end of an array.
    fn at_the_end(&self, length: usize) -> Vec<&'e str> {
        let inserts = self.inserts.range(length..);
        let inserts = inserts.flat_map(|(_, inserts)| inserts.iter().copied());
        inserts.chain(self.pushes.iter().copied()).collect()
    }

    fn check_indices(&self, array: ArrayPath, length: usize) -> Result<(), DocumentError> {
        match self.elements.last_key_value() {
            Some((&index, _)) if index >= length => Err(DocumentError::NoSuchElement {
                array: array.name(),
                index,
                length,
            }),
            _ => Ok(()),
        }
    }
}

fn checked(array: ArrayPath, json: &str) -> Result<(), DocumentError> {
    check(json).map_err(|source| DocumentError::Element {
        array: array.name(),
        source,
    })
}

impl MountChange {
    fn make<'a>(
        &self,
        mount: Json<'a>,
        index: usize,
        splices: &mut Splices<'a>,
    ) -> Result<(), DocumentError> {
        let object = Object::read(mount, MOUNT, format_args!("mounts[{index}]"))?;
        let mut members = String::new();
        match object.get_or_null("source") {
            Some(there) => splices.replace(there.span(splices.text()), self.source.clone()),
            None => add_member(&mut members, "source", &self.source),
        }
        let options = self.options.join(",");
        match object.get_or_null("options") {
            _ if options.is_empty() => {}
            None => add_member(&mut members, "options", &format!("[{options}]")),
            Some(there) if there.is_null() => {
                splices.replace(there.span(splices.text()), format!("[{options}]"));
            }
            Some(there) => {
                let present = elements(there, format_args!("mounts[{index}].options"))?;
                match present.last() {
                    Some(last) => {
                        splices.insert(last.span(splices.text()).end, format!(",{options}"));
                    }
                    None => splices.insert(there.span(splices.text()).start + 1, options),
                }
            }
        }
        let open = mount.span(splices.text()).start;
        insert_members(&object, open, members, splices);
        Ok(())
    }
}

fn add_member(members: &mut String, key: &str, value: &str) {
    let comma = if members.is_empty() { "" } else { "," };
    // A String takes everything.
    let _ = write!(members, "{comma}\"{key}\":{value}");
}

/// Puts new members behind the last one; `open` is where the object's brace is.
fn insert_members<'a>(
    object: &Object<'a>,
    open: usize,
    members: String,
    splices: &mut Splices<'a>,
) {
    if members.is_empty() {
        return;
    }
    match object.last() {
        Some(last) => splices.insert(last.span(splices.text()).end, format!(",{members}")),
        None => splices.insert(open + 1, members),
    }
}
