//! The capabilities that runcrust and its hooks have while they work: those that they need, and no others. The suite
//! `transparency` tests the delegate's capabilities.

mod environment;
mod holder;

use std::fs::{self, File};
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::volume::with_mounted;
use runcrust_tests::{
    Bundle, Container, Delegate, Node, POD, Run, Runtime, StagedVolume, fault_injection,
    holds_within, on_each_delegate, process, wait_until,
};
use serde_json::json;

/// The capability sets of a process, in the order of [`sets`].
const SETS: [&str; 5] = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"];

/// The numbers of the capabilities (`include/uapi/linux/capability.h`).
const NUMBERS: [(&str, u32); 12] = [
    ("CHOWN", 0),
    ("DAC_OVERRIDE", 1),
    ("DAC_READ_SEARCH", 2),
    ("FOWNER", 3),
    ("FSETID", 4),
    ("SETGID", 6),
    ("SETUID", 7),
    ("SYS_CHROOT", 18),
    ("SYS_PTRACE", 19),
    ("SYS_ADMIN", 21),
    ("SYS_RESOURCE", 24),
    ("SETFCAP", 31),
];

/// Returns the capabilities that a step needs according to the documentation, without those that this machine lacks.
fn needed_capabilities(step: &str) -> String {
    let document = include_str!("../../../docs/privileges.md");
    let (_, table) = document.split_once("\n| capability").expect("a table");
    let mut rows = table
        .lines()
        .map(|row| row.split('|').map(str::trim).collect::<Vec<_>>());
    let heading = rows.next().expect("a heading");
    let column = heading
        .iter()
        .position(|cell| *cell == step)
        .expect("a column");
    let mut mask = 0;
    // The heading's first bar was split off.
    for row in rows.skip(1).take_while(|row| row.len() > column + 1) {
        let (name, number) = NUMBERS
            .iter()
            .find(|it| row[1] == format!("`{}`", it.0))
            .expect("known");
        assert!(matches!(row[column + 1], "" | "yes"), "{name}: {row:?}");
        mask |= u64::from(row[column + 1] == "yes") << number;
    }
    let own = u64::from_str_radix(&process::status("self", "CapBnd"), 16).expect("a mask");
    format!("{:016x}", mask & own)
}

fn sets(pid: impl std::fmt::Display + Copy) -> [String; 5] {
    SETS.map(|set| process::status(pid, set))
}

/// Waits until a process of this node whose command line contains `what` has these sets.
#[track_caller]
fn assert_has(node: &Node, what: &[&str], expected: &[String; 5]) {
    let mut seen = Vec::new();
    let has = holds_within(WAIT_TIMEOUT, || {
        let name = node.handler().name();
        let named = process::with_command_line(|line| {
            let mut words = line.split('\0');
            words
                .next()
                .is_some_and(|program| program.ends_with(what[0]))
                && what[1..]
                    .iter()
                    .all(|word| line.split('\0').any(|other| other == *word))
                && line.contains(name)
        });
        seen = named.into_iter().map(sets).collect();
        seen.contains(expected)
    });
    assert!(has, "{what:?} should have {expected:?}, but has {seen:?}");
}

/// Returns sets in which only these capabilities are permitted, effective and in the bounding set.
fn capability_sets(needed: String) -> [String; 5] {
    let none = "0".repeat(16);
    [none.clone(), needed.clone(), needed.clone(), needed, none]
}

/// Holds the lock of a staged volume, for which every step has to wait.
fn hold_lock(volume: &StagedVolume) -> Flock<File> {
    let lock = File::open(volume.lock_file(&volume.target)).expect("a lock");
    Flock::lock(lock, FlockArg::LockExclusive).expect("flock")
}

/// Starts the last hook of a list in a bundle's config, as the delegate does.
fn spawn_hook(bundle: &Bundle, list: &str, pid: i32) -> std::process::Child {
    let hooks = bundle.config()["hooks"][list].clone();
    let hook = hooks
        .as_array()
        .and_then(|hooks| hooks.last())
        .expect("a hook");
    let arguments = hook["args"].as_array().expect("arguments");
    let mut command = Command::new(hook["path"].as_str().expect("a path"));
    command.args(
        arguments[1..]
            .iter()
            .map(|argument| argument.as_str().expect("a string")),
    );
    let mut child = command
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the hook");
    let state =
        json!({"ociVersion": "1.0.2", "id": bundle.id(), "pid": pid, "bundle": bundle.path()});
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin
        .write_all(state.to_string().as_bytes())
        .expect("write to the hook");
    child
}

