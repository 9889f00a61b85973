//! Reads a configuration.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::fmt::Arguments;

use super::json::Json;
use super::object::{Keys, Object};
use super::schema::{
    ANNOTATIONS, HOOKS, ID_MAPPING, LINUX, MOUNT, MOUNTS, NAMESPACE, RESOURCES, ROOT, TOP,
};
use super::value::{decoded, elements, id, own_string, string, wrong_type};
use super::{ArrayPath, DocumentError};

/// One entry of `mounts` (config.md "Mounts").
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mount<'a> {
    /// Its key: two mounts may share a destination, and containerd's sandboxes have two on
    /// `/dev/shm`.
    pub(crate) index: usize,
    /// Empty where there is none; the delegate refuses that.
    pub(crate) destination: Cow<'a, str>,
    /// A path, or a word such as `tmpfs`.
    pub(crate) source: Option<Cow<'a, str>>,
    /// The source as it is written, quotes and escapes included.
    pub(crate) source_json: Option<&'a str>,
    /// `type`
    pub(crate) kind: Option<Cow<'a, str>>,
    /// `options`, in order.
    pub(crate) options: Vec<Cow<'a, str>>,
    /// It has id mappings of its own.
    pub(crate) has_id_mappings: bool,
    /// All of it, as it is written.
    pub(crate) json: &'a str,
}

/// One entry of `linux.uidMappings` or `linux.gidMappings` (config-linux.md "User namespace
/// mappings").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IdMapping {
    pub(crate) container: u32,
    pub(crate) host: u32,
    pub(crate) size: u32,
}

/// One entry of `linux.namespaces` (config-linux.md "Namespaces").
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Namespace<'a> {
    /// `type`: `mount`, `pid`, …; empty where there is none.
    pub(crate) kind: Cow<'a, str>,
    /// An existing namespace to join; a new one without.
    pub(crate) path: Option<Cow<'a, str>>,
}

/// A configuration, borrowed from the bytes it was read from. Of a key that stands twice the last
/// value counts; what other readers make of it is told by [`find_source`](Self::find_source) and taken
/// from them by [`mask_duplicates`](Self::mask_duplicates).
#[derive(Debug)]
pub(crate) struct Document<'a> {
    pub(super) text: &'a str,
    pub(super) all: Json<'a>,
    pub(super) top: Object<'a>,
    /// The object at `linux`, once it was asked for: a filter of system calls makes it long.
    linux: OnceCell<Option<Object<'a>>>,
    /// It was no UTF-8: in each reader's text the bytes that aren't are something else.
    pub(super) is_lossy: bool,
}

