use super::*;
use crate::edit::MARK;
use crate::testing::{PROGRAM, WANTED};

const JSON: &str = "\"crun\", \"runc\", \"kata\", \"runsc\", \"youki\", \"krun\"";

const CRUN: Wanted<'_> = Wanted {
    is_crun: true,
    ..WANTED
};

fn with(files: &[(&str, &str)], wanted: Wanted<'_>) -> String {
    let files: Vec<Source> = files
        .iter()
        .map(|(path, text)| Source::new(path.into(), Some((*text).to_owned())))
        .collect();
    let mut edits = PODMAN.install(&files, wanted).unwrap();
    edits.remove(0).after.unwrap()
}

#[test]
fn a_drop_in_comes_and_goes() {
    let text = PODMAN.installed(None);
    let expected = format!(
        "{MARK}\n[engine]\nruntime_supports_json = [\n  {MARK}  {JSON}, \"crust\"\n]\n\n\
         [engine.runtimes]\ncrust = [\"{PROGRAM}\"]\n"
    );
    assert_eq!(text, expected);
    assert_eq!(PODMAN.installed(Some(&text)), text);
    assert_eq!(PODMAN.uninstalled(&text), None);
}

#[test]
fn what_podman_is_told_follows_the_delegate() {
    let file = "/etc/containers/containers.conf.d/runcrust.conf";
    let runc = PODMAN.installed(None);
    let crun = with(&[(file, &runc)], CRUN);
    for key in ["nocgroups", "nocgroup"] {
        let list = format!("[\n  {MARK}  \"crun\", \"krun\", \"crust\"\n]\n");
        let line = format!("runtime_supports_{key} = {list}");
        assert!(crun.contains(&line), "{crun}");
    }
    assert_eq!(with(&[(file, &crun)], CRUN), crun);
    assert_eq!(with(&[(file, &crun)], WANTED), runc);
    assert_eq!(PODMAN.uninstalled(&crun), None);
}

#[test]
fn what_an_earlier_file_says_stays_said() {
    let ours = "/etc/containers/containers.conf.d/runcrust.conf";
    let vendor = "/usr/share/containers/containers.conf";
    let operator = "/etc/containers/containers.conf";
    let key = "[engine]\nruntime_supports_json =";
    let lists = |files: &[(&str, &str)]| {
        let text = with(&[&[(ours, "")][..], files].concat(), WANTED);
        let at = text.find("json = [").map(|at| &text[at..]);
        at.map(|list| {
            list.split(['[', ']'])
                .nth(1)
                .unwrap()
                .replace(MARK, "")
                .trim()
                .to_owned()
        })
    };
    for (files, expected) in [
        (
            &[(operator, "[engine]\n")][..],
            Some(format!("{JSON}, \"crust\"")),
        ),
        (
            &[(operator, &*format!("{key} [\"a\"]"))],
            Some("\"a\", \"crust\"".to_owned()),
        ),
        (
            // In whatever order they are named here.
            &[
                (operator, &*format!("{key} [\"a\"]")),
                (vendor, &*format!("{key} [\"b\"]")),
            ],
            Some("\"a\", \"crust\"".to_owned()),
        ),
        (
            &[
                (vendor, &*format!("{key} [\"b\"]")),
                (operator, &*format!("{key} [\"a\", {{append=true}}]")),
            ],
            Some("\"b\", \"a\", \"crust\"".to_owned()),
        ),
        (&[(operator, &*format!("{key} [\"crust\"]"))], None),
        (
            &[(
                "/etc/containers/containers.conf.d/z.conf",
                &*format!("{key} [\"z\"]"),
            )],
            Some(format!("{JSON}, \"crust\"")),
        ),
    ] {
        assert_eq!(lists(files), expected, "{files:?}");
    }
    let error = PODMAN.refused("[engine]\nruntime_supports_json = \"crun\"\n");
    assert!(error.to_string().contains("a list of names"), "{error}");
}