on_each_delegate! {
    fn the_sandboxs_hook_has_only_the_capabilities_it_needs(delegate: Delegate) {
        let volume = StagedVolume::new(delegate);
        let held = hold_lock(&volume);
        let bundle = volume.sandbox_bundle(POD).write();
        let sandbox = volume.container(&bundle);
        let mut create = sandbox.spawn(sandbox.create_command());
        assert_has(&volume, &["crust-mount-hook", "sandbox"], &capability_sets(needed_capabilities("sandbox")));
        drop(held);
        assert!(create.wait().expect("waitpid").success());
    }

    fn runcrust_mounts_with_only_the_capabilities_it_needs(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        let bundle = volume.app_bundle(&sandbox).write();
        let held = hold_lock(&volume);
        let app = volume.container(&bundle);
        let mut create = app.spawn(app.create_command());
        let mut expected = sets("self");
        expected[2] = needed_capabilities("create");
        assert_has(&volume, &[volume.handler().name(), "create"], &expected);
        drop(held);
        assert!(create.wait().expect("waitpid").success());
    }

    fn hooks_that_record_have_only_the_capabilities_they_need(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        let bundle = volume.app_bundle(&sandbox).write();
        let app = volume.run(&bundle);
        for (list, subcommand) in [("createRuntime", "publish"), ("poststop", "release")] {
            let held = hold_lock(&volume);
            let mut hook = spawn_hook(&bundle, list, app.pid());
            assert_has(&volume, &["crust-mount-hook", subcommand], &capability_sets(needed_capabilities(subcommand)));
            drop(held);
            let _ = hook.wait().expect("waitpid");
        }
    }

    fn a_hook_that_mounts_has_only_the_capabilities_it_needs(delegate: Delegate) {
        let volume = StagedVolume::on(Node::with(delegate, "mount_mode = \"hook\""), &[]);
        let sandbox = volume.sandbox();
        let bundle = volume.node.app_bundle(&sandbox).bind(&volume.target, "/mnt", &[]).write();
        let app = volume.container(&bundle);
        let delayed = fault_injection::delay_all_at(&app.create_command(), "fsopen", Duration::from_secs(3));
        let mut create = app.spawn(delayed);
        assert_has(&volume, &["crust-mount-hook", "mount"], &capability_sets(needed_capabilities("mount")));
        let _ = create.kill();
        let _ = create.wait();
    }

    /// This holds with containerd's default capabilities, with all capabilities, and for another user.
    fn a_container_has_the_bare_delegates_capabilities(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        let host = volume.dir().subdir("host");
        let kinds: [fn(Bundle) -> Bundle; 3] = [
            |bundle| bundle,
            Bundle::all_capabilities,
            |bundle| bundle.user(1000, 1000, &[2000]),
        ];
        for change in kinds {
            let bare = change(volume.node.app_bundle(&sandbox).bind(&host, "/data", &[])).write();
            let bare = Container::running(&Runtime::bare(delegate), &bare);
            let ours = volume.run(&change(volume.app_bundle(&sandbox)).write());
            let facts = |app: &Container| {
                // The execve is visible before the capabilities are. Once the program sleeps, both have changed.
                wait_until("the program to sleep", WAIT_TIMEOUT, || {
                    process::status(app.pid(), "State").starts_with('S')
                });
                let lines = ["NoNewPrivs", "Seccomp", "Uid", "Gid", "Groups"];
                (sets(app.pid()), lines.map(|line| process::status(app.pid(), line)))
            };
            assert_eq!(facts(&ours), facts(&bare));
        }
    }

    /// runcrust does not drop capabilities that it would have to raise again.
    fn without_a_volume_capabilities_are_not_changed(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        let idle = volume.dir().join(delegate.name());
        fs::copy("/bin/true", &idle).unwrap();
        volume.handler().set_delegate(&idle);
        let calls = |bundle: &Bundle| {
            let file = bundle.path().join("calls");
            let app = volume.container(bundle);
            let _ = Run::capture(&mut fault_injection::traced(&app.create_command(), "capset,prctl", &file)).success();
            let calls = fs::read_to_string(file).unwrap();
            calls.lines().filter(|line| line.contains("cap") || line.contains("CAP")).count()
        };
        let host = volume.dir().subdir("host");
        for bundle in [
            Bundle::plain(volume.dir()).bind(&host, "/data", &[]),
            volume.node.app_bundle(&sandbox).bind(&host, "/data", &[]),
            volume.sandbox_bundle("another-pod"),
        ] {
            assert_eq!(calls(&bundle.write()), 0);
        }
        // One call drops the capabilities, and one raises them again.
        let with = volume.app_bundle(&sandbox).write();
        assert_eq!(calls(&with), 2);
    }

    /// The volume has files of another user, and the caller lacks some capabilities. (The caller needs those that the
    /// container gets.)
    fn a_caller_without_all_capabilities_has_its_volumes(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        with_mounted(device.path(), |root| {
            fs::create_dir(root.join("others")).unwrap();
            std::os::unix::fs::chown(root.join("others"), Some(1000), Some(1000)).unwrap();
        });
        let volume = StagedVolume::on_device(node, device, &["--fs-group", "3000"]);
        // Without CAP_SYS_PTRACE crun's sandboxes cannot be inspected, because they are not dumpable (ptrace(2)). crun
        // itself raises limits when it writes device rules for cgroup v2.
        let own = match delegate {
            Delegate::Runc => ["-sys_ptrace", "-sys_resource"],
            Delegate::Crun => ["-sys_rawio", "-sys_pacct"],
        };
        for without in ["-sys_boot,-sys_time", "-sys_module"].into_iter().chain(own) {
            let through = |mut command: Command| {
                let mut limited = Command::new("/usr/bin/setpriv");
                limited.args(["--bounding-set", without, "--"]);
                limited.arg(command.get_program()).args(command.get_args());
                limited.env_clear().current_dir(command.get_current_dir().expect("a directory"));
                command.env_clear();
                limited
            };
            let sandbox = volume.container(&volume.sandbox_bundle(POD).write());
            let created = sandbox.create_with(through(sandbox.create_command()));
            assert!(created.status.success(), "{created}: {:?}", sandbox.last_log_error());
            let _ = sandbox.start().success();
            let bundle = volume.node.app_bundle(&sandbox).bind(volume.target.join("others/new"), "/data", &[]);
            let app = volume.container(&bundle.write());
            let created = app.create_with(through(app.create_command()));
            let _ = created.success();
            let _ = app.start().success();
            assert_eq!(app.sh("stat -c %g /data"), "3000", "{without}");
            app.end();
            sandbox.end();
            volume.device.wait_until_free(WAIT_TIMEOUT);
        }
    }
}
