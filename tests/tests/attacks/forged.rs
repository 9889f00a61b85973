//! Forged annotations, hooks and directories, which claim to be kubelet's, containerd's or runcrust's.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use runcrust_tests::container::end;
use runcrust_tests::gc::assert_nothing_unknown;
use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::process::{self, kill_and_wait};
use runcrust_tests::refusal::assert_contains;
use runcrust_tests::{
    Bundle, Node, POD, Pod, Run, StagedVolume, binary, on_each_delegate, refusal,
};

use super::{OTHER_POD, assert_not_on_the_host};

const USER: u32 = 65534;
const KIND: &str = "io.kubernetes.cri.container-type";
const UID: &str = "io.kubernetes.cri.sandbox-uid";

/// Damages one of runcrust's directories. The second path is a copy of it.
type Damage = fn(&Path, &Path);

/// Damages, each with a part of the expected error.
const DIRECTORIES: [(&str, Damage); 4] = [
    ("link", |directory, copy| {
        fs::remove_dir_all(directory).unwrap();
        symlink(copy, directory).unwrap();
    }),
    ("isn't owned by root", |directory, _| {
        chown(directory, Some(USER), None).unwrap();
    }),
    ("written by others", |directory, _| mode(directory, 0o1777)),
    ("written by others", |directory, _| mode(directory, 0o770)),
];

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn copy(from: &Path, to: &Path) {
    let _ = Run::capture(Command::new("cp").arg("-a").args([from, to])).success();
}

/// Adds path, owner and mode of a directory and of everything below it to `found`.
fn list_owners(directory: &Path, found: &mut Vec<(PathBuf, u32, u32)>) {
    let info = fs::symlink_metadata(directory).unwrap();
    found.push((directory.to_owned(), info.uid(), info.mode() & 0o7777));
    if info.is_dir() {
        for entry in fs::read_dir(directory).unwrap() {
            list_owners(&entry.unwrap().path(), found);
        }
    }
}

/// Returns a command that runs a program as an unprivileged user.
fn as_user(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    let user = USER.to_string();
    command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]);
    command.arg(program).current_dir("/");
    command
}

/// Wraps a command so that it has the umask 0.
fn with_umask_0(command: &Command) -> Command {
    let mut wrapped = Command::new("sh");
    wrapped.args(["-c", "umask 0; exec \"$@\"", "sh"]);
    wrapped.arg(command.get_program()).args(command.get_args());
    wrapped.current_dir(command.get_current_dir().unwrap_or(Path::new("/")));
    wrapped
}

