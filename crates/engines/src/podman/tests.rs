use super::*;
use crate::fuzzing::{PROGRAM, TEST_HANDLER, edits, try_install, try_uninstall};
use crate::handler::plan_install;

const JSON: &str = "\"crun\", \"runc\", \"kata\", \"runsc\", \"youki\", \"krun\"";
const RUNC: HandlerSpec<'_> = HandlerSpec {
    delegate: Some(DelegateKind::Runc),
    ..TEST_HANDLER
};

fn with(files: &[(&str, &str)], spec: &HandlerSpec<'_>) -> (String, Vec<String>) {
    let files = files
        .iter()
        .map(|(path, text)| EngineConfigFile::new(*path, Some((*text).to_owned())));
    let mut plan = plan_install(&Podman, files.collect(), spec).unwrap();
    let notes = std::mem::take(&mut plan.notes);
    (edits(plan).remove(0).1.unwrap(), notes)
}

#[test]
fn the_lists_contain_the_features_of_the_delegate() {
    let list = |key: &str, names: &str| {
        format!("runtime_supports_{key} = [\n  {MARK}  {names}, \"crust\"\n]\n")
    };
    let json = list("json", JSON);
    let groups = ["nocgroups", "nocgroup"]
        .map(|key| list(key, "\"crun\", \"krun\""))
        .concat();
    let end = format!("\n[engine.runtimes]\ncrust = [\"{PROGRAM}\"]\n");
    let runc = format!("{MARK}\n[engine]\n{json}{end}");
    let crun = format!("{MARK}\n[engine]\n{json}{groups}{end}");
    let file = Podman.info().file;
    assert_eq!(try_install(&Podman, None).unwrap(), crun);
    // The delegate is replaced by another one.
    assert_eq!(with(&[(file, &crun)], &RUNC).0, runc);
    assert_eq!(with(&[(file, &runc)], &TEST_HANDLER).0, crun);
    assert_eq!(try_uninstall(&Podman, &runc).unwrap(), None);
    // An earlier release of runcrust didn't write the lists.
    let old = format!("{MARK}{end}");
    let once = try_install(&Podman, Some(&old)).unwrap();
    assert!(once.starts_with(MARK) && once.contains(&groups), "{once}");
    assert_eq!(try_uninstall(&Podman, &once).unwrap(), None);
}

#[test]
fn a_new_list_has_the_names_of_earlier_files() {
    let (default_file, vendor) = (Podman.info().file, FILES.files[0]);
    let (operator, later) = (FILES.files[1], "/etc/containers/containers.conf.d/z.conf");
    let json = format!("{JSON}, \"crust\"");
    for (files, expected) in [
        (&[(operator, "")][..], Some(&*json)),
        (&[(operator, "[\"a\"]")], Some("\"a\", \"crust\"")),
        // podman reads the package's file first.
        (
            &[(operator, "[\"a\"]"), (vendor, "[\"b\"]")],
            Some("\"a\", \"crust\""),
        ),
        (
            &[(vendor, "[\"b\"]"), (operator, "[\"a\", {append=true}]")],
            Some("\"b\", \"a\", \"crust\""),
        ),
        (&[(operator, "[\"crust\"]")], None),
        (&[(later, "[\"z\"]")], Some(&json)),
    ] {
        let text = |list: &str| match list {
            "" => "[engine]\n".to_owned(),
            list => format!("[engine]\nruntime_supports_json = {list}"),
        };
        let texts: Vec<String> = files.iter().map(|(_, list)| text(list)).collect();
        let mut all = vec![(default_file, "")];
        all.extend(
            files
                .iter()
                .zip(&texts)
                .map(|((path, _), text)| (*path, text.as_str())),
        );
        let (text, _) = with(&all, &TEST_HANDLER);
        let list = text
            .split_once("json = [")
            .map(|(_, rest)| rest.split(']').next().unwrap());
        let list = list.map(|list| list.replace(MARK, ""));
        assert_eq!(list.as_deref().map(str::trim), expected, "{files:?}");
    }
}

#[test]
fn a_later_file_that_overrides_a_list_is_noted() {
    let (later, earlier) = ("/etc/containers/containers.conf.d/z.conf", FILES.files[1]);
    for (path, list, is_noted) in [
        (later, "[\"crun\"]", true),
        (later, "[\"crust\"]", false),
        (later, "[\"z\", {append=true}]", false),
        (earlier, "[\"crun\"]", false),
    ] {
        let text = format!("[engine]\nruntime_supports_json = {list}");
        let default_file = Podman.info().file;
        let (_, notes) = with(&[(default_file, ""), (path, &text)], &TEST_HANDLER);
        assert_eq!(notes.len() == 1, is_noted, "{path} {list}: {notes:?}");
        assert!(notes.iter().all(|note| note.contains(path)), "{notes:?}");
    }
}

#[test]
fn an_entry_with_several_runcrust_programs_gets_one() {
    let both = "[engine.runtimes]\ncrust = [\"/opt/runcrust\", \"/usr/bin/runcrust\"]\n";
    let once = try_install(&Podman, Some(both)).unwrap();
    let expected = format!("[engine.runtimes]\ncrust = [\"{PROGRAM}\"]\n");
    assert!(once.starts_with(&expected), "{once}");
}
