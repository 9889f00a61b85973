//! Callers that are root only in a user namespace of their own.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use runcrust_tests::{Bundle, Node, Run, binary, on_each_delegate};
use serde_json::json;

const USER: u32 = 1000;

/// A bundle that such a caller can run: its own, without what takes privileges.
fn bundle(node: &Node) -> Bundle {
    let mut bundle = Bundle::plain(node.dir()).args(["/bin/echo", "hello"]);
    let spec = bundle.spec_mut();
    spec["mounts"]
        .as_array_mut()
        .unwrap()
        .retain(|mount| mount["type"] == "proc");
    let linux = spec["linux"].as_object_mut().unwrap();
    linux.remove("cgroupsPath");
    linux.remove("resources");
    let own = json!([{"containerID": 0, "hostID": 0, "size": 1}]);
    linux.insert("uidMappings".into(), own.clone());
    linux.insert("gidMappings".into(), own);
    let namespaces = linux["namespaces"].as_array_mut().unwrap();
    namespaces.retain(|namespace| namespace["type"] != "network");
    namespaces.push(json!({"type": "user"}));
    bundle.write()
}

fn give_away(path: &Path) {
    chown(path, Some(USER), Some(USER)).unwrap();
    if path.is_dir() && !path.is_symlink() {
        for entry in fs::read_dir(path).unwrap() {
            let entry = entry.unwrap().path();
            if !entry.is_symlink() {
                give_away(&entry);
            }
        }
    }
}

/// Runs the bundle's container as that user, in a user namespace.
fn run(node: &Node, program: &Path) -> Run {
    let (bundle, root) = (bundle(node), node.dir().subdir("rootless"));
    give_away(bundle.path());
    give_away(&root);
    let mut command = Command::new("setpriv");
    let user = USER.to_string();
    command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]);
    command.args(["unshare", "--user", "--map-root-user", "--mount"]);
    command.arg(program).arg("--root").arg(root);
    Run::of(
        command
            .args(["run", "--bundle"])
            .arg(bundle.path())
            .arg(bundle.id()),
    )
}

on_each_delegate! {
    fn a_rootless_container_runs_whatever_root_has_staged(delegate: Delegate) {
        let node = Node::new(delegate);
        // The user may not see where the programs were built.
        let own = node.dir().subdir("bin").join(node.handler().name());
        fs::copy(binary("runcrust"), &own).unwrap();
        let configuration = node.handler().configuration();
        fs::set_permissions(&configuration, fs::Permissions::from_mode(0o644)).unwrap();
        let bare = run(&node, delegate.program().as_ref()).success();
        assert_eq!(bare.stdout, "hello\n");
        let device = node.ext4();
        for staged in [false, true] {
            if staged {
                let _ = node.stage("pod-a", "pv-1", &device, &[]);
            }
            let run = run(&node, &own).success();
            assert_eq!((run.stdout, run.stderr), (bare.stdout.clone(), bare.stderr.clone()));
        }
    }
}
