//! What is written into a configuration.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::json::{Json, WHITE_SPACE};
use super::object::Object;
use super::schema::{DOCUMENT, Level, MOUNT, Node};
use super::splice::Splices;
use super::value::{check, elements};
use super::{ArrayPath, Document, DocumentError};

/// One change. Indices are those of the document that is edited, whatever else is in the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Edit {
    /// Gives a mount another source; added where it has none.
    ReplaceMountSource {
        /// [`Mount::index`](super::Mount::index)
        index: usize,
        /// The new source.
        source: String,
    },
    /// The same with a source as it is written in JSON: puts back what
    /// [`Mount::source_json`](super::Mount::source_json) gave, byte for byte.
    ReplaceMountSourceJson {
        /// [`Mount::index`](super::Mount::index)
        index: usize,
        /// One JSON value.
        json: String,
    },
    /// Gives a mount other options, as they are written in JSON; added where it has none.
    ReplaceMountOptionsJson {
        /// [`Mount::index`](super::Mount::index)
        index: usize,
        /// One JSON value; `None` takes back what was added.
        json: Option<String>,
    },
    /// Appends an element, in the order of the list; the array and the objects above it are
    /// made where they are missing or null.
    Push {
        /// Where.
        array: ArrayPath,
        /// One JSON value.
        json: String,
    },
    /// Puts an element before another, in the order of the list; at the end where there is no
    /// such other. The array is made where it is missing or null.
    Insert {
        /// Where.
        array: ArrayPath,
        /// Before which one.
        before: usize,
        /// One JSON value.
        json: String,
    },
    /// Removes an element; twice is once, and a source for a removed mount is of no matter.
    Remove {
        /// Where.
        array: ArrayPath,
        /// Which one.
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

/// What happens to one array.
#[derive(Default)]
struct ArrayEdits<'e> {
    pushes: Vec<&'e str>,
    /// By the index of the element that they come before.
    inserts: BTreeMap<usize, Vec<&'e str>>,
    /// By index: removed, or for a mount the JSON of its new members.
    elements: BTreeMap<usize, Change>,
}

enum Change {
    Removed,
    /// `None` takes one away.
    Members(BTreeMap<&'static str, Option<String>>),
}

struct Plan<'e>(BTreeMap<ArrayPath, ArrayEdits<'e>>);

impl<'e> Plan<'e> {
    fn of(edits: &'e [Edit]) -> Result<Self, DocumentError> {
        let mut plan: BTreeMap<ArrayPath, ArrayEdits<'e>> = BTreeMap::new();
        for edit in edits {
            let (array, index, member) = match edit {
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
                Edit::Remove { array, index } => (*array, *index, None),
                Edit::ReplaceMountSource { index, source } => {
                    let json = serde_json::Value::from(source.as_str()).to_string();
                    (ArrayPath::Mounts, *index, Some(("source", Some(json))))
                }
                Edit::ReplaceMountSourceJson { index, json } => {
                    checked(ArrayPath::Mounts, json)?;
                    (
                        ArrayPath::Mounts,
                        *index,
                        Some(("source", Some(json.clone()))),
                    )
                }
                Edit::ReplaceMountOptionsJson { index, json } => {
                    if let Some(json) = json {
                        checked(ArrayPath::Mounts, json)?;
                    }
                    (ArrayPath::Mounts, *index, Some(("options", json.clone())))
                }
            };
            let elements = &mut plan.entry(array).or_default().elements;
            let change = elements
                .entry(index)
                .or_insert_with(|| Change::Members(BTreeMap::new()));
            match (&mut *change, member) {
                (Change::Removed, _) => {}
                (change, None) => *change = Change::Removed,
                (Change::Members(members), Some((key, json))) => _ = members.insert(key, json),
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
                (Some(there), Node::Array(array, _)) => self.edit_array(there, *array, splices)?,
                (Some(there), Node::Object(level)) => {
                    let object = Object::read(there, level.keys, format_args!("{}", level.place))?;
                    let open = there.span(splices.text()).start;
                    self.edit_object(&object, open, level, splices)?;
                }
                (Some(_), Node::List(..)) => {}
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
                    if let Some(Change::Members(members)) = other {
                        replace_members(list[index], index, members, splices)?;
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

    fn touches(&self, node: &Node) -> bool {
        match node {
            Node::Array(array, _) => self.0.contains_key(array),
            Node::List(..) => false,
            Node::Object(level) => level.children.iter().any(|(_, node)| self.touches(node)),
        }
    }

    /// The JSON of something that isn't there yet.
    fn fresh(&self, node: &Node) -> Result<Option<String>, DocumentError> {
        match node {
            Node::List(..) => Ok(None),
            Node::Array(array, _) => {
                let Some(edits) = self.0.get(array) else {
                    return Ok(None);
                };
                edits.check_indices(*array, 0)?;
                Ok(Some(format!("[{}]", edits.at_the_end(0).join(","))))
            }
            Node::Object(level) => {
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
    /// What comes after an array's elements.
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

fn replace_members<'a>(
    mount: Json<'a>,
    index: usize,
    members: &BTreeMap<&'static str, Option<String>>,
    splices: &mut Splices<'a>,
) -> Result<(), DocumentError> {
    let object = Object::read(mount, MOUNT, format_args!("mounts[{index}]"))?;
    let mut missing = String::new();
    for (key, json) in members {
        match (object.get_or_null(key), json) {
            (Some(there), Some(json)) => {
                splices.replace(there.span(splices.text()), json.clone());
            }
            (Some(there), None) => {
                // It was added behind another.
                let end = there.span(splices.text()).end;
                let ends = mount
                    .members()
                    .map(|(_, value)| value.span(splices.text()).end);
                match ends.take_while(|other| *other < end).last() {
                    Some(start) => splices.delete(start..end),
                    None => splices.replace(there.span(splices.text()), "null"),
                }
            }
            (None, Some(json)) => add_member(&mut missing, key, json),
            (None, None) => {}
        }
    }
    let open = mount.span(splices.text()).start;
    insert_members(&object, open, missing, splices);
    Ok(())
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