on_each_delegate! {
    /// Such an app would get the other pod's volumes and devices.
    fn an_app_annotated_as_another_pods_sandbox_is_refused(delegate: Delegate) {
        let node = Node::with(delegate, "sandbox = \"always\"");
        let device = node.ext4();
        let target = node.stage(OTHER_POD, "pv-1", &device, &[]);
        let mine = node.sandbox(POD);
        let forged = || node.app_bundle(&mine).annotation(KIND, "sandbox").annotation(UID, OTHER_POD);
        let refused = refusal::create_refused(&node, &forged().write()).naming_volume("pv-1");
        let _ = refused.containing(&["isn't the pod's own"]).message();
        let refused = refusal::create_refused(&node, &forged().bind(&target, "/data", &[]).write());
        let _ = refused.naming_volume("pv-1").message();
        assert!(device.is_free());
        assert_not_on_the_host(&device);
    }

    /// runcrust takes no mark in a config as a sign of a rewrite. It looks at the sources of the mounts instead.
    fn forged_marks_of_a_rewrite_hide_no_volume(delegate: Delegate) {
        let node = Node::logging(delegate);
        let (device, other) = (node.ext4(), node.ext4());
        let pod = Pod::new(&node, POD, &device, &[]);
        // The hooks of a config that was really rewritten.
        let real = node.app_bundle(&pod.sandbox).bind(&pod.target, "/data", &[]).write();
        let app = node.run(&real);
        let _ = app.sh("echo the volume > /data/file");
        let hooks = real.config()["hooks"].clone();
        assert!(hooks["createRuntime"][0]["path"].is_string(), "{hooks}");
        let marked = || {
            let mut bundle = node.app_bundle(&pod.sandbox);
            for key in ["runcrust", "runcrust.io/rewritten", "io.runcrust.crust", "crust"] {
                bundle = bundle.annotation(key, "true");
            }
            bundle.spec_mut()["process"]["env"].as_array_mut().unwrap().push("RUNCRUST=done".into());
            bundle
        };
        let forged = || {
            let mut bundle = marked();
            bundle.spec_mut()["hooks"] = hooks.clone();
            bundle
        };
        let marked = node.run(&marked().bind(&pod.target, "/data", &[]).write());
        assert_eq!(marked.sh("cat /data/file"), "the volume");
        // With the copied hooks, `publish` is called twice, and the second call fails.
        let twice = node.container(&forged().bind(&pod.target, "/data", &[]).write());
        let _ = twice.create().failure();
        assert_eq!(twice.state(), None);
        assert!(node.log().contains("isn't among its users"), "{}", node.log());
        // A source in the attach directory, which only a rewrite names.
        let attach = node.handler().state_dir().join("attach/0");
        let refused = refusal::create_refused(&node, &forged().bind(&attach, "/data", &[]).write());
        let _ = refused.containing(&["the record of that create is missing"]).message();
        // Forged hooks don't give access to another pod's volume: it is refused, as it would be without them.
        let stolen = node.stage(OTHER_POD, "pv-2", &other, &[]);
        let refused = refusal::create_refused(&node, &forged().bind(&stolen, "/data", &[]).write());
        let _ = refused.naming_volume("pv-2").containing(&[OTHER_POD]).message();
        assert!(other.is_free());
        end([marked, app]);
    }

    fn linked_or_writable_directories_are_refused(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        for directory in [volume.handler().crust_root(), volume.handler().state_dir()] {
            let aside = volume.dir().join("aside");
            copy(&directory, &aside);
            for (reason, damage) in DIRECTORIES {
                damage(&directory, &aside);
                for bundle in [
                    volume.app_bundle(&sandbox),
                    volume.sandbox_bundle(POD),
                    volume.plain_bundle(),
                ] {
                    let bundle = bundle.write();
                    let container = volume.container(&bundle);
                    let config = bundle.config_bytes();
                    let _ = container.create().failure();
                    assert_eq!(container.state(), None);
                    let sentence = container.last_log_error().unwrap();
                    assert_contains(&sentence, &[reason, utf8(&directory)]);
                    assert!(bundle.config_bytes() == config, "config.json was changed");
                }
                // Restore the directory.
                if directory.is_symlink() {
                    fs::remove_file(&directory).unwrap();
                } else {
                    fs::remove_dir_all(&directory).unwrap();
                }
                copy(&aside, &directory);
            }
            fs::remove_dir_all(aside).unwrap();
        }
        assert_eq!(fs::read_dir(&volume.target).unwrap().count(), 0, "files were created on the host");
        let app = volume.app(&sandbox);
        assert_eq!(app.sh("echo x > /data/file; cat /data/file"), "x");
    }

    /// This holds even if runcrust is called with umask 0.
    fn an_unprivileged_user_sees_and_changes_nothing(delegate: Delegate) {
        let node = Node::logging(delegate);
        fs::set_permissions(node.handler().configuration(), Permissions::from_mode(0o644)).unwrap();
        let device = node.ext4();
        let target = node.target(POD, "pv-1");
        let mut stage = node.handler().command();
        stage.args(["crust", "stage", utf8(&target), "--device", utf8(device.path()), "--fstype", "ext4"]);
        let _ = Run::capture(&mut with_umask_0(&stage)).success();
        let create = |bundle: &Bundle| {
            let container = node.container(bundle);
            let _ = container.create_with(with_umask_0(&container.create_command())).success();
            let _ = container.start().success();
            container
        };
        let sandbox = create(&node.sandbox_bundle(POD).write());
        let app = create(&node.app_bundle(&sandbox).bind(&target, "/data", &[]).write());
        let roots = [node.handler().crust_root(), node.handler().state_dir(), node.log_path()];
        let all = || {
            let mut all = Vec::new();
            for root in &roots {
                list_owners(root, &mut all);
            }
            all.sort();
            all
        };
        let before = all();
        for (path, uid, mode) in &before {
            assert!(*uid == 0 && mode.trailing_zeros() >= 6, "{}: {uid}, {mode:o}", path.display());
        }
        assert!(before.iter().any(|(path, ..)| path.starts_with(node.entry(&target))));

        // A copy of the program that the user may execute runs with the user's rights only.
        let own = node.dir().subdir("bin").join(node.handler().name());
        fs::copy(binary("runcrust"), &own).unwrap();
        mode(&own, 0o755);
        let (target, device) = (utf8(&target), utf8(device.path()));
        for arguments in [
            &["list"][..],
            &["inspect", target],
            &["gc"],
            &["stats", target],
            &["resize", target, "0", "0"],
            &["unstage", target],
            &["stage", target, "--device", device, "--fstype", "ext4"],
            &["publish", target, "--sandbox", sandbox.id(), "--device", device, "--fstype", "ext4"],
        ] {
            let run = Run::capture(as_user(&own).arg("crust").args(arguments)).failure();
            let known = run.stderr.contains("Permission denied") || run.stderr.contains("root");
            assert!(known && run.stdout.is_empty(), "{run}");
        }
        assert_eq!(all(), before);
        assert_eq!(app.sh("echo x > /data/file; cat /data/file"), "x");
    }

    /// containerd can be configured to pass on annotations from the pod's spec.
    fn very_long_annotations_give_short_errors(delegate: Delegate) {
        const LONGEST: usize = 10 * 1024;
        let (node, device) = Node::with_ext4(delegate);
        let pod = Pod::new(&node, POD, &device, &[]);
        let endless = "x\n".repeat(1 << 19);
        let bundle = || node.app_bundle(&pod.sandbox).bind(&pod.target, "/data", &[]);
        for key in [KIND, "io.kubernetes.cri.sandbox-id", "io.kubernetes.cri-o.ContainerType"] {
            let refused = refusal::create_refused(&node, &bundle().annotation(key, &endless).write());
            let sentence = refused.message();
            assert!(sentence.len() < LONGEST, "{} bytes of {key}", sentence.len());
        }
        // Annotations that nothing reads are ignored.
        let app = node.run(&bundle().annotation(UID, &endless).annotation(&endless, &endless).write());
        assert_eq!(app.sh("echo x > /data/file; cat /data/file"), "x");
        end([app]);
    }

    fn ids_that_are_paths_create_no_files(delegate: Delegate) {
        let volume = StagedVolume::new(delegate);
        let long = "a".repeat(5000);
        for id in ["../../evil", "a/b", "/evil", "a\nb", "a b\u{1b}", &long] {
            for bundle in [
                volume.plain_bundle(),
                volume.sandbox_bundle(POD),
            ] {
                let container = volume.container(&bundle.write());
                let command = |verb: &[&str]| {
                    let mut command = volume.handler().command();
                    command.arg("--root").arg(container.root()).args(verb).arg(id);
                    command
                };
                let run = container.create_with(command(&["create", "--bundle", utf8(container.bundle())]));
                assert!(run.stderr.len() < 2 * id.len() + 2000, "{run}");
                // crun accepts more of these ids than runc, but cannot find all of the containers by their ids again.
                if run.status.success() {
                    let _ = Run::capture(&mut command(&["delete", "--force"]));
                    let own = utf8(container.bundle());
                    process::with_command_line(|line| line.contains(own)).into_iter().for_each(kill_and_wait);
                    volume.device.wait_until_free(WAIT_TIMEOUT);
                }
                fs::remove_dir_all(container.bundle()).unwrap();
            }
            assert!(volume.device.is_free(), "{id:?}");
            assert_not_on_the_host(&volume.device);
        }
        // After the delegate has refused a container, the state of the volume is known.
        assert_nothing_unknown(&volume);
        let _ = volume.unstage().success();
        assert_eq!(volume.records(), Vec::<PathBuf>::new());
    }
}
