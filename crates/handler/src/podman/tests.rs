use super::*;

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
    Source {
        path: "/etc/containers/containers.conf".into(),
        text: text.map(str::to_owned),
    }
}

fn installed(text: Option<&str>) -> String {
    install(&source(text), WANTED).unwrap().after.unwrap()
}

fn uninstalled(text: &str) -> Option<String> {
    let (edit, program) = uninstall(&source(Some(text)), UNWANTED).unwrap().unwrap();
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
        let error = install(&source(Some(&text)), WANTED).unwrap_err();
        assert!(matches!(error, HandlerError::Foreign { .. }), "{error}");
    }
    let text = "[engine.runtimes]\ncrust = \"/x\"\n";
    let error = install(&source(Some(text)), WANTED).unwrap_err();
    assert!(error.to_string().contains("a list of programs"), "{error}");
}
