//! The systemd units that `make install` installs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crust_proto::runtime::v1alpha1::RuntimePublishVolumeRequest;
use runcrust_tests::container::end;
use runcrust_tests::node::utf8;
use runcrust_tests::{Delegate, LoopDevice, Node, Ops, POD, Run, TestDir, binary};

/// Installs the units below a prefix in `dir`, and returns the prefix.
fn install(dir: &TestDir) -> PathBuf {
    let prefix = dir.join("prefix");
    fs::create_dir_all(prefix.join("bin")).unwrap();
    symlink(binary("crust_ops"), prefix.join("bin/crust_ops")).unwrap();
    let mut make = Command::new("make");
    make.arg("--directory")
        .arg(Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").unwrap()).join(".."))
        .args(["install-units", "DESTDIR="])
        .arg(format!("PREFIX={}", prefix.display()))
        .env_remove("MAKEFLAGS");
    let _ = Run::capture(&mut make).success();
    prefix
}

fn units(prefix: &Path) -> PathBuf {
    prefix.join("lib/systemd/system")
}

/// Returns the values of a key in a unit file.
fn values(unit: &Path, key: &str) -> Vec<String> {
    let text = fs::read_to_string(unit).unwrap().replace("\\\n", " ");
    let lines = text
        .lines()
        .filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    lines.map(str::to_owned).collect()
}

#[test]
fn systemd_accepts_the_units() {
    let dir = TestDir::new();
    let prefix = install(&dir);
    let mut names: Vec<String> = fs::read_dir(units(&prefix))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(
        names,
        ["crust.socket", "crust_ops.service", "crust_ops.socket"]
    );
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no"]);
    verify.args(names.iter().map(|name| units(&prefix).join(name)));
    let run = Run::capture(&mut verify).success();
    assert_eq!((&*run.stdout, &*run.stderr), ("", ""), "{run}");
    let service = units(&prefix).join("crust_ops.service");
    let program = format!("{}/bin/crust_ops", prefix.display());
    assert_eq!(values(&service, "ExecStart"), [program]);
}

/// The paths are the defaults of the daemon itself.
#[test]
fn the_units_have_the_default_sockets() {
    let dir = TestDir::new();
    let prefix = install(&dir);
    let documented = include_str!("../../../docs/crust_ops.md");
    for (name, key) in [("crust_ops", "listen"), ("crust", "crust_listen")] {
        let unit = units(&prefix).join(format!("{name}.socket"));
        let [path] = &values(&unit, "ListenStream")[..] else {
            panic!("{name}.socket has one ListenStream=")
        };
        let row = format!("| `{key}` | `\"{path}\"` |");
        assert!(documented.contains(&row), "{row}");
        assert_eq!(values(&unit, "FileDescriptorName"), [name]);
    }
}

/// The daemon starts the runtime, which mounts, so the test has to publish a volume.
#[test]
fn the_capabilities_in_the_unit_suffice() {
    let node = Node::trusted(Delegate::Crun, "sandbox = \"always\"");
    let unit = units(&install(node.dir())).join("crust_ops.service");
    let remaining = values(&unit, "CapabilityBoundingSet").concat();
    let remaining = remaining.to_lowercase().replace("cap_", "");
    let remaining: Vec<&str> = remaining.split_whitespace().collect();
    assert!(remaining.contains(&"sys_admin"), "{remaining:?}");
    let all = Run::capture(Command::new("setpriv").arg("--list-caps")).success();
    let others = all.stdout.lines().filter(|name| !remaining.contains(name));
    let dropped: Vec<String> = others.map(|name| format!("-{name}")).collect();
    let ops = Ops::stopped(&node, "");
    let command = ops.command();
    let mut limited = Command::new("setpriv");
    limited
        .arg("--no-new-privs")
        .arg(format!("--bounding-set={}", dropped.join(",")))
        .arg(command.get_program())
        .args(command.get_args());
    ops.spawn(limited);

    let device = LoopDevice::formatted(node.dir(), "xfs", 320);
    let sandbox = node.sandbox(POD);
    let target = node.target(POD, "pv-1");
    let request = RuntimePublishVolumeRequest {
        sandbox_id: sandbox.id().to_owned(),
        host_volume_id: utf8(device.path()).to_owned(),
        host_target_path: utf8(&target).to_owned(),
        file_system: device.fstype().to_owned(),
        fsgroup_gid: Some(4242),
        ..RuntimePublishVolumeRequest::default()
    };
    ops.crust(|mut client| async move { client.runtime_publish_volume(request).await })
        .unwrap();
    let app = node.app(&sandbox, &target, "/data");
    assert_eq!(app.sh("stat -c '%g %a' /data"), "4242 2775");
    device.set_size(512 << 20);
    assert_eq!(ops.expand(&target, 0, 0).unwrap(), 512 << 20);
    assert!(!ops.stats(&target).unwrap().usage.is_empty());
    end([app, sandbox]);
    ops.unstage(&target).unwrap();
    assert!(device.is_free());
}
