//! Attacks by an NFS server on the nodes that mount its shares, and by the author of a volume's mount options.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use runcrust_tests::container::end;
use runcrust_tests::hostile_nfs_server::Attack::{
    self, ChangingNumber, ChangingType, ContainsItself, ContainsParent, Damaged, EndlessListing,
    EndlesslyDeep, Fails, HugeUsage, IgnoredChanges, LongNames, Names, Nothing, RepeatedListing,
    Root, VanishingNames,
};
use runcrust_tests::hostile_nfs_server::Procedure::{
    Access, Every, EveryButNull, GetAttributes, Info, List, Lookup, Mount, SetAttributes, Usage,
};
use runcrust_tests::hostile_nfs_server::{Damage, FileKind, NfsError};
use runcrust_tests::node::utf8;
use runcrust_tests::tree::OutsideFiles;
use runcrust_tests::{
    Container, Delegate, HostileNfsServer, Node, POD, Pod, on_each_delegate, process,
};
use serde_json::Value;

/// Options with which the kernel gives up soon. Without them it waits until a create ends itself.
const SOFT: &str = "soft,timeo=20,retrans=1";

/// Longer than any wait for a server that replies, or with [`SOFT`], on an emulated processor too.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The timeout of a create, with the time that its end may take on an emulated processor.
const CREATE_TIMEOUT: Duration = Duration::from_secs(110 + 30);

/// The timeout of a sandbox's hook, with the time that its end may take on an emulated processor.
const SANDBOX_TIMEOUT: Duration = Duration::from_secs(210 + 30);

/// The memory in KiB that a create may take, whatever the server sends.
const MAX_MEMORY_KIB: u64 = 100 << 10;

/// A pod whose volume is the share of a hostile server.
struct Scene {
    target: PathBuf,
    outside: OutsideFiles,
    server: HostileNfsServer,
    node: Node,
}

impl Scene {
    /// Starts a server, and stages its share as `pv-1` with fsGroup 2000 and further mount options.
    fn new(delegate: Delegate, attack: Attack, options: &str) -> Self {
        let node = Node::new(delegate);
        let outside = OutsideFiles::new(node.dir());
        let server = HostileNfsServer::start(attack, &node.dir().join("outside"));
        let target = node.target(POD, "pv-1");
        let scene = Self {
            target,
            outside,
            server,
            node,
        };
        scene.stage(options, &["--fs-group", "2000"]);
        scene
    }

    #[track_caller]
    fn stage(&self, options: &str, further: &[&str]) {
        let options = format!("{},{options}", self.server.options());
        let options = options.trim_end_matches(',');
        let arguments = [&["--option", options][..], further].concat();
        let share = Path::new(self.server.share());
        let staged = self
            .node
            .try_stage_as("nfs", &self.target, share, &arguments);
        let _ = staged.success();
    }

    fn pod(&self) -> Pod<'_> {
        Pod::with_staged_volume(&self.node, POD, self.target.clone())
    }

    /// Checks that the commands of an operator and of a CSI driver return.
    #[track_caller]
    fn check_commands(&self) {
        for arguments in [
            &["list", "--json"][..],
            &["inspect", self.server.share()],
            &["gc", "--json"],
        ] {
            let _ = within(TIMEOUT, || self.node.handler().crust(arguments)).success();
        }
        let _ = within(TIMEOUT, || self.node.stats(&self.target));
    }

    /// Returns the volume's stats.
    #[track_caller]
    fn stats(&self) -> Value {
        let stats = within(TIMEOUT, || self.node.stats(&self.target)).success();
        serde_json::from_str(&stats.stdout).unwrap()
    }

    /// Ends the pod and unstages the volume. Checks that nothing is left, and that nothing outside of the volume was
    /// changed.
    #[track_caller]
    fn end(&self, pod: Pod<'_>, apps: impl IntoIterator<Item = Container>) {
        within(TIMEOUT, || {
            end(apps);
            end([pod.sandbox]);
            self.node.unstage_all(&[&self.target]);
        });
        // With the slash, because other tests have directories with longer names.
        let directory = format!("{}/", utf8(self.node.dir().path()));
        let left = process::with_command_line(|line| line.contains(&directory));
        assert_eq!(left, <[i32; 0]>::default(), "processes are left");
        self.outside.assert_unchanged();
    }
}

/// Calls `work`, and checks that it has returned within a limit.
#[track_caller]
fn within<T>(limit: Duration, work: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let result = work();
    let elapsed = started.elapsed();
    assert!(elapsed < limit, "waited for the server for {elapsed:?}");
    result
}

