//! A config made of any bytes. Bytes alone would hardly ever be one.

use std::fmt::Write as _;

use arbitrary::Unstructured;

/// The form of a value in the runtime-spec.
enum Form {
    /// Anything.
    Any,
    Text,
    Number,
    List(&'static Form),
    /// These keys, and perhaps others.
    Object(&'static [(&'static str, Form)]),
    /// Keys that are data.
    Map,
}

use Form::{Any, List, Map, Number, Object, Text};

const ID_MAPPINGS: Form = List(&Object(&[
    ("containerID", Number),
    ("hostID", Number),
    ("size", Number),
]));

const CONFIG: Form = Object(&[
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

/// Deeper is nothing of interest.
const DEEPEST: usize = 4;

/// The config, and perhaps what comes after it. Without bytes it is a plain one.
pub(super) fn config(bytes: &[u8]) -> String {
    let mut maker = Maker {
        bytes: Unstructured::new(bytes),
        out: String::new(),
    };
    maker.blank();
    maker.form(&CONFIG, 0);
    let tail = ["", "\n", "  }]", " {}"];
    let tail = *maker.one_of(&tail);
    maker.out.push_str(tail);
    maker.out
}

struct Maker<'a> {
    bytes: Unstructured<'a>,
    out: String,
}

impl Maker<'_> {
    /// From 0 to below `count`; 0 when the bytes are used up.
    fn below(&mut self, count: usize) -> usize {
        self.bytes.choose_index(count).unwrap_or(0)
    }

    fn once_in(&mut self, count: usize) -> bool {
        self.below(count) == count - 1
    }

    fn one_of<'t, T>(&mut self, all: &'t [T]) -> &'t T {
        &all[self.below(all.len())]
    }

    fn blank(&mut self) {
        let blank = *self.one_of(BLANKS);
        self.out.push_str(blank);
    }

    /// Now and then something else than belongs there.
    fn form(&mut self, form: &Form, depth: usize) {
        match form {
            _ if self.once_in(32) => self.any(depth),
            Any => self.any(depth),
            Text => self.text(),
            Number => {
                let number = self.below(1 << 16);
                // A String takes everything.
                let _ = write!(self.out, "{number}");
            }
            List(of) => self.list(|maker| maker.form(of, depth + 1)),
            Object(known) => self.object(known, depth),
            Map => self.object(
                &[("io.kubernetes.cri.sandbox-id", Text), ("a", Text)],
                depth,
            ),
        }
    }

    fn any(&mut self, depth: usize) {
        match self.below(8) {
            0 if depth < DEEPEST => self.list(|maker| maker.any(depth + 1)),
            1 if depth < DEEPEST => self.object(&[], depth),
            2 => self.text(),
            _ => {
                let scalar = *self.one_of(SCALARS);
                self.out.push_str(scalar);
            }
        }
    }

    fn list(&mut self, mut element: impl FnMut(&mut Self)) {
        self.out.push('[');
        self.blank();
        for index in 0..self.below(5) {
            self.between(index);
            element(self);
            self.blank();
        }
        self.out.push(']');
    }

    fn object(&mut self, known: &[(&str, Form)], depth: usize) {
        self.out.push('{');
        self.blank();
        let mut count = 0;
        let first = self.below(known.len().max(1));
        for at in 0..known.len() {
            let (key, form) = &known[(first + at) % known.len()];
            let times = match self.below(32) {
                0..4 => 0,
                4 => 2,
                _ => 1,
            };
            for _ in 0..times {
                self.between(count);
                count += 1;
                self.key(key);
                if self.once_in(16) {
                    self.out.push_str("null");
                } else {
                    self.form(form, depth + 1);
                }
                self.blank();
            }
        }
        for _ in 0..self.below(8).saturating_sub(5) {
            self.between(count);
            count += 1;
            let key = *self.one_of(KEYS);
            self.key(key);
            self.any(depth + 1);
            self.blank();
        }
        self.out.push('}');
    }

    fn between(&mut self, index: usize) {
        if index > 0 {
            self.out.push(',');
            self.blank();
        }
    }

    /// Seldom in other letters, as Go would take them too.
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
        let text = *self.one_of(TEXTS);
        self.quoted(text);
    }

    fn quoted(&mut self, text: &str) {
        let escapes = self.once_in(4);
        self.out.push('"');
        for letter in text.chars() {
            let must = matches!(letter, '"' | '\\' | '\0'..' ');
            if must || (escapes && self.once_in(2)) {
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
