//! Handles documents that parsers read differently: with duplicate keys, or with keys that only some parsers match.
//! All delegates must find the same volumes in a document as runcrust.

use std::borrow::Cow;
use std::convert::Infallible;
use std::fmt::Arguments;

use crust_blockfs::overlay;

use super::error::ParserFamily;
use super::json::Json;
use super::object::{KeyMatch, Object, match_key};
use super::schema::{
    ANNOTATIONS, DOCUMENT, MOUNT, MOUNTS, OPTIONS, ObjectSchema, SOURCE, SchemaNode, TOP,
};
use super::splice::Splices;
use super::value::{before_nul, decoded};
use super::{Document, DocumentError};

/// A string that a parser may take as the source of a mount, or as a directory of an overlay.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct MountSource<'a> {
    /// A path, or a word such as `tmpfs`. `None` if the string has an unpaired surrogate or isn't UTF-8, because
    /// parsers decode such a string differently.
    pub(crate) text: Option<Cow<'a, str>>,
    /// Whether a relative path in `text` is relative to the bundle. That is so if the mount may be a bind mount, or if
    /// `text` is a layer of an overlay.
    pub(crate) is_from_bundle: bool,
}

/// The prefix of masked keys.
pub(super) const MASK_PREFIX: &str = "x-runcrust-unread-";

impl<'a> Document<'a> {
    /// Calls `check` with every source that the delegate may find in the mounts, until `check` returns something.
    ///
    /// Besides the sources that runcrust reads, these are the sources that a parser of the family `delegate` finds
    /// because of duplicate keys, and those that any parser finds because it matches keys differently. Values of a
    /// wrong type are skipped.
    pub(crate) fn find_source<T>(
        &self,
        delegate: ParserFamily,
        mut check: impl FnMut(MountSource<'a>) -> Option<T>,
    ) -> Option<T> {
        let is_valid = |text: &Cow<'_, str>| !self.is_lossy || !text.contains('\u{fffd}');
        let mut check = |mut source: MountSource<'a>| {
            source.text = source.text.filter(is_valid);
            check(source)
        };
        let is_ambiguous = self.top.is_ambiguous();
        let effective = self.top.get(MOUNTS);
        let mut mounts = effective.into_iter().flat_map(Json::elements);
        let found =
            mounts.find_map(|mount| find_in_mount(mount, is_ambiguous, &SOURCE_KEYS, &mut check));
        if found.is_some() || !is_ambiguous {
            return found;
        }
        let mounts = effective.into_iter().flat_map(Json::elements);
        let missing: Vec<Vec<&str>> = mounts.map(missing_source_keys).collect();
        self.json.members().find_map(|(key, list)| {
            let (at, key_match) = match_key(key, TOP)?;
            if TOP[at] != MOUNTS || effective.is_some_and(|effective| effective.is_same(list)) {
                return None;
            }
            // Go decodes the last list into the elements of an earlier one. An element of the last list that lacks a
            // key therefore gets the value of the earlier element at the same index (golang/go#21092).
            let is_merged = key_match == KeyMatch::Exact && delegate == ParserFamily::Go;
            list.elements().enumerate().find_map(|(index, mount)| {
                let missing = missing.get(index).map_or(&[][..], Vec::as_slice);
                let keys = if is_merged { missing } else { &SOURCE_KEYS };
                find_in_mount(mount, true, keys, &mut check)
            })
        })
    }

    /// Masks duplicate keys: renames every occurrence except the one that runcrust reads to a key that no delegate
    /// reads, so that all parsers read the document alike. Returns `None` if there is nothing to mask.
    ///
    /// Fails for a key that only some parsers match, and for duplicate keys with objects. runcrust reads annotations
    /// only for itself, so duplicates there stay.
    pub(crate) fn mask_duplicates(&self) -> Result<Option<Vec<u8>>, DocumentError> {
        let mut splices = Splices::new(self.text);
        self.visit_objects(&mut |json, object, json_path| {
            mask_in_object(json, object, json_path, &mut splices)
        })?;
        if splices.is_empty() {
            return Ok(None);
        }
        if self.text.contains(MASK_PREFIX) {
            return Err(DocumentError::Reserved {
                prefix: MASK_PREFIX,
            });
        }
        Ok(Some(splices.apply()))
    }

