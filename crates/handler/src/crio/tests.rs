use std::path::PathBuf;

use super::*;
use crate::edit::MARK;
use crate::entry::Unwanted;

const PROGRAM: &str = "/usr/local/bin/runcrust";
const CONFIG: &str = "/etc/crio/crio.conf.d/99-runcrust.conf";
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
    Source::new(CONFIG.into(), text.map(str::to_owned))
}

fn installed(text: Option<&str>) -> String {
    CRIO.install(&[source(text)], WANTED)
        .unwrap()
        .remove(0)
        .after
        .unwrap()
}

fn uninstalled(text: &str) -> Option<String> {
    let (edit, program) = CRIO
        .uninstall(&[source(Some(text))], UNWANTED)
        .unwrap()
        .unwrap();
    assert_eq!(program, PathBuf::from(PROGRAM));
    edit.after
}

#[test]
fn a_drop_in_comes_and_goes() {
    let text = installed(None);
    let expected = format!(
        "{MARK}\n[crio.runtime.runtimes.crust]\nruntime_path = \"{PROGRAM}\"\n\
         runtime_root = \"/run/runcrust-crust\"\nruntime_type = \"oci\"\n"
    );
    assert_eq!(text, expected);
    assert_eq!(installed(Some(&text)), text);
    assert_eq!(uninstalled(&text), None);
}

#[test]
fn other_runtimes_and_what_was_added_to_ours_stay() {
    let text = "[crio]\n# The default.\n[crio.runtime]\ndefault_runtime = \"runc\"\n\n\
                [crio.runtime.runtimes.runc]\nruntime_path = \"\" # PATH\n\n[crio.network]\nx = 1\n";
    let once = installed(Some(text));
    assert!(once.contains("[crio.runtime.runtimes.crust]"), "{once}");
    assert_eq!(uninstalled(&once).unwrap(), text);
    let older = once.replace(PROGRAM, "/opt/runcrust");
    let older = older.replace("\"oci\"", "\"oci\"\nmonitor_env = [\"A=b\"]");
    let expected = once.replace("\"oci\"", "\"oci\"\nmonitor_env = [\"A=b\"]");
    assert_eq!(installed(Some(&older)), expected);
}

#[test]
fn an_operators_comments_stay() {
    let text = "# Ours alone.\n";
    let once = installed(Some(text));
    assert!(once.starts_with(text), "{once}");
    assert_eq!(uninstalled(&once).as_deref(), Some(text));
}

#[test]
fn somebody_elses_handler_is_refused() {
    let text = "[crio.runtime.runtimes.crust]\nruntime_path = \"/usr/bin/crun\"\n";
    let error = CRIO.install(&[source(Some(text))], WANTED).unwrap_err();
    assert!(error.to_string().contains("/usr/bin/crun"), "{error}");
    let error = CRIO.uninstall(&[source(Some(text))], UNWANTED).unwrap_err();
    assert!(matches!(error, HandlerError::Foreign { .. }), "{error}");
}

fn beside(text: &str) -> Source {
    Source::new("/etc/beside.conf".into(), Some(text.to_owned()))
}

#[test]
fn what_is_read_beside_our_file_counts() {
    let ours = || source(Some(&installed(None)));
    let foreign = "[crio.runtime.runtimes.crust]\nruntime_path = \"/usr/bin/crun\"\n";
    let error = CRIO
        .install(&[source(None), beside(foreign)], WANTED)
        .unwrap_err();
    let told = error.to_string();
    assert!(matches!(error, HandlerError::Foreign { .. }), "{told}");
    assert!(told.contains("/etc/beside.conf"), "{told}");
    let default = "[crio.runtime]\ndefault_runtime = \"crust\"\n";
    let error = CRIO
        .uninstall(&[ours(), beside(default)], UNWANTED)
        .unwrap_err();
    let told = error.to_string();
    assert!(matches!(error, HandlerError::Default { .. }), "{told}");
    assert!(told.contains("/etc/beside.conf"), "{told}");
    assert!(CRIO.uninstall(&[ours(), beside(foreign)], UNWANTED).is_ok());
}