/// Checks that a message is one sentence for an operator: with a hint, and without what only concerns a device.
#[track_caller]
fn assert_clear(message: &str, attack: Attack, parts: &[&str]) {
    for part in parts.iter().chain(&["hint: "]) {
        assert!(
            message.contains(part),
            "{attack:?}: {part:?} isn't in: {message}"
        );
    }
    assert_eq!(
        message.matches("hint: ").count(),
        1,
        "{attack:?}: {message}"
    );
    let is_printable = !message.chars().any(char::is_control);
    assert!(
        is_printable && message.len() < 2000,
        "{attack:?}: {message:?}"
    );
    assert!(!message.contains("e2fsck"), "{attack:?}: {message}");
}

/// Lets a server attack in several ways, each of which must make a create fail with these words. Checks that the volume
/// works as soon as the server does.
#[track_caller]
fn check_refusals(delegate: Delegate, options: &str, cases: &[(Attack, &[&str])]) {
    let scene = Scene::new(delegate, cases[0].0, options);
    let pod = scene.pod();
    for (attack, parts) in cases {
        scene.server.attack(*attack);
        let refused = within(TIMEOUT, || pod.expect_refusal());
        assert_clear(&refused, *attack, parts);
        assert!(refused.contains("127.0.0.1"), "{attack:?}: {refused}");
        scene.outside.assert_unchanged();
    }
    scene.check_commands();
    scene.server.attack(Nothing);
    let app = pod.app();
    assert_eq!(
        app.sh("stat -c %g /data/file /data/directory/file"),
        "2000\n2000"
    );
    scene.end(pod, [app]);
}

