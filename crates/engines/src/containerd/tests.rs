//! Real configurations are in `testdata/containerd`.

use super::*;
use crate::fuzzing::{PROGRAM, TEST_HANDLER, check, edits, file, try_install, try_uninstall};
use crate::handler::{plan_install, plan_uninstall};

macro_rules! testdata {
    ($($name:literal),+) => { &[$(include_str!(concat!("../../testdata/containerd/", $name, ".toml"))),+] };
}

macro_rules! crust {
    ($line:literal) => {
        crust!($line, "io.containerd.runc.v2")
    };
    ($line:literal, $type:literal) => {
        concat!(
            "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.crust]\n",
            "runtime_type = '",
            $type,
            "'\n",
            $line,
            "\n"
        )
    };
}

pub(super) const SAMPLES: Samples = Samples {
    foreign: &[
        (
            crust!("options.BinaryName = '/usr/bin/crun'"),
            "it runs /usr/bin/crun",
        ),
        (crust!(""), "it has no BinaryName"),
        (
            crust!("", "io.containerd.kata.v2"),
            "its runtime_type is \"io.containerd.kata.v2\"",
        ),
        (
            "version = 2\n[plugins.cri.containerd.runtimes]\ncrust = {}\n",
            "it has no runtime_type",
        ),
    ],
    default: "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\n\
              default_runtime_name = \"crust\"\n",
    kept: testdata!(
        "default-1.6",
        "default-2.1",
        "debian",
        "gke",
        "k3s",
        "tabs",
        "no-plugins",
        "no-runtimes",
        "inline",
        "dotted",
        "dotted-below-a-header"
    ),
    outdated: &["version = 2\n\
        [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.crust]\n\
        runtime_type = 'io.containerd.runc.v2'\n\
        pod_annotations = [\"example.org/*\"] # ours\n\
        [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.crust.options]\n\
        BinaryName = \"/opt/runcrust\" # the old one\n\
        SystemdCgroup = true\n"],
    refused: &[
        ("disabled_plugins = [\"cri\"]\n", "`version = 2`"),
        ("version = 1\n[plugins.cri]\n", "version 1"),
        ("version = 5\n", "version 5"),
        ("version = \"2\"\n", "version isn't a number"),
        ("version = 2\nplugins = 3\n", "plugins isn't a table"),
        ("version = 2\n[plugins\n", "config.toml:2: "),
        (
            "version = 2\nimports = 'x'\n",
            "imports isn't a list of strings",
        ),
        ("version = 2\nimports = ['x', 1]\n", "imports isn't a list"),
        ("version = 2\nimports = [['x']]\n", "imports isn't a list"),
        (
            "version = 2\n\n{{ template \"base\" . }}\n",
            "config.toml:3: ",
        ),
    ],
};

const MAIN: &str = "version = 2\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n";
const DROP_IN: &str = "/etc/containerd/conf.d/runcrust.toml";
const SECTION: &str = "plugins.\"io.containerd.grpc.v1.cri\".containerd";
/// The section of the CRI plugin since version 3.
const OTHER: &str = "plugins.\"io.containerd.cri.v1.runtime\".containerd";

fn import(name: &str, text: &str) -> EngineConfigFile {
    let path = Path::new("/etc/containerd/conf.d").join(name);
    EngineConfigFile::new(path, Some(text.to_owned()))
}

fn main_file(text: &str) -> EngineConfigFile {
    file(&Containerd, Some(text))
}

/// Returns the file that `install` changes, its new text, and the notes.
fn install_into(files: Vec<EngineConfigFile>) -> (String, String, Vec<String>) {
    let mut plan = plan_install(&Containerd, files, &TEST_HANDLER).unwrap();
    let notes = std::mem::take(&mut plan.notes);
    let (path, text) = edits(plan).remove(0);
    (path.display().to_string(), text.unwrap(), notes)
}

fn runtime(name: &str, systemd_cgroup: Option<bool>) -> String {
    let flag = systemd_cgroup.map(|value| format!("options.SystemdCgroup = {value}\n"));
    let flag = flag.unwrap_or_default();
    format!("[{SECTION}.runtimes.{name}]\nruntime_type = \"io.containerd.runc.v2\"\n{flag}")
}

