//! Property tests: edits have the same effect as on a `serde_json::Value`, and can be undone byte for byte.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::{ArrayPath, Document, Edit};

const ARRAYS: [(ArrayPath, &[&str]); 6] = [
    (ArrayPath::Mounts, &["mounts"]),
    (ArrayPath::CreateRuntimeHooks, &["hooks", "createRuntime"]),
    (
        ArrayPath::CreateContainerHooks,
        &["hooks", "createContainer"],
    ),
    (ArrayPath::PoststopHooks, &["hooks", "poststop"]),
    (ArrayPath::Devices, &["linux", "devices"]),
    (ArrayPath::DeviceRules, &["linux", "resources", "devices"]),
];

fn blank() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["", "", "", " ", "\n\t", "\r\n  "])
}

fn scalar() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "null",
        "true",
        "false",
        "0",
        "-0",
        "1.50",
        "2E+3",
        "123456789012345678901234567890",
        "\"\"",
        "\"a\"",
        r#""\u0041\/\"\\""#,
        r#""\ud83d\ude00é""#,
        r#""]},{[""#,
    ])
    .prop_map(str::to_owned)
}

fn list(open: char, items: &[(String, &str)], inner: &str, close: char) -> String {
    let items: Vec<_> = items
        .iter()
        .map(|(item, blank)| format!("{blank}{item}{blank}"))
        .collect();
    format!("{open}{inner}{}{close}", items.join(","))
}

fn array(item: impl Strategy<Value = String>) -> impl Strategy<Value = String> {
    (prop::collection::vec((item, blank()), 0..4), blank())
        .prop_map(|(items, inner)| list('[', &items, inner, ']'))
}

/// Generates objects with the known members and with unknown ones, which may repeat, in any order.
fn object_with(
    known: impl Strategy<Value = Vec<(String, String)>>,
    unknown: impl Strategy<Value = String>,
) -> impl Strategy<Value = String> {
    let key = prop::sample::select(vec![
        "x",
        "process",
        "\\u0061",
        "",
        "ociVersion",
        "devicesX",
        "sour",
    ]);
    let unknown = prop::collection::vec((key.prop_map(str::to_owned), unknown), 0..3);
    (known, unknown)
        .prop_flat_map(|(known, unknown)| {
            Just(known.into_iter().chain(unknown).collect::<Vec<_>>()).prop_shuffle()
        })
        .prop_flat_map(|members| {
            let blanks = prop::collection::vec((blank(), blank()), members.len());
            (Just(members), blanks, blank())
        })
        .prop_map(|(members, blanks, inner)| {
            let items: Vec<_> = members
                .iter()
                .zip(&blanks)
                .map(|((key, value), (before, around))| {
                    (format!("\"{key}\"{before}:{before}{value}"), *around)
                })
                .collect();
            list('{', &items, inner, '}')
        })
}

fn any_value() -> impl Strategy<Value = String> {
    scalar().prop_recursive(3, 12, 3, |inner| {
        let object = object_with(Just(Vec::new()), inner.clone());
        prop_oneof![array(inner), object]
    })
}

/// Generates a member that is missing, null or has the value. Its key may be written with an escape. With `always` it
/// is neither missing nor null.
fn member(
    key: &'static str,
    value: impl Strategy<Value = String>,
    always: bool,
) -> impl Strategy<Value = Option<(String, String)>> {
    (0..8_u8, any::<bool>(), value).prop_map(move |(choice, escaped, value)| {
        let first = u32::from(key.as_bytes()[0]);
        let name = if escaped {
            format!("\\u{first:04X}{}", &key[1..])
        } else {
            key.to_owned()
        };
        match choice {
            0 if !always => None,
            1 if !always => Some((name, "null".to_owned())),
            _ => Some((name, value)),
        }
    })
}

macro_rules! members {
    ($($member:expr),+ $(,)?) => {
        [$($member.boxed()),+].prop_map(|members| members.into_iter().flatten().collect::<Vec<_>>())
    };
}

