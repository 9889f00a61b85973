use super::*;
use crate::testing::{PROGRAM, UNWANTED, WANTED};

fn source(text: Option<&str>) -> Source {
    Source::new("/etc/docker/daemon.json".into(), text.map(str::to_owned))
}

fn installed(text: Option<&str>) -> String {
    install(&source(text), WANTED).unwrap().after.unwrap()
}

fn uninstalled(text: &str) -> String {
    let (mut edits, program) = uninstall(&source(Some(text)), UNWANTED).unwrap();
    assert_eq!(program, Some(PathBuf::from(PROGRAM)));
    edits.remove(0).after.unwrap()
}

fn has_nothing_to_remove(text: Option<&str>) -> bool {
    uninstall(&source(text), UNWANTED).unwrap() == (Vec::new(), None)
}

#[test]
fn what_a_reload_leaves_to_a_restart_is_noted() {
    for (text, is_noted) in [
        ("{}\n", true),
        ("\u{feff}{ \"debug\": true }", true),
        (
            "{\"runtimes\": {\"kata\": {\"runtimeType\": \"k\"}}}",
            false,
        ),
    ] {
        let once = installed(Some(text));
        let (edits, _) = uninstall(&source(Some(&once)), UNWANTED).unwrap();
        let notes = kept(&edits);
        assert_eq!(notes.len(), usize::from(is_noted), "{text}");
        let is_plain = |note: &String| note.contains("restarted") && note.contains("runtimes");
        assert!(notes.iter().all(is_plain), "{notes:?}");
    }
    assert_eq!(kept(&[]), <[String; 0]>::default());
}

#[test]
fn the_runtime_is_added_in_the_files_own_form_and_taken_back() {
    for (text, expected) in [
        (
            "{}\n",
            "{\n    \"runtimes\": {\n        \"crust\": {\n            \"path\": \"/usr/local/bin/runcrust\"\n        }\n    }\n}\n",
        ),
        (
            "{\n  \"exec-opts\": [\"native.cgroupdriver=systemd\"],\n  \"log-level\": \"warn\"\n}\n",
            "{\n  \"exec-opts\": [\"native.cgroupdriver=systemd\"],\n  \"log-level\": \"warn\",\n  \"runtimes\": {\n    \"crust\": {\n      \"path\": \"/usr/local/bin/runcrust\"\n    }\n  }\n}\n",
        ),
        (
            "{\"debug\":true}",
            "{\"debug\":true,\"runtimes\":{\"crust\":{\"path\":\"/usr/local/bin/runcrust\"}}}",
        ),
        (
            "{\n\t\"runtimes\": {\n\t\t\"kata\": { \"runtimeType\": \"io.containerd.kata.v2\" }\n\t},\n\t\"debug\": true\n}",
            "{\n\t\"runtimes\": {\n\t\t\"kata\": { \"runtimeType\": \"io.containerd.kata.v2\" },\n\t\t\"crust\": {\n\t\t\t\"path\": \"/usr/local/bin/runcrust\"\n\t\t}\n\t},\n\t\"debug\": true\n}",
        ),
        (
            "{\r\n  \"debug\": true\r\n}\r\n",
            "{\r\n  \"debug\": true,\r\n  \"runtimes\": {\r\n    \"crust\": {\r\n      \"path\": \"/usr/local/bin/runcrust\"\r\n    }\r\n  }\r\n}\r\n",
        ),
        (
            "{ \"a\": 1, \"b\": 1.50 }",
            "{ \"a\": 1, \"b\": 1.50, \"runtimes\":{\"crust\":{\"path\":\"/usr/local/bin/runcrust\"}} }",
        ),
    ] {
        let once = installed(Some(text));
        assert_eq!(once, expected);
        assert_eq!(installed(Some(&once)), once);
        assert_eq!(uninstalled(&once), text);
        let parsed: serde_json::Value = serde_json::from_str(&once).unwrap();
        assert_eq!(parsed["runtimes"]["crust"]["path"], PROGRAM);
    }
    for nothing in [None, Some(""), Some("\n")] {
        assert_eq!(installed(nothing), installed(Some("{}\n")));
    }
}

