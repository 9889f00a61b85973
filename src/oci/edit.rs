//! Edits a config.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::json::{Json, WHITE_SPACE};
use super::object::Object;
use super::schema::{DOCUMENT, MOUNT, ObjectSchema, SchemaNode};
use super::splice::Splices;
use super::value::{check_json, elements};
use super::{ArrayPath, Document, DocumentError};

/// One change to a document. Indices are those in the unedited document, independent of other edits. If several edits
/// replace the same element, the last one wins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Edit {
    /// Sets a mount's source, which may be missing, and appends options.
    ReplaceMountSource {
        /// [`Mount::index`](super::Mount::index)
        index: usize,
        source: String,
        /// Options to append to the mount's own.
        options: Vec<String>,
    },
    /// Replaces a mount with JSON text, which restores a [`Mount::json`](super::Mount::json) byte for byte.
    ReplaceMountJson {
        /// [`Mount::index`](super::Mount::index)
        index: usize,
        /// One JSON value.
        json: String,
    },
    /// Replaces a mount's source with JSON text, which restores a
    /// [`Mount::source_json`](super::Mount::source_json) byte for byte.
    ReplaceMountSourceJson {
        /// [`Mount::index`](super::Mount::index)
        index: usize,
        /// One JSON value.
        json: String,
    },
    /// Appends an element. Several are appended in the order of the edits. The array and its parents are created if
    /// they are missing or null.
    Push {
        array: ArrayPath,
        /// One JSON value.
        json: String,
    },
    /// Inserts an element before another one, or at the end if there is no element `before`. Several are inserted in
    /// the order of the edits. The array and its parents are created if they are missing or null.
    Insert {
        array: ArrayPath,
        /// Index of the element that the new one is inserted before.
        before: usize,
        /// One JSON value.
        json: String,
    },
    /// Removes an element. Other edits of the same element are ignored.
    Remove { array: ArrayPath, index: usize },
}

impl Document<'_> {
    /// Applies all `edits` and returns the new text.
    ///
    /// All other bytes are unchanged. Removing an element that was pushed onto an existing array restores the bytes
    /// from before the push.
    pub(crate) fn apply(&self, edits: &[Edit]) -> Result<Vec<u8>, DocumentError> {
        let edits = EditsByArray::new(edits)?;
        let mut splices = Splices::new(self.text);
        let open = self.text.len() - self.text.trim_start_matches(WHITE_SPACE).len();
        edits.edit_object(&self.top, open, &DOCUMENT, &mut splices)?;
        Ok(splices.apply())
    }
}

#[derive(Default)]
struct ArrayEdits<'e> {
    pushes: Vec<&'e str>,
    /// New elements, by the index of the element that they are inserted before.
    inserts: BTreeMap<usize, Vec<&'e str>>,
    /// Edits of existing elements, by index.
    elements: BTreeMap<usize, ElementEdit>,
}

enum ElementEdit {
    Remove,
    Replace(String),
    EditMount(MountEdit),
}

/// A new source for a mount, and options to append. All are JSON text.
struct MountEdit {
    source: String,
    options: Vec<String>,
}

struct EditsByArray<'e>(BTreeMap<ArrayPath, ArrayEdits<'e>>);

impl<'e> EditsByArray<'e> {
    fn new(edits: &'e [Edit]) -> Result<Self, DocumentError> {
        let mut by_array: BTreeMap<ArrayPath, ArrayEdits<'e>> = BTreeMap::new();
        for edit in edits {
            let (array, index, element_edit) = match edit {
                Edit::Push { array, json } => {
                    check_new_element(*array, json)?;
                    by_array.entry(*array).or_default().pushes.push(json);
                    continue;
                }
                Edit::Insert {
                    array,
                    before,
                    json,
                } => {
                    check_new_element(*array, json)?;
                    let inserts = &mut by_array.entry(*array).or_default().inserts;
                    inserts.entry(*before).or_default().push(json);
                    continue;
                }
                Edit::Remove { array, index } => (*array, *index, ElementEdit::Remove),
                Edit::ReplaceMountSource {
                    index,
                    source,
                    options,
                } => {
                    let json = |text: &String| serde_json::Value::from(text.as_str()).to_string();
                    let edit = MountEdit {
                        source: json(source),
                        options: options.iter().map(json).collect(),
                    };
                    (ArrayPath::Mounts, *index, ElementEdit::EditMount(edit))
                }
                Edit::ReplaceMountSourceJson { index, json } => {
                    check_new_element(ArrayPath::Mounts, json)?;
                    let edit = MountEdit {
                        source: json.clone(),
                        options: Vec::new(),
                    };
                    (ArrayPath::Mounts, *index, ElementEdit::EditMount(edit))
                }
                Edit::ReplaceMountJson { index, json } => {
                    check_new_element(ArrayPath::Mounts, json)?;
                    let edit = ElementEdit::Replace(json.clone());
                    (ArrayPath::Mounts, *index, edit)
                }
            };
            let elements = &mut by_array.entry(array).or_default().elements;
            if !matches!(elements.get(&index), Some(ElementEdit::Remove)) {
                elements.insert(index, element_edit);
            }
        }
        Ok(Self(by_array))
    }