impl<'a> Document<'a> {
    /// Reads the first JSON value of `bytes`; Go ignores what comes after it, and so do we.
    /// One pass, which looks into nothing below the top level.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, DocumentError> {
        let text = std::str::from_utf8(bytes).map_err(DocumentError::Encoding)?;
        Self::of(text, false)
    }

    /// The same of bytes that may be no UTF-8, which Go takes, for
    /// [`find_source`](Self::find_source): what comes of it is [`parse`](Self::parse)d, or not read.
    #[expect(clippy::ptr_arg, reason = "text that was changed is owned")]
    pub(crate) fn parse_lossy(text: &'a Cow<'_, str>) -> Result<Self, DocumentError> {
        Self::of(text, matches!(text, Cow::Owned(_)))
    }

    fn of(text: &'a str, is_lossy: bool) -> Result<Self, DocumentError> {
        let (all, top) = Object::first_of(text, TOP, format_args!("the document"))?;
        Ok(Self {
            text,
            all,
            top,
            linux: OnceCell::new(),
            is_lossy,
        })
    }

    /// Whether a mount has such a text under the key.
    pub(crate) fn has_mount(&self, key: &str, is_it: impl Fn(&str) -> bool) -> bool {
        let mounts = self.top.get(MOUNTS).into_iter().flat_map(Json::elements);
        let mut values = mounts.filter_map(|mount| Object::of(mount, MOUNT).get(key));
        values.any(|value| {
            let text = value.quoted().and_then(|quoted| decoded(quoted).ok());
            text.is_some_and(|text| is_it(&text))
        })
    }

    /// All of it, as it is written.
    pub(crate) const fn text(&self) -> &'a str {
        self.text
    }

    /// All mounts, in order.
    pub(crate) fn mounts(&self) -> Result<Vec<Mount<'a>>, DocumentError> {
        let mounts = self.elements(ArrayPath::Mounts)?;
        mounts
            .into_iter()
            .enumerate()
            .map(|(index, value)| mount(index, value))
            .collect()
    }

    /// The value of one annotation (config.md "Annotations"). Several objects of them are one, as in
    /// Go: nobody else acts on those that are asked for.
    pub(crate) fn annotation(&self, key: &str) -> Result<Option<Cow<'a, str>>, DocumentError> {
        let place = format_args!("annotations");
        let Some(last) = self.top.get(ANNOTATIONS) else {
            return Ok(None);
        };
        if !last.is_object() {
            return Err(wrong_type(place, "an object", last));
        }
        let several = self.top.is_odd().then(|| self.members_of_key(ANNOTATIONS));
        let several = several.into_iter().flatten().map(|(_, value)| value);
        let one = (!self.top.is_odd()).then_some(last);
        let mut found = None;
        for annotations in several.chain(one) {
            if annotations.is_null() {
                found = None;
            }
            for (name, value) in annotations.members() {
                if is_key(name, key) {
                    found = Some(value);
                }
            }
        }
        found
            .filter(|value| !value.is_null())
            .map(|value| own_string(value, format_args!("annotations[\"{key}\"]")))
            .transpose()
    }

    /// All values under a key of the document's, in their order.
    fn members_of_key(&self, key: &str) -> impl Iterator<Item = (Json<'a>, Json<'a>)> {
        let members = self.all.members();
        members.filter(move |(name, _)| is_key(*name, key))
    }

    /// `root.path`, which may be relative to the bundle (config.md "Root").
    pub(crate) fn root_path(&self) -> Result<Option<Cow<'a, str>>, DocumentError> {
        let Some(root) = object(&self.top, "root", ROOT, format_args!("root"))? else {
            return Ok(None);
        };
        text(&root, "path", format_args!("root.path"))
    }

    /// `linux.namespaces`, in order.
    pub(crate) fn namespaces(&self) -> Result<Vec<Namespace<'a>>, DocumentError> {
        let Some(linux) = self.linux()? else {
            return Ok(Vec::new());
        };
        let Some(namespaces) = linux.get("namespaces") else {
            return Ok(Vec::new());
        };
        elements(namespaces, format_args!("linux.namespaces"))?
            .into_iter()
            .enumerate()
            .map(|(index, value)| namespace(index, value))
            .collect()
    }

    /// `linux.uidMappings`, in order.
    pub(crate) fn uid_mappings(&self) -> Result<Vec<IdMapping>, DocumentError> {
        self.id_mappings("uidMappings")
    }

    /// `linux.gidMappings`, in order.
    pub(crate) fn gid_mappings(&self) -> Result<Vec<IdMapping>, DocumentError> {
        self.id_mappings("gidMappings")
    }

    /// `linux.rootfsPropagation` (config-linux.md "Rootfs Mount Propagation").
    pub(crate) fn root_propagation(&self) -> Result<Option<Cow<'a, str>>, DocumentError> {
        let Some(linux) = self.linux()? else {
            return Ok(None);
        };
        let place = format_args!("linux.rootfsPropagation");
        text(linux, "rootfsPropagation", place)
    }

    /// `linux.mountLabel` (config-linux.md "Mount Label").
    pub(crate) fn mount_label(&self) -> Result<Option<Cow<'a, str>>, DocumentError> {
        let Some(linux) = self.linux()? else {
            return Ok(None);
        };
        text(linux, "mountLabel", format_args!("linux.mountLabel"))
    }

    fn id_mappings(&self, key: &str) -> Result<Vec<IdMapping>, DocumentError> {
        let Some(ranges) = self.linux()?.and_then(|linux| linux.get(key)) else {
            return Ok(Vec::new());
        };
        let ranges = elements(ranges, format_args!("linux.{key}"))?;
        let numbered = ranges.into_iter().enumerate();
        numbered
            .map(|(index, range)| {
                let place = format!("linux.{key}[{index}]");
                let range = Object::read(range, ID_MAPPING, format_args!("{place}"))?;
                let id = |key| match range.get(key) {
                    Some(value) => id(value, format_args!("{place}.{key}")),
                    None => Ok(0),
                };
                Ok(IdMapping {
                    container: id("containerID")?,
                    host: id("hostID")?,
                    size: id("size")?,
                })
            })
            .collect()
    }

    /// The elements of an array as they are written; none where there is no array.
    pub(crate) fn array(&self, array: ArrayPath) -> Result<Vec<&'a str>, DocumentError> {
        let elements = self.elements(array)?;
        Ok(elements.into_iter().map(Json::text).collect())
    }

    fn linux(&self) -> Result<Option<&Object<'a>>, DocumentError> {
        if let Some(linux) = self.linux.get() {
            return Ok(linux.as_ref());
        }
        let linux = object(&self.top, "linux", LINUX, format_args!("linux"))?;
        Ok(self.linux.get_or_init(|| linux).as_ref())
    }

    fn elements(&self, array: ArrayPath) -> Result<Vec<Json<'a>>, DocumentError> {
        self.value(array)?.map_or_else(
            || Ok(Vec::new()),
            |value| elements(value, format_args!("{array}")),
        )
    }

    fn value(&self, array: ArrayPath) -> Result<Option<Json<'a>>, DocumentError> {
        let hook = |key| {
            let hooks = object(&self.top, "hooks", HOOKS, format_args!("hooks"))?;
            Ok(hooks.and_then(|hooks| hooks.get(key)))
        };
        Ok(match array {
            ArrayPath::Mounts => self.top.get(MOUNTS),
            ArrayPath::CreateRuntimeHooks => hook("createRuntime")?,
            ArrayPath::CreateContainerHooks => hook("createContainer")?,
            ArrayPath::PoststopHooks => hook("poststop")?,
            ArrayPath::Devices => self.linux()?.and_then(|linux| linux.get("devices")),
            ArrayPath::DeviceRules => match self.linux()? {
                Some(linux) => {
                    let place = format_args!("linux.resources");
                    object(linux, "resources", RESOURCES, place)?
                        .and_then(|resources| resources.get("devices"))
                }
                None => None,
            },
        })
    }
}

