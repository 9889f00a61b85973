//! Callers that are root only in their own user namespace.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use runcrust_tests::{Bundle, Node, Run, binary, on_each_delegate};
use serde_json::json;

const USER: u32 = 1000;

/// Returns a bundle that such a caller can run, without anything that needs privileges.
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

fn chown_recursively(path: &Path) {
    chown(path, Some(USER), Some(USER)).unwrap();
    if path.is_dir() && !path.is_symlink() {
        for entry in fs::read_dir(path).unwrap() {
            let entry = entry.unwrap().path();
            if !entry.is_symlink() {
                chown_recursively(&entry);
            }
        }
    }
}

/// Runs the bundle's container as an ordinary user, in a user namespace.
fn run(node: &Node, program: &Path) -> Run {
    let (bundle, root) = (bundle(node), node.dir().subdir("rootless"));
    chown_recursively(bundle.path());
    chown_recursively(&root);
    let mut command = Command::new("setpriv");
    let user = USER.to_string();
    command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]);
    command.args(["unshare", "--user", "--map-root-user", "--mount"]);
    command.arg(program).arg("--root").arg(root);
    Run::capture(
        command
            .args(["run", "--bundle"])
            .arg(bundle.path())
            .arg(bundle.id()),
    )
}

on_each_delegate! {
    fn a_rootless_container_runs_with_and_without_entries(delegate: Delegate) {
        let node = Node::new(delegate);
        // The user may be unable to read the build directory.
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
