//! Properties that hold for every document. The fuzz targets check them.

#![expect(
    clippy::option_option,
    reason = "the outer `None`: the value has a wrong type; the inner `None`: it is missing"
)]

mod go;

use serde_json::{Map, Value};

use super::duplicate_keys::MASK_PREFIX;
use super::{ArrayPath, Document, DocumentError};

/// Parses the first JSON value of a text with `serde_json`. Returns `None` if `serde_json` can't represent it (unusual
/// numbers, unpaired surrogates, deep nesting), or if Go would read another value because of duplicate keys.
pub(crate) fn parse_unambiguous(text: &[u8]) -> Option<Value> {
    let mut values = serde_json::Deserializer::from_slice(text).into_iter();
    let last: Value = values.next()?.ok()?;
    (go::parse(text)? == last).then_some(last)
}

/// Parses the first JSON value of a text like Go's `encoding/json`.
pub(crate) fn parse_like_go(text: &[u8]) -> Option<Value> {
    go::parse(text)
}

/// Masks duplicate keys and checks the result: it needs no further masking, has the same mounts, and unmasking restores
/// the original. Returns the masked text, or `None` if the document is refused.
pub(crate) fn check_masking(document: &Document<'_>) -> Option<Vec<u8>> {
    let Some(text) = document.mask_duplicates().ok()? else {
        return Some(document.text().into());
    };
    let masked = Document::parse(&text).expect("a masked document is valid");
    assert!(
        matches!(masked.mask_duplicates(), Ok(None)),
        "nothing is left to mask"
    );
    let mounts = |it: &Document<'_>| format!("{:?}", it.mounts().ok()).replace(MASK_PREFIX, "");
    assert_eq!(mounts(document), mounts(&masked), "the mounts are the same");
    let unmasked = masked.unmask_duplicates();
    assert_eq!(String::from_utf8_lossy(&unmasked), document.text());
    Some(text)
}

/// Checks that everything that is read from the document equals what is in `value`. Panics if not.
pub(crate) fn check_reads_as(document: &Document<'_>, value: &Value) {
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
    assert_read("mounts", mounts, list(value, &["mounts"], mount));
    let namespaces = document.namespaces();
    let namespaces = namespaces.map(|all| {
        let all = all.into_iter();
        all.map(|it| (it.kind.into_owned(), it.path.map(Into::into)))
            .collect()
    });
    assert_read(
        "namespaces",
        namespaces,
        list(value, &["linux", "namespaces"], namespace),
    );
    let root = document.root_path().map(|path| path.map(Into::into));
    assert_read("root.path", root, text_at(value, &["root"], "path"));
    let propagation = document.root_propagation().map(|it| it.map(Into::into));
    assert_read(
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
        assert_read(key, mappings, list(value, &["linux", key], mapping));
    }
    check_annotations(document, value);
    check_arrays(document, value);
}

/// Compares what was read with the expected value. `expected` is `None` if the value has a wrong type.
fn assert_read<T: PartialEq + std::fmt::Debug>(
    what: &str,
    read: Result<T, DocumentError>,
    expected: Option<T>,
) {
    match (read, expected) {
        (Ok(read), Some(expected)) => assert_eq!(read, expected, "{what}"),
        (Ok(read), None) => panic!("{what}: read {read:?} from a value of a wrong type"),
        (Err(DocumentError::WrongType { .. } | DocumentError::Syntax(_)), Some(expected)) => {
            panic!("{what}: refused {expected:?}")
        }
        // Ambiguous documents are refused.
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

type JsonMap = Map<String, Value>;

fn non_null<'v>(object: &'v JsonMap, key: &str) -> Option<&'v Value> {
    object.get(key).filter(|value| !value.is_null())
}

fn text(object: &JsonMap, key: &str) -> Option<Option<String>> {
    match non_null(object, key) {
        None => Some(None),
        Some(value) => value.as_str().map(|text| Some(text.to_owned())),
    }
}

/// Returns the object at a path of keys. `Some(None)` means that one of the keys is missing, and `None` that a value on
/// the path isn't an object.
fn object<'v>(value: &'v Value, keys: &[&str]) -> Option<Option<&'v JsonMap>> {
    let mut object = value.as_object()?;
    for key in keys {
        match non_null(object, key) {
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
    let Some(found) = object(value, keys)?.and_then(|object| non_null(object, last)) else {
        return Some(Vec::new());
    };
    found.as_array()?.iter().map(element).collect()
}

fn mount(value: &Value) -> Option<Mount> {
    let mount = value.as_object()?;
    let option = |value: &Value| value.as_str().map(str::to_owned);
    let options = match non_null(mount, "options") {
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
            .any(|key| non_null(mount, key).is_some()),
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
    let id = |key| match non_null(range, key) {
        None => Some(0),
        Some(value) => value.as_u64().and_then(|id| u32::try_from(id).ok()),
    };
    Some([id("containerID")?, id("hostID")?, id("size")?])
}

fn check_annotations(document: &Document<'_>, value: &Value) {
    let all = object(value, &["annotations"]);
    let keys = all.flatten().into_iter().flat_map(JsonMap::keys);
    for key in keys.map(String::as_str).chain(["no such key"]) {
        let read = document.annotation(key).map(|it| it.map(Into::into));
        assert_read(key, read, text_at(value, &["annotations"], key));
    }
}

fn check_arrays(document: &Document<'_>, value: &Value) {
    for array in ArrayPath::ALL {
        let keys: Vec<&str> = array.name().split('.').collect();
        let read = document.array(array).map(|all| {
            let all = all.into_iter();
            all.map(|json| parse_unambiguous(json.as_bytes()).expect("an element of the value"))
                .collect()
        });
        assert_read(
            array.name(),
            read,
            list(value, &keys, |value| Some(value.clone())),
        );
    }
}
