//! `crustlet`'s document, and the manifests that it leads to.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::api::storage::v1::{CSIDriver, StorageClass};
use runcrust_tests::csi::DRIVER;
use runcrust_tests::kubernetes::{parse_strictly, yaml};
use runcrust_tests::{
    APP_IMAGE, Run, TestDir, Testbed, binary, flags, holds_within, on_each_delegate,
};

use crate::{document, lasting, quoted, says, table};

const DOCUMENT: &str = "docs/crustlet.md";

/// Those of `deploy/crustlet` that are objects; the policy is none.
const MANIFESTS: [&str; 5] = ["runtimeclass", "csidriver", "storageclass", "claim", "pod"];

/// How long what a command shows may take to be so.
const PATIENCE: Duration = Duration::from_secs(40);

fn manifest(name: &str) -> String {
    document(&format!("deploy/crustlet/{name}.yaml"))
}

/// What `crustlet admit` says of pods: what it decided about their volumes.
#[track_caller]
fn decided(dir: &TestDir, policy: &str, pods: &str) -> Vec<String> {
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
    let run = Run::of(admit.arg("--admission-policy").arg(policy)).success();
    run.stderr.lines().map(str::to_owned).collect()
}

/// The YAML that a document shows.
fn shown(text: &str) -> Vec<&str> {
    let blocks = text.split("```yaml\n").skip(1);
    let blocks = blocks.map(|rest| rest.split("```").next().unwrap());
    blocks.collect()
}

#[test]
fn the_flags_of_the_node_agent_are_those_in_its_document() {
    let mut told = BTreeMap::new();
    for row in table(&document(DOCUMENT), "| flag |") {
        let name = quoted(&row[0]).remove(0);
        let name = name.strip_prefix("--").unwrap().to_owned();
        told.insert(name, quoted(&row[1]).into_iter().next());
    }
    let mut there = flags::long_options_of("crustlet", &["serve"]);
    for of_every_command in ["help", "socket"] {
        there.remove(of_every_command);
    }
    assert_eq!(told, there);
}

#[test]
fn every_command_and_flag_in_its_document_is_there() {
    let text = document(DOCUMENT);
    let commands = table(&text, "| command |");
    let commands = commands.iter().map(|row| quoted(&row[0]));
    let commands: Vec<Vec<String>> = commands.collect();
    // Those of others that are named there.
    let mut there: BTreeSet<String> = flags::long_options("crust-csi").into_keys().collect();
    there.extend(["noheadings", "types"].map(str::to_owned));
    let of_agent = flags::long_options_of("crustlet", &["serve"]);
    there.extend(of_agent.into_keys());
    for quoted in &commands {
        let verb = quoted[0].split(' ').next().unwrap();
        there.extend(flags::long_options_of("crustlet", &[verb]).into_keys());
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
        assert!(there.contains(name), "there is no --{name}");
    }
    let help = Run::of(Command::new(binary("crustlet")).arg("--help")).success();
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
fn example_manifests_are_valid_but_for_the_keps_field() {
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
    let names = entries
        .unwrap()
        .map(|it| it.unwrap().file_name().into_string().unwrap());
    let all = MANIFESTS.into_iter().chain(["policy"]);
    let all: BTreeSet<String> = all.map(|it| format!("{it}.yaml")).collect();
    assert_eq!(names.collect::<BTreeSet<_>>(), all);
}

/// The agent's own parsers read the examples, and they lead to each other.
#[test]
fn the_examples_policy_decides_about_the_examples_pod() {
    let dir = TestDir::new();
    let directory = dir.subdir("manifests");
    for name in MANIFESTS.into_iter().filter(|it| *it != "pod") {
        fs::write(directory.join(format!("{name}.yaml")), manifest(name)).unwrap();
    }
    let told = decided(&dir, &manifest("policy"), &manifest("pod"));
    let expected = [
        "pod default/web: volume data: deferred: set in the pod",
        "pod default/web: volume scratch: deferred: storage class crust-local with runtime class crust",
    ];
    assert_eq!(told, expected);
}

#[test]
fn what_documents_show_of_manifests_and_policies_is_read() {
    let dir = TestDir::new();
    let text = document(DOCUMENT);
    let manifests = shown(&text).join("---\n");
    let policies = document("docs/defer-policy.md");
    let [policy] = shown(&policies)[..] else {
        panic!("{policies}");
    };
    let told = decided(&dir, policy, &manifests);
    assert_eq!(told.len(), 3, "{told:?}");
    for decision in &told {
        assert!(
            decision.ends_with(": deferred: set in the pod"),
            "{decision}"
        );
    }
    // Fields that nobody knows are read over, and these are known.
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
        let run = Run::of(
            Command::new(binary("crustlet"))
                .arg("admit")
                .arg(dir.join("pods.yaml")),
        );
        assert!(!run.status.success(), "{run}");
    }
}

/// Commands of a document's part, each with the lines that it shows.
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

/// What there is for the commands: the manifests, with the names that these tests have, and a `crustlet` that asks
/// the testbed's agent.
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

/// The lines of a command's output, as the document would have them.
fn lines_of(testbed: &Testbed, command: &str) -> Vec<String> {
    let dir = testbed.node.dir();
    let path = std::env::var("PATH").unwrap();
    let mut shell = Command::new("sh");
    shell
        .args(["-ec", command])
        .current_dir(dir.join("checkout"));
    shell.env("PATH", format!("{}:{path}", dir.join("bin").display()));
    let run = Run::within(&mut shell, PATIENCE);
    let run = run.unwrap_or_else(|| panic!("{command} doesn't end"));
    let root = testbed.crustlet.root().to_str().unwrap();
    let text = format!("{}{}", run.stdout, run.stderr).replace(root, "/var/lib/crustlet");
    let text = text
        .replace(DRIVER, "csi.crust.dev")
        .replace(APP_IMAGE, "busybox:1.36");
    text.lines().map(lasting).collect()
}

on_each_delegate! {
    fn the_quick_start_is_what_happens(delegate: Delegate) {
        let testbed = Testbed::new(delegate);
        prepare(&testbed);
        let text = document(DOCUMENT);
        let commands = transcript(&text, "\n## Quick start\n");
        assert!(commands.len() > 8, "{commands:?}");
        for (command, shown) in commands {
            let changes = ["crustlet run", "crustlet delete"].iter().any(|it| command.contains(it));
            let mut missing = Vec::new();
            let mut printed = Vec::new();
            let mut is_shown = || {
                printed = lines_of(&testbed, command);
                let is_there = |line: &&&str| {
                    let line = lasting(line);
                    printed.iter().any(|printed| says(&line, printed))
                };
                missing = shown.iter().filter(|line| !is_there(line)).copied().collect();
                missing.is_empty()
            };
            // What was asked for takes its time; what asks for it is done once.
            let is_there = if changes { is_shown() } else { holds_within(PATIENCE, is_shown) };
            assert!(is_there, "{command}: it doesn't say {missing:#?}\n{printed:#?}");
        }
        testbed.crustlet.wait_no_volumes();
    }
}
