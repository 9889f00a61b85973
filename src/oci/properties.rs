//! Properties that hold for every document with one reading: runcrust reads it so.

#![expect(
    clippy::option_option,
    reason = "the outer one: whether it has its type; the inner: whether it is there"
)]

mod go;

use serde_json::{Map, Value};

use super::duplicate_keys::MASK_PREFIX;
use super::{ArrayPath, Document, DocumentError};

/// The document's text as a value, where one can hold it, which has no odd numbers, halves of surrogate
/// pairs, and depth; and where what stands twice in it is to Go what stands there last.
pub(crate) fn value_of(text: &[u8]) -> Option<Value> {
    let mut values = serde_json::Deserializer::from_slice(text).into_iter();
    let last: Value = values.next()?.ok()?;
    (go::value_of(text)? == last).then_some(last)
}

/// A value as Go's `encoding/json` makes it of the text.
pub(crate) fn to_go(text: &[u8]) -> Option<Value> {
    go::value_of(text)
}

/// The form of a document of which there is one reading; `None` where it is refused to have one.
pub(crate) fn mask_duplicates(document: &Document<'_>) -> Option<Vec<u8>> {
    let Some(one) = document.mask_duplicates().ok()? else {
        return Some(document.text().into());
    };
    let again = Document::parse(&one).expect("what was written");
    assert!(
        matches!(again.mask_duplicates(), Ok(None)),
        "one and no more"
    );
    let told = |it: &Document<'_>| format!("{:?}", it.mounts().ok()).replace(MASK_PREFIX, "");
    assert_eq!(told(document), told(&again), "the same reading");
    let back = again.unmask_duplicates();
    assert_eq!(String::from_utf8_lossy(&back), document.text());
    Some(one)
}

/// Panics where the document is read in another way than `value`.
pub(crate) fn reads_as(document: &Document<'_>, value: &Value) {
    let mounts = document.mounts();
    let mounts = mounts.map(|all| {
        let all = all.into_iter().map(|mount| Mount {
            destination: mount.destination.into_owned(),
            source: mount.source.map(Into::into),
            kind: mount.kind.map(Into::into),
            options: mount.options.into_iter().map(Into::into).collect(),
            has_id_mappings: mount.has_id_mappings,
        });
        all.collect()
    });
    same("mounts", mounts, list(value, &["mounts"], mount));
    let namespaces = document.namespaces();
    let namespaces = namespaces.map(|all| {
        let all = all.into_iter();
        all.map(|it| (it.kind.into_owned(), it.path.map(Into::into)))
            .collect()
    });
    same(
        "namespaces",
        namespaces,
        list(value, &["linux", "namespaces"], namespace),
    );
    let root = document.root_path().map(|path| path.map(Into::into));
    same("root.path", root, text_at(value, &["root"], "path"));
    let propagation = document.root_propagation().map(|it| it.map(Into::into));
    same(
        "rootfsPropagation",
        propagation,
        text_at(value, &["linux"], "rootfsPropagation"),
    );
    for (key, mappings) in [
        ("uidMappings", document.uid_mappings()),
        ("gidMappings", document.gid_mappings()),
    ] {
        let mappings = mappings.map(|all| {
            let all = all.into_iter();
            all.map(|it| [it.container, it.host, it.size]).collect()
        });
        same(key, mappings, list(value, &["linux", key], mapping));
    }
    annotations(document, value);
    arrays(document, value);
}

/// Compares what was read with the value there; `None` if that has a wrong type.
fn same<T: PartialEq + std::fmt::Debug>(
    what: &str,
    read: Result<T, DocumentError>,
    expected: Option<T>,
) {
    match (read, expected) {
        (Ok(read), Some(expected)) => assert_eq!(read, expected, "{what}"),
        (Ok(read), None) => panic!("{what}: {read:?} is of another type"),
        (Err(DocumentError::WrongType { .. } | DocumentError::Syntax(_)), Some(expected)) => {
            panic!("{what} isn't read, and is {expected:?}")
        }
        // What would be read in more than one way is refused.
        (Err(_), _) => {}
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Mount {
    destination: String,
    source: Option<String>,
    kind: Option<String>,
    options: Vec<String>,
    has_id_mappings: bool,
}

type Object = Map<String, Value>;

fn given<'v>(object: &'v Object, key: &str) -> Option<&'v Value> {
    object.get(key).filter(|value| !value.is_null())
}

fn text(object: &Object, key: &str) -> Option<Option<String>> {
    match given(object, key) {
        None => Some(None),
        Some(value) => value.as_str().map(|text| Some(text.to_owned())),
    }
}

/// An object below others; `Some(None)` where one of them isn't there.
fn object<'v>(value: &'v Value, keys: &[&str]) -> Option<Option<&'v Object>> {
    let mut object = value.as_object()?;
    for key in keys {
        match given(object, key) {
            None => return Some(None),
            Some(value) => object = value.as_object()?,
        }
    }
    Some(Some(object))
}

fn text_at(value: &Value, keys: &[&str], key: &str) -> Option<Option<String>> {
    object(value, keys)?.map_or(Some(None), |object| text(object, key))
}

fn list<T>(value: &Value, keys: &[&str], element: impl Fn(&Value) -> Option<T>) -> Option<Vec<T>> {
    let (last, keys) = keys.split_last()?;
    let Some(found) = object(value, keys)?.and_then(|object| given(object, last)) else {
        return Some(Vec::new());
    };
    found.as_array()?.iter().map(element).collect()
}

fn mount(value: &Value) -> Option<Mount> {
    let mount = value.as_object()?;
    let option = |value: &Value| value.as_str().map(str::to_owned);
    let options = match given(mount, "options") {
        None => Vec::new(),
        Some(options) => options
            .as_array()?
            .iter()
            .map(option)
            .collect::<Option<_>>()?,
    };
    let has_id_mappings = ["uidMappings", "gidMappings"];
    Some(Mount {
        destination: text(mount, "destination")?.unwrap_or_default(),
        source: text(mount, "source")?,
        kind: text(mount, "type")?,
        options,
        has_id_mappings: has_id_mappings
            .iter()
            .any(|key| given(mount, key).is_some()),
    })
}

fn namespace(value: &Value) -> Option<(String, Option<String>)> {
    let namespace = value.as_object()?;
    Some((
        text(namespace, "type")?.unwrap_or_default(),
        text(namespace, "path")?,
    ))
}

fn mapping(value: &Value) -> Option<[u32; 3]> {
    let range = value.as_object()?;
    let id = |key| match given(range, key) {
        None => Some(0),
        Some(value) => value.as_u64().and_then(|id| u32::try_from(id).ok()),
    };
    Some([id("containerID")?, id("hostID")?, id("size")?])
}

fn annotations(document: &Document<'_>, value: &Value) {
    let all = object(value, &["annotations"]);
    let keys = all.flatten().into_iter().flat_map(Object::keys);
    for key in keys.map(String::as_str).chain(["no such key"]) {
        let read = document.annotation(key).map(|it| it.map(Into::into));
        same(key, read, text_at(value, &["annotations"], key));
    }
}

fn arrays(document: &Document<'_>, value: &Value) {
    for array in ArrayPath::ALL {
        let keys: Vec<&str> = array.name().split('.').collect();
        let read = document.array(array).map(|all| {
            let all = all.into_iter().map(|json| value_of(json.as_bytes()));
            all.map(|element| element.expect("a part of the value"))
                .collect()
        });
        same(
            array.name(),
            read,
            list(value, &keys, |value| Some(value.clone())),
        );
    }
}
