//! What the real delegates answer, with and without runcrust before them.

use std::fs;
use std::path::Path;
use std::process::ExitStatus;

use runcrust_tests::{Bundle, Node, Run, Runtime, on_each_delegate};

/// The status, both outputs and the log of a command; numbers, and with them times, masked.
fn answer(runtime: &Runtime, root: &Path, words: &[&str]) -> (ExitStatus, [String; 3]) {
    let log = root.join("log");
    let _ = fs::remove_file(&log);
    let mut command = runtime.command();
    command
        .arg("--root")
        .arg(root.join("rt"))
        .arg("--log")
        .arg(&log);
    let run = Run::of(command.args(words).current_dir(root));
    let log = fs::read_to_string(&log).unwrap_or_default();
    (
        run.status,
        [run.stdout, run.stderr, log].map(|text| without_numbers(&text)),
    )
}

fn without_numbers(text: &str) -> String {
    let mut masked = String::with_capacity(text.len());
    for letter in text.chars() {
        if !letter.is_ascii_digit() {
            masked.push(letter);
        } else if !masked.ends_with('#') {
            masked.push('#');
        }
    }
    masked
}

on_each_delegate! {
    fn what_it_says_of_itself_is_the_delegates(delegate: Delegate) {
        let node = Node::new(delegate);
        let bare = Runtime::bare(delegate);
        for words in [vec!["--version"], vec!["features"], vec!["--help"], vec![], vec!["create"]] {
            let run = |runtime: &Runtime| {
                let run = Run::of(runtime.command().args(&words).current_dir("/"));
                (run.status, run.stdout, run.stderr)
            };
            let (theirs, ours) = (run(&bare), run(&node.handler().runtime()));
            if words == ["--version"] {
                assert!(ours.1.starts_with(&format!("{delegate} version ")), "{ours:?}");
            }
            assert_eq!(theirs, ours, "{words:?}");
        }
    }

    fn its_failures_are_unchanged(delegate: Delegate) {
        let node = Node::new(delegate);
        let root = node.dir().subdir("work");
        let plain = Bundle::plain(node.dir()).args(["/no/such/program"]).write();
        let plain = plain.path().to_str().unwrap();
        let no_config = Bundle::plain(node.dir()).write();
        fs::remove_file(no_config.config_path()).unwrap();
        let no_config = no_config.path().to_str().unwrap();
        for words in [
            vec!["state", "nobody"],
            vec!["start", "nobody"],
            vec!["kill", "nobody", "9"],
            vec!["delete", "nobody"],
            vec!["delete", "--force", "nobody"],
            vec!["ps", "nobody"],
            vec!["exec", "nobody", "true"],
            vec!["pause", "nobody"],
            vec!["update", "--resources=/no/such/file", "nobody"],
            vec!["no-such-command"],
            vec!["state"],
            vec!["state", "--no-such-flag", "nobody"],
            vec!["create", "--bundle", "/no/such/bundle", "c"],
            vec!["create", "--bundle", no_config, "c"],
            vec!["create", "--bundle", plain, "c"],
            vec!["run", "--bundle", plain, "c"],
        ] {
            let theirs = answer(&Runtime::bare(delegate), &root, &words);
            let ours = answer(&node.handler().runtime(), &root, &words);
            assert_eq!(theirs, ours, "{words:?}");
        }
    }

    fn a_container_called_create_lives_and_dies_as_any(delegate: Delegate) {
        let node = Node::new(delegate);
        let device = node.ext4();
        let target = node.stage("pod-a", "pv-1", &device, &[]);
        let sandbox = node.sandbox("pod-a");
        let bundle = node.app_bundle(&sandbox).bind(&target, "/data", &[]).with_id("create");
        let app = node.run(&bundle.write());
        assert_eq!(app.status().as_deref(), Some("running"));
        assert_eq!(app.sh("echo hello > /data/file; cat /data/file"), "hello");
        app.stop();
        let _ = app.delete().success();
        assert_eq!(app.state(), None);
        assert_eq!(app.last_log_error(), None);
        let _ = app.delete_force();
    }

    fn a_life_without_volumes_leaves_no_trace_of_runcrust(delegate: Delegate) {
        let node = Node::new(delegate);
        let data = node.dir().subdir("data");
        let bundle = Bundle::plain(node.dir()).bind(&data, "/data", &[]).write();
        let container = node.run(&bundle);
        let _ = container.sh("echo hello > /data/file");
        container.stop();
        let _ = container.delete().success();
        let _ = container.delete_force().success();
        assert_eq!(container.log_lines(), []);
        for path in [node.handler().crust_root(), node.handler().state_dir()] {
            assert!(!path.exists(), "{} was made", path.display());
        }
    }
}
