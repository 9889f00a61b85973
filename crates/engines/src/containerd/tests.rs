//! Real configurations in `testdata/containerd`, and what is made of them.

use std::fs;

use super::*;
use crate::lines::unified;
use crate::testing::{PROGRAM, UNWANTED, WANTED};

const CONFIG: &str = "/etc/containerd/config.toml";

fn wanted(program: &str) -> Wanted<'_> {
    Wanted { program, ..WANTED }
}

fn source(path: &str, text: Option<&str>) -> Source {
    Source::new(path.into(), text.map(str::to_owned))
}

fn installed(text: Option<&str>, wanted: Wanted<'_>) -> Result<String, HandlerError> {
    let edits = install(&[source(CONFIG, text)], None, wanted)?;
    let [edit] = edits.as_slice() else {
        panic!("not one edit: {edits:?}");
    };
    assert_eq!(edit.before.as_deref(), text);
    Ok(edit.after.clone().unwrap())
}

/// `None`: the file is gone.
fn uninstalled(text: &str) -> Option<String> {
    let (edits, program) = uninstall(&[source(CONFIG, Some(text))], UNWANTED).unwrap();
    assert_eq!(program, Some(PROGRAM.into()));
    edits.into_iter().next().unwrap().after
}

fn examples() -> Vec<(String, String)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/containerd");
    let mut examples = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path
            .extension()
            .is_some_and(|extension| extension == "toml")
        {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            examples.push((name, fs::read_to_string(path).unwrap()));
        }
    }
    examples.sort();
    assert!(examples.len() > 10);
    examples
}

