//! Fuzz targets for private modules. `fuzz/` runs them; releases are built without this module.

mod generated_config;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use crust_state::DelegateKind;

use crate::invocation;
use crate::oci::{self, Document};
use crate::{plan, rewrite};

/// Checks the parser of command lines. The first line of the input is the delegate's kind (runc if it is unknown), each
/// further line is an argument.
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

/// Checks reading, planning and rewriting of a `config.json`.
pub fn config(bytes: &[u8]) {
    let Ok(document) = Document::parse(bytes) else {
        return;
    };
    if let Some(value) = &oci::properties::parse_unambiguous(bytes) {
        oci::properties::check_reads_as(&document, value);
    }
    plan::properties::check_scan_finds_volumes(&document);
    let Some(text) = oci::properties::check_masking(&document) else {
        return;
    };
    let document = Document::parse(&text).expect("a masked document is valid");
    let value = oci::properties::parse_unambiguous(&text);
    plan::properties::check(&document);
    rewrite::properties::check(&text, &document, value.as_ref());
}

/// Checks a `config.json` that is generated from the input. It is always JSON, mostly with the right types, and has
/// unusual values.
pub fn generated_config(bytes: &[u8]) {
    config(generated_config::config(bytes).as_bytes());
}
