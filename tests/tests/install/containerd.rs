//! Runs containerd with a configuration that `runcrust install` has edited.

use std::fs;
use std::path::Path;
use std::process::Command;

use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::{
    Containerd, ContainerdConfig, Delegate, MountWatcher, Node, POD, Run, Runtime, StagedVolume,
    on_each_delegate,
};

use crate::scene::run;

/// Runs `runcrust install|uninstall containerd` as the node's handler, for a file.
fn call(node: &Node, verb: &str, file: &Path) -> Run {
    run(
        node.handler().path(),
        &[verb, "containerd", "--config", utf8(file)],
    )
}

/// Returns the lines of containerd's effective configuration, without the list of its files.
fn dump(file: &Path) -> Vec<String> {
    let mut containerd = Command::new("containerd");
    let run = Run::capture(
        containerd
            .arg("--config")
            .arg(file)
            .args(["config", "dump"]),
    )
    .success();
    let lines = run
        .stdout
        .lines()
        .filter(|line| !line.starts_with("imports = "));
    lines.map(str::to_owned).collect()
}

/// Removes the lines with a zero value: for a runtime of containerd they mean the same as a missing line.
fn without_zeros(dump: Vec<String>) -> Vec<String> {
    let zeros = [" = \"\"", " = 0", " = false", " = []"];
    let is_set = |line: &String| !zeros.iter().any(|zero| line.ends_with(zero));
    dump.into_iter().filter(is_set).collect()
}

/// Asserts that all lines of `before` are in `after`, in their order, and returns the other lines.
#[track_caller]
fn added_lines(before: &[String], after: &[String]) -> Vec<String> {
    let mut rest = before.iter().peekable();
    let new = after.iter().filter(|line| rest.next_if_eq(line).is_none());
    let new = new.cloned().collect();
    assert_eq!(rest.next(), None, "a line of the operator's is missing");
    new
}

/// Returns the lines of one runtime in a dump.
fn runtime(dump: &[String], name: &str) -> Vec<String> {
    let header = format!("containerd.runtimes.{name}");
    let starts = |line: &&String| line.trim_start().starts_with('[');
    let mut lines = Vec::new();
    let mut inside = false;
    for line in dump {
        if starts(&line) {
            let section = line.trim_end().trim_end_matches(']');
            inside = section.ends_with(&header) || section.contains(&format!("{header}."));
        }
        if inside {
            lines.push(line.trim().to_owned());
        }
    }
    lines
}

