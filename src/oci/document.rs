//! Reads the parts of a config that runcrust uses.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::fmt::Arguments;

use super::json::Json;
use super::object::{Keys, Object};
use super::schema::{
    ANNOTATIONS, HOOKS, ID_MAPPING, LINUX, MOUNT, MOUNTS, NAMESPACE, RESOURCES, ROOT, TOP,
};
use super::value::{decoded, elements, id, string, string_with_nul, wrong_type};
use super::{ArrayPath, DocumentError};

/// One entry of `mounts` (config.md "Mounts").
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mount<'a> {
    /// Index in `mounts`. It identifies the mount, because destinations aren't unique: containerd's sandboxes have two
    /// mounts on `/dev/shm`.
    pub(crate) index: usize,
    /// Empty if it is missing, which the delegate rejects.
    pub(crate) destination: Cow<'a, str>,
    /// A path, or a word such as `tmpfs`.
    pub(crate) source: Option<Cow<'a, str>>,
    /// The source's JSON text, with quotes and escapes.
    pub(crate) source_json: Option<&'a str>,
    /// `type`
    pub(crate) kind: Option<Cow<'a, str>>,
    pub(crate) options: Vec<Cow<'a, str>>,
    /// Whether the mount itself has `uidMappings` or `gidMappings`.
    pub(crate) has_id_mappings: bool,
    /// The whole mount's JSON text.
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
    /// `type`: `mount`, `pid`, …; empty if it is missing.
    pub(crate) kind: Cow<'a, str>,
    /// The namespace to join. `None` asks for a new one.
    pub(crate) path: Option<Cow<'a, str>>,
}

/// A config, borrowed from the text it was parsed from.
///
/// If a key occurs twice in an object, the last value counts. Other parsers may use another value:
/// [`find_source`](Self::find_source) considers all of them, and [`mask_duplicates`](Self::mask_duplicates) hides them
/// from the delegate.
#[derive(Debug)]
pub(crate) struct Document<'a> {
    pub(super) text: &'a str,
    /// The document itself, without what surrounds it in `text`.
    pub(super) json: Json<'a>,
    pub(super) top: Object<'a>,
    /// The object at `linux`, read on first use: a seccomp filter makes it long.
    linux: OnceCell<Option<Object<'a>>>,
    /// Whether the original isn't UTF-8. Parsers disagree about the invalid bytes, which are U+FFFD in `text`.
    pub(super) is_lossy: bool,
}

