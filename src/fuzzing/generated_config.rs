//! Generates a config from arbitrary bytes. Mutated bytes alone are hardly ever a valid config.

use std::fmt::Write as _;

use arbitrary::Unstructured;

/// The type of a value in the OCI runtime specification.
enum ValueType {
    Any,
    Text,
    Number,
    List(&'static ValueType),
    /// An object with these keys, and perhaps others.
    Object(&'static [(&'static str, ValueType)]),
    /// An object with arbitrary keys and strings as values.
    Map,
}

use ValueType::{Any, List, Map, Number, Object, Text};

const ID_MAPPINGS: ValueType = List(&Object(&[
    ("containerID", Number),
    ("hostID", Number),
    ("size", Number),
]));

const CONFIG: ValueType = Object(&[
    ("ociVersion", Text),
    ("root", Object(&[("path", Text), ("readonly", Any)])),
    (
        "mounts",
        List(&Object(&[
            ("destination", Text),
            ("source", Text),
            ("type", Text),
            ("options", List(&Text)),
            ("uidMappings", ID_MAPPINGS),
            ("gidMappings", ID_MAPPINGS),
        ])),
    ),
    (
        "hooks",
        Object(&[
            ("prestart", Any),
            ("createRuntime", List(&Any)),
            ("createContainer", List(&Any)),
            ("poststop", List(&Any)),
        ]),
    ),
    ("annotations", Map),
    (
        "linux",
        Object(&[
            (
                "namespaces",
                List(&Object(&[("type", Text), ("path", Text)])),
            ),
            ("uidMappings", ID_MAPPINGS),
            ("gidMappings", ID_MAPPINGS),
            ("devices", List(&Any)),
            (
                "resources",
                Object(&[("devices", List(&Any)), ("memory", Any)]),
            ),
            ("rootfsPropagation", Text),
        ]),
    ),
]);

const TEXTS: &[&str] = &[
    "/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/pv/mount",
    "/data",
    "bind",
    "rbind",
    "ro",
    "tmpfs",
    "mount",
    "/k/pods/u/volumes/kubernetes.io~csi/pv/mount/sub path",
    "/proc/7/ns/ipc",
    "/.crust",
    "/run/runcrust/attach/0",
    "sandbox",
    "",
    "../../var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/../kubernetes.io~csi/pv/mount/..",
    "ü\"\\\n\u{1}😀",
    "]},{[",
];

const KEYS: &[&str] = &[
    "x",
    "process",
    "io.kubernetes.cri.container-type",
    "",
    "sources",
    "mount",
    "Ω",
];

const SCALARS: &[&str] = &[
    "null",
    "true",
    "0",
    "-0.0E-0",
    "1e400",
    "123456789012345678901234567890",
    "\"\"",
    r#""\ud800 alone""#,
    r#""\ud83d\ude00\/\b""#,
    r#"{"a" : 1, "a":[ ]}"#,
    r#"{"path":"/theirs","args":["a","b"],"timeout":1}"#,
    r#"{"allow":true,"type":"b","major":7,"minor":0,"access":"rw"}"#,
    "[[],{ }]",
    "[[[[[[[[]]]]]]]]",
    "4294967296",
    "false",
];

const BLANKS: &[&str] = &["", "", "", " ", "\n\t", "\r\n  "];

/// Limit for the nesting of values of any type.
const MAX_DEPTH: usize = 4;

/// Generates a config, perhaps with text after it. Without bytes, the config has no unusual values.
pub(super) fn config(bytes: &[u8]) -> String {
    let mut generator = Generator {
        bytes: Unstructured::new(bytes),
        out: String::new(),
    };
    generator.blank();
    generator.value(&CONFIG, 0);
    let tail = ["", "\n", "  }]", " {}"];
    let tail = *generator.choose_from(&tail);
    generator.out.push_str(tail);
    generator.out
}

struct Generator<'a> {
    bytes: Unstructured<'a>,
    out: String,
}

