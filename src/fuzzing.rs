//! Properties of private modules, for the inputs of the fuzz targets in `fuzz/`. Releases are built without this.

mod generated_config;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use crust_state::DelegateKind;

use crate::invocation;
use crate::oci::{self, Document};
use crate::{plan, rewrite};

/// A command line: `crun`, `youki` or anything else (runc) for the delegate, then an argument a line.
pub fn argv(bytes: &[u8]) {
    let text = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let mut lines = text.split(|byte| *byte == b'\n');
    let name = lines.next().and_then(|line| std::str::from_utf8(line).ok());
    let kind = name
        .and_then(DelegateKind::from_name)
        .unwrap_or(DelegateKind::Runc);
    let arguments = lines.map(|line| OsStr::from_bytes(line).to_owned());
    let argv: Vec<OsString> = std::iter::once("runcrust".into())
        .chain(arguments)
        .collect();
    invocation::properties::check(kind, &argv);
}

/// A `config.json`.
pub fn config(bytes: &[u8]) {
    let Ok(document) = Document::parse(bytes) else {
        return;
    };
    if let Some(value) = &oci::properties::value_of(bytes) {
        oci::properties::reads_as(&document, value);
    }
    plan::properties::none_is_overlooked(&document);
    let Some(text) = oci::properties::mask_duplicates(&document) else {
        return;
    };
    let document = Document::parse(&text).expect("what was written");
    let value = oci::properties::value_of(&text);
    plan::properties::check(&document);
    rewrite::properties::check(&text, &document, value.as_ref());
}

/// A `config.json` that is made of the bytes: always JSON, mostly of the right form, and odd.
pub fn odd_config(bytes: &[u8]) {
    config(generated_config::config(bytes).as_bytes());
}
