//! Tests of reading and editing. Property tests are in `properties.rs`.

mod duplicate_keys;
mod properties;

use std::borrow::Cow;

use super::{ArrayPath, Document, DocumentError, Edit};

fn apply_edits(text: &str, edits: &[Edit]) -> String {
    let bytes = Document::parse(text.as_bytes())
        .unwrap()
        .apply(edits)
        .unwrap();
    String::from_utf8(bytes).unwrap()
}

fn push(array: ArrayPath, json: &str) -> Edit {
    Edit::Push {
        array,
        json: json.into(),
    }
}

fn remove(array: ArrayPath, index: usize) -> Edit {
    Edit::Remove { array, index }
}

fn replace_source(index: usize, source: &str) -> Edit {
    Edit::ReplaceMountSource {
        options: vec![],
        index,
        source: source.into(),
    }
}

/// Reads everything. Returns the message of the first error.
fn first_error(text: &str) -> Option<String> {
    let read = |text: &str| -> Result<(), DocumentError> {
        let document = Document::parse(text.as_bytes())?;
        document.mask_duplicates()?;
        document.mounts()?;
        document.annotation("a")?;
        document.root_path()?;
        document.namespaces()?;
        for array in [
            ArrayPath::Mounts,
            ArrayPath::CreateRuntimeHooks,
            ArrayPath::PoststopHooks,
            ArrayPath::Devices,
            ArrayPath::DeviceRules,
        ] {
            document.array(array)?;
        }
        Ok(())
    };
    read(text).err().map(|error| error.to_string())
}