/// The difference is in `<name>.diff`; with `RUNCRUST_BLESS` it is written there.
#[test]
fn real_configurations_get_the_handler_and_keep_the_rest() {
    let mut wrong = Vec::new();
    for (name, text) in examples() {
        let after = installed(Some(&text), wanted(PROGRAM)).unwrap();
        let diff = unified(CONFIG, Some(&text), Some(&after));
        let file = Path::new(env!("CARGO_MANIFEST_DIR"));
        let file = file.join(format!("testdata/containerd/{name}.diff"));
        if std::env::var_os("RUNCRUST_BLESS").is_some() {
            fs::write(&file, &diff).unwrap();
        }
        if fs::read_to_string(&file).unwrap_or_default() != diff {
            wrong.push(format!("{name}:\n{diff}"));
        }
        let removed = diff.lines().filter(|line| line.starts_with('-')).count();
        assert!(
            removed == 1 || name == "inline",
            "lines of the operator's are gone:\n{diff}"
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_second_time_changes_nothing_and_uninstall_takes_it_back_byte_by_byte() {
    for (name, text) in examples() {
        let once = installed(Some(&text), wanted(PROGRAM)).unwrap();
        assert_ne!(once, text, "{name}");
        assert_eq!(
            installed(Some(&once), wanted(PROGRAM)).unwrap(),
            once,
            "{name}"
        );
        let back = uninstalled(&once).unwrap();
        // What had no version has one now; nobody knows whether it was ours.
        let expected = match name.as_str() {
            "comments-alone" => format!("{NEW}{text}"),
            _ => text.clone(),
        };
        assert_eq!(
            back,
            expected,
            "{name}: {}",
            unified(CONFIG, Some(&text), Some(&back))
        );
        let (edits, program) = uninstall(&[source(CONFIG, Some(&back))], UNWANTED).unwrap();
        assert_eq!((edits, program), (vec![], None), "{name}");
    }
}

fn value<'a>(document: &'a toml_edit::DocumentMut, keys: &[&str]) -> Option<&'a Item> {
    let root = document.as_item();
    keys.iter()
        .try_fold(root, |item, key| item.as_table_like()?.get(key))
}

#[test]
fn the_handler_says_what_containerd_reads() {
    for (name, text) in examples() {
        let after = installed(Some(&text), wanted(PROGRAM)).unwrap();
        let document = after.parse().unwrap();
        let plugin = match name.as_str() {
            "default-2.1" | "k3s" | "no-plugins" => "io.containerd.cri.v1.runtime",
            _ => "io.containerd.grpc.v1.cri",
        };
        let keys = ["plugins", plugin, "containerd", "runtimes", "crust"];
        let crust = |key: &[&str]| value(&document, &[&keys[..], key].concat()).cloned();
        assert_eq!(
            crust(&["runtime_type"]).unwrap().as_str(),
            Some(RUNTIME_TYPE),
            "{name}"
        );
        assert_eq!(
            crust(&["options", "BinaryName"]).unwrap().as_str(),
            Some(PROGRAM),
            "{name}"
        );
        let cgroup = crust(&["options", "SystemdCgroup"]).and_then(|it| it.as_bool());
        let expected = match name.as_str() {
            "kubeadm" | "gke" | "dotted" | "inline" | "tabs" => Some(true),
            "default-1.6" | "default-2.1" | "k3s" => Some(false),
            _ => None,
        };
        assert_eq!(cgroup, expected, "{name}");
    }
}

#[test]
fn a_new_file_is_of_version_2_and_goes_again() {
    let text = installed(None, wanted(PROGRAM)).unwrap();
    let expected = format!(
        "{MARK}version = 2\n\n{DEFAULT_RUNTIME}\
         [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\n\
         runtime_type = \"io.containerd.runc.v2\"\n\n\
         [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.crust]\n\
         runtime_type = \"io.containerd.runc.v2\"\n\n\
         [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.crust.options]\n\
         BinaryName = \"{PROGRAM}\"\n"
    );
    assert_eq!(text, expected);
    assert_eq!(uninstalled(&text), None);
    // What else was written into it stays.
    let more = format!("{text}\n[grpc]\naddress = \"/x\"\n");
    let left = uninstalled(&more).unwrap();
    assert_eq!(
        left,
        format!("{MARK}version = 2\n\n[grpc]\naddress = \"/x\"\n")
    );
}

#[test]
fn a_default_runtime_that_the_operator_has_changed_stays() {
    let text = installed(None, wanted(PROGRAM)).unwrap();
    let changed = text.replacen("runc.v2\"\n", "runc.v2\"\npod_annotations = [\"a\"]\n", 1);
    let left = uninstalled(&changed).unwrap();
    assert!(left.contains("runtimes.runc]"), "{left}");
}

#[test]
fn a_handler_of_ours_is_brought_up_to_date_with_what_the_operator_added() {
    let text = "version = 2\n\
        [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.crust]\n\
        runtime_type = \"io.containerd.runc.v2\"\n\
        pod_annotations = [\"example.org/*\"] # ours\n\
        [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.crust.options]\n\
        BinaryName = \"/opt/bin/runcrust\" # the old one\n\
        SystemdCgroup = true\n";
    let after = installed(Some(text), wanted(PROGRAM)).unwrap();
    assert_eq!(after, text.replace("/opt/bin/runcrust", PROGRAM));
    let asked = Wanted {
        systemd_cgroup: Some(false),
        ..wanted(PROGRAM)
    };
    let after = installed(Some(text), asked).unwrap();
    assert!(after.contains("SystemdCgroup = false\n"), "{after}");
}

#[test]
fn somebody_elses_handler_is_neither_changed_nor_removed() {
    let entry = |lines: &str| {
        format!(
            "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.crust]\n{lines}\n"
        )
    };
    for (lines, words) in [
        (
            "runtime_type = 'io.containerd.kata.v2'",
            "its runtime_type is \"io.containerd.kata.v2\"",
        ),
        (
            "runtime_type = 'io.containerd.runc.v2'",
            "it has no BinaryName",
        ),
        (
            "runtime_type = 'io.containerd.runc.v2'\noptions.BinaryName = '/usr/bin/crun'",
            "it runs /usr/bin/crun",
        ),
        (
            "options.BinaryName = '/usr/local/bin/runcrust'",
            "it has no runtime_type",
        ),
    ] {
        let text = entry(lines);
        let error = installed(Some(&text), wanted(PROGRAM))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(words) && error.contains("--handler"),
            "{error}"
        );
        let error = uninstall(&[source(CONFIG, Some(&text))], UNWANTED).unwrap_err();
        assert!(matches!(error, HandlerError::Foreign { .. }), "{error}");
    }
    let text =
        entry("runtime_type = 'io.containerd.runc.v2'\noptions.BinaryName = '/x/crust-crun'");
    let own = Some("/x/crust-crun");
    let named = Unwanted {
        program: own,
        ..UNWANTED
    };
    assert!(uninstall(&[source(CONFIG, Some(&text))], named).is_ok());
}