impl<'a> Document<'a> {
    /// Parses the first JSON value of `bytes`, and ignores everything after that value, like Go. Checks the syntax of
    /// the whole value, but reads only the keys of the top level.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, DocumentError> {
        let text = std::str::from_utf8(bytes).map_err(DocumentError::Encoding)?;
        Self::from_text(text, false)
    }

    /// Parses text that may come from a lossy conversion (`Cow::Owned`), because Go accepts a config that isn't UTF-8.
    ///
    /// Such a document is only good for [`find_source`](Self::find_source). Use [`parse`](Self::parse) for everything
    /// else.
    #[expect(clippy::ptr_arg, reason = "an owned text is a lossy conversion")]
    pub(crate) fn parse_lossy(text: &'a Cow<'_, str>) -> Result<Self, DocumentError> {
        Self::from_text(text, matches!(text, Cow::Owned(_)))
    }

    fn from_text(text: &'a str, is_lossy: bool) -> Result<Self, DocumentError> {
        let (json, top) = Object::parse_first(text, TOP, format_args!("the document"))?;
        Ok(Self {
            text,
            json,
            top,
            linux: OnceCell::new(),
            is_lossy,
        })
    }

    /// Returns whether any mount has a string under `key` for which `matches` returns true.
    pub(crate) fn has_mount(&self, key: &str, matches: impl Fn(&str) -> bool) -> bool {
        let mounts = self.top.get(MOUNTS).into_iter().flat_map(Json::elements);
        let mut values = mounts.filter_map(|mount| Object::read_or_empty(mount, MOUNT).get(key));
        values.any(|value| {
            let text = value.quoted().and_then(|quoted| decoded(quoted).ok());
            text.is_some_and(|text| matches(&text))
        })
    }

    /// Returns the text that the document was parsed from, including what surrounds the JSON value.
    pub(crate) const fn text(&self) -> &'a str {
        self.text
    }

    /// Returns all mounts, in order.
    pub(crate) fn mounts(&self) -> Result<Vec<Mount<'a>>, DocumentError> {
        let mounts = self.elements(ArrayPath::Mounts)?;
        mounts
            .into_iter()
            .enumerate()
            .map(|(index, value)| mount(index, value))
            .collect()
    }

    /// Returns the value of an annotation (config.md "Annotations").
    ///
    /// Several `annotations` objects are merged, as in Go. This is safe because only runcrust uses these annotations.
    pub(crate) fn annotation(&self, key: &str) -> Result<Option<Cow<'a, str>>, DocumentError> {
        let json_path = format_args!("annotations");
        let Some(last) = self.top.get(ANNOTATIONS) else {
            return Ok(None);
        };
        if !last.is_object() {
            return Err(wrong_type(json_path, "an object", last));
        }
        let is_ambiguous = self.top.is_ambiguous();
        let several = is_ambiguous.then(|| self.members_of_key(ANNOTATIONS));
        let several = several.into_iter().flatten().map(|(_, value)| value);
        let single = (!is_ambiguous).then_some(last);
        let mut found = None;
        for annotations in several.chain(single) {
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
            .map(|value| string_with_nul(value, format_args!("annotations[\"{key}\"]")))
            .transpose()
    }

    /// Returns all top-level members with this key, in order.
    fn members_of_key(&self, key: &str) -> impl Iterator<Item = (Json<'a>, Json<'a>)> {
        let members = self.json.members();
        members.filter(move |(name, _)| is_key(*name, key))
    }

    /// Returns `root.path`, which may be relative to the bundle (config.md "Root").
    pub(crate) fn root_path(&self) -> Result<Option<Cow<'a, str>>, DocumentError> {
        let Some(root) = object(&self.top, "root", ROOT, format_args!("root"))? else {
            return Ok(None);
        };
        text(&root, "path", format_args!("root.path"))
    }

    /// Returns `linux.namespaces`, in order.
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

    /// Returns `linux.uidMappings`, in order.
    pub(crate) fn uid_mappings(&self) -> Result<Vec<IdMapping>, DocumentError> {
        self.id_mappings("uidMappings")
    }

    /// Returns `linux.gidMappings`, in order.
    pub(crate) fn gid_mappings(&self) -> Result<Vec<IdMapping>, DocumentError> {
        self.id_mappings("gidMappings")
    }

    /// Returns `linux.rootfsPropagation` (config-linux.md "Rootfs Mount Propagation").
    pub(crate) fn root_propagation(&self) -> Result<Option<Cow<'a, str>>, DocumentError> {
        let Some(linux) = self.linux()? else {
            return Ok(None);
        };
        let json_path = format_args!("linux.rootfsPropagation");
        text(linux, "rootfsPropagation", json_path)
    }

    /// Returns `linux.mountLabel` (config-linux.md "Mount Label").
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
                let json_path = format!("linux.{key}[{index}]");
                let range = Object::read(range, ID_MAPPING, format_args!("{json_path}"))?;
                let id = |key| match range.get(key) {
                    Some(value) => id(value, format_args!("{json_path}.{key}")),
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

    /// Returns the JSON texts of an array's elements; none if the array is missing.
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
                    let json_path = format_args!("linux.resources");
                    object(linux, "resources", RESOURCES, json_path)?
                        .and_then(|resources| resources.get("devices"))
                }
                None => None,
            },
        })
    }
}

/// Returns whether `name` is the JSON text of `key`.
fn is_key(name: Json<'_>, key: &str) -> bool {
    name.quoted().is_some_and(|quoted| {
        // Escapes make a name longer, never shorter.
        quoted.len() >= key.len() && decoded(quoted).is_ok_and(|name| name == key)
    })
}

fn object<'a>(
    parent: &Object<'a>,
    key: &str,
    keys: Keys,
    json_path: Arguments<'_>,
) -> Result<Option<Object<'a>>, DocumentError> {
    parent
        .get(key)
        .map(|value| Object::read(value, keys, json_path))
        .transpose()
}

fn text<'a>(
    object: &Object<'a>,
    key: &str,
    json_path: Arguments<'_>,
) -> Result<Option<Cow<'a, str>>, DocumentError> {
    object
        .get(key)
        .map(|value| string(value, json_path))
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
