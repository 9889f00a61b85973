//! The part of the OCI runtime specification's config that runcrust reads and edits.

use std::fmt;

use super::object::Keys;

pub(super) const MOUNTS: &str = "mounts";
pub(super) const ANNOTATIONS: &str = "annotations";
pub(crate) const SOURCE: &str = "source";
pub(super) const OPTIONS: &str = "options";
pub(crate) const DESTINATION: &str = "destination";

pub(super) const TOP: Keys = &[MOUNTS, "hooks", "linux", ANNOTATIONS, "root"];
pub(super) const MOUNT: Keys = &[
    DESTINATION,
    SOURCE,
    "type",
    OPTIONS,
    "uidMappings",
    "gidMappings",
];
pub(super) const HOOKS: Keys = &["createRuntime", "createContainer", "poststop"];
pub(super) const LINUX: Keys = &[
    "namespaces",
    "devices",
    "resources",
    "uidMappings",
    "gidMappings",
    "rootfsPropagation",
    "mountLabel",
];
pub(super) const RESOURCES: Keys = &["devices"];
pub(super) const ROOT: Keys = &["path"];
pub(super) const NAMESPACE: Keys = &["type", "path"];
pub(super) const ID_MAPPING: Keys = &["containerID", "hostID", "size"];

/// The path of an array that can be edited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ArrayPath {
    /// `mounts` (config.md "Mounts")
    Mounts,
    /// `hooks.createRuntime` (config.md "POSIX-platform Hooks")
    CreateRuntimeHooks,
    /// `hooks.createContainer`
    CreateContainerHooks,
    /// `hooks.poststop`
    PoststopHooks,
    /// `linux.devices` (config-linux.md "Devices")
    Devices,
    /// `linux.resources.devices` (config-linux.md "Allowed Device list")
    DeviceRules,
}

impl ArrayPath {
    pub(crate) const ALL: [Self; 6] = [
        Self::Mounts,
        Self::CreateRuntimeHooks,
        Self::CreateContainerHooks,
        Self::PoststopHooks,
        Self::Devices,
        Self::DeviceRules,
    ];

    /// Returns the path as in messages and in records.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Mounts => "mounts",
            Self::CreateRuntimeHooks => "hooks.createRuntime",
            Self::CreateContainerHooks => "hooks.createContainer",
            Self::PoststopHooks => "hooks.poststop",
            Self::Devices => "linux.devices",
            Self::DeviceRules => "linux.resources.devices",
        }
    }
}

impl fmt::Display for ArrayPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

pub(super) struct ObjectSchema {
    /// The object's JSON path, for errors.
    pub(super) json_path: &'static str,
    pub(super) keys: Keys,
    pub(super) children: &'static [(&'static str, SchemaNode)],
}

/// The schema of a key's value. Scalars and arrays of scalars have no schema. Neither has `annotations`, whose keys are
/// arbitrary.
pub(super) enum SchemaNode {
    /// An array that can be edited, and the known keys of its elements.
    Array(ArrayPath, Keys),
    /// An array that can't be edited: its JSON path, and the known keys of its elements.
    ReadOnlyArray(&'static str, Keys),
    Object(&'static ObjectSchema),
}

pub(super) const DOCUMENT: ObjectSchema = ObjectSchema {
    json_path: "the document",
    keys: TOP,
    children: &[
        (MOUNTS, SchemaNode::Array(ArrayPath::Mounts, MOUNT)),
        (
            "hooks",
            SchemaNode::Object(&ObjectSchema {
                json_path: "hooks",
                keys: HOOKS,
                children: &[
                    (
                        "createRuntime",
                        SchemaNode::Array(ArrayPath::CreateRuntimeHooks, &[]),
                    ),
                    (
                        "createContainer",
                        SchemaNode::Array(ArrayPath::CreateContainerHooks, &[]),
                    ),
                    ("poststop", SchemaNode::Array(ArrayPath::PoststopHooks, &[])),
                ],
            }),
        ),
        (
            "linux",
            SchemaNode::Object(&ObjectSchema {
                json_path: "linux",
                keys: LINUX,
                children: &[
                    ("devices", SchemaNode::Array(ArrayPath::Devices, &[])),
                    (
                        "resources",
                        SchemaNode::Object(&ObjectSchema {
                            json_path: "linux.resources",
                            keys: RESOURCES,
                            children: &[(
                                "devices",
                                SchemaNode::Array(ArrayPath::DeviceRules, &[]),
                            )],
                        }),
                    ),
                    (
                        "namespaces",
                        SchemaNode::ReadOnlyArray("linux.namespaces", NAMESPACE),
                    ),
                    (
                        "uidMappings",
                        SchemaNode::ReadOnlyArray("linux.uidMappings", ID_MAPPING),
                    ),
                    (
                        "gidMappings",
                        SchemaNode::ReadOnlyArray("linux.gidMappings", ID_MAPPING),
                    ),
                ],
            }),
        ),
        (
            "root",
            SchemaNode::Object(&ObjectSchema {
                json_path: "root",
                keys: ROOT,
                children: &[],
            }),
        ),
    ],
};
