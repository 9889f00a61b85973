//! Tests of documents that parsers read differently.

use super::super::{Document, DocumentError, ParserFamily};

fn document(text: &str) -> Document<'_> {
    Document::parse(text.as_bytes()).unwrap()
}

fn mask_duplicates(text: &str) -> Result<Option<String>, DocumentError> {
    let masked = document(text).mask_duplicates()?;
    Ok(masked.map(|bytes| String::from_utf8(bytes).unwrap()))
}

/// Returns all sources. `?` stands for undecodable text, and `*` marks those that are relative to the bundle.
fn sources(text: &str, delegate: ParserFamily) -> Vec<String> {
    let mut all = Vec::new();
    let found: Option<()> = document(text).find_source(delegate, |source| {
        let text = source.text.map_or("?".to_owned(), String::from);
        all.push(if source.is_from_bundle {
            text + "*"
        } else {
            text
        });
        None
    });
    assert_eq!(found, None);
    all
}

#[test]
fn the_last_value_of_a_duplicate_key_counts() {
    let text = r#"{"mounts":[{"source":"/a","destination":"/x","source":"/b"}],"root":{"path":"r"},
        "mounts":[{"source":"/c","source":null,"options":["ro"],"options":null}],
        "root":null,"annotations":{"a":"1","b":"1"},"annotations":{"a":"2"},"annotations":{}}"#;
    let document = document(text);
    let mounts = document.mounts().unwrap();
    assert_eq!(mounts.len(), 1);
    // As in Go, null leaves a string unchanged and unsets a list.
    assert_eq!(mounts[0].source.as_deref(), Some("/c"));
    assert!(mounts[0].options.is_empty());
    assert_eq!(document.root_path().unwrap(), None);
    let annotation = |key| document.annotation(key).unwrap();
    assert_eq!(annotation("a").as_deref(), Some("2"));
    assert_eq!(annotation("b").as_deref(), Some("1"));
}

#[test]
fn null_unsets_earlier_annotations() {
    let text = r#"{"annotations":{"a":"1"},"annotations":null,"annotations":{"b":"1"}}"#;
    assert_eq!(document(text).annotation("a").unwrap(), None);
    assert_eq!(
        document(text).annotation("b").unwrap().as_deref(),
        Some("1")
    );
}

