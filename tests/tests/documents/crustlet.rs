//! `docs/crustlet.md`, and the manifests that it refers to.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::api::storage::v1::{CSIDriver, StorageClass};
use runcrust_tests::csi::DRIVER;
use runcrust_tests::kubernetes::{parse_strictly, yaml};
use runcrust_tests::transcript::{matches_shortened, normalize};
use runcrust_tests::{
    APP_IMAGE, NfsServer, Run, Setup, TestDir, Testbed, binary, flags, holds_within,
    on_each_delegate,
};

use crate::{document, quoted, table};

const DOCUMENT: &str = "docs/crustlet.md";

/// The objects in `deploy/crustlet`. The admission policy is not one.
const MANIFESTS: [&str; 5] = ["runtimeclass", "csidriver", "storageclass", "claim", "pod"];

/// The longest time until a command prints what the document shows.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(40);

fn manifest(name: &str) -> String {
    document(&format!("deploy/crustlet/{name}.yaml"))
}

/// Returns the decisions about the volumes of pods that `crustlet admit` prints.
#[track_caller]
fn admit_decisions(dir: &TestDir, policy: &str, pods: &str) -> Vec<String> {
    let [policy, pods] = [("policy", policy), ("pods.yaml", pods)].map(|(name, text)| {
        fs::write(dir.join(name), text).unwrap();
        dir.join(name)
    });
    let mut admit = Command::new(binary("crustlet"));
    let directory = dir.subdir("manifests");
    admit
        .arg("admit")
        .arg(pods)
        .arg("--manifests")
        .arg(directory);
    let run = Run::capture(admit.arg("--admission-policy").arg(policy)).success();
    run.stderr.lines().map(str::to_owned).collect()
}

/// Returns the YAML blocks of a document.
fn yaml_blocks(text: &str) -> Vec<&str> {
    let blocks = text.split("```yaml\n").skip(1);
    let blocks = blocks.map(|rest| rest.split("```").next().unwrap());
    blocks.collect()
}

#[test]
fn the_flags_of_the_agent_are_documented() {
    let mut documented = BTreeMap::new();
    for row in table(&document(DOCUMENT), "| flag |") {
        let name = quoted(&row[0]).remove(0);
        let name = name.strip_prefix("--").unwrap().to_owned();
        documented.insert(name, quoted(&row[1]).into_iter().next());
    }
    let mut actual = flags::long_options_of("crustlet", &["serve"]);
    for common in ["help", "socket"] {
        actual.remove(common);
    }
    assert_eq!(documented, actual);
}

#[test]
fn documented_commands_and_flags_exist() {
    let text = document(DOCUMENT);
    let commands = table(&text, "| command |");
    let commands = commands.iter().map(|row| quoted(&row[0]));
    let commands: Vec<Vec<String>> = commands.collect();
    // Flags of other programs that the document mentions.
    let mut actual: BTreeSet<String> = flags::long_options("crust-csi").into_keys().collect();
    actual.extend(["noheadings", "types"].map(str::to_owned));
    let agent_flags = flags::long_options_of("crustlet", &["serve"]);
    actual.extend(agent_flags.into_keys());
    for quoted in &commands {
        let verb = quoted[0].split(' ').next().unwrap();
        actual.extend(flags::long_options_of("crustlet", &[verb]).into_keys());
    }
    let words = text.split(|it: char| it.is_whitespace() || "`|,;:()=.".contains(it));
    let named: BTreeSet<&str> = words.filter_map(|word| word.strip_prefix("--")).collect();
    let is_name = |it: &&str| it.starts_with(|first: char| first.is_alphabetic());
    let named: Vec<&str> = named.into_iter().filter(is_name).collect();
    assert!(
        named.contains(&"force") && named.contains(&"without"),
        "{named:?}"
    );
    for name in named {
        assert!(actual.contains(name), "no flag --{name}");
    }
    let help = Run::capture(Command::new(binary("crustlet")).arg("--help")).success();
    let (_, listed) = help.stdout.split_once("Commands:\n").unwrap();
    let listed = listed.lines().take_while(|line| !line.is_empty());
    let listed: BTreeSet<&str> = listed
        .filter_map(|it| it.split_whitespace().next())
        .collect();
    let verbs = commands.iter().map(|it| it[0].split(' ').next().unwrap());
    let verbs: BTreeSet<&str> = verbs.chain(["serve"]).collect();
    assert_eq!(verbs, listed);
}