#[test]
fn a_config_like_containerds_is_read() {
    let document = Document::parse(
        br#" {"ociVersion":"1.0.2","root":{"path":"rootfs","readonly":true},
        "mounts":[{"destination":"/proc","type":"proc","source":"proc","options":["nosuid"]},
          {"destination":"\/dev\u002fshm","type":"bind","source":"/run\/shm","options":null},
          {"destination":"/x","source":null}],
        "annotations":{"io.kubernetes.cri.container-type":"sandbox","b":"\u00e9"},
        "linux":{"uidMappings":[{"containerID":0}],"resources":{"devices":[{"allow":false}, 7]},
          "namespaces":[{"type":"pid"},{"type":"ipc","path":"/proc/7/ns/ipc"}]},
        "hooks":{"createRuntime":[ {"path":"/h"} ]}} trailing garbage"#,
    )
    .unwrap();
    assert_eq!(document.root_path().unwrap().as_deref(), Some("rootfs"));
    let annotation = |key| document.annotation(key).unwrap().map(Cow::into_owned);
    assert_eq!(
        annotation("io.kubernetes.cri.container-type").as_deref(),
        Some("sandbox")
    );
    assert_eq!(annotation("b").as_deref(), Some("é"));
    assert_eq!(annotation("B"), None, "annotation keys are case-sensitive");
    let namespaces = document.namespaces().unwrap();
    assert_eq!(
        (&*namespaces[0].kind, namespaces[0].path.as_deref()),
        ("pid", None)
    );
    assert_eq!(namespaces[1].path.as_deref(), Some("/proc/7/ns/ipc"));
    let mounts = document.mounts().unwrap();
    assert_eq!(mounts.len(), 3);
    assert_eq!(
        (mounts[0].index, mounts[0].kind.as_deref()),
        (0, Some("proc"))
    );
    assert_eq!(mounts[0].options, ["nosuid"]);
    assert_eq!(mounts[1].destination, "/dev/shm");
    assert_eq!(mounts[1].source.as_deref(), Some("/run/shm"));
    assert_eq!(mounts[1].source_json, Some(r#""/run\/shm""#));
    assert!(mounts[1].options.is_empty());
    assert_eq!(
        (mounts[2].source.as_deref(), mounts[2].source_json),
        (None, None)
    );
    let array = |array| document.array(array).unwrap();
    assert_eq!(array(ArrayPath::DeviceRules), [r#"{"allow":false}"#, "7"]);
    assert_eq!(array(ArrayPath::CreateRuntimeHooks), [r#"{"path":"/h"}"#]);
    assert!(array(ArrayPath::PoststopHooks).is_empty());
    assert!(array(ArrayPath::Devices).is_empty());
}

#[test]
fn missing_and_null_values_are_empty() {
    for text in [
        "{}",
        r#"{"mounts":null,"hooks":null,"linux":null,"annotations":null,"root":null}"#,
        r#"{"mounts":[],"hooks":{"createRuntime":null},"linux":{"resources":null,"namespaces":null,
            "uidMappings":[]},"annotations":{"a":null},"root":{"path":null}}"#,
    ] {
        assert_eq!(first_error(text), None, "{text}");
        let document = Document::parse(text.as_bytes()).unwrap();
        assert!(document.mounts().unwrap().is_empty());
        assert!(document.namespaces().unwrap().is_empty());
        assert_eq!(document.root_path().unwrap(), None);
        assert_eq!(document.annotation("a").unwrap(), None);
    }
}

#[test]
fn keys_that_only_go_matches_are_refused_at_every_level() {
    for (text, key) in [
        (r#"{"Mounts":[]}"#, "Mounts"),
        (r#"{"mountſ":[]}"#, "mountſ"),
        (r#"{"mount\u017f":[]}"#, "mountſ"),
        (r#"{"hooKs":{}}"#, "hooKs"),
        (r#"{"hoo\u212as":{}}"#, "hoo\u{212a}s"),
        (r#"{"LINUX":1}"#, "LINUX"),
        (r#"{"Annotations":{}}"#, "Annotations"),
        (r#"{"rooT":{}}"#, "rooT"),
        (r#"{"mounts":[],"Mounts":null}"#, "Mounts"),
        (r#"{"mounts":[{"Source":"/x"}]}"#, "Source"),
        (r#"{"mounts":[{"source":"/x"},{"ſource":"/y"}]}"#, "ſource"),
        (r#"{"mounts":[{"DESTINATION":"/x"}]}"#, "DESTINATION"),
        (r#"{"root":{"Path":"x"}}"#, "Path"),
        (r#"{"linux":{"Namespaces":[]}}"#, "Namespaces"),
        (r#"{"linux":{"resources":{"Devices":[]}}}"#, "Devices"),
        (r#"{"linux":{"namespaces":[{"Type":"pid"}]}}"#, "Type"),
        (r#"{"hooks":{"createruntime":[]}}"#, "createruntime"),
        (r#"{"hooks":{"PostStop":[]}}"#, "PostStop"),
    ] {
        let sentence = first_error(text).unwrap_or_default();
        assert!(
            sentence.contains(&format!("has a key \"{key}\"")),
            "{text}: {sentence:?}"
        );
        assert!(sentence.contains("hint: spell it"));
    }
    for text in [
        r#"{"mount":1,"mountss":1,"x":{"Mounts":1}}"#,
        r#"{"annotations":{"A":"1"}}"#,
    ] {
        assert_eq!(first_error(text), None, "{text}");
    }
}

#[test]
fn errors_about_a_wrong_type_name_the_json_path() {
    for (text, sentence) in [
        ("[]", "the document is an array, not an object"),
        ("null", "the document is null, not an object"),
        (r#"{"mounts":{}}"#, "mounts is an object, not an array"),
        (r#"{"mounts":[null]}"#, "mounts[0] is null, not an object"),
        (
            r#"{"mounts":[{},{"source":1}]}"#,
            "mounts[1].source is a number, not a string",
        ),
        (
            r#"{"mounts":[{"options":"ro"}]}"#,
            "mounts[0].options is a string, not an array",
        ),
        (
            r#"{"mounts":[{"options":[true]}]}"#,
            "an element of mounts[0].options is a boolean, not a string",
        ),
        (
            r#"{"annotations":[]}"#,
            "annotations is an array, not an object",
        ),
        (
            r#"{"annotations":{"a":7}}"#,
            "annotations[\"a\"] is a number, not a string",
        ),
        (r#"{"root":"x"}"#, "root is a string, not an object"),
        (r#"{"linux":7}"#, "linux is a number, not an object"),
        (
            r#"{"linux":{"resources":[]}}"#,
            "linux.resources is an array, not an object",
        ),
        (
            r#"{"linux":{"namespaces":[{"path":{}}]}}"#,
            "linux.namespaces[0].path is an object, not a string",
        ),
        (
            r#"{"hooks":{"poststop":true}}"#,
            "hooks.poststop is a boolean, not an array",
        ),
    ] {
        assert_eq!(
            first_error(text),
            Some(format!(
                "config.json: {sentence}; hint: regenerate the bundle's config.json"
            )),
            "{text}"
        );
    }
    let unpaired_surrogate = first_error(r#"{"mounts":[{"source":"\ud800"}]}"#);
    assert_eq!(
        unpaired_surrogate.as_deref(),
        Some(
            "config.json: mounts[0].source is not valid Unicode; hint: remove unpaired surrogates (\\uD800 to \
             \\uDFFF) from the string"
        )
    );
}

#[test]
fn invalid_json_is_refused() {
    for text in [
        "",
        " ",
        "{",
        r#"{"a":}"#,
        r#"{"a":1,}"#,
        r#"{"a":"\x"}"#,
        "{\"a\":\"\n\"}",
        "\u{feff}{}",
    ] {
        assert!(Document::parse(text.as_bytes()).is_err(), "{text:?}");
    }
    assert!(matches!(
        Document::parse(b"{\"\xff\":1}"),
        Err(DocumentError::Encoding(_))
    ));
}

#[test]
fn values_that_serde_json_cannot_represent_are_preserved() {
    let deep = "[".repeat(100_000) + &"]".repeat(100_000);
    for unknown in [
        "1e400",
        "-0.0E-0",
        r#""\ud800\/""#,
        r#"{"\ud800":1,"\udfff":2}"#,
        &deep,
    ] {
        let text = format!("{{\"\\ud800\":0,\"x\" : {unknown},\"mounts\":[]}}\n{{\"more\"");
        let expected = text.replace("[]}\n", "[1]}\n");
        assert_eq!(
            apply_edits(&text, &[push(ArrayPath::Mounts, "1")]),
            expected
        );
    }
}

#[test]
fn no_edits_change_nothing() {
    let text = "\n {\"mounts\" :[ ] }\t x";
    assert_eq!(apply_edits(text, &[]), text);
}

#[test]
fn missing_and_null_parents_are_created() {
    let all = [
        push(ArrayPath::DeviceRules, "1"),
        push(ArrayPath::PoststopHooks, "2"),
        push(ArrayPath::CreateRuntimeHooks, "3"),
        push(ArrayPath::Devices, "4"),
        push(ArrayPath::CreateRuntimeHooks, "5"),
        push(ArrayPath::Mounts, "6"),
    ];
    let hooks = r#""hooks":{"createRuntime":[3,5],"poststop":[2]}"#;
    let linux = r#""linux":{"devices":[4],"resources":{"devices":[1]}}"#;
    let members = format!("\"mounts\":[6],{hooks},{linux}");
    assert_eq!(apply_edits("{}", &all), format!("{{{members}}}"));
    assert_eq!(apply_edits(" { } x", &all), format!(" {{{members} }} x"));
    assert_eq!(
        apply_edits("{ \"a\": 1 }", &all),
        format!("{{ \"a\": 1,{members} }}")
    );
    assert_eq!(
        apply_edits(r#"{"linux":null, "hooks" : null ,"mounts":null}"#, &all),
        format!(
            "{{{linux}, {} ,\"mounts\":[6]}}",
            hooks.replacen(':', " : ", 1)
        )
    );
    assert_eq!(
        apply_edits(
            r#"{"mounts":[],"linux":{"resources":{"devices":null}},"hooks":{"poststop":[0]}}"#,
            &all
        ),
        r#"{"mounts":[6],"linux":{"resources":{"devices":[1]},"devices":[4]},"hooks":{"poststop":[0,2],"createRuntime":[3,5]}}"#
    );
    assert_eq!(
        apply_edits("{}", &all[3..4]),
        r#"{"linux":{"devices":[4]}}"#,
        "other parents aren't created"
    );
}

#[test]
fn pushes_removes_and_sources_can_be_combined() {
    let text = r#"{"mounts": [ {"source":"a"} , {"source" : null},{}, {"x":[1] } ] }"#;
    let mounts = ArrayPath::Mounts;
    let all = [
        push(mounts, r#"{"source":"new"}"#),
        remove(mounts, 0),
        replace_source(1, "/b\"\n"),
        replace_source(2, "c"),
        replace_source(3, "overwritten by the next edit"),
        replace_source(3, "d"),
        replace_source(0, "of a removed mount"),
        push(mounts, "7"),
        remove(mounts, 0),
    ];
    assert_eq!(
        apply_edits(text, &all),
        r#"{"mounts": [ {"source" : "/b\"\n"},{"source":"c"}, {"x":[1],"source":"d" },{"source":"new"},7 ] }"#
    );
}

#[test]
fn each_removal_removes_one_comma() {
    let text = r#"{"mounts":[ 0 , 1 ,2 , 3 ]}"#;
    for (removed, expected) in [
        (&[0][..], "[ 1 ,2 , 3 ]"),
        (&[1], "[ 0 ,2 , 3 ]"),
        (&[3], "[ 0 , 1 ,2 ]"),
        (&[0, 1], "[ 2 , 3 ]"),
        (&[2, 3], "[ 0 , 1 ]"),
        (&[0, 3], "[ 1 ,2 ]"),
        (&[1, 2], "[ 0 , 3 ]"),
        (&[3, 2, 1, 0], "[  ]"),
    ] {
        let edits: Vec<_> = removed
            .iter()
            .map(|&index| remove(ArrayPath::Mounts, index))
            .collect();
        assert_eq!(
            apply_edits(text, &edits),
            format!("{{\"mounts\":{expected}}}")
        );
        let both: Vec<_> = edits
            .into_iter()
            .chain([push(ArrayPath::Mounts, "9")])
            .collect();
        let value: serde_json::Value = serde_json::from_str(&apply_edits(text, &both)).unwrap();
        assert_eq!(value["mounts"].as_array().unwrap().len(), 5 - removed.len());
    }
}

#[test]
fn an_edit_of_a_missing_element_is_an_error() {
    let document = Document::parse(br#"{"mounts":[1],"hooks":null}"#).unwrap();
    for (edit, sentence) in [
        (
            remove(ArrayPath::Mounts, 1),
            "config.json: can't edit element 1 of mounts, which has 1 elements",
        ),
        (
            replace_source(4, "x"),
            "config.json: can't edit element 4 of mounts, which has 1 elements",
        ),
        (
            remove(ArrayPath::PoststopHooks, 0),
            "config.json: can't edit element 0 of hooks.poststop, which has 0 elements",
        ),
        (
            remove(ArrayPath::DeviceRules, 0),
            "config.json: can't edit element 0 of linux.resources.devices, which has 0 elements",
        ),
        (
            replace_source(0, "x"),
            "config.json: mounts[0] is a number, not an object; hint: regenerate the bundle's config.json",
        ),
        (
            push(ArrayPath::Mounts, "1,2"),
            "the new element of mounts isn't valid JSON",
        ),
        (
            push(ArrayPath::Devices, ""),
            "the new element of linux.devices isn't valid JSON",
        ),
    ] {
        assert_eq!(document.apply(&[edit]).unwrap_err().to_string(), sentence);
    }
}