on_each_delegate! {
    #[ignore = "needs NFS; runs in the guest: make vm-test"]
    fn hostile_listings_end_the_walk_with_an_error(delegate: Delegate) {
        check_refusals(delegate, "", &[
            (Names(&["a/b"]), &["getdents64", "EIO"]),
            (Names(&["../../../etc/passwd"]), &["EIO"]),
            (Names(&[""]), &["EIO"]),
            (LongNames { length: 256, count: 3 }, &["getdents64", "ENAMETOOLONG"]),
            (LongNames { length: 20_000, count: 3 }, &["ENAMETOOLONG"]),
            (RepeatedListing, &["distinct", "over and over"]),
            (ContainsItself, &["ELOOP", "contains itself"]),
            (ContainsParent, &["ELOOP", "contains itself"]),
            (ChangingType, &["ESTALE"]),
            (ChangingNumber, &["ESTALE"]),
        ]);
    }

    #[ignore = "needs NFS; runs in the guest: make vm-test"]
    fn errors_of_a_server_are_reported_with_their_call(delegate: Delegate) {
        check_refusals(delegate, "nordirplus", &[
            (Fails(Mount, NfsError::Permission), &["EPERM", "exports(5)"]),
            (Fails(Mount, NfsError::Unknown), &["fsconfig(create)"]),
            (Fails(GetAttributes, NfsError::Io), &["openat2(the volume's root)"]),
            (Fails(Info, NfsError::Stale), &["ESTALE", "exported directory was replaced"]),
            (Fails(SetAttributes, NfsError::Io), &["fchownat", "EIO"]),
            (Fails(SetAttributes, NfsError::NoSpace), &["ENOSPC", "free space on the server"]),
            (Fails(SetAttributes, NfsError::Stale), &["fchownat", "ESTALE"]),
            (Fails(SetAttributes, NfsError::Unknown), &["fchownat"]),
            (Fails(SetAttributes, NfsError::Permission), &["EPERM", "root_squash"]),
            (Fails(List, NfsError::Io), &["getdents64(the volume's root)", "EIO"]),
            (Fails(List, NfsError::Stale), &["ESTALE"]),
            (Fails(Access, NfsError::Io), &["EIO"]),
            (Fails(Lookup, NfsError::Io), &["EIO"]),
        ]);
    }

    #[ignore = "needs NFS; runs in the guest: make vm-test"]
    fn a_share_that_is_not_a_directory_is_refused(delegate: Delegate) {
        for further in [&["--fs-group", "2000"][..], &[]] {
            // Otherwise the sandbox would have the share from the beginning.
            let scene = Scene::new(delegate, Root(FileKind::File), "");
            scene.stage("", further);
            let pod = scene.pod();
            for (kind, words) in [
                (FileKind::File, "a file"),
                (FileKind::Symlink, "a symbolic link"),
                (FileKind::BlockDevice, "a block device"),
                (FileKind::CharacterDevice, "a character device"),
                (FileKind::Pipe, "a named pipe"),
            ] {
                scene.server.attack(Root(kind));
                let refused = within(TIMEOUT, || pod.expect_refusal());
                assert_clear(&refused, Root(kind), &[words, "not a directory"]);
            }
            scene.end(pod, []);
        }
    }

    #[ignore = "needs NFS; runs in the guest: make vm-test"]
    fn damaged_replies_are_refused_or_repeated(delegate: Delegate) {
        let missing = |procedure| (Damaged(procedure, Damage::Missing), &["ETIMEDOUT"][..]);
        check_refusals(delegate, SOFT, &[
            (Damaged(Every, Damage::Random), &["isn't a service of NFS"]),
            (Damaged(Every, Damage::Closed), &["doesn't answer"]),
            (Damaged(Every, Damage::HugeRecord), &[]),
            (Damaged(Mount, Damage::HugeLengths), &["fsconfig(create)", "EBADHANDLE"]),
            (Damaged(Mount, Damage::Random), &["fsconfig(create)"]),
            missing(Mount),
            missing(EveryButNull),
            (Damaged(List, Damage::HugeLengths), &["getdents64"]),
            (Damaged(List, Damage::Truncated), &["getdents64"]),
            (Damaged(List, Damage::OtherTransaction), &["getdents64", "EIO"]),
            (Damaged(SetAttributes, Damage::Closed), &["fchownat"]),
            (Damaged(SetAttributes, Damage::Missing), &["fchownat", "EIO"]),
        ]);
    }

    /// Each of these servers is odd, but its files can be used.
    #[ignore = "needs NFS; runs in the guest: make vm-test"]
    fn odd_servers_harm_neither_the_pod_nor_the_node(delegate: Delegate) {
        let scene = Scene::new(delegate, Nothing, "");
        for attack in [
            Names(&["..", "."]),
            Names(&["a\nb\u{1b}[2J", "nul\0byte"]),
            LongNames { length: 255, count: 300 },
            VanishingNames,
            IgnoredChanges,
            HugeUsage,
        ] {
            scene.server.attack(attack);
            let pod = scene.pod();
            let app = within(TIMEOUT, || pod.app());
            let stats = scene.stats();
            assert_eq!(stats["volume_condition"]["abnormal"], false, "{attack:?}: {stats}");
            // The kernel's own arithmetic turns so many bytes into none.
            let totals = if attack == HugeUsage { [0, u64::MAX] } else { [1 << 30, 1000] };
            for (usage, total) in stats["usage"].as_array().unwrap().iter().zip(totals) {
                assert_eq!(usage["total"], total, "{attack:?}: {stats}");
            }
            let group = if attack == IgnoredChanges { "0" } else { "2000" };
            assert_eq!(app.sh("stat -c %g /data/file"), group, "{attack:?}");
            scene.check_commands();
            scene.end(pod, [app]);
            scene.stage("", &["--fs-group", "2000"]);
        }
        let _ = scene.node.unstage(&scene.target).success();
    }

    #[ignore = "needs NFS; runs in the guest: make vm-test"]
    fn stats_of_a_hostile_server_return_with_the_reason(delegate: Delegate) {
        let scene = Scene::new(delegate, Nothing, "noac");
        let pod = scene.pod();
        let app = pod.app();
        for (attack, words) in [
            (Fails(Usage, NfsError::Io), "fails with EIO"),
            (Fails(Every, NfsError::Stale), "ESTALE"),
            (Damaged(Usage, Damage::Truncated), "127.0.0.1:/export"),
            (Damaged(Every, Damage::Random), "127.0.0.1:/export"),
            (Damaged(EveryButNull, Damage::Missing), "hasn't answered within 5 seconds"),
        ] {
            scene.server.attack(attack);
            let stats = scene.stats();
            let condition = &stats["volume_condition"];
            assert_eq!(condition["abnormal"], true, "{attack:?}: {stats}");
            assert_clear(condition["message"].as_str().unwrap(), attack, &[words]);
            scene.check_commands();
        }
        scene.server.attack(Nothing);
        assert_eq!(scene.stats()["volume_condition"]["abnormal"], false);
        let bundle = scene.node.app_bundle(&pod.sandbox).bind(&pod.target, "/data", &[]).write();
        let calls = scene.server.calls();
        for verb in [&["list"][..], &["inspect", utf8(&scene.target)], &["explain", utf8(bundle.path())], &["gc"]] {
            let _ = scene.node.handler().crust(verb).success();
            assert_eq!(scene.server.calls(), calls, "{verb:?} asked the server");
        }
        scene.end(pod, [app]);
    }

    /// Options are checked before the kernel is asked, so this needs no NFS.
    fn options_that_name_hosts_or_secrets_are_refused(delegate: Delegate) {
        let node = Node::new(delegate);
        for (option, name, words) in [
            ("addr=10.0.0.1", "addr", "names a host"),
            ("addr", "addr", "names a host"),
            ("clientaddr=10.0.0.1", "clientaddr", "names a host"),
            ("mountaddr=10.0.0.1", "mountaddr", "names a host"),
            ("mounthost=other.example.com", "mounthost", "names a host"),
            ("ro,mounthost=other.example.com,soft", "mounthost", "names a host"),
            ("bg", "bg", "in the background"),
            ("sloppy", "sloppy", "unknown options"),
            ("sec=krb5", "sec=krb5", "with sec=sys"),
            ("sec=sys:krb5", "sec=sys:krb5", "with sec=sys"),
            ("xprtsec=mtls", "xprtsec", "sec=sys"),
            ("rdma", "rdma", "over TCP or UDP"),
            ("source=other:/export", "source", "sets the source"),
            ("fscontext_fd=3", "fscontext_fd", "is not an NFS mount option"),
            ("ADDR=10.0.0.1", "ADDR", "is not an NFS mount option"),
            ("port=111:/etc", "port", "a decimal number"),
            ("fsc=/etc/shadow", "fsc", "no value"),
            ("vers=3\u{1b}[2J", "vers", "expected one of"),
            ("password=s3cr3t", "password", "looks like a secret"),
            ("nfs_passwd=s3cr3t", "nfs_passwd", "looks like a secret"),
            ("soft,token=s3cr3t", "token", "looks like a secret"),
            ("credentials=/etc/shadow", "credentials", "looks like a secret"),
        ] {
            for fstype in ["nfs4", "nfs"] {
                let target = node.target(POD, "pv-1");
                let share = Path::new("srv.example.com:/export");
                let error = node.try_stage_as(fstype, &target, share, &["--option", option]);
                let error = error.failure().stderr;
                for part in ["INVALID_ARGUMENT", "volume pv-1", &format!("option {name}"), words, "hint: "] {
                    assert!(error.contains(part), "{option:?}: {part:?} isn't in: {error}");
                }
                assert_eq!(error.trim_end().lines().count(), 1, "{error}");
                assert!(!error.contains("s3cr3t") && !error.contains('\u{1b}'), "{error:?}");
                node.assert_nothing_left();
            }
        }
    }
}