#[test]
fn example_manifests_are_valid_except_for_the_keps_field() {
    let document = |name: &str| yaml(&manifest(name));
    parse_strictly::<RuntimeClass>(&document("runtimeclass")).unwrap();
    parse_strictly::<CSIDriver>(&document("csidriver")).unwrap();
    parse_strictly::<StorageClass>(&document("storageclass")).unwrap();
    parse_strictly::<PersistentVolumeClaim>(&document("claim")).unwrap();
    let mut pod = document("pod");
    let source = &mut pod["spec"]["volumes"][0]["persistentVolumeClaim"];
    let field = source.as_object_mut().unwrap().remove("deferFSMount");
    assert_eq!(field, Some(true.into()));
    parse_strictly::<Pod>(&pod).unwrap();
    let entries = fs::read_dir(
        Path::new(&std::env::var("CARGO_MANIFEST_DIR").unwrap()).join("../deploy/crustlet"),
    );
    let files = entries
        .unwrap()
        .map(Result::unwrap)
        .filter(|entry| entry.file_type().unwrap().is_file());
    let names = files.map(|it| it.file_name().into_string().unwrap());
    let all = MANIFESTS.into_iter().chain(["policy"]);
    let all: BTreeSet<String> = all.map(|it| format!("{it}.yaml")).collect();
    assert_eq!(names.collect::<BTreeSet<_>>(), all);
}

/// The objects in `deploy/crustlet/nfs`, which need the runtime class of `deploy/crustlet`.
const NFS_MANIFESTS: [&str; 5] = ["csidriver", "storageclass", "volume", "claims", "pod"];

#[test]
fn the_example_with_shares_is_valid_and_deferred() {
    let read = |name: &str| manifest(&format!("nfs/{name}"));
    let driver: CSIDriver = parse_strictly(&yaml(&read("csidriver"))).unwrap();
    let class: StorageClass = parse_strictly(&yaml(&read("storageclass"))).unwrap();
    let volume: PersistentVolume = parse_strictly(&yaml(&read("volume"))).unwrap();
    let name = driver.metadata.name.unwrap();
    let source = volume.spec.unwrap().csi.unwrap();
    assert_eq!((&class.provisioner, &source.driver), (&name, &name));
    assert_eq!(driver.spec.volume_lifecycle_modes.unwrap(), ["Persistent"]);
    for claim in read("claims").split("---\n") {
        parse_strictly::<PersistentVolumeClaim>(&yaml(claim)).unwrap();
    }
    let dir = TestDir::new();
    let directory = dir.subdir("manifests");
    for name in NFS_MANIFESTS.into_iter().filter(|it| *it != "pod") {
        fs::write(directory.join(format!("{name}.yaml")), read(name)).unwrap();
    }
    let decisions = admit_decisions(&dir, &manifest("policy"), &read("pod"));
    assert_eq!(decisions.len(), 2, "{decisions:?}");
    let is_deferred = |it: &String| it.ends_with(": deferred: set in the pod");
    assert!(decisions.iter().all(is_deferred), "{decisions:?}");
    let text = document(DOCUMENT);
    for name in NFS_MANIFESTS {
        assert!(
            text.contains(&format!("deploy/crustlet/nfs/{name}.yaml")),
            "{name}"
        );
    }
}

