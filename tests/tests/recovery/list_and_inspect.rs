//! `list` and `inspect` show volumes in each state.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;

use nix::fcntl::{Flock, FlockArg};
use runcrust_tests::container::end;
use runcrust_tests::gc::snapshots;
use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::{Delegate, LoopDevice, Node, POD, on_each_delegate, process};
use serde_json::{Value, json};

use crate::{OTHER_POD, answer, inspected};

fn list(node: &Node) -> Vec<Value> {
    let mut answer = answer(node, &["list", "--json"]);
    match answer["volumes"].take() {
        Value::Array(volumes) => volumes,
        other => panic!("{other}"),
    }
}

fn states(node: &Node) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().expect("a string").to_owned();
    let volumes = list(node).into_iter();
    volumes
        .map(|it| (text(&it["target_path"]), text(&it["state"])))
        .collect()
}

/// Asserts that `inspect` fails, and returns the code and message of the error.
#[track_caller]
fn expect_refusal(node: &Node, volume: &str) -> (String, String) {
    let run = node.handler().crust(&["inspect", volume]).failure();
    assert_eq!(run.stdout, "", "{run}");
    let answer: Value =
        serde_json::from_str(&run.stderr).unwrap_or_else(|error| panic!("{error}: {run}"));
    let text = |key: &str| answer["error"][key].as_str().expect("a string").to_owned();
    (text("code"), text("message"))
}

fn digest(node: &Node, target: &Path) -> String {
    utf8(&node.entry(target))
        .rsplit('/')
        .next()
        .unwrap()
        .to_owned()
}

on_each_delegate! {
    fn a_volume_in_use_shows_its_users_and_mounts(delegate: Delegate) {
        let node = Node::new(delegate);
        let (device, other) = (node.ext4(), node.ext4());
        let target = node.stage(POD, "pv-1", &device, &["--access-mode", "SINGLE_NODE_SINGLE_WRITER"]);
        let staged = node.stage(OTHER_POD, "pv-2", &other, &[]);
        let sandbox = node.sandbox(POD);
        let app = node.app(&sandbox, &target.join("sub"), "/data");
        let state = |it: &str| it.to_owned();
        let expected = [(utf8(&target).to_owned(), state("in use")), (utf8(&staged).to_owned(), state("staged"))];
        assert_eq!(states(&node), expected);
        let lock = File::options().write(true).open(node.lock_file(&target)).unwrap();
        let lock = Flock::lock(lock, FlockArg::LockExclusive).expect("the volume's lock");
        let before = snapshots(&node);
        let volume = &list(&node)[0];
        for (key, expected) in [
            ("volume", json!("pv-1")),
            ("pod_uid", json!(POD)),
            ("digest", json!(digest(&node, &target))),
            ("layout", json!("crust")),
            ("device", json!(device.path())),
            ("device_number", json!(device.number())),
            ("fstype", json!("ext4")),
        ] {
            assert_eq!(volume[key], expected, "{key} of {volume}");
        }
        let ids = |users: &Value| -> Vec<(String, String)> {
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            let users = users.as_array().unwrap().iter();
            users.map(|user| (text(&user["kind"]), text(&user["id"]))).collect()
        };
        let users = [(state("sandbox"), sandbox.id().to_owned()), (state("container"), app.id().to_owned())];
        assert_eq!(ids(&volume["users"]), users);

        let volume = inspected(&node, &target);
        assert_eq!(ids(&volume["users"]), users);
        let [box_, container] = [&volume["users"][0], &volume["users"][1]];
        assert_eq!(box_["mounted_at"], json!([format!("/.crust/{}", digest(&node, &target))]), "{volume}");
        assert_eq!(box_["pid"], json!(sandbox.pid()));
        assert_eq!(container["life"], "lives");
        assert_eq!(container["mounted_at"], json!(["/data"]), "{volume}");
        assert_eq!(container["mounts"], json!([{"destination": "/data", "source": target.join("sub")}]));
        assert_eq!(volume["mount_info"]["metadata"]["accessMode"], "SINGLE_NODE_SINGLE_WRITER");
        assert_eq!(volume["record"]["exclusive"], true);
        assert_eq!(volume["runtime_cli"], json!(node.handler().path()));
        let owner = json!({"device_number": device.number(), "volume": "pv-1", "target_path": target});
        assert_eq!(volume["block_device"]["owners"], json!([owner]));
        assert_eq!(volume["block_device"]["size"], json!(fs::metadata(device.file()).unwrap().len()));
        let obstacles = volume["unstage_obstacles"].as_array().unwrap();
        let [held, used @ ..] = &obstacles[..] else { panic!("{volume}") };
        assert!(held.as_str().unwrap().contains("lock is held by process"), "{held}");
        for (obstacle, user) in used.iter().zip([&sandbox, &app]) {
            assert!(obstacle.as_str().unwrap().contains(user.id()), "{obstacle}");
        }
        for (now, before) in snapshots(&node).iter().zip(&before) {
            now.assert_is(before);
        }
        drop(lock);

        process::kill_and_wait(sandbox.pid());
        let volume = inspected(&node, &target);
        assert_eq!(volume["users"][0]["life"], "ended");
        assert_eq!(volume["users"][0]["why"], format!("process {} has ended", sandbox.pid()));
        assert_eq!(volume["state"], "in use", "the app still runs");
        let human = node.handler().crust(&["inspect", utf8(&target)]).success().stdout;
        for words in [utf8(&target), "in use", app.id(), "at /data from", "would fail, or wait"] {
            assert!(human.contains(words), "{words} is missing in {human}");
        }
        end([app, sandbox]);
        device.wait_until_free(WAIT_TIMEOUT);
        assert_eq!(inspected(&node, &target)["unstage_obstacles"], json!([]));
        node.unstage_all(&[&target, &staged]);
    }
}