#[test]
fn the_directories_of_an_overlay_are_sources() {
    for (mounts, expected) in [
        (
            r#"[{"type":"overlay","source":"overlay","options":["lowerdir=/a:/b","upperdir=/u,workdir=/w"]}]"#,
            &["overlay", "/a*", "/b*", "/u*", "/w*"][..],
        ),
        (
            r#"[{"type":"fuse.fuse-overlayfs","options":["lowerdir=/a"]}]"#,
            &["/a*"],
        ),
        (
            r#"[{"type":"overl\u0061y","options":["lowerd\u0069r=/a"]}]"#,
            &["/a*"],
        ),
        (
            r#"[{"type":"overlay","options":["lowerdir=/a\u0000:/b"]}]"#,
            &["/a*", "/a\0*", "/b*"],
        ),
        (
            r#"[{"type":"overlay","Options":["lowerdir=/a"]}]"#,
            &["/a*"],
        ),
        (
            r#"[{"options":["lowerdir=/a"],"type":"overlay","options":[]}]"#,
            &["/a*"],
        ),
        // An unpaired surrogate, which can't be decoded.
        (
            r#"[{"type":"overlay","options":["lowerdir=/a\ud800"]}]"#,
            &["?*"],
        ),
        (r#"[{"type":"tmpfs","options":["lowerdir=/a"]}]"#, &[]),
        (r#"[{"type":"overlay","options":"lowerdir=/a"}]"#, &[]),
    ] {
        let text = format!(r#"{{"mounts":{mounts}}}"#);
        for delegate in [ParserFamily::Go, ParserFamily::C] {
            assert_eq!(sources(&text, delegate), expected, "{text}");
        }
    }
    // Go merges an element of the last list with the element at the same index of an earlier list.
    let merged = r#"{"mounts":[{"source":"/x","options":["lowerdir=/a"]}],"mounts":[{"type":"overlay","source":"/y"}]}"#;
    assert_eq!(sources(merged, ParserFamily::Go), ["/y*", "/a*"]);
}

#[test]
fn values_that_do_not_count_are_masked() {
    for (text, expected) in [
        (r#"{"mounts":[1],"x":1,"x":2}"#, None),
        (
            r#"{"mounts":[1], "mo\u0075nts" :[2],"mounts":[]}"#,
            Some(
                r#"{"x-runcrust-unread-mounts":[1], "x-runcrust-unread-mo\u0075nts" :[2],"mounts":[]}"#,
            ),
        ),
        (
            r#"{"mounts":[{"source":"/a","source":"/b","source":null}]}"#,
            Some(
                r#"{"mounts":[{"x-runcrust-unread-source":"/a","source":"/b","x-runcrust-unread-source":null}]}"#,
            ),
        ),
        (
            r#"{"linux":null,"linux":{"namespaces":[{"type":"pid","type":"mount"}],"namespaces":null}}"#,
            Some(
                r#"{"x-runcrust-unread-linux":null,"linux":{"x-runcrust-unread-namespaces":[{"type":"pid","type":"mount"}],"namespaces":null}}"#,
            ),
        ),
        (
            r#"{"linux":{"namespaces":[{"type":"pid","type":"mount"}],"resources":{"devices":[],"devices":[1]}}}"#,
            Some(
                r#"{"linux":{"namespaces":[{"x-runcrust-unread-type":"pid","type":"mount"}],"resources":{"x-runcrust-unread-devices":[],"devices":[1]}}}"#,
            ),
        ),
        // Only runcrust uses annotations, and it merges duplicate objects of them.
        (
            r#"{"annotations":{"a":"1","a":"2"},"annotations":{}}"#,
            None,
        ),
    ] {
        let masked = mask_duplicates(text).unwrap();
        assert_eq!(masked.as_deref(), expected, "{text}");
        if let Some(masked) = masked {
            assert_eq!(mask_duplicates(&masked).unwrap(), None, "{masked}");
            let unmasked = document(&masked).unmask_duplicates();
            assert_eq!(String::from_utf8(unmasked).unwrap(), text);
        }
    }
}

/// Only Go parsers would merge the two objects.
#[test]
fn two_objects_under_one_key_are_refused() {
    for (text, json_path, key) in [
        (r#"{"linux":{},"linux":{}}"#, "the document", "linux"),
        (
            r#"{"hooks":{},"hooks":[],"hooks":{}}"#,
            "the document",
            "hooks",
        ),
        (r#"{"root":{},"r\u006fot":{}}"#, "the document", "root"),
        (
            r#"{"linux":{"resources":{},"resources":{}}}"#,
            "linux",
            "resources",
        ),
    ] {
        let error = mask_duplicates(text).unwrap_err().to_string();
        let expected =
            format!("config.json: {json_path} has the key \"{key}\" twice, each with an object");
        assert!(error.starts_with(&expected), "{text}: {error}");
    }
}

#[test]
fn a_key_with_a_nul_that_c_parsers_match_is_refused() {
    for (text, key) in [
        (r#"{"mounts\u0000x":[]}"#, r#""mounts\0x""#),
        (r#"{"mounts":[{"source\u0000":"/x"}]}"#, r#""source\0""#),
        (
            r#"{"linux":{"mo\u0000":1,"devices\u0000\ud800":1}}"#,
            r#""""#,
        ),
    ] {
        let error = mask_duplicates(text).unwrap_err().to_string();
        assert!(
            error.contains(&format!("has a key {key}, which delegates in C")),
            "{error}"
        );
    }
}

#[test]
fn find_source_visits_all_sources_that_a_delegate_may_find() {
    let both = [ParserFamily::Go, ParserFamily::C];
    for (text, go, c) in [
        (
            r#"{"mounts":[{"source":"a"},{},{"source":7},null,3]}"#,
            &["a"][..],
            &["a"][..],
        ),
        (
            r#"{"mounts":[{"source":"a","options":["x","rbind"]},{"source":"b","type":"bind"}]}"#,
            &["a*", "b*"],
            &["a*", "b*"],
        ),
        // The mounts that runcrust reads come first.
        (
            r#"{"mounts":[{"source":"a"}],"mounts":[{"source":"b"}]}"#,
            &["b*"],
            &["b*", "a*"],
        ),
        (r#"{"mounts":[{"source":"a"}],"mounts":null}"#, &[], &["a*"]),
        (r#"{"mounts":[{"source":"a"}],"mounts":[]}"#, &[], &["a*"]),
        (r#"{"mounts":[{"source":"a"}],"mounts":7}"#, &[], &["a*"]),
        // Go decodes the last list into the elements of the earlier one. A value that the last list doesn't set stays.
        (
            r#"{"mounts":[{"source":"a"},{"source":"b"},{"source":"c"}],"mounts":[{"source":"d"},{}]}"#,
            &["d*", "b*"],
            &["d*", "a*", "b*", "c*"],
        ),
        // Keys in other case are considered for every delegate.
        (r#"{"Mounts":[{"source":"a"}]}"#, &["a*"], &["a*"]),
        (
            r#"{"mounts":[{"source":"a","Source":"b"}],"MOUNTS":[{"sourcE":"c"}]}"#,
            &["a*", "b*", "c*"],
            &["a*", "b*", "c*"],
        ),
        (r#"{"mounts\u0000x":[{"source":"a"}]}"#, &["a*"], &["a*"]),
        (
            r#"{"mounts":[{"source":"a\u0000b"},{"source\u0000":"c"}]}"#,
            &["a", "a\0b", "c*"],
            &["a", "a\0b", "c*"],
        ),
        (r#"{"mounts":[{"source":"\ud800"}]}"#, &["?"], &["?"]),
        (
            r#"{"mounts":[{"source":"a","type":"bind\u0000"}]}"#,
            &["a*"],
            &["a*"],
        ),
        (r#"{"mounts":{"0":{"source":"a"}},"linux":7}"#, &[], &[]),
    ] {
        for (delegate, expected) in both.into_iter().zip([go, c]) {
            assert_eq!(sources(text, delegate), expected, "{delegate:?}: {text}");
        }
    }
}

#[test]
fn tens_of_thousands_of_keys_and_mounts_are_read() {
    let count = 20_000;
    let keys: Vec<String> = (0..count).map(|n| format!("\"k{n}\":\"{n}\",")).collect();
    let keys = keys.concat();
    let mounts = "{\"source\":\"/a\"},".repeat(count);
    let duplicates = "\"mounts\":[0],".repeat(count);
    let mounts = mounts.trim_end_matches(',');
    let text = format!(
        "{{{keys}{duplicates}\"annotations\":{{{keys}\"a\":\"1\"}},\"mounts\":[{mounts}]}}"
    );
    assert_eq!(sources(&text, ParserFamily::Go).len(), count);
    assert_eq!(
        document(&text).annotation("a").unwrap().as_deref(),
        Some("1")
    );
    let masked = mask_duplicates(&text).unwrap().unwrap();
    assert_eq!(document(&masked).mounts().unwrap().len(), count);
    assert_eq!(document(&masked).unmask_duplicates(), text.as_bytes());
}