/// The agent's own parsers read the examples, which refer to each other.
#[test]
fn the_example_policy_decides_about_the_example_pod() {
    let dir = TestDir::new();
    let directory = dir.subdir("manifests");
    for name in MANIFESTS.into_iter().filter(|it| *it != "pod") {
        fs::write(directory.join(format!("{name}.yaml")), manifest(name)).unwrap();
    }
    let documented = admit_decisions(&dir, &manifest("policy"), &manifest("pod"));
    let expected = [
        "pod default/web: volume data: deferred: set in the pod",
        "pod default/web: volume scratch: deferred: storage class crust-local with runtime class crust",
    ];
    assert_eq!(documented, expected);
}

#[test]
fn manifests_and_policies_in_documents_are_accepted() {
    let dir = TestDir::new();
    let text = document(DOCUMENT);
    let manifests = yaml_blocks(&text).join("---\n");
    let policies = document("docs/defer-policy.md");
    let [policy] = yaml_blocks(&policies)[..] else {
        panic!("{policies}");
    };
    let documented = admit_decisions(&dir, policy, &manifests);
    assert_eq!(documented.len(), 3, "{documented:?}");
    for decision in &documented {
        assert!(
            decision.ends_with(": deferred: set in the pod"),
            "{decision}"
        );
    }
    // Unknown fields are ignored. These fields are known, so a wrong value is an error.
    for field in [
        "fsMgmtSocket: run/",
        "allowRuntimeAssistedMount: maybe",
        "deferFSMount: maybe",
    ] {
        let name = field.split(' ').next().unwrap();
        let wrong: String = manifests.lines().fold(String::new(), |mut wrong, line| {
            match line.split_once(name) {
                Some((before, _)) => writeln!(wrong, "{before}{field}").unwrap(),
                None => writeln!(wrong, "{line}").unwrap(),
            }
            wrong
        });
        assert_ne!(wrong, manifests, "{name}");
        fs::write(dir.join("pods.yaml"), wrong).unwrap();
        let run = Run::capture(
            Command::new(binary("crustlet"))
                .arg("admit")
                .arg(dir.join("pods.yaml")),
        );
        assert!(!run.status.success(), "{run}");
    }
}

/// Returns the commands in a section of a document, each with the lines that are shown as its output.
fn transcript<'t>(text: &'t str, part: &str) -> Vec<(&'t str, Vec<&'t str>)> {
    let (_, rest) = text.split_once(part).unwrap();
    let (part, _) = rest.split_once("\n## ").unwrap();
    let mut commands: Vec<(&str, Vec<&str>)> = Vec::new();
    let mut is_shown = false;
    for line in part.lines() {
        let line = line.strip_prefix("    ");
        match (line, line.and_then(|it| it.strip_prefix("$ "))) {
            (_, Some(command)) => commands.push((command, Vec::new())),
            (Some(line), None) if is_shown => commands.last_mut().unwrap().1.push(line),
            _ => {}
        }
        is_shown = line.is_some_and(|it| is_shown || it.starts_with("$ "));
    }
    commands
}

/// Prepares what the commands need: the manifests, with the names of this testbed, and a `crustlet` that calls the
/// testbed's agent.
fn prepare(testbed: &Testbed) {
    let dir = testbed.node.dir();
    let examples = dir.subdir("checkout/deploy/crustlet");
    for name in MANIFESTS {
        let text = manifest(name).replace("csi.crust.dev", DRIVER);
        let text = text.replace("busybox:1.36", APP_IMAGE);
        fs::write(examples.join(format!("{name}.yaml")), text).unwrap();
    }
    let program = dir.subdir("bin").join("crustlet");
    let (crustlet, socket) = (binary("crustlet"), testbed.crustlet.socket());
    let script = format!(
        "#!/bin/sh\nverb=$1\nshift\nexec {} \"$verb\" --socket {} \"$@\"\n",
        crustlet.display(),
        socket.display()
    );
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
}