#[test]
fn broken_and_uncertain_volumes_are_listed_with_a_reason() {
    let (node, device) = Node::with_ext4(Delegate::Runc);
    let [valid, uncertain, damaged] =
        ["pv-1", "pv-2", "pv-3"].map(|name| node.stage(POD, name, &device, &[]));
    fs::write(node.entry(&uncertain).join("runcrust.json"), "{").unwrap();
    fs::write(node.entry(&damaged).join("mountInfo.json"), "{").unwrap();
    let volumes = list(&node);
    let states: Vec<&Value> = volumes.iter().map(|it| &it["state"]).collect();
    assert_eq!(states, ["staged", "uncertain", "broken"]);
    assert_eq!(volumes[0]["target_path"], json!(valid));
    for (volume, words) in [
        (&volumes[1], "runcrust.json: EOF"),
        (&volumes[2], "mountInfo.json: isn't JSON"),
    ] {
        let why = volume["why"].as_str().unwrap();
        assert!(why.contains(words), "{why}");
    }
    assert_eq!(volumes[2]["digest"], json!(digest(&node, &damaged)));
    let table = node.handler().crust(&["list"]).success().stdout;
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 4, "{table}");
    let words: Vec<&str> = lines[0].split_whitespace().collect();
    assert_eq!(
        words,
        ["VOLUME", "POD", "DEVICE", "FSTYPE", "STATE", "USERS"]
    );
    let column = lines[0].find("STATE").unwrap();
    for (line, state) in lines[1..].iter().zip(["staged", "uncertain", "broken"]) {
        assert!(line[column..].starts_with(state), "{table}");
    }
    let broken = inspected(&node, &damaged);
    assert_eq!(
        (&broken["state"], &broken["mount_info"]),
        (&json!("broken"), &Value::Null)
    );
    let uncertain = inspected(&node, &uncertain);
    assert!(
        uncertain["record_error"].as_str().unwrap().contains("EOF"),
        "{uncertain}"
    );
    fs::remove_file(node.entry(&valid).join("mountInfo.json")).unwrap();
    assert_eq!(inspected(&node, &valid)["state"], "broken");
}