/// Whether this is how a key is written.
fn is_key(name: Json<'_>, key: &str) -> bool {
    name.quoted().is_some_and(|quoted| {
        // Without escapes it has the key's length; with them it is longer.
        quoted.len() >= key.len() && decoded(quoted).is_ok_and(|name| name == key)
    })
}

fn object<'a>(
    parent: &Object<'a>,
    key: &str,
    keys: Keys,
    place: Arguments<'_>,
) -> Result<Option<Object<'a>>, DocumentError> {
    parent
        .get(key)
        .map(|value| Object::read(value, keys, place))
        .transpose()
}

fn text<'a>(
    object: &Object<'a>,
    key: &str,
    place: Arguments<'_>,
) -> Result<Option<Cow<'a, str>>, DocumentError> {
    object
        .get(key)
        .map(|value| string(value, place))
        .transpose()
}

fn mount(index: usize, value: Json<'_>) -> Result<Mount<'_>, DocumentError> {
    let mount = Object::read(value, MOUNT, format_args!("mounts[{index}]"))?;
    let options = match mount.get("options") {
        Some(options) => elements(options, format_args!("mounts[{index}].options"))?
            .into_iter()
            .map(|option| {
                string(
                    option,
                    format_args!("an element of mounts[{index}].options"),
                )
            })
            .collect::<Result<_, _>>()?,
        None => Vec::new(),
    };
    Ok(Mount {
        index,
        destination: text(
            &mount,
            "destination",
            format_args!("mounts[{index}].destination"),
        )?
        .unwrap_or_default(),
        source: text(&mount, "source", format_args!("mounts[{index}].source"))?,
        source_json: mount.get("source").map(Json::text),
        kind: text(&mount, "type", format_args!("mounts[{index}].type"))?,
        options,
        has_id_mappings: mount.get("uidMappings").is_some() || mount.get("gidMappings").is_some(),
        json: value.text(),
    })
}

fn namespace(index: usize, value: Json<'_>) -> Result<Namespace<'_>, DocumentError> {
    let namespace = Object::read(value, NAMESPACE, format_args!("linux.namespaces[{index}]"))?;
    Ok(Namespace {
        kind: text(
            &namespace,
            "type",
            format_args!("linux.namespaces[{index}].type"),
        )?
        .unwrap_or_default(),
        path: text(
            &namespace,
            "path",
            format_args!("linux.namespaces[{index}].path"),
        )?,
    })
}