/// Runs a command, and returns the lines of its output with the names of the document.
fn lines_of(testbed: &Testbed, command: &str) -> Vec<String> {
    let dir = testbed.node.dir();
    let path = std::env::var("PATH").unwrap();
    let mut shell = Command::new("sh");
    shell
        .args(["-ec", command])
        .current_dir(dir.join("checkout"));
    shell.env("PATH", format!("{}:{path}", dir.join("bin").display()));
    let run = Run::capture_within(&mut shell, OUTPUT_TIMEOUT);
    let run = run.unwrap_or_else(|| panic!("{command} does not end"));
    let root = testbed.crustlet.root().to_str().unwrap();
    let text = format!("{}{}", run.stdout, run.stderr).replace(root, "/var/lib/crustlet");
    let text = text
        .replace(DRIVER, "csi.crust.dev")
        .replace(APP_IMAGE, "busybox:1.36");
    text.lines().map(normalize).collect()
}

on_each_delegate! {
    #[ignore = "needs NFS; runs in the guest: make vm-test"]
    fn the_example_with_shares_runs(delegate: Delegate) {
        let setup = Setup { driver: &["--driver", "nfs"], ..Setup::default() };
        let testbed = Testbed::with(delegate, &setup);
        let server = NfsServer::start(testbed.node.dir());
        let root = server.directory();
        fs::create_dir(root.join("photos")).unwrap();
        fs::write(root.join("photos/one"), "").unwrap();
        let read = |name: &str| {
            let text = manifest(name).replace("nfs.csi.crust.dev", DRIVER).replace("busybox:1.36", APP_IMAGE);
            let text = text.replace("nfs.example.com", &server.address());
            text.replace("share: /export", &format!("share: {}", root.display()))
        };
        for name in ["runtimeclass", "nfs/csidriver", "nfs/storageclass", "nfs/volume", "nfs/claims", "nfs/pod"] {
            let _ = testbed.crustlet.run(&read(name)).success();
        }
        let created = || {
            let names = fs::read_dir(root).unwrap().map(|it| it.unwrap().path());
            names.filter(|path| !path.ends_with("photos")).collect::<Vec<_>>()
        };
        let [thumbnails] = &created()[..] else { panic!("{:?}", created()) };
        assert!(holds_within(OUTPUT_TIMEOUT, || fs::read(thumbnails.join("list")).is_ok_and(|list| list == b"one\n")));
        let volumes = testbed.crustlet.cli(&["get", "volumes"]).success().stdout;
        assert_eq!(volumes.matches(" deferred ").count(), 2, "{volumes}");
        let _ = testbed.crustlet.cli(&["delete", "pod", "gallery"]).success();
        let _ = testbed.crustlet.cli(&["delete", "pvc", "photos", "thumbnails"]).success();
        assert!(holds_within(OUTPUT_TIMEOUT, || created().is_empty()), "{:?}", created());
        assert!(root.join("photos/one").exists());
    }

    fn the_quick_start_works_as_shown(delegate: Delegate) {
        let testbed = Testbed::new(delegate);
        prepare(&testbed);
        let text = document(DOCUMENT);
        let commands = transcript(&text, "\n## Quick start\n");
        assert!(commands.len() > 8, "{commands:?}");
        for (command, yaml_blocks) in commands {
            let changes = ["crustlet run", "crustlet delete"].iter().any(|it| command.contains(it));
            let mut missing = Vec::new();
            let mut printed = Vec::new();
            let mut is_shown = || {
                printed = lines_of(&testbed, command);
                let is_there = |line: &&&str| {
                    let line = normalize(line);
                    printed.iter().any(|printed| matches_shortened(&line, printed))
                };
                missing = yaml_blocks.iter().filter(|line| !is_there(line)).copied().collect();
                missing.is_empty()
            };
            // Commands that change something run once. Others are repeated, because a change takes its time.
            let is_there = if changes { is_shown() } else { holds_within(OUTPUT_TIMEOUT, is_shown) };
            assert!(is_there, "{command}: {missing:#?} is missing in\n{printed:#?}");
        }
        testbed.crustlet.wait_no_volumes();
    }
}