#[test]
fn a_runtime_is_removed_from_anywhere_among_others() {
    let ours = format!("\"crust\": {{\"path\": \"{PROGRAM}\"}}");
    for (text, expected) in [
        (
            format!("{{\"runtimes\": {{{ours}, \"b\": {{}}}}}}"),
            "{\"runtimes\": {\"b\": {}}}",
        ),
        (
            format!("{{\"runtimes\": {{\"a\": {{}}, {ours}, \"b\": {{}}}}}}"),
            "{\"runtimes\": {\"a\": {}, \"b\": {}}}",
        ),
        (
            format!("{{\"runtimes\": {{{ours}}}, \"x\": 1}}"),
            "{\"x\": 1}",
        ),
    ] {
        assert_eq!(uninstalled(&text), expected);
    }
    for nothing in [Some("{\"runtimes\": {}}"), Some(""), Some("\u{feff}"), None] {
        assert!(has_nothing_to_remove(nothing), "{nothing:?}");
    }
}

#[test]
fn an_older_path_is_replaced_with_what_the_operator_added() {
    let text = "{\"runtimes\": {\"crust\": {\"runtimeArgs\": [\"--debug\"], \"path\": \"/opt/runcrust\"}}}";
    assert_eq!(
        installed(Some(text)),
        text.replace("/opt/runcrust", PROGRAM)
    );
}

/// Go's decoder reads one after the other into the same place.
#[test]
fn of_a_name_that_stands_twice_the_last_counts() {
    let text = "{\"runtimes\":{\"a\":{}},\"runtimes\":{\"b\":{}}}";
    let once = installed(Some(text));
    assert!(
        once.starts_with("{\"runtimes\":{\"a\":{}},\"runtimes\":{\"b\":{},\"crust\""),
        "{once}"
    );
    assert_eq!(uninstalled(&once), text);
}

#[test]
fn mistakes_and_somebody_elses_runtime_are_refused() {
    for (text, words) in [
        ("{\n  \"debug\": tru\n}", "daemon.json:3: "),
        ("{\n  // comment\n}", "daemon.json:2: "),
        ("[]", "the file isn't an object"),
        ("{\"runtimes\": []}", "runtimes isn't an object"),
        (
            "{\"runtimes\": {\"crust\": 1}}",
            "runtimes.crust isn't an object",
        ),
        (
            "{\"runtimes\": {\"crust\": {\"path\": \"/usr/bin/crun\"}}}",
            "it runs \"/usr/bin/crun\"",
        ),
        (
            "{\"runtimes\": {\"crust\": {\"runtimeType\": \"x\"}}}",
            "it has no `path`",
        ),
    ] {
        let error = install(&source(Some(text)), WANTED)
            .unwrap_err()
            .to_string();
        assert!(error.contains(words), "{text}: {error}");
    }
}

#[test]
fn the_default_runtime_is_not_removed() {
    let text = "{\"default-runtime\": \"crust\"}";
    let once = installed(Some(text));
    let error = uninstall(&source(Some(&once)), UNWANTED).unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("hint: change `default-runtime` first"),
        "{error}"
    );
    let other = once.replace(
        "\"default-runtime\": \"crust\"",
        "\"default-runtime\": \"runc\"",
    );
    assert!(uninstall(&source(Some(&other)), UNWANTED).is_ok());
}

/// As it is nothing to Go's decoder.
#[test]
fn a_null_is_no_object_of_runtimes_and_none_is_missing() {
    let entry = format!("\"runtimes\": {{\"crust\":{{\"path\":\"{PROGRAM}\"}}}}");
    for (text, left) in [
        ("{\"debug\": true, \"runtimes\": null}", "{\"debug\": true}"),
        ("{\"runtimes\": null, \"b\": 2}", "{\"b\": 2}"),
        (
            "{\n  \"runtimes\": null,\n  \"b\": 2\n}\n",
            "{\n  \"b\": 2\n}\n",
        ),
    ] {
        let once = installed(Some(text));
        if !text.contains('\n') {
            assert_eq!(once, text.replace("\"runtimes\": null", &entry));
        }
        assert_eq!(uninstalled(&once), left);
    }
    assert!(has_nothing_to_remove(Some("{\"runtimes\": null}")));
}

/// As dockerd does.
#[test]
fn an_editors_mark_is_passed_over_and_stays() {
    for text in ["{\"debug\":true}", "{}\n", ""] {
        let marked = format!("\u{feff}{text}");
        let once = installed(Some(&marked));
        assert_eq!(once, format!("\u{feff}{}", installed(Some(text))));
        assert_eq!(installed(Some(&once)), once);
        let left = if text.is_empty() { "{}\n" } else { text };
        assert_eq!(uninstalled(&once), format!("\u{feff}{left}"));
    }
}