#[test]
fn a_new_file_has_version_2_and_containerds_default_runtime() {
    let expected = format!(
        "{MARK}version = 2\n\n{DEFAULT_RUNTIME}[{SECTION}.runtimes.runc]\n\
         runtime_type = \"io.containerd.runc.v2\"\n\n[{SECTION}.runtimes.crust]\n\
         runtime_type = \"io.containerd.runc.v2\"\n\n[{SECTION}.runtimes.crust.options]\n\
         BinaryName = \"{PROGRAM}\"\n"
    );
    let once = try_install(&Containerd, None).unwrap();
    assert_eq!(once, expected);
    // Other contents of the file are kept, and so is a `runc` that was changed.
    let more = format!("{once}\n[grpc]\naddress = \"/x\"\n");
    let left = try_uninstall(&Containerd, &more).unwrap();
    let expected = format!("{MARK}version = 2\n\n[grpc]\naddress = \"/x\"\n");
    assert_eq!(left, Some(expected));
    let changed = once.replacen("runc.v2\"\n", "runc.v2\"\npod_annotations = [\"a\"]\n", 1);
    let left = try_uninstall(&Containerd, &changed).unwrap().unwrap();
    assert!(left.contains("runtimes.runc]"), "{left}");
    // Settings that the operator added to the handler are removed with it.
    let nested =
        format!("{once}[[{SECTION}.runtimes.crust.x]]\na = 1\n[[{SECTION}.runtimes.crust.x]]\n");
    assert_eq!(try_uninstall(&Containerd, &nested).unwrap(), None);
    // `runc` is also kept while another runtime is left.
    let other = format!("{once}\n{}", runtime("nvidia", None));
    let left = try_uninstall(&Containerd, &other).unwrap().unwrap();
    assert!(left.contains("runtimes.runc]"), "{left}");
    // The `version` that an installation added is kept, because it might be the operator's.
    for text in ["", "# Comments alone.\n"] {
        let once = try_install(&Containerd, Some(text)).unwrap();
        let left = try_uninstall(&Containerd, &once).unwrap();
        assert_eq!(left, Some(format!("version = 2\n{text}")));
    }
}

#[test]
fn the_handler_is_added_at_the_end() {
    // The other tables have no headers to which a key could be added.
    for text in &SAMPLES.kept[..8] {
        let (_, once, _) = install_into(vec![main_file(text)]);
        assert!(once.starts_with(text), "{once}");
    }
    let (_, once, _) = install_into(vec![main_file(SAMPLES.kept[0])]);
    let added = once.strip_prefix(SAMPLES.kept[0]).unwrap();
    let expected = format!(
        "\n[{SECTION}.runtimes.crust]\nruntime_type = \"io.containerd.runc.v2\"\n\n\
         [{SECTION}.runtimes.crust.options]\nBinaryName = \"{PROGRAM}\"\nSystemdCgroup = false\n"
    );
    assert_eq!(added, expected);
    let spec = HandlerSpec {
        systemd_cgroup: Some(true),
        ..TEST_HANDLER
    };
    let plan = plan_install(&Containerd, vec![main_file(&once)], &spec).unwrap();
    let changed = edits(plan).remove(0).1.unwrap();
    let expected = expected.replace("= false", "= true");
    assert!(changed.ends_with(&expected), "{changed}");
}

/// kubelet uses the cgroup driver of the runtime that most pods use.
#[test]
fn the_cgroup_driver_is_that_of_the_nodes_other_runtimes() {
    let name = |name: &str| format!("[{SECTION}]\ndefault_runtime_name = {name:?}\n");
    let table = |runtime_type: &str| {
        format!(
            "[{SECTION}.default_runtime]\nruntime_type = {runtime_type:?}\noptions.SystemdCgroup = true\n"
        )
    };
    let (yes, no, none) = (Some(true), Some(false), None);
    for (text, expected) in [
        (name("x") + &runtime("runc", no) + &runtime("x", yes), yes),
        (name("x") + &runtime("runc", yes) + &runtime("x", none), yes),
        (runtime("runc", no) + &runtime("x", yes), no),
        (table("io.containerd.runc.v2") + &runtime("runc", no), yes),
        (table("") + &runtime("runc", no), no),
        (runtime("nvidia", yes), yes),
        (runtime("nvidia", none), none),
        // containerd doesn't read a section of another version.
        (
            runtime("runc", no).replace(SECTION, OTHER) + &runtime("runc", yes),
            yes,
        ),
        (
            name("x").replace(SECTION, OTHER) + &runtime("x", no) + &runtime("runc", yes),
            yes,
        ),
    ] {
        let (_, after, notes) = install_into(vec![main_file(&format!("version = 2\n{text}"))]);
        let entry = after.split("runtimes.crust.options]").nth(1).unwrap();
        let value = entry
            .split_once("SystemdCgroup = ")
            .map(|(_, value)| value.starts_with("true"));
        assert_eq!(value, expected, "{after}");
        assert_eq!(notes.is_empty(), expected.is_some(), "{notes:?}");
    }
    // Another file may set `SystemdCgroup`.
    let main = format!("{MAIN}{}", runtime("runc", Some(true)));
    let image = format!("version = 2\n[{SECTION}]\nsnapshotter = \"x\"\n");
    let (_, text, _) = install_into(vec![main_file(&main), import("1.toml", &image)]);
    assert!(text.contains("SystemdCgroup = true"), "{text}");
}

