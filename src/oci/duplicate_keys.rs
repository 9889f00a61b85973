//! Documents of which there is more than one reading: with keys that stand twice, or that only some
//! delegates take for ours. What such a document says of a volume must be the same to everybody.

use std::borrow::Cow;
use std::convert::Infallible;
use std::fmt::Arguments;

use crust_blockfs::overlay;

use super::error::ParserFamily;
use super::json::Json;
use super::object::{KeyMatch, Object, match_key};
use super::schema::{
    ANNOTATIONS, DOCUMENT, Level, MOUNT, MOUNTS, OPTIONS, SOURCE, SchemaNode, TOP,
};
use super::splice::Splices;
use super::value::{before_nul, decoded};
use super::{Document, DocumentError};

/// A text that a reader may take for a mount's source, or for a directory of an overlay.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct MountSource<'a> {
    /// A path, or a word such as `tmpfs`. `None`: it has half a surrogate pair, or is no UTF-8, of
    /// which each reader makes something else.
    pub(crate) text: Option<Cow<'a, str>>,
    /// It may be a bind mount's, or is an overlay's layer: then a relative path is one from the bundle.
    pub(crate) is_from_bundle: bool,
}

/// The prefix of a key that stood twice, for the one that wasn't read.
pub(super) const MASK_PREFIX: &str = "x-runcrust-unread-";

impl<'a> Document<'a> {
    /// Looks at the source of each mount, and at those that a delegate of this kind, or one that
    /// takes other keys for ours, may find as well; until there is an answer. What isn't well-formed
    /// has none, and nothing is kept.
    pub(crate) fn find_source<T>(
        &self,
        delegate: ParserFamily,
        mut look: impl FnMut(MountSource<'a>) -> Option<T>,
    ) -> Option<T> {
        let is_legible = |text: &Cow<'_, str>| !self.is_lossy || !text.contains('\u{fffd}');
        let mut look = |mut source: MountSource<'a>| {
            source.text = source.text.filter(is_legible);
            look(source)
        };
        let is_odd = self.top.is_odd();
        let ours = self.top.get(MOUNTS);
        let mut mounts = ours.into_iter().flat_map(Json::elements);
        let found = mounts.find_map(|mount| find_in_mount(mount, is_odd, &NAMING, &mut look));
        if found.is_some() || !is_odd {
            return found;
        }
        let mounts = ours.into_iter().flat_map(Json::elements);
        let lacks: Vec<Vec<&str>> = mounts.map(lacks).collect();
        self.all.members().find_map(|(key, list)| {
            let (at, key_match) = match_key(key, TOP)?;
            if TOP[at] != MOUNTS || ours.is_some_and(|ours| ours.is(list)) {
                return None;
            }
            // Go decodes a list into the elements of the one whose place it takes: what the last
            // one's lack they have from an earlier (golang/go#21092).
            let is_merged = key_match == KeyMatch::Exact && delegate == ParserFamily::Go;
            list.elements().enumerate().find_map(|(index, mount)| {
                let lacking = lacks.get(index).map_or(&[][..], Vec::as_slice);
                let keys = if is_merged { lacking } else { &NAMING };
                find_in_mount(mount, true, keys, &mut look)
            })
        })
    }

    /// The document in a form of which there is one reading, which is ours: where a key stands twice
    /// the others get names that nobody reads. `None`: it has that form.
    pub(crate) fn mask_duplicates(&self) -> Result<Option<Vec<u8>>, DocumentError> {
        let mut splices = Splices::new(self.text);
        self.each_object(&mut |object, read, place| leave_ours(object, read, place, &mut splices))?;
        if splices.is_empty() {
            return Ok(None);
        }
        if self.text.contains(MASK_PREFIX) {
            return Err(DocumentError::Reserved { name: MASK_PREFIX });
        }
        Ok(Some(splices.apply()))
    }

