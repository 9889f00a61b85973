//! What is read from a configuration.

use std::borrow::Cow;
use std::fmt::Arguments;

use serde_json::value::RawValue;

use super::object::{Keys, Object};
use super::schema::{HOOKS, ID_MAPPING, LINUX, MOUNT, NAMESPACE, RESOURCES, ROOT, TOP};
use super::value::{elements, id, map_value, string};
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
    pub(crate) maps_ids: bool,
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

/// A configuration, borrowed from the bytes it was read from.
#[derive(Debug)]
pub(crate) struct Document<'a> {
    pub(super) text: &'a str,
    pub(super) top: Object<'a>,
}

impl<'a> Document<'a> {
    /// Reads the first JSON value of `bytes`; Go ignores what comes after it, and so do we.
    /// One pass, which looks into nothing below the top level.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, DocumentError> {
        let text = std::str::from_utf8(bytes).map_err(DocumentError::Encoding)?;
        Ok(Self {
            text,
            top: Object::read_first(text, TOP)?,
        })
    }

    /// All of it, as it is written.
    pub(crate) const fn text(&self) -> &'a str {
        self.text
    }

    /// All mounts, in order.
    pub(crate) fn mounts(&self) -> Result<Vec<Mount<'a>>, DocumentError> {
        let mounts = self.raw_elements(ArrayPath::Mounts)?;
        mounts
            .into_iter()
            .enumerate()
            .map(|(index, raw)| mount(index, raw))
            .collect()
    }

    /// The value of one annotation (config.md "Annotations").
    pub(crate) fn annotation(&self, key: &str) -> Result<Option<Cow<'a, str>>, DocumentError> {
        let Some(raw) = self.top.get("annotations") else {
            return Ok(None);
        };
        map_value(raw, key, format_args!("annotations"))?
            .map(|raw| string(raw, format_args!("annotations[\"{key}\"]")))
            .transpose()
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
        let Some(raw) = linux.get("namespaces") else {
            return Ok(Vec::new());
        };
        let namespaces = elements(raw, format_args!("linux.namespaces"))?;
        namespaces
            .into_iter()
            .enumerate()
            .map(|(index, raw)| namespace(index, raw))
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
        text(&linux, "rootfsPropagation", place)
    }

    fn id_mappings(&self, key: &str) -> Result<Vec<IdMapping>, DocumentError> {
        let Some(raw) = self.linux()?.and_then(|linux| linux.get(key)) else {
            return Ok(Vec::new());
        };
        let ranges = elements(raw, format_args!("linux.{key}"))?;
        let numbered = ranges.into_iter().enumerate();
        numbered
            .map(|(index, raw)| {
                let place = format!("linux.{key}[{index}]");
                let range = Object::read(raw, ID_MAPPING, format_args!("{place}"))?;
                let id = |key| match range.get(key) {
                    Some(raw) => id(raw, format_args!("{place}.{key}")),
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
        Ok(self
            .raw_elements(array)?
            .into_iter()
            .map(RawValue::get)
            .collect())
    }

    fn linux(&self) -> Result<Option<Object<'a>>, DocumentError> {
        object(&self.top, "linux", LINUX, format_args!("linux"))
    }

    fn raw_elements(&self, array: ArrayPath) -> Result<Vec<&'a RawValue>, DocumentError> {
        let hook = |key| {
            let hooks = object(&self.top, "hooks", HOOKS, format_args!("hooks"))?;
            Ok(hooks.and_then(|hooks| hooks.get(key)))
        };
        let raw = match array {
            ArrayPath::Mounts => self.top.get("mounts"),
            ArrayPath::CreateRuntimeHooks => hook("createRuntime")?,
            ArrayPath::CreateContainerHooks => hook("createContainer")?,
            ArrayPath::PoststopHooks => hook("poststop")?,
            ArrayPath::Devices => self.linux()?.and_then(|linux| linux.get("devices")),
            ArrayPath::DeviceRules => match self.linux()? {
                Some(linux) => {
                    let place = format_args!("linux.resources");
                    object(&linux, "resources", RESOURCES, place)?
                        .and_then(|resources| resources.get("devices"))
                }
                None => None,
            },
        };
        raw.map_or_else(
            || Ok(Vec::new()),
            |raw| elements(raw, format_args!("{array}")),
        )
    }
}

fn object<'a>(
    parent: &Object<'a>,
    key: &str,
    keys: Keys,
    place: Arguments<'_>,
) -> Result<Option<Object<'a>>, DocumentError> {
    parent
        .get(key)
        .map(|raw| Object::read(raw, keys, place))
        .transpose()
}

fn text<'a>(
    object: &Object<'a>,
    key: &str,
    place: Arguments<'_>,
) -> Result<Option<Cow<'a, str>>, DocumentError> {
    object.get(key).map(|raw| string(raw, place)).transpose()
}

fn mount(index: usize, raw: &RawValue) -> Result<Mount<'_>, DocumentError> {
    let mount = Object::read(raw, MOUNT, format_args!("mounts[{index}]"))?;
    let options = match mount.get("options") {
        Some(raw) => elements(raw, format_args!("mounts[{index}].options"))?
            .into_iter()
            .map(|raw| string(raw, format_args!("an element of mounts[{index}].options")))
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
        source_json: mount.get("source").map(RawValue::get),
        kind: text(&mount, "type", format_args!("mounts[{index}].type"))?,
        options,
        maps_ids: mount.get("uidMappings").is_some() || mount.get("gidMappings").is_some(),
        json: raw.get(),
    })
}

fn namespace(index: usize, raw: &RawValue) -> Result<Namespace<'_>, DocumentError> {
    let namespace = Object::read(raw, NAMESPACE, format_args!("linux.namespaces[{index}]"))?;
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