    /// Edits the arrays below an object. `open` is the position of the object's opening brace.
    fn edit_object<'a>(
        &self,
        object: &Object<'a>,
        open: usize,
        schema: &ObjectSchema,
        splices: &mut Splices<'a>,
    ) -> Result<(), DocumentError> {
        let mut members = String::new();
        for (key, node) in schema.children {
            match (object.get_or_null(key), node) {
                _ if !self.edits(node) => {}
                (Some(value), _) if value.is_null() => {
                    if let Some(new) = self.new_value(node)? {
                        splices.replace(value.span(splices.text()), new);
                    }
                }
                (Some(value), SchemaNode::Array(array, _)) => {
                    self.edit_array(value, *array, splices)?;
                }
                (Some(value), SchemaNode::Object(schema)) => {
                    let json_path = format_args!("{}", schema.json_path);
                    let object = Object::read(value, schema.keys, json_path)?;
                    let open = value.span(splices.text()).start;
                    self.edit_object(&object, open, schema, splices)?;
                }
                (Some(_), SchemaNode::ReadOnlyArray(..)) => {}
                (None, _) => {
                    if let Some(value) = self.new_value(node)? {
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
        value: Json<'a>,
        array: ArrayPath,
        splices: &mut Splices<'a>,
    ) -> Result<(), DocumentError> {
        let Some(edits) = self.0.get(&array) else {
            return Ok(());
        };
        let text = splices.text();
        let list = elements(value, format_args!("{array}"))?;
        edits.check_indices(array, list.len())?;
        let spans: Vec<_> = list.iter().map(|element| element.span(text)).collect();
        // Whether an element precedes the current position in the edited array.
        let mut has_predecessor = false;
        for (index, element) in spans.iter().enumerate() {
            let inserts = edits.inserts.get(&index).map(|inserts| inserts.join(","));
            match edits.elements.get(&index) {
                // The comma before the element is removed with it, or the comma after it if it has no predecessor.
                Some(ElementEdit::Remove) if has_predecessor => {
                    let inserts = inserts.map(|inserts| format!(",{inserts}"));
                    let gap = spans[index - 1].end..element.end;
                    splices.replace(gap, inserts.unwrap_or_default());
                }
                Some(ElementEdit::Remove) => {
                    if let Some(inserts) = inserts {
                        has_predecessor = true;
                        splices.replace(element.clone(), inserts);
                    } else {
                        let end = spans.get(index + 1).map_or(element.end, |next| next.start);
                        splices.delete(element.start..end);
                    }
                }
                other => {
                    has_predecessor = true;
                    if let Some(inserts) = inserts {
                        splices.insert(element.start, format!("{inserts},"));
                    }
                    match other {
                        Some(ElementEdit::EditMount(edit)) => {
                            edit.apply(list[index], index, splices)?;
                        }
                        Some(ElementEdit::Replace(json)) => {
                            splices.replace(element.clone(), json.clone());
                        }
                        _ => {}
                    }
                }
            }
        }
        let appended = edits.appended(spans.len());
        if !appended.is_empty() {
            let comma = if has_predecessor { "," } else { "" };
            let end = spans
                .last()
                .map_or(value.span(text).start + 1, |last| last.end);
            splices.insert(end, format!("{comma}{}", appended.join(",")));
        }
        Ok(())
    }

    /// Returns whether there are edits below a node.
    fn edits(&self, node: &SchemaNode) -> bool {
        match node {
            SchemaNode::Array(array, _) => self.0.contains_key(array),
            SchemaNode::ReadOnlyArray(..) => false,
            SchemaNode::Object(schema) => schema.children.iter().any(|(_, node)| self.edits(node)),
        }
    }

    /// Returns the JSON text of a missing node with the edits applied; `None` if the node isn't needed.
    fn new_value(&self, node: &SchemaNode) -> Result<Option<String>, DocumentError> {
        match node {
            SchemaNode::ReadOnlyArray(..) => Ok(None),
            SchemaNode::Array(array, _) => {
                let Some(edits) = self.0.get(array) else {
                    return Ok(None);
                };
                edits.check_indices(*array, 0)?;
                Ok(Some(format!("[{}]", edits.appended(0).join(","))))
            }
            SchemaNode::Object(schema) => {
                let mut members = String::new();
                for (key, node) in schema.children {
                    if let Some(value) = self.new_value(node)? {
                        add_member(&mut members, key, &value);
                    }
                }
                Ok((!members.is_empty()).then(|| format!("{{{members}}}")))
            }
        }
    }
}

impl<'e> ArrayEdits<'e> {
    /// Returns the elements that are added at the end of an array with `length` elements.
    fn appended(&self, length: usize) -> Vec<&'e str> {
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

fn check_new_element(array: ArrayPath, json: &str) -> Result<(), DocumentError> {
    check_json(json).map_err(|source| DocumentError::NewElement {
        array: array.name(),
        source,
    })
}

impl MountEdit {
    fn apply<'a>(
        &self,
        mount: Json<'a>,
        index: usize,
        splices: &mut Splices<'a>,
    ) -> Result<(), DocumentError> {
        let object = Object::read(mount, MOUNT, format_args!("mounts[{index}]"))?;
        let mut members = String::new();
        match object.get_or_null("source") {
            Some(source) => splices.replace(source.span(splices.text()), self.source.clone()),
            None => add_member(&mut members, "source", &self.source),
        }
        let options = self.options.join(",");
        match object.get_or_null("options") {
            _ if options.is_empty() => {}
            None => add_member(&mut members, "options", &format!("[{options}]")),
            Some(list) if list.is_null() => {
                splices.replace(list.span(splices.text()), format!("[{options}]"));
            }
            Some(list) => {
                let existing = elements(list, format_args!("mounts[{index}].options"))?;
                match existing.last() {
                    Some(element) => {
                        splices.insert(element.span(splices.text()).end, format!(",{options}"));
                    }
                    None => splices.insert(list.span(splices.text()).start + 1, options),
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
    // Writing to a String can't fail.
    let _ = write!(members, "{comma}\"{key}\":{value}");
}

/// Inserts new members after the last one. `open` is the position of the object's opening brace.
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
