use super::*;
use crate::edit::MARK;
use crate::testing::PROGRAM;

#[test]
fn a_drop_in_comes_and_goes() {
    let text = CRIO.installed(None);
    let expected = format!(
        "{MARK}\n[crio.runtime.runtimes.crust]\nruntime_path = \"{PROGRAM}\"\n\
         runtime_root = \"/run/runcrust-crust\"\nruntime_type = \"oci\"\n"
    );
    assert_eq!(text, expected);
    assert_eq!(CRIO.installed(Some(&text)), text);
    assert_eq!(CRIO.uninstalled(&text), None);
}

#[test]
fn other_runtimes_and_what_was_added_to_ours_stay() {
    let text = "[crio]\n# The default.\n[crio.runtime]\ndefault_runtime = \"runc\"\n\n\
                [crio.runtime.runtimes.runc]\nruntime_path = \"\" # PATH\n\n[crio.network]\nx = 1\n";
    let once = CRIO.installed(Some(text));
    assert!(once.contains("[crio.runtime.runtimes.crust]"), "{once}");
    assert_eq!(CRIO.uninstalled(&once).unwrap(), text);
    let older = once.replace(PROGRAM, "/opt/runcrust");
    let older = older.replace("\"oci\"", "\"oci\"\nmonitor_env = [\"A=b\"]");
    let expected = once.replace("\"oci\"", "\"oci\"\nmonitor_env = [\"A=b\"]");
    assert_eq!(CRIO.installed(Some(&older)), expected);
}

#[test]
fn an_operators_comments_stay() {
    let text = "# Ours alone.\n";
    let once = CRIO.installed(Some(text));
    assert!(once.starts_with(text), "{once}");
    assert_eq!(CRIO.uninstalled(&once).as_deref(), Some(text));
}