    /// Returns the text of the document with all keys unmasked. It undoes [`mask_duplicates`](Self::mask_duplicates).
    pub(crate) fn unmask_duplicates(&self) -> Vec<u8> {
        let mut splices = Splices::new(self.text);
        let visited: Result<(), Infallible> = self.visit_objects(&mut |json, _, _| {
            for (key, _) in json.members() {
                if key
                    .quoted()
                    .is_some_and(|name| name.starts_with(MASK_PREFIX))
                {
                    let start = key.span(splices.text()).start + 1;
                    splices.delete(start..start + MASK_PREFIX.len());
                }
            }
            Ok(())
        });
        match visited {
            Ok(()) => splices.apply(),
        }
    }

    /// Calls `visit` for all objects with known keys, with the object's JSON, its values and its JSON path.
    fn visit_objects<E>(
        &self,
        visit: &mut impl FnMut(Json<'a>, &Object<'a>, Arguments<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        visit_below((self.json, &self.top), &DOCUMENT, visit)
    }
}

/// The keys of a mount that may contain a source.
const SOURCE_KEYS: [&str; 2] = [SOURCE, OPTIONS];

/// Calls `check` with the sources that parsers may find in one mount under `keys`, which are some of [`SOURCE_KEYS`].
fn find_in_mount<'a, T>(
    mount: Json<'a>,
    is_ambiguous: bool,
    keys: &[&str],
    check: &mut impl FnMut(MountSource<'a>) -> Option<T>,
) -> Option<T> {
    let object = Object::read_or_empty(mount, MOUNT);
    let is_ambiguous = is_ambiguous || object.is_ambiguous();
    let may_bind = is_ambiguous || may_bind(&object);
    let mut check = |text: Option<Cow<'a, str>>, is_from_bundle| {
        check(MountSource {
            text,
            is_from_bundle,
        })
    };
    let mut check_value = |key: &str, value: Json<'a>| match key {
        SOURCE => find_string(value, &mut |text| check(text, may_bind)),
        OPTIONS => value.elements().find_map(|option| {
            find_string(option, &mut |text| match text {
                Some(option) => layers(&option).find_map(|layer| check(Some(layer.into()), true)),
                None => check(None, true),
            })
        }),
        _ => None,
    };
    if is_ambiguous {
        return mount.members().find_map(|(key, value)| {
            let (at, _) = match_key(key, MOUNT).filter(|(at, _)| keys.contains(&MOUNT[*at]))?;
            check_value(MOUNT[at], value)
        });
    }
    let found = object
        .get(SOURCE)
        .and_then(|value| check_value(SOURCE, value));
    found.or_else(|| {
        let options = object.get(OPTIONS).filter(|_| is_overlay(&object))?;
        check_value(OPTIONS, options)
    })
}

/// Calls `check` with the string as Go parsers read it. If the string contains a NUL, first calls `check` with the part
/// before the first NUL, which is what C parsers read. An undecodable string is passed as `None`.
fn find_string<'a, T>(
    value: Json<'a>,
    check: &mut impl FnMut(Option<Cow<'a, str>>) -> Option<T>,
) -> Option<T> {
    let quoted = value.quoted()?;
    let cut = before_nul(quoted).and_then(|cut| check(decoded(cut).ok()));
    cut.or_else(|| check(decoded(quoted).ok()))
}

/// Returns the directories that an overlay's mount option names.
fn layers(option: &str) -> impl Iterator<Item = String> + use<> {
    let layers = overlay::layers_in_options(option.as_bytes()).into_iter();
    layers.filter_map(|layer| layer.into_os_string().into_string().ok())
}