    /// The document with the other readings that [`mask_duplicates`](Self::mask_duplicates) took away.
    pub(crate) fn unmask_duplicates(&self) -> Vec<u8> {
        let mut splices = Splices::new(self.text);
        let done: Result<(), Infallible> = self.each_object(&mut |object, _, _| {
            for (key, _) in object.members() {
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
        match done {
            Ok(()) => splices.apply(),
        }
    }

    /// Visits all objects in which keys are read, each with what is read of it and its place.
    fn each_object<E>(
        &self,
        visit: &mut impl FnMut(Json<'a>, &Object<'a>, Arguments<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        visit_level((self.all, &self.top), &DOCUMENT, visit)
    }
}

/// The keys of a mount that may name a volume.
const NAMING: [&str; 2] = [SOURCE, OPTIONS];

/// Looks at the sources that may be found in one mount under some of [`NAMING`].
fn find_in_mount<'a, T>(
    mount: Json<'a>,
    is_odd: bool,
    keys: &[&str],
    look: &mut impl FnMut(MountSource<'a>) -> Option<T>,
) -> Option<T> {
    let object = Object::of(mount, MOUNT);
    let is_odd = is_odd || object.is_odd();
    let may_bind = is_odd || may_bind(&object);
    let mut look = |text: Option<Cow<'a, str>>, is_from_bundle| {
        look(MountSource {
            text,
            is_from_bundle,
        })
    };
    let mut look_at = |key: &str, value: Json<'a>| match key {
        SOURCE => find_text(value, &mut |text| look(text, may_bind)),
        OPTIONS => value.elements().find_map(|option| {
            find_text(option, &mut |text| match text {
                Some(option) => layers(&option).find_map(|layer| look(Some(layer.into()), true)),
                None => look(None, true),
            })
        }),
        _ => None,
    };
    if is_odd {
        return mount.members().find_map(|(key, value)| {
            let (at, _) = match_key(key, MOUNT).filter(|(at, _)| keys.contains(&MOUNT[*at]))?;
            look_at(MOUNT[at], value)
        });
    }
    let found = object.get(SOURCE).and_then(|value| look_at(SOURCE, value));
    found.or_else(|| {
        let options = object.get(OPTIONS).filter(|_| is_overlay(&object))?;
        look_at(OPTIONS, options)
    })
}

/// Looks at a string as Go reads it, and as C does, where it ends at its first NUL.
fn find_text<'a, T>(
    value: Json<'a>,
    look: &mut impl FnMut(Option<Cow<'a, str>>) -> Option<T>,
) -> Option<T> {
    let quoted = value.quoted()?;
    let cut = before_nul(quoted).and_then(|cut| look(decoded(cut).ok()));
    cut.or_else(|| look(decoded(quoted).ok()))
}

/// The directories that an overlay's mount option names.
fn layers(option: &str) -> impl Iterator<Item = String> + use<> {
    let layers = overlay::layers(option.as_bytes()).into_iter();
    layers.filter_map(|layer| layer.into_os_string().into_string().ok())
}

/// Whether the delegate mounts an overlay, the kernel's or fuse-overlayfs.
fn is_overlay(mount: &Object<'_>) -> bool {
    let kind = mount.get("type").and_then(Json::quoted);
    kind.is_some_and(|kind| kind.contains('\\') || kind.contains("overlay"))
}

/// Whether the delegate may bind it: by its type or its options.
fn may_bind(mount: &Object<'_>) -> bool {
    let is = |value: Json<'_>, word: &str| {
        let text = value.quoted().and_then(|quoted| decoded(quoted).ok());
        // What has half a surrogate pair or a NUL in it may be anything.
        text.is_none_or(|text| text == word || text.contains('\0'))
    };
    let mut options = mount.get(OPTIONS).into_iter().flat_map(Json::elements);
    mount.get("type").is_some_and(|kind| is(kind, "bind"))
        || options.any(|it| is(it, "bind") || is(it, "rbind"))
}

/// Returns the keys of [`NAMING`] that a mount doesn't have.
fn lacks(mount: Json<'_>) -> Vec<&'static str> {
    let mount = Object::of(mount, MOUNT);
    let mut lacking = NAMING.to_vec();
    lacking.retain(|key| mount.get(key).is_none());
    lacking
}

/// Leaves only the value that counts of each key that stands several times in an object.
fn leave_ours<'a>(
    object: Json<'a>,
    read: &Object<'a>,
    place: Arguments<'_>,
    splices: &mut Splices<'a>,
) -> Result<(), DocumentError> {
    if !read.is_odd() {
        return Ok(());
    }
    let keys = read.keys();
    for (key, value) in object.members() {
        let Some((at, key_match)) = match_key(key, keys) else {
            continue;
        };
        let (known, ours) = (keys[at], read.get_or_null(keys[at]));
        if let KeyMatch::OnlyFor(reader) = key_match {
            return Err(DocumentError::Spelling {
                place: place.to_string(),
                key: decoded(key.quoted().unwrap_or_default())
                    .unwrap_or_default()
                    .into(),
                meant: known,
                reader,
            });
        }
        // Nobody but us acts on annotations, and we read all of them.
        if known == ANNOTATIONS || ours.is_some_and(|ours| ours.is(value)) {
            continue;
        }
        if value.is_object() && ours.is_some_and(Json::is_object) {
            return Err(DocumentError::Duplicate {
                place: place.to_string(),
                key: known,
            });
        }
        splices.insert(key.span(splices.text()).start + 1, MASK_PREFIX);
    }
    Ok(())
}

fn visit_level<'a, E>(
    (object, read): (Json<'a>, &Object<'a>),
    level: &Level,
    visit: &mut impl FnMut(Json<'a>, &Object<'a>, Arguments<'_>) -> Result<(), E>,
) -> Result<(), E> {
    visit(object, read, format_args!("{}", level.place))?;
    for (key, node) in level.children {
        let Some(value) = read.get(key) else {
            continue;
        };
        let (name, keys) = match node {
            SchemaNode::Object(level) => {
                let read = Object::of(value, level.keys);
                visit_level((value, &read), level, visit)?;
                continue;
            }
            SchemaNode::List(name, keys) => (*name, *keys),
            SchemaNode::Array(array, keys) => (array.name(), *keys),
        };
        if keys.is_empty() {
            continue;
        }
        for (index, element) in value.elements().enumerate() {
            let read = Object::of(element, keys);
            visit(element, &read, format_args!("{name}[{index}]"))?;
        }
    }
    Ok(())
}