impl Generator<'_> {
    /// Returns a number less than `count`; 0 if the bytes are used up.
    fn choose(&mut self, count: usize) -> usize {
        self.bytes.choose_index(count).unwrap_or(0)
    }

    /// Returns true once in `count` calls on average; never if the bytes are used up.
    fn once_in(&mut self, count: usize) -> bool {
        self.choose(count) == count - 1
    }

    fn choose_from<'t, T>(&mut self, all: &'t [T]) -> &'t T {
        &all[self.choose(all.len())]
    }

    fn blank(&mut self) {
        let blank = *self.choose_from(BLANKS);
        self.out.push_str(blank);
    }

    /// Generates a value of the type, or rarely of any type.
    fn value(&mut self, value_type: &ValueType, depth: usize) {
        match value_type {
            _ if self.once_in(32) => self.any(depth),
            Any => self.any(depth),
            Text => self.text(),
            Number => {
                let number = self.choose(1 << 16);
                // Writing to a String can't fail.
                let _ = write!(self.out, "{number}");
            }
            List(element) => self.list(|generator| generator.value(element, depth + 1)),
            Object(known) => self.object(known, depth),
            Map => self.object(
                &[("io.kubernetes.cri.sandbox-id", Text), ("a", Text)],
                depth,
            ),
        }
    }

    fn any(&mut self, depth: usize) {
        match self.choose(8) {
            0 if depth < MAX_DEPTH => self.list(|generator| generator.any(depth + 1)),
            1 if depth < MAX_DEPTH => self.object(&[], depth),
            2 => self.text(),
            _ => {
                let scalar = *self.choose_from(SCALARS);
                self.out.push_str(scalar);
            }
        }
    }

    fn list(&mut self, mut element: impl FnMut(&mut Self)) {
        self.out.push('[');
        self.blank();
        for index in 0..self.choose(5) {
            self.separator(index);
            element(self);
            self.blank();
        }
        self.out.push(']');
    }

    fn object(&mut self, known: &[(&str, ValueType)], depth: usize) {
        self.out.push('{');
        self.blank();
        let mut count = 0;
        let first = self.choose(known.len().max(1));
        for at in 0..known.len() {
            let (key, value_type) = &known[(first + at) % known.len()];
            let times = match self.choose(32) {
                0..4 => 0,
                4 => 2,
                _ => 1,
            };
            for _ in 0..times {
                self.separator(count);
                count += 1;
                self.key(key);
                if self.once_in(16) {
                    self.out.push_str("null");
                } else {
                    self.value(value_type, depth + 1);
                }
                self.blank();
            }
        }
        for _ in 0..self.choose(8).saturating_sub(5) {
            self.separator(count);
            count += 1;
            let key = *self.choose_from(KEYS);
            self.key(key);
            self.any(depth + 1);
            self.blank();
        }
        self.out.push('}');
    }

    fn separator(&mut self, index: usize) {
        if index > 0 {
            self.out.push(',');
            self.blank();
        }
    }

    /// Generates a key and a colon. One key in 64 is in upper case, which Go matches as well.
    fn key(&mut self, key: &str) {
        if self.once_in(64) {
            let other = key.to_ascii_uppercase();
            self.quoted(&other);
        } else {
            self.quoted(key);
        }
        self.blank();
        self.out.push(':');
        self.blank();
    }

    fn text(&mut self) {
        let text = *self.choose_from(TEXTS);
        self.quoted(text);
    }

    fn quoted(&mut self, text: &str) {
        let has_escapes = self.once_in(4);
        self.out.push('"');
        for letter in text.chars() {
            let needs_escape = matches!(letter, '"' | '\\' | '\0'..' ');
            if needs_escape || (has_escapes && self.once_in(2)) {
                for unit in letter.encode_utf16(&mut [0; 2]) {
                    let _ = write!(self.out, "\\u{unit:04x}");
                }
            } else {
                self.out.push(letter);
            }
        }
        self.out.push('"');
    }
}