/// The servers attack at the same time, because each create takes until its deadline. The delegate makes no difference:
/// it isn't called.
#[test]
#[ignore = "needs NFS; runs in the guest: make vm-test"]
fn a_create_ends_at_its_deadline_whatever_the_server_does() {
    let attacks = [
        EndlessListing,
        EndlesslyDeep,
        Damaged(Mount, Damage::Missing),
        Damaged(SetAttributes, Damage::Missing),
    ];
    thread::scope(|scope| {
        for attack in attacks {
            scope.spawn(move || {
                // Otherwise the sandbox would wait too.
                let refused = Fails(Mount, NfsError::Permission);
                let scene = Scene::new(Delegate::Runc, refused, "");
                let pod = scene.pod();
                scene.server.attack(attack);
                let bundle = scene.node.app_bundle(&pod.sandbox);
                let app = scene
                    .node
                    .container(&bundle.bind(&scene.target, "/data", &[]).write());
                let memory = within(CREATE_TIMEOUT, || measure_create(&app));
                let lines = app.log_lines();
                let [line] = lines.as_slice() else {
                    panic!("{attack:?}: not one line in the log: {lines:?}");
                };
                assert!(memory < MAX_MEMORY_KIB, "{attack:?}: {memory} KiB");
                assert!(line.msg.starts_with("volume pv-1: "), "{}", line.msg);
                assert_clear(&line.msg, attack, &["the deadline"]);
                scene.check_commands();
                scene.end(pod, []);
            });
        }
    });
}

/// The sandbox's hook gives the volume up, and its error would be lost if it failed. Each container's create retries.
#[test]
#[ignore = "needs NFS; runs in the guest: make vm-test"]
fn a_sandbox_starts_at_its_deadline_whatever_the_server_does() {
    let scene = Scene::new(Delegate::Runc, Damaged(SetAttributes, Damage::Missing), "");
    let pod = within(SANDBOX_TIMEOUT, || scene.pod());
    scene.check_commands();
    scene.server.attack(Nothing);
    let app = pod.app();
    assert_eq!(app.sh("stat -c %g /data/file"), "2000");
    scene.end(pod, [app]);
}

/// Runs a create, which must fail, and returns the memory that it took at its peak in KiB.
#[track_caller]
fn measure_create(app: &Container) -> u64 {
    let mut create = app.spawn(app.create_command());
    let mut peak = 0;
    loop {
        let memory = process::status(create.id(), "VmHWM");
        let memory = memory.trim_end_matches(" kB").parse().unwrap_or_default();
        peak = peak.max(memory);
        if let Some(status) = create.try_wait().unwrap() {
            assert!(!status.success());
            return peak;
        }
        thread::sleep(Duration::from_millis(100));
    }
}
