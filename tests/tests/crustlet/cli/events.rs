//! `crustlet events`

use serde_json::Value;

use super::background::BackgroundCommand;
use super::{failure_message, scene};
use crate::scene::{microvm, pod_with};

#[test]
fn it_lists_events_of_one_object_or_of_all() {
    let scene = scene();
    let (one, two) = (microvm("one"), pod_with("two", "missing", false));
    scene.run(&one);
    scene.apply_pod(&two);
    scene.crustlet.wait_event("pod/two", "FailedMount");
    let lines = |arguments: &[&str]| {
        let text = scene
            .crustlet
            .cli(&[&["events"], arguments].concat())
            .success()
            .stdout;
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines
    };
    let of_one = lines(&["pod/one"]);
    let head = &of_one[0];
    assert_eq!(
        head.split_whitespace().collect::<Vec<_>>(),
        ["LAST", "SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"]
    );
    let reasons: Vec<&str> = of_one[1..]
        .iter()
        .filter_map(|it| it.split_whitespace().nth(2))
        .collect();
    assert_eq!(reasons, ["Pulled", "Created", "Started"]);
    assert!(
        of_one[1..].iter().all(|it| it.contains("   Pod/one   ")),
        "{of_one:?}"
    );
    assert_eq!(lines(&["pod/one", "--no-headers"]).len(), of_one.len() - 1);
    let all = lines(&[]);
    assert!(
        all.iter()
            .any(|it| it.contains("Warning   FailedMount   Pod/two   ")),
        "{all:?}"
    );
    let in_all = lines(&["-A"]);
    assert!(in_all[0].starts_with("NAMESPACE   LAST SEEN"), "{in_all:?}");
    assert_eq!(in_all.len(), all.len());
    let events = scene
        .crustlet
        .cli(&["events", "pod/two", "-o", "json"])
        .success()
        .stdout;
    let event: Value = serde_json::from_str(events.lines().next().unwrap()).unwrap();
    assert_eq!(event["involvedObject"]["uid"], two.uid());
    assert_eq!(event["reportingComponent"], "crustlet");
    let none = scene.crustlet.cli(&["events", "-n", "shop"]).success();
    assert_eq!(none.stderr, "No events found in shop namespace.\n");
    let unknown = failure_message(&scene, &["events", "node/a"]);
    assert!(
        unknown.starts_with("unknown resource type \"node\"; hint: "),
        "{unknown}"
    );
}

#[test]
fn watch_prints_new_events_until_the_agent_ends() {
    let scene = scene();
    let (one, two) = (microvm("one"), microvm("two"));
    scene.run(&one);
    let mut watching = BackgroundCommand::start(&scene, &["events", "-w"]);
    watching.wait_for("Started container app");
    scene.run(&two);
    watching.wait_for("Pod/two   Started container app");
    let so_far = watching.text();
    assert_eq!(
        so_far.matches("Pod/one   Started").count(),
        1,
        "each event once: {so_far}"
    );
    assert!(watching.is_running());
    assert!(scene.crustlet.stop().success());
    assert_eq!(watching.wait().code(), Some(1));
    let last = watching.text();
    // The error is about the end of the stream of events or of the connection.
    let error = last.lines().next_back().unwrap_or_default();
    assert!(
        error.starts_with("crustlet: ") && error.contains("the agent "),
        "{last}"
    );
    scene.crustlet.spawn(scene.crustlet.command(&[]));
}
