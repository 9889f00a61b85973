//! Attributes of a volume's mount, such as `nosuid`, as the container's own `/proc/self/mountinfo` shows them.

use std::path::PathBuf;

use runcrust_tests::{Bundle, Container, LoopDevice, Node, POD, on_each_delegate};

/// A case: the volume's options, the mount's options, and which words mountinfo has to show or not to show. The
/// volume's options apply where the mount's options say nothing.
struct Row {
    volume: &'static str,
    mount: &'static [&'static str],
    shown: &'static [&'static str],
    hidden: &'static [&'static str],
}

const BIND: &[&str] = &["rbind", "rprivate", "rw"];

const fn row(
    volume: &'static str,
    mount: &'static [&'static str],
    shown: &'static [&'static str],
    hidden: &'static [&'static str],
) -> Row {
    Row {
        volume,
        mount,
        shown,
        hidden,
    }
}

const ROWS: &[Row] = &[
    row("nosuid", BIND, &["rw", "nosuid"], &["nodev", "noexec"]),
    row("nodev", BIND, &["nodev"], &["nosuid"]),
    row("noexec", BIND, &["noexec"], &["nosuid"]),
    row("noatime", BIND, &["noatime"], &["relatime"]),
    row("nodiratime", BIND, &["nodiratime", "relatime"], &[]),
    row("strictatime", BIND, &[], &["relatime", "noatime"]),
    row(
        "defaults",
        BIND,
        &["relatime"],
        &["nosuid", "nodev", "noexec", "noatime"],
    ),
    row("users", &["bind"], &["nosuid", "nodev", "noexec"], &[]),
    row(
        "nosuid,noexec",
        &["rbind", "ro"],
        &["ro", "nosuid", "noexec"],
        &[],
    ),
    // The mount's own options take precedence.
    row("nosuid,nodev", &["rbind", "suid"], &["nodev"], &["nosuid"]),
    row(
        "noexec",
        &["rbind", "exec", "nosuid"],
        &["nosuid"],
        &["noexec"],
    ),
    row(
        "noatime,nodev",
        &["rbind", "relatime"],
        &["nodev", "relatime"],
        &["noatime"],
    ),
];

/// Returns the options of the container's last mount at `mountpoint`.
fn attributes(container: &Container, mountpoint: &str) -> Vec<String> {
    let mountinfo = container.sh("cat /proc/self/mountinfo");
    let mut lines = mountinfo.lines().rev();
    let line = lines.find(|line| line.split(' ').nth(4) == Some(mountpoint));
    let options = line.and_then(|line| line.split(' ').nth(5));
    let options = options.unwrap_or_else(|| panic!("no mount at {mountpoint}: {mountinfo}"));
    options.split(',').map(str::to_owned).collect()
}

on_each_delegate! {
    fn a_volumes_attributes_hold_unless_the_mount_sets_others(delegate: Delegate) {
        let node = Node::new(delegate);
        let mut bundle = Bundle::plain(node.dir());
        let mut devices: Vec<LoopDevice> = Vec::new();
        for (nth, row) in ROWS.iter().enumerate() {
            let device = node.ext4();
            let target = node.stage(POD, &format!("pv-{nth}"), &device, &["--option", row.volume]);
            bundle = bundle.bind(&target, &format!("/{nth}"), row.mount);
            devices.push(device);
        }
        let container = node.run(&bundle.write());
        for (nth, row) in ROWS.iter().enumerate() {
            let seen = attributes(&container, &format!("/{nth}"));
            let has = |word: &&&str| seen.iter().any(|seen| seen == **word);
            let missing: Vec<_> = row.shown.iter().filter(|word| !has(word)).collect();
            let extra: Vec<_> = row.hidden.iter().filter(has).collect();
            let context = format!("{} under {:?}: {seen:?}", row.volume, row.mount);
            assert!(missing.is_empty() && extra.is_empty(), "{context}, {missing:?}, {extra:?}");
        }
    }

    fn default_options_apply_to_a_recreated_app(delegate: Delegate) {
        let node = Node::with(delegate, "default_options = [\"nosuid\", \"nodev\"]");
        let device = node.ext4();
        let target: PathBuf = node.stage(POD, "pv-1", &device, &["--option", "noexec"]);
        let sandbox = node.sandbox(POD);
        let bundle = node.app_bundle(&sandbox).bind(&target, "/data", &[]).write();
        let rewritten = [(); 2].map(|()| {
            let app = node.run(&bundle);
            let seen = attributes(&app, "/data");
            for word in ["nosuid", "nodev", "noexec"] {
                assert!(seen.iter().any(|seen| seen == word), "{word}: {seen:?}");
            }
            app.end();
            bundle.config()
        });
        assert_eq!(rewritten[0], rewritten[1], "the options are not added a second time");
    }
}