#[test]
fn what_containerd_would_not_read_as_meant_is_refused_with_the_next_step() {
    for (text, words) in [
        ("disabled_plugins = [\"cri\"]\n", "`version = 2`"),
        ("version = 1\n[plugins.cri]\n", "version 1"),
        ("version = 5\n", "version 5"),
        ("version = \"2\"\n", "version isn't a number"),
        ("version = 2\nplugins = 3\n", "plugins isn't a table"),
        ("version = 2\n[plugins\n", "config.toml:2: "),
        (
            "version = 2\n\n{{ template \"base\" . }}\n",
            "config.toml:3: ",
        ),
    ] {
        let error = installed(Some(text), wanted(PROGRAM))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(words) && error.contains("hint: "),
            "{text}: {error}"
        );
    }
}

/// They would be called by other names.
#[test]
fn version_1_has_no_handler_of_installs() {
    for text in ["disabled_plugins = [\"cri\"]\n", "version = 1\n"] {
        let files = [source(CONFIG, Some(text))];
        assert_eq!(uninstall(&files, UNWANTED).unwrap(), (vec![], None));
    }
    // But an operator's.
    let text = format!(
        "[plugins.cri.containerd.runtimes.crust]\nruntime_type = {RUNTIME_TYPE:?}\n\
         options.BinaryName = {PROGRAM:?}\n"
    );
    assert_eq!(uninstalled(&text).as_deref(), Some(""));
}

const MAIN: &str = "version = 2\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n";
const DROP_IN: &str = "/etc/containerd/conf.d/runcrust.toml";

fn edited(files: &[Source]) -> Vec<(String, String)> {
    let edits = install(files, Some(Path::new(DROP_IN)), wanted(PROGRAM)).unwrap();
    let both = edits
        .into_iter()
        .map(|edit| (edit.path.display().to_string(), edit.after.unwrap()));
    both.collect()
}

#[test]
fn where_no_file_has_the_section_a_drop_in_gets_it() {
    let files = [
        source(CONFIG, Some(MAIN)),
        source("/etc/containerd/conf.d/a.toml", Some("oom_score = 1\n")),
    ];
    let edits = edited(&files);
    assert_eq!(edits.len(), 1);
    assert_eq!(edits[0].0, DROP_IN);
    assert_eq!(edits[0].1, installed(None, wanted(PROGRAM)).unwrap());
    // It is one of the files from then on.
    let again = [
        files,
        [source(DROP_IN, Some(&edits[0].1)), source("/x", None)],
    ]
    .concat_sources();
    assert_eq!(edited(&again[..3]), edits);
    let (removed, _) = uninstall(&again[..3], UNWANTED).unwrap();
    assert_eq!(removed.len(), 1);
    assert_eq!(
        (removed[0].path.to_str(), &removed[0].after),
        (Some(DROP_IN), &None)
    );
    // 2.x refuses a drop-in that is newer than the main file, and reads no older one's plugins.
    let newer = [source(CONFIG, Some(&MAIN.replace("= 2", "= 3")))];
    let text = &edited(&newer)[0].1;
    assert!(
        text.contains("version = 3\n") && text.contains("cri.v1.runtime"),
        "{text}"
    );
    assert!(!text.contains("runtimes.runc"), "{text}");
}

trait Concat {
    fn concat_sources(self) -> Vec<Source>;
}

impl Concat for [[Source; 2]; 2] {
    fn concat_sources(self) -> Vec<Source> {
        self.into_iter().flatten().collect()
    }
}