on_each_delegate! {
    fn a_pod_runs_between_install_and_uninstall(delegate: Delegate) {
        let volume = StagedVolume::on(Node::root_only(delegate, ""), &[]);
        let mut configured = ContainerdConfig::new(volume.dir(), &[("runc", &Runtime::bare(delegate))]);
        let file = configured.file();
        let before = fs::read_to_string(&file).unwrap();
        let dumped = dump(&file);

        let installed = call(&volume, "install", &file).success();
        assert!(installed.stdout.contains("+BinaryName = "), "{installed}");
        assert!(installed.stdout.contains("systemctl restart containerd.service"), "{installed}");
        assert!(installed.stdout.contains("RuntimeClass handler: crust"), "{installed}");
        let new = added_lines(&dumped, &dump(&file));
        let crust = runtime(&dump(&file), "crust");
        assert!(new.iter().all(|line| line.trim().is_empty() || crust.contains(&line.trim().to_owned())), "{new:?}");
        let program = utf8(volume.handler().path());
        let names_program = |line: &String| line.starts_with("BinaryName = ") && line.contains(program);
        assert!(crust.iter().any(names_program), "{crust:?}");

        configured.added("crust", &volume.handler().runtime());
        let containerd = Containerd::start_from(configured);
        let cri = containerd.cri();
        let watcher = MountWatcher::start(volume.device.path());
        let pod = cri.run_pod(&containerd.pod(POD), "crust").unwrap();
        let app = containerd.app("app").mount(utf8(&volume.target), "/data");
        let app = cri.run(&pod, &app, &containerd.pod(POD)).unwrap();
        let _ = cri.sh(&app, "echo hello > /data/file");
        assert_eq!(fs::read_dir(&volume.target).unwrap().count(), 0, "files are left on the host");

        let text = fs::read_to_string(&file).unwrap();
        let refused = call(&volume, "uninstall", &file).failure();
        refused.assert_contains(&["pv-1", POD, &app, "hint: "]);
        assert_eq!(fs::read_to_string(&file).unwrap(), text, "the refused uninstall changed the file");

        cri.stop_pod(&pod).unwrap();
        cri.remove_pod(&pod).unwrap();
        watcher.assert_never_mounted();
        volume.device.wait_until_free(WAIT_TIMEOUT);
        let _ = volume.unstage().success();
        let _ = call(&volume, "uninstall", &file).success();
        assert_eq!(fs::read_to_string(&file).unwrap(), before);
        assert_eq!(dump(&file), dumped);
    }

    /// containerd 1.x takes a plugin's whole section from the last file that has one.
    fn the_handler_goes_into_the_import_that_sets_the_plugin(delegate: Delegate) {
        let volume = StagedVolume::on(Node::root_only(delegate, ""), &[]);
        let mut configured = ContainerdConfig::new(volume.dir(), &[("runc", &Runtime::bare(delegate))]);
        let file = configured.file();
        let text = fs::read_to_string(&file).unwrap();
        let section = text.find("[plugins.\"io.containerd.grpc.v1.cri\"]").unwrap();
        let drop_ins = volume.dir().subdir("conf.d");
        let imports = format!("imports = [{:?}]\n", drop_ins.join("*.toml"));
        fs::write(&file, format!("{imports}{}", &text[..section])).unwrap();
        let cri_file = drop_ins.join("50-cri.toml");
        fs::write(&cri_file, format!("version = 2\n{}", &text[section..])).unwrap();
        fs::write(drop_ins.join("60-other.toml"), "version = 2\noom_score = -999\n").unwrap();
        let before = dump(&file);

        let installed = call(&volume, "install", &file).success();
        assert!(installed.stdout.contains(utf8(&cri_file)), "{installed}");
        let new = added_lines(&before, &dump(&file));
        assert!(new.iter().any(|line| line.contains("runtimes.crust")), "{new:?}");

        configured.added("crust", &volume.handler().runtime());
        let containerd = Containerd::start_from(configured);
        let cri = containerd.cri();
        let pod = cri.run_pod(&containerd.pod(POD), "crust").unwrap();
        let app = containerd.app("app").mount(utf8(&volume.target), "/data");
        let app = cri.run(&pod, &app, &containerd.pod(POD)).unwrap();
        let _ = cri.sh(&app, "echo hello > /data/file");
        assert_eq!(fs::read_dir(&volume.target).unwrap().count(), 0, "files are left on the host");
        cri.stop_pod(&pod).unwrap();
        cri.remove_pod(&pod).unwrap();
        let _ = call(&volume, "uninstall", &file).success();
        assert_eq!(dump(&file), before);
    }
}

/// The CRI plugin does not start if `default_runtime_name` is not a runtime.
#[test]
fn containerds_default_stays_while_a_handler_needs_it() {
    let node = Node::root_only(Delegate::Runc, "");
    let mut configured =
        ContainerdConfig::new(node.dir(), &[("runc", &Runtime::bare(Delegate::Runc))]);
    let file = configured.file();
    let text = fs::read_to_string(&file).unwrap();
    let runtimes = text.find("\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes");
    let before = text[..runtimes.unwrap()].to_owned();
    fs::write(&file, &before).unwrap();
    let uninstall = |name| {
        let words = [
            "uninstall",
            "containerd",
            "--config",
            utf8(&file),
            "--handler",
            name,
        ];
        run(node.handler().path(), &words)
    };
    for name in ["crust", "crust-crun"] {
        let words = [
            "install",
            "containerd",
            "--config",
            utf8(&file),
            "--handler",
            name,
        ];
        let _ = run(node.handler().path(), &words).success();
    }
    let named = before.replace(
        "default_runtime_name = \"runc\"",
        "default_runtime_name = \"crust\"",
    );
    let both = fs::read_to_string(&file).unwrap();
    fs::write(&file, both.replace(&before, &named)).unwrap();
    let refused = uninstall("crust").failure();
    assert!(
        refused
            .stderr
            .contains("handler crust is the default runtime"),
        "{refused}"
    );
    fs::write(&file, both).unwrap();

    let _ = uninstall("crust").success();
    assert!(runtime(&dump(&file), "crust").is_empty());
    configured.added("crust-crun", &node.handler().runtime());
    let containerd = Containerd::start_from(configured);
    let cri = containerd.cri();
    let pod = cri.run_pod(&containerd.pod(POD), "crust-crun").unwrap();
    cri.stop_pod(&pod).unwrap();
    cri.remove_pod(&pod).unwrap();
    drop(containerd);
    let _ = uninstall("crust-crun").success();
    assert_eq!(fs::read_to_string(&file).unwrap(), before);
}