/// containerd 1.x uses only the section in the last file that has one.
#[test]
fn the_last_file_that_has_the_section_gets_the_handler() {
    let section = "[plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = \"pause\"\n";
    let newer = MAIN.replace("version = 2", "version = 3");
    let [one, two] = ["1", "2"].map(|name| format!("/etc/containerd/conf.d/{name}.toml"));
    let config = Containerd.info().file;
    let both = format!("{MAIN}{section}");
    let old = format!("version = 2\n{section}");
    for (main, first, second, expected) in [
        (&*both, "", "", config),
        (&both, section, "", &one),
        (&both, section, section, &two),
        (MAIN, "", section, &two),
        (MAIN, "oom_score = 1\n", "", DROP_IN),
        // Only the newest 2.x releases read plugins from a file with an older version than the main file.
        (&newer, &old, "", DROP_IN),
    ] {
        let (first, second) = (("1.toml", first), ("2.toml", second));
        let imports = || [first, second].map(|(name, text)| import(name, text));
        let files = || {
            let mut files = vec![main_file(main)];
            files.extend(imports());
            files
        };
        let (path, text, _) = install_into(files());
        assert_eq!(path, expected);
        if path == DROP_IN {
            let mut files = files();
            files.push(import("runcrust.toml", &text));
            let start = format!("{MARK}{}", &main[..12]);
            assert!(text.starts_with(&start), "{text}");
            assert_eq!(text.contains("runtimes.runc]"), main == MAIN, "{text}");
            let plan = plan_uninstall(&Containerd, files, "crust", None).unwrap();
            assert_eq!(edits(plan), [(DROP_IN.into(), None)]);
        } else {
            assert!(text.contains("sandbox_image"), "{text}");
        }
    }
    // The other settings of an existing drop-in with that name are kept.
    let other = "version = 2\noom_score = 1\n";
    let (path, text, _) = install_into(vec![main_file(MAIN), import("runcrust.toml", other)]);
    assert!(path == DROP_IN && text.starts_with(other), "{path}: {text}");
}

#[test]
fn notes_warn_about_configurations_that_do_not_work() {
    let v2 = "version = 2\n";
    let section = format!("{v2}{}", runtime("runc", Some(true)));
    let relative = |text| EngineConfigFile {
        is_always_read: false,
        ..import("1.toml", text)
    };
    let missing = || EngineConfigFile::new("/etc/x.toml", None);
    let off = "version = 2\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n";
    for (files, words) in [
        (
            vec![main_file(&section), missing()],
            "/etc/x.toml is imported",
        ),
        (vec![main_file(off)], "disables plugin io.containerd.grpc"),
        (
            vec![main_file(v2), relative(&section)],
            "make the pattern abs",
        ),
    ] {
        let (path, _, notes) = install_into(files);
        assert_eq!(path, Containerd.info().file);
        assert!(notes[0].contains(words), "{notes:?}");
    }
    // A handler is also removed from a file that not every version of containerd reads.
    let with_handler = try_install(&Containerd, Some(&section)).unwrap();
    let files = vec![main_file(v2), relative(&with_handler), missing()];
    let plan = plan_uninstall(&Containerd, files, "crust", None).unwrap();
    let note = &plan.notes[0];
    assert!(note.starts_with("/etc/x.toml is imported"), "{note}");
    assert_eq!(edits(plan)[0].1.as_deref(), Some(&*section));
}

#[test]
fn a_handler_in_version_1_is_removed() {
    for text in ["disabled_plugins = [\"cri\"]\n", "version = 1\n"] {
        let left = try_uninstall(&Containerd, text).unwrap();
        assert_eq!(left.as_deref(), Some(text));
    }
    let text = format!(
        "[plugins.cri.containerd.runtimes.crust]\nruntime_type = {RUNTIME_TYPE:?}\n\
         options.BinaryName = {PROGRAM:?}\n"
    );
    let left = try_uninstall(&Containerd, &text).unwrap();
    assert_eq!(left.as_deref(), Some(""));
}

#[test]
fn comments_of_other_tables_are_kept() {
    let runc = runtime("runc", None) + "# last comment in runc\n";
    for text in [
        format!("version = 2\n{runc}"),
        format!("version = 2\n{runc}\n[grpc]\naddress = \"/x\"\n"),
        format!("version = 2\n{runc}\n# about nothing\n\n[grpc]\n\n# the end"),
    ] {
        check(&Containerd, &text);
        let once = try_install(&Containerd, Some(&text)).unwrap();
        let end = if text.ends_with('\n') { "" } else { "\n" };
        assert!(once.starts_with(&text), "{once}");
        let back = try_uninstall(&Containerd, &once).unwrap();
        assert_eq!(back, Some(format!("{text}{end}")));
        // A comment directly above the handler is removed with it. Comments below it are kept.
        let header = format!("\n[{SECTION}.runtimes.crust]");
        let noted = once.replace(&header, &format!("\n# mine\n\n# about crust{header}"));
        let noted = format!("{noted}# at the end\n\n[debug]\n");
        let back = try_uninstall(&Containerd, &noted).unwrap();
        let expected = format!("{text}{end}\n# mine\n# at the end\n\n[debug]\n");
        assert_eq!(back, Some(expected));
    }
}