/// containerd 1.x takes the section whole from the last file that has it.
#[test]
fn where_files_have_the_section_the_last_of_them_gets_the_handler() {
    let section = "[plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = \"pause\"\n";
    let main = format!("{MAIN}{section}");
    let (one, two) = (
        "/etc/containerd/conf.d/1.toml",
        "/etc/containerd/conf.d/2.toml",
    );
    for (first, second, expected) in [
        ("", "", CONFIG),
        (section, "", one),
        (section, section, two),
        ("", section, two),
    ] {
        let files = [
            source(CONFIG, Some(&main)),
            source(one, Some(first)),
            source(two, Some(second)),
        ];
        let edits = edited(&files);
        assert_eq!(edits.len(), 1);
        assert_eq!(edits[0].0, expected);
        assert!(edits[0].1.contains("sandbox_image"), "{}", edits[0].1);
    }
}

#[test]
fn the_cgroup_driver_is_that_of_runc_in_any_of_the_files() {
    let runc = "[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.options]\nSystemdCgroup = true\n";
    let image = "[plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = \"pause\"\n";
    let files = [
        source(CONFIG, Some(&format!("{MAIN}{runc}"))),
        source("/etc/containerd/conf.d/1.toml", Some(image)),
    ];
    let text = &edited(&files)[0].1;
    assert!(text.contains("SystemdCgroup = true"), "{text}");
}

#[test]
fn an_import_that_is_missing_is_told() {
    let files = [source(CONFIG, None)];
    assert_eq!(missing(&files), [""; 0]);
    let files = [source(CONFIG, Some(MAIN)), source("/etc/x.toml", None)];
    let told = missing(&files);
    assert!(told[0].starts_with("/etc/x.toml is imported"), "{told:?}");
    assert_eq!(notes(&files, wanted(PROGRAM)).unwrap()[..1], told);
    // Nor is it made.
    assert_eq!(edited(&files)[0].0, DROP_IN);
}

#[test]
fn a_disabled_cri_plugin_is_told() {
    let off = "version = 2\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n";
    let told = notes(&[source(CONFIG, Some(off))], wanted(PROGRAM)).unwrap();
    assert!(
        told[0].contains("disables plugin io.containerd.grpc.v1.cri"),
        "{told:?}"
    );
}

const RUNTIMES: &str = "plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes";
const SECTION: &str = "plugins.\"io.containerd.grpc.v1.cri\".containerd";

fn runtime(name: &str, systemd_cgroup: Option<bool>) -> String {
    let flag = systemd_cgroup.map(|it| format!("options.SystemdCgroup = {it}\n"));
    let flag = flag.unwrap_or_default();
    format!("[{RUNTIMES}.{name}]\nruntime_type = \"io.containerd.runc.v2\"\n{flag}")
}

/// kubelet's driver is that of the runtime that most pods have.
#[test]
fn the_cgroup_driver_is_the_default_runtimes_then_runcs_then_anybodys() {
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
    ] {
        let text = format!("version = 2\n{text}");
        let files = [source(CONFIG, Some(&text))];
        let after = installed(Some(&text), wanted(PROGRAM)).unwrap();
        let entry = after.split("runtimes.crust.options]").nth(1).unwrap();
        let said = match (entry.contains("= true"), entry.contains("= false")) {
            (false, false) => None,
            (is_true, _) => Some(is_true),
        };
        assert_eq!(said, expected, "{after}");
        let told = notes(&files, wanted(PROGRAM)).unwrap();
        assert_eq!(told.is_empty(), expected.is_some(), "{told:?}");
    }
}

#[test]
fn the_runtime_that_we_added_stays_while_others_need_it() {
    let one = installed(None, wanted(PROGRAM)).unwrap();
    let other = Wanted {
        handler: "crust-crun",
        ..wanted(PROGRAM)
    };
    for two in [
        installed(Some(&one), other).unwrap(),
        format!("{one}\n{}", runtime("nvidia", None)),
    ] {
        let left = uninstalled(&two).unwrap();
        assert!(left.contains("runtimes.runc]"), "{left}");
    }
    // It goes with the last of ours.
    let left = uninstalled(&installed(Some(&one), other).unwrap()).unwrap();
    let last = Unwanted {
        handler: "crust-crun",
        program: None,
    };
    let (edits, _) = uninstall(&[source(CONFIG, Some(&left))], last).unwrap();
    assert_eq!(edits[0].after, None);
}