/// Generates configs. With `always` they have all arrays and all sources.
fn document(always: bool) -> impl Strategy<Value = String> {
    let any_object = || object_with(Just(Vec::new()), any_value());
    let mount = object_with(
        members![member("source", Just(r#""\/a\u0062""#.to_owned()), always)],
        any_value(),
    );
    let hooks = object_with(
        members![
            member("createRuntime", array(any_object()), always),
            member("createContainer", array(any_object()), always),
            member("poststop", array(any_object()), always),
        ],
        any_value(),
    );
    let resources = object_with(
        members![member("devices", array(any_object()), always)],
        any_value(),
    );
    let linux = object_with(
        members![
            member("devices", array(any_object()), always),
            member("resources", resources, always),
        ],
        any_value(),
    );
    let top = object_with(
        members![
            member("mounts", array(mount), always),
            member("hooks", hooks, always),
            member("linux", linux, always),
        ],
        any_value(),
    );
    let garbage = prop::sample::select(vec!["", "\n", "  }]", " {}"]);
    (blank(), top, garbage).prop_map(|(blank, top, garbage)| format!("{blank}{top}{garbage}"))
}

fn lengths(text: &str) -> [usize; 6] {
    let document = Document::parse(text.as_bytes()).unwrap();
    ARRAYS.map(|(array, _)| document.array(array).unwrap().len())
}

fn value(text: &str) -> Value {
    serde_json::Deserializer::from_str(text)
        .into_iter()
        .next()
        .unwrap()
        .unwrap()
}

/// Returns an edit whose index is chosen from the array's length.
fn edit(text: &str, (which, array, at): (u8, usize, prop::sample::Index)) -> Edit {
    let (path, _) = ARRAYS[array];
    let length = lengths(text)[array];
    match which {
        0 if length > 0 => Edit::Remove {
            array: path,
            index: at.index(length),
        },
        1 if lengths(text)[0] > 0 => Edit::ReplaceMountSource {
            options: vec![],
            index: at.index(lengths(text)[0]),
            source: "/n\"w".into(),
        },
        2 => Edit::Insert {
            array: path,
            before: at.index(length + 2),
            json: "\"in\"".into(),
        },
        _ => Edit::Push {
            array: path,
            json: r#"{ "new" : [1,"]"] }"#.into(),
        },
    }
}

fn apply_to_value(mut value: Value, edits: &[Edit]) -> Value {
    for (path, keys) in ARRAYS {
        let (mut removed, mut pushed) = (Vec::new(), Vec::new());
        let mut inserted: BTreeMap<usize, Vec<Value>> = BTreeMap::new();
        let mut sources = Vec::new();
        for edit in edits {
            match edit {
                Edit::Remove { array, index } if *array == path => removed.push(*index),
                Edit::Push { array, json } if *array == path => pushed.push(self::value(json)),
                Edit::Insert {
                    array,
                    before,
                    json,
                } if *array == path => {
                    let values = inserted.entry(*before).or_default();
                    values.push(self::value(json));
                }
                Edit::ReplaceMountSource { index, source, .. } if path == ArrayPath::Mounts => {
                    sources.push((*index, source));
                }
                _ => {}
            }
        }
        let moves_elements = !removed.is_empty() || !inserted.is_empty();
        if !moves_elements && pushed.is_empty() && sources.is_empty() {
            continue;
        }
        let mut json_path = &mut value;
        for key in keys {
            if json_path.is_null() {
                *json_path = json!({});
            }
            json_path = &mut json_path[*key];
        }
        if json_path.is_null() {
            *json_path = json!([]);
        }
        let list = json_path.as_array_mut().unwrap();
        for (index, source) in sources {
            list[index]["source"] = json!(source);
        }
        let old = std::mem::take(list);
        for (index, element) in old.into_iter().enumerate() {
            list.extend(inserted.remove(&index).unwrap_or_default());
            list.extend((!removed.contains(&index)).then_some(element));
        }
        list.extend(inserted.into_values().flatten());
        list.extend(pushed);
    }
    value
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn edits_have_the_same_effect_as_on_a_value(
        text in document(false),
        targets in prop::collection::vec((0..5_u8, 0..6_usize, any::<prop::sample::Index>()), 0..8),
    ) {
        let edits: Vec<_> = targets.into_iter().map(|target| edit(&text, target)).collect();
        let document = Document::parse(text.as_bytes()).unwrap();
        let got = String::from_utf8(document.apply(&edits).unwrap()).unwrap();
        prop_assert_eq!(value(&got), apply_to_value(value(&text), &edits), "{} {:?} {}", text, edits, got);
    }

    #[test]
    fn pushes_and_replacements_can_be_undone_byte_for_byte(
        text in document(true),
        pushes in prop::collection::vec(0..6_usize, 0..8),
        replace in any::<bool>(),
    ) {
        let before = Document::parse(text.as_bytes()).unwrap();
        let lengths = lengths(&text);
        let mut edits: Vec<_> = pushes
            .iter()
            .map(|&array| Edit::Push { array: ARRAYS[array].0, json: "{\"x\": [ ]}".into() })
            .collect();
        let mut undo = Vec::new();
        for (at, &array) in pushes.iter().enumerate() {
            let earlier = pushes[..at].iter().filter(|&&other| other == array).count();
            undo.push(Edit::Remove { array: ARRAYS[array].0, index: lengths[array] + earlier });
        }
        for mount in before.mounts().unwrap().into_iter().filter(|_| replace) {
            let index = mount.index;
            edits.push(Edit::ReplaceMountSource { index, source: format!("/attach/{index}"), options: vec![] });
            let json = mount.source_json.unwrap().to_owned();
            undo.push(Edit::ReplaceMountSourceJson { index, json });
        }
        let middle = before.apply(&edits).unwrap();
        let after = Document::parse(&middle).unwrap().apply(&undo).unwrap();
        prop_assert_eq!(String::from_utf8(after).unwrap(), &*text);
        // One edit at a time: the arrays in any order, the last element of each first.
        let mut bytes = middle;
        for edit in undo.into_iter().rev() {
            bytes = Document::parse(&bytes).unwrap().apply(&[edit]).unwrap();
        }
        prop_assert_eq!(String::from_utf8(bytes).unwrap(), text);
    }

    #[test]
    fn no_text_panics(text in "[\\[\\]{}\",:a-z0-9 \\\\]{0,40}") {
        if let Ok(document) = Document::parse(text.as_bytes()) {
            let _ = document.apply(&[Edit::Push { array: ArrayPath::DeviceRules, json: "1".into() }]);
        }
    }
}
