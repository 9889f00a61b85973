//! The part of the runtime-spec's configuration that is understood here.

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

/// An array that can be edited.
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
    /// All of them.
    pub(crate) const ALL: [Self; 6] = [
        Self::Mounts,
        Self::CreateRuntimeHooks,
        Self::CreateContainerHooks,
        Self::PoststopHooks,
        Self::Devices,
        Self::DeviceRules,
    ];

    /// Returns the path of the list in a config, for messages.
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

/// An object in which keys are read.
pub(super) struct Level {
    pub(super) place: &'static str,
    pub(super) keys: Keys,
    pub(super) children: &'static [(&'static str, SchemaNode)],
}

/// The schema of a key's value. Values that are read whole have none; nor have annotations, whose keys are data.
pub(super) enum SchemaNode {
    /// An array that can be edited, and the keys that are read in its elements.
    Array(ArrayPath, Keys),
    /// Any other array: its place, and the keys that are read in its elements.
    List(&'static str, Keys),
    Object(&'static Level),
}

pub(super) const DOCUMENT: Level = Level {
    place: "the document",
    keys: TOP,
    children: &[
        (MOUNTS, SchemaNode::Array(ArrayPath::Mounts, MOUNT)),
        (
            "hooks",
            SchemaNode::Object(&Level {
                place: "hooks",
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
            SchemaNode::Object(&Level {
                place: "linux",
                keys: LINUX,
                children: &[
                    ("devices", SchemaNode::Array(ArrayPath::Devices, &[])),
                    (
                        "resources",
                        SchemaNode::Object(&Level {
                            place: "linux.resources",
                            keys: RESOURCES,
                            children: &[(
                                "devices",
                                SchemaNode::Array(ArrayPath::DeviceRules, &[]),
                            )],
                        }),
                    ),
                    (
                        "namespaces",
                        SchemaNode::List("linux.namespaces", NAMESPACE),
                    ),
                    (
                        "uidMappings",
                        SchemaNode::List("linux.uidMappings", ID_MAPPING),
                    ),
                    (
                        "gidMappings",
                        SchemaNode::List("linux.gidMappings", ID_MAPPING),
                    ),
                ],
            }),
        ),
        (
            "root",
            SchemaNode::Object(&Level {
                place: "root",
                keys: ROOT,
                children: &[],
            }),
        ),
    ],
};