/// containerd 1.x resolves a relative pattern from its working directory, and expands `*` in every component of a path.
#[test]
fn imports_are_resolved_like_containerds() {
    for (pattern, directory) in [("conf.d/*.toml", "conf.d"), ("/[ab].d/*.toml", "a.d")] {
        let node = Node::root_only(Delegate::Runc, "");
        let file = node.dir().join("config.toml");
        let pattern = match pattern.strip_prefix('/') {
            Some(below) => format!("{}/{below}", node.dir().path().display()),
            None => pattern.to_owned(),
        };
        fs::write(&file, format!("version = 2\nimports = [{pattern:?}]\n")).unwrap();
        let section = "[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.other]\n\
                       runtime_type = \"io.containerd.runc.v2\"\n";
        let drop_in = node.dir().subdir(directory).join("1.toml");
        fs::write(drop_in, format!("version = 2\n{section}")).unwrap();
        let before = dump(&file);
        let _ = call(&node, "install", &file).success();
        let after = dump(&file);
        assert!(!runtime(&after, "crust").is_empty(), "{pattern}: {after:?}");
        let (expected, found) = (runtime(&before, "other"), runtime(&after, "other"));
        assert_eq!(found, expected, "{pattern}");
        let _ = call(&node, "uninstall", &file).success();
        assert_eq!(dump(&file), before);
    }
}

/// containerd fails on each of these configurations.
#[test]
fn imports_that_containerd_fails_on_are_refused_or_noted() {
    let node = Node::root_only(Delegate::Runc, "");
    let file = node.dir().join("config.toml");
    let (directory, missing) = (node.dir().subdir("conf.d"), node.dir().join("missing.toml"));
    let _ = node.dir().subdir("conf.d/certs.d");
    let write = |imports: &str| {
        fs::write(&file, format!("version = 2\nimports = {imports}\n")).unwrap();
        let mut containerd = Command::new("containerd");
        let dump = containerd.arg("--config").arg(&file);
        let _ = Run::capture(dump.args(["config", "dump"])).failure();
    };
    for (imports, words) in [
        ("\"x\"".to_owned(), "imports isn't a list of strings"),
        (
            format!("[{:?}]", directory.join("*")),
            "conf.d/certs.d isn't a file",
        ),
    ] {
        write(&imports);
        let refused = call(&node, "install", &file).failure();
        assert!(refused.stderr.contains(words), "{refused}");
    }
    write(&format!("[{missing:?}]"));
    for verb in ["install", "uninstall"] {
        let run = call(&node, verb, &file).success();
        let sentence = format!("note: {} is imported but doesn't exist", utf8(&missing));
        assert!(run.stdout.contains(&sentence), "{run}");
    }
}

/// If runcrust set the default runtime, containerd 1.x would have no other runtime, and no CRI.
#[test]
fn a_drop_in_keeps_containerds_default_runtime() {
    let node = Node::root_only(Delegate::Runc, "");
    let drop_ins = node.dir().subdir("conf.d");
    let file = node.dir().join("config.toml");
    let imports = format!("version = 2\nimports = [{:?}]\n", drop_ins.join("*.toml"));
    fs::write(&file, &imports).unwrap();
    let before = without_zeros(dump(&file));
    let _ = call(&node, "install", &file).success();
    let drop_in = drop_ins.join("runcrust.toml");
    assert!(drop_in.exists());
    assert_eq!(fs::read_to_string(&file).unwrap(), imports);
    let after = without_zeros(dump(&file));
    assert_eq!(
        runtime(&after, "runc"),
        runtime(&before, "runc"),
        "{after:?}"
    );
    assert!(!runtime(&after, "crust").is_empty());
    let second = call(&node, "install", &file).success();
    assert!(second.stdout.contains("nothing to change"), "{second}");
    let _ = call(&node, "uninstall", &file).success();
    assert!(!drop_in.exists());
    assert_eq!(without_zeros(dump(&file)), before);
}

#[test]
fn a_missing_containerd_configuration_is_created() {
    let node = Node::root_only(Delegate::Runc, "");
    let file = node.dir().join("etc/containerd/config.toml");
    let empty = node.dir().join("empty.toml");
    fs::write(&empty, "version = 2\n").unwrap();
    let _ = call(&node, "install", &file).success();
    let new = added_lines(&without_zeros(dump(&empty)), &without_zeros(dump(&file)));
    assert!(
        new.iter().any(|line| line.contains("runtimes.crust")),
        "{new:?}"
    );
    let _ = call(&node, "uninstall", &file).success();
    assert!(!file.exists());
}