/// Returns whether the mount may be an overlay, the kernel's or fuse-overlayfs.
fn is_overlay(mount: &Object<'_>) -> bool {
    let kind = mount.get("type").and_then(Json::quoted);
    kind.is_some_and(|kind| kind.contains('\\') || kind.contains("overlay"))
}

/// Returns whether the delegate may make a bind mount, by the type or the options.
fn may_bind(mount: &Object<'_>) -> bool {
    let is = |value: Json<'_>, word: &str| {
        let text = value.quoted().and_then(|quoted| decoded(quoted).ok());
        // Parsers disagree about unpaired surrogates and NUL characters, so such a text may equal any word.
        text.is_none_or(|text| text == word || text.contains('\0'))
    };
    let mut options = mount.get(OPTIONS).into_iter().flat_map(Json::elements);
    mount.get("type").is_some_and(|kind| is(kind, "bind"))
        || options.any(|it| is(it, "bind") || is(it, "rbind"))
}

/// Returns the [`SOURCE_KEYS`] that a mount doesn't have.
fn missing_source_keys(mount: Json<'_>) -> Vec<&'static str> {
    let mount = Object::read_or_empty(mount, MOUNT);
    let mut missing = SOURCE_KEYS.to_vec();
    missing.retain(|key| mount.get(key).is_none());
    missing
}

/// Masks all but the effective value of each duplicate key in an object.
fn mask_in_object<'a>(
    json: Json<'a>,
    object: &Object<'a>,
    json_path: Arguments<'_>,
    splices: &mut Splices<'a>,
) -> Result<(), DocumentError> {
    if !object.is_ambiguous() {
        return Ok(());
    }
    let keys = object.keys();
    for (key, value) in json.members() {
        let Some((at, key_match)) = match_key(key, keys) else {
            continue;
        };
        let (known, effective) = (keys[at], object.get_or_null(keys[at]));
        if let KeyMatch::OnlyFor(family) = key_match {
            return Err(DocumentError::Spelling {
                json_path: json_path.to_string(),
                key: decoded(key.quoted().unwrap_or_default())
                    .unwrap_or_default()
                    .into(),
                known,
                family,
            });
        }
        // Only runcrust uses annotations, and it merges them.
        if known == ANNOTATIONS || effective.is_some_and(|effective| effective.is_same(value)) {
            continue;
        }
        if value.is_object() && effective.is_some_and(Json::is_object) {
            return Err(DocumentError::Duplicate {
                json_path: json_path.to_string(),
                key: known,
            });
        }
        splices.insert(key.span(splices.text()).start + 1, MASK_PREFIX);
    }
    Ok(())
}

/// Calls `visit` for an object and, recursively, for the objects in it that have known keys.
fn visit_below<'a, E>(
    (json, object): (Json<'a>, &Object<'a>),
    schema: &ObjectSchema,
    visit: &mut impl FnMut(Json<'a>, &Object<'a>, Arguments<'_>) -> Result<(), E>,
) -> Result<(), E> {
    visit(json, object, format_args!("{}", schema.json_path))?;
    for (key, node) in schema.children {
        let Some(value) = object.get(key) else {
            continue;
        };
        let (name, keys) = match node {
            SchemaNode::Object(schema) => {
                let object = Object::read_or_empty(value, schema.keys);
                visit_below((value, &object), schema, visit)?;
                continue;
            }
            SchemaNode::ReadOnlyArray(name, keys) => (*name, *keys),
            SchemaNode::Array(array, keys) => (array.name(), *keys),
        };
        if keys.is_empty() {
            continue;
        }
        for (index, element) in value.elements().enumerate() {
            let object = Object::read_or_empty(element, keys);
            visit(element, &object, format_args!("{name}[{index}]"))?;
        }
    }
    Ok(())
}
