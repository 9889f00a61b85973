use std::path::PathBuf;

use super::*;
use crate::edit::MARK;
use crate::entry::Unwanted;

const PROGRAM: &str = "/usr/local/bin/runcrust";
const WANTED: Wanted<'_> = Wanted {
    handler: "crust",
    program: PROGRAM,
    systemd_cgroup: None,
};
const UNWANTED: Unwanted<'_> = Unwanted {
    handler: "crust",
    program: None,
};

fn source(text: Option<&str>) -> Source {
    Source::new(
        "/etc/containers/containers.conf".into(),
        text.map(str::to_owned),
    )
}

fn installed(text: Option<&str>) -> String {
    PODMAN
        .install(&[source(text)], WANTED)
        .unwrap()
        .remove(0)
        .after
        .unwrap()
}

fn uninstalled(text: &str) -> Option<String> {
    let (edit, program) = PODMAN
        .uninstall(&[source(Some(text))], UNWANTED)
        .unwrap()
        .unwrap();
    assert_eq!(program, PathBuf::from(PROGRAM));
    edit.after
}

#[test]
fn a_drop_in_comes_and_goes() {
    let text = installed(None);
    let expected = format!("{MARK}\n[engine.runtimes]\ncrust = [\"{PROGRAM}\"]\n");
    assert_eq!(text, expected);
    assert_eq!(installed(Some(&text)), text);
    assert_eq!(uninstalled(&text), None);
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
        let once = installed(Some(text));
        assert!(once.contains(PROGRAM), "{once}");
        assert_eq!(installed(Some(&once)), once);
        assert_eq!(uninstalled(&once).as_deref(), Some(text), "{once}");
    }
}

#[test]
fn an_older_path_is_replaced_and_another_program_is_not() {
    let older = "[engine.runtimes]\ncrust = [\"/opt/runcrust\"] # old\n";
    assert_eq!(
        installed(Some(older)),
        older.replace("/opt/runcrust", PROGRAM)
    );
    for foreign in [
        "[\"/usr/bin/crun\"]",
        "[\"/usr/bin/crun\", \"/opt/runcrust\"]",
        "[]",
    ] {
        let text = format!("[engine.runtimes]\ncrust = {foreign}\n");
        let error = PODMAN.install(&[source(Some(&text))], WANTED).unwrap_err();
        assert!(matches!(error, HandlerError::Foreign { .. }), "{error}");
    }
    let both = "[engine.runtimes]\ncrust = [\"/opt/runcrust\", \"/usr/bin/runcrust\"]\n";
    assert_eq!(
        installed(Some(both)),
        format!("[engine.runtimes]\ncrust = [\"{PROGRAM}\"]\n")
    );
    let text = "[engine.runtimes]\ncrust = \"/x\"\n";
    let error = PODMAN.install(&[source(Some(text))], WANTED).unwrap_err();
    assert!(error.to_string().contains("a list of programs"), "{error}");
}

fn beside(text: &str) -> Source {
    Source::new("/etc/beside.conf".into(), Some(text.to_owned()))
}

#[test]
fn what_is_read_beside_our_file_counts() {
    let ours = || source(Some(&installed(None)));
    let foreign = "[engine.runtimes]\ncrust = [\"/usr/bin/crun\"]\n";
    let error = PODMAN
        .install(&[source(None), beside(foreign)], WANTED)
        .unwrap_err();
    let told = error.to_string();
    assert!(matches!(error, HandlerError::Foreign { .. }), "{told}");
    assert!(told.contains("/etc/beside.conf"), "{told}");
    let default = "[engine]\nruntime = \"crust\"\n";
    let error = PODMAN
        .uninstall(&[ours(), beside(default)], UNWANTED)
        .unwrap_err();
    let told = error.to_string();
    assert!(matches!(error, HandlerError::Default { .. }), "{told}");
    assert!(told.contains("/etc/beside.conf"), "{told}");
    assert!(
        PODMAN
            .uninstall(&[ours(), beside(foreign)], UNWANTED)
            .is_ok()
    );
}