#[test]
fn a_later_file_that_overrides_ours_is_told() {
    let file = |path: &str, text: &str| Source::new(path.into(), Some(text.to_owned()));
    let key = "[engine]\nruntime_supports_json =";
    for (path, list, is_told) in [
        (
            "/etc/containers/containers.conf.d/z.conf",
            "[\"crun\"]",
            true,
        ),
        (
            "/etc/containers/containers.conf.d/z.conf",
            "[\"crust\"]",
            false,
        ),
        (
            "/etc/containers/containers.conf.d/z.conf",
            "[\"z\", {append=true}]",
            false,
        ),
        (
            "/etc/containers/containers.conf.d/a.conf",
            "[\"crun\"]",
            false,
        ),
    ] {
        let ours = file("/etc/containers/containers.conf.d/runcrust.conf", "");
        let files = [ours, file(path, &format!("{key} {list}"))];
        let notes = support::notes(&files, WANTED).unwrap();
        assert_eq!(
            notes.len(),
            usize::from(is_told),
            "{path} {list}: {notes:?}"
        );
        assert!(notes.iter().all(|note| note.contains(path)), "{notes:?}");
    }
}

#[test]
fn a_list_that_is_there_gets_the_name_and_keeps_its_form() {
    for list in [
        "[]",
        "[ ]",
        "[\"a\"]",
        "[ \"a\", \"b\" ]",
        "[\n  \"a\", # one\n  \"b\",\n  # end\n]",
        "[\"a\", {append=true}]",
    ] {
        for text in [
            format!("[engine]\nruntime_supports_json = {list} # kept\nruntime = \"runc\"\n"),
            format!("engine = {{ runtime_supports_json = {list} }}\n"),
            format!("engine.runtime_supports_json = {list}\n"),
        ] {
            let once = PODMAN.installed(Some(&text));
            assert!(once.contains("\"crust\""), "{once}");
            assert!(!once.contains("youki"), "{once}");
            assert_eq!(PODMAN.installed(Some(&once)), once);
            assert_eq!(
                PODMAN.uninstalled(&once).as_deref(),
                Some(text.as_str()),
                "{once}"
            );
        }
    }
}

#[test]
fn what_was_there_comes_back_with_the_tables_that_were_empty() {
    for text in [
        "[engine]\n# runtime = \"crun\"\n\n[engine.runtimes]\n#crun = [\n#\t\"/usr/bin/crun\",\n#]\n\n[engine.volume_plugins]\n",
        "[engine]\nruntime = \"runc\"\n\n[network]\ndns = []\n",
        "[engine.runtimes]\n  runc = [\n    \"/usr/bin/runc\", # Debian's\n  ]\n",
        "engine.runtimes.runc = [\"/usr/bin/runc\"]\n",
        "engine = { runtime = \"runc\" }\n",
        "",
    ] {
        let once = PODMAN.installed(Some(text));
        assert!(once.contains(PROGRAM), "{once}");
        assert_eq!(PODMAN.installed(Some(&once)), once);
        assert_eq!(PODMAN.uninstalled(&once).as_deref(), Some(text), "{once}");
    }
}

#[test]
fn an_older_path_is_replaced_and_another_program_is_not() {
    let older = "[engine.runtimes]\ncrust = [\"/opt/runcrust\"] # old\n";
    let entry = older.replace("/opt/runcrust", PROGRAM);
    let once = PODMAN.installed(Some(older));
    assert!(once.ends_with(&entry), "{once}");
    for foreign in [
        "[\"/usr/bin/crun\"]",
        "[\"/usr/bin/crun\", \"/opt/runcrust\"]",
        "[]",
    ] {
        let text = format!("[engine.runtimes]\ncrust = {foreign}\n");
        let error = PODMAN.refused(&text);
        assert!(matches!(error, HandlerError::Foreign { .. }), "{error}");
    }
    let both = "[engine.runtimes]\ncrust = [\"/opt/runcrust\", \"/usr/bin/runcrust\"]\n";
    let once = PODMAN.installed(Some(both));
    let entry = format!("[engine.runtimes]\ncrust = [\"{PROGRAM}\"]\n");
    assert!(once.ends_with(&entry), "{once}");
    // As an earlier version left it, which knew of no lists.
    let ours = format!("{MARK}\n{entry}");
    let once = PODMAN.installed(Some(&ours));
    assert!(once.starts_with(MARK) && once != ours, "{once}");
    assert_eq!(PODMAN.uninstalled(&once), None);
    let text = "[engine.runtimes]\ncrust = \"/x\"\n";
    let error = PODMAN.refused(text);
    assert!(error.to_string().contains("a list of programs"), "{error}");
}