#[test]
fn a_handler_that_is_the_default_stays_wherever_that_is_said() {
    let text = installed(Some("version = 2\n"), wanted(PROGRAM)).unwrap();
    let default = format!("version = 2\n[{SECTION}]\ndefault_runtime_name = \"crust\"\n");
    let drop_in = "/etc/containerd/conf.d/default.toml";
    let files = [source(CONFIG, Some(&text)), source(drop_in, Some(&default))];
    let error = uninstall(&files, UNWANTED).unwrap_err().to_string();
    for words in [
        drop_in,
        "crust is the default runtime",
        "hint: change `plugins.",
    ] {
        assert!(error.contains(words), "{error}");
    }
    let other = default.replace("\"crust\"", "\"runc\"");
    let files = [source(CONFIG, Some(&text)), source(drop_in, Some(&other))];
    assert!(uninstall(&files, UNWANTED).is_ok());
    // It isn't ours to keep.
    let files = [source(CONFIG, Some(&default))];
    assert_eq!(uninstall(&files, UNWANTED).unwrap().0, vec![]);
}

#[test]
fn a_file_that_containerd_1_does_not_find_gets_no_handler_but_is_told() {
    let section = format!("version = 2\n{}", runtime("runc", Some(true)));
    let unsure = Source {
        is_sure: false,
        ..source("/etc/containerd/conf.d/1.toml", Some(&section))
    };
    let files = [
        source(CONFIG, Some("version = 2\nimports = [\"conf.d/*.toml\"]\n")),
        unsure,
    ];
    let edits = install(&files, None, wanted(PROGRAM)).unwrap();
    assert_eq!(edits[0].path, Path::new(CONFIG));
    let told = notes(&files, wanted(PROGRAM)).unwrap();
    assert!(told[0].contains("make the pattern absolute"), "{told:?}");
    // One that is there already goes from wherever it is.
    let there = installed(Some(&section), wanted(PROGRAM)).unwrap();
    let files = [
        files.into_iter().next().unwrap(),
        Source {
            is_sure: false,
            ..source("/etc/containerd/conf.d/1.toml", Some(&there))
        },
    ];
    let (edits, _) = uninstall(&files, UNWANTED).unwrap();
    assert_eq!(edits[0].after.as_deref(), Some(section.as_str()));
}

/// The plugins of an older file are read by the newest 2.x alone.
#[test]
fn the_handler_goes_into_no_file_that_is_older_than_the_main_one() {
    let old = source(
        "/etc/containerd/conf.d/1.toml",
        Some(&runtime("runc", Some(true))),
    );
    let old = Source {
        text: old.text.map(|text| format!("version = 2\n{text}")),
        ..old
    };
    let main = MAIN.replace("version = 2", "version = 3");
    let edits = edited(&[source(CONFIG, Some(&main)), old]);
    assert_eq!(edits[0].0, DROP_IN);
    assert!(
        edits[0].1.contains("SystemdCgroup = true"),
        "{}",
        edits[0].1
    );
}

#[test]
fn comments_stay_with_what_they_are_about() {
    let runc = runtime("runc", None) + "# last comment in runc\n";
    for text in [
        format!("\u{feff}version = 2\n{runc}"),
        format!("version = 2\n{runc}\n[grpc]\naddress = \"/x\"\n"),
    ] {
        let once = installed(Some(&text), wanted(PROGRAM)).unwrap();
        let (runc, crust) = once.split_once("runtimes.crust]").unwrap();
        assert!(runc.contains("# last comment"), "{once}");
        assert!(!crust.contains("# last comment"), "{once}");
        assert_eq!(uninstalled(&once).as_deref(), Some(text.as_str()));
        let header = format!("[{RUNTIMES}.crust]");
        let noted = once.replace(&header, &format!("# my note about crust\n{header}"));
        assert_eq!(uninstalled(&noted).as_deref(), Some(text.as_str()));
    }
}