#[test]
fn a_volume_is_found_by_path_digest_and_device() {
    let node = Node::new(Delegate::Runc);
    symlink(node.dir().subdir("real"), node.handler().kubelet_dir()).unwrap();
    let (device, other) = (node.ext4(), node.ext4());
    let target = node.stage(POD, "pv-1", &device, &["--fs-group", "7"]);
    let beside = node.stage(POD, "pv-2", &other, &[]);
    let _ = node.resize(&target, 1 << 20, 0).success();
    let resolved = target.canonicalize().unwrap();
    let link = node.dir().join("by-id");
    symlink(device.path(), &link).unwrap();
    let second_device = LoopDevice::on(device.file());
    let (given, real) = (digest(&node, &target), digest(&node, &resolved));
    for name in [
        utf8(&target),
        &format!("{}/", target.display()),
        utf8(&resolved),
        &given,
        &given[..12],
        &real,
        &real[..12],
        utf8(device.path()),
        utf8(&link),
        device.number(),
        utf8(second_device.path()),
        second_device.number(),
    ] {
        let volume = answer(&node, &["inspect", name, "--json"]);
        assert_eq!(volume["target_path"], json!(target), "{name}");
        assert_eq!(volume["resolved_path"], json!(resolved));
        assert_eq!(
            (&volume["digest"], &volume["resolved_digest"]),
            (&json!(given), &json!(real))
        );
        assert_eq!(
            volume["entries"],
            json!([node.entry(&target), node.entry(&resolved)])
        );
        assert_eq!(
            volume["pending_resize"],
            json!({"min_bytes": 1 << 20, "max_bytes": 0})
        );
    }
    let second = node.stage(OTHER_POD, "pv-1", &device, &[]);
    let (code, message) = expect_refusal(&node, utf8(device.path()));
    assert_eq!(code, "INVALID_ARGUMENT", "{message}");
    assert!(
        message.contains(utf8(&target)) && message.contains(utf8(&second)),
        "{message}"
    );
    fs::remove_file(node.entry(&second).join("mountInfo.json")).unwrap();
    assert_eq!(
        inspected(&node, device.path())["target_path"],
        json!(target)
    );
    let path = other.path().to_owned();
    drop(other);
    assert_eq!(
        inspected(&node, &path)["target_path"],
        json!(beside),
        "a detached device"
    );
}

#[test]
fn an_unknown_volume_is_not_found_and_nothing_is_created() {
    let (node, device) = Node::with_ext4(Delegate::Runc);
    assert_eq!(list(&node), <[Value; 0]>::default());
    let table = node.handler().crust(&["list"]).success().stdout;
    assert_eq!(table.lines().count(), 1, "{table}");
    let target = node.target(POD, "pv-1");
    for (name, expected) in [
        (utf8(&target), "NOT_FOUND"),
        ("/no/such/path", "NOT_FOUND"),
        (&digest(&node, &target), "NOT_FOUND"),
        (&digest(&node, &target)[..12], "NOT_FOUND"),
        (utf8(device.path()), "NOT_FOUND"),
        (device.number(), "NOT_FOUND"),
        ("pv-1", "INVALID_ARGUMENT"),
        ("abc", "INVALID_ARGUMENT"),
        ("/a/../b", "INVALID_ARGUMENT"),
        ("", "INVALID_ARGUMENT"),
    ] {
        let (code, message) = expect_refusal(&node, name);
        assert_eq!(code, expected, "{message}");
        assert!(
            message.contains(name) && message.contains("; hint: "),
            "{message}"
        );
    }
    assert!(!node.handler().crust_root().exists() && !node.handler().state_dir().exists());
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let node = Node::new(Delegate::Runc);
    for verb in ["list", "gc", "doctor"] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut command = node.handler().command();
        let output = command.args(["crust", verb]).stdout(full).output().unwrap();
        assert!(!output.status.success(), "{verb}");
        let answer: Value = serde_json::from_slice(&output.stderr).unwrap();
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains("stdout: No space left"), "{message}");
    }
}
