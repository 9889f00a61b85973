use super::*;
use crate::edit::MARK;
use crate::testing::PROGRAM;

#[test]
fn a_drop_in_comes_and_goes() {
    let text = PODMAN.installed(None);
    let expected = format!("{MARK}\n[engine.runtimes]\ncrust = [\"{PROGRAM}\"]\n");
    assert_eq!(text, expected);
    assert_eq!(PODMAN.installed(Some(&text)), text);
    assert_eq!(PODMAN.uninstalled(&text), None);
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
    assert_eq!(
        PODMAN.installed(Some(older)),
        older.replace("/opt/runcrust", PROGRAM)
    );
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
    assert_eq!(
        PODMAN.installed(Some(both)),
        format!("[engine.runtimes]\ncrust = [\"{PROGRAM}\"]\n")
    );
    let text = "[engine.runtimes]\ncrust = \"/x\"\n";
    let error = PODMAN.refused(text);
    assert!(error.to_string().contains("a list of programs"), "{error}");
}
