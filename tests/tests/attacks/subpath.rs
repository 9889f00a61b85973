//! subPaths through links out of the volume, which a container of the pod has made.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use runcrust_tests::container::end;
use runcrust_tests::node::utf8;
use runcrust_tests::tree::OutsideFiles;
use runcrust_tests::volume::with_mounted;
use runcrust_tests::{Container, Node, Pod, Run, on_each_delegate, refusal};

use super::{path_in_container, while_swapped};

/// Name and target of each link, and a part of the expected error.
const LINKS: [(&str, &str, &str); 14] = [
    ("absolute", "/etc", "leads out"),
    ("the root", "/", "leads out"),
    ("its own place", "/.crust", "leads out"),
    ("climbs", "../../../../../../etc", "leads out"),
    ("climbs and comes back", "../volume/directory", "leads out"),
    ("above", "..", "leads out"),
    ("a descriptor", "/proc/self/fd/3", "leads out"),
    ("descriptors", "/proc/self/fd", "leads out"),
    ("a process's root", "/proc/self/root", "leads out"),
    ("the first process", "/proc/1/root/etc", "leads out"),
    ("round", "round", "symbolic links"),
    ("there", "and back", "symbolic links"),
    ("and back", "there", "symbolic links"),
    ("nowhere", "no such directory", "doesn't exist"),
];

fn create_hostile_files(root: &Path) {
    fs::create_dir(root.join("directory")).unwrap();
    fs::write(root.join("file"), "a file").unwrap();
    for (name, target, _) in LINKS {
        symlink(target, root.join(name)).unwrap();
    }
    let mode = Mode::from_bits_truncate(0o666);
    for (name, kind, number) in [
        ("pipe", SFlag::S_IFIFO, 0),
        ("null", SFlag::S_IFCHR, makedev(1, 3)),
        ("disk", SFlag::S_IFBLK, makedev(7, 0)),
    ] {
        mknod(&root.join(name), kind, mode, number).unwrap();
    }
    drop(UnixListener::bind(root.join("socket")).unwrap());
}

/// Returns the number of the volume's mounts in a created container.
fn views(container: &Container, device: &runcrust_tests::LoopDevice) -> usize {
    device.mounts_of(container.pid()).len()
}

on_each_delegate! {
    fn a_subpath_that_leads_out_is_refused_without_its_target(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        with_mounted(device.path(), create_hostile_files);
        let pod = Pod::new(&node, "pod-a", &device, &[]);
        let refused = |subpath: &str, reason: &str| {
            let bundle = node.app_bundle(&pod.sandbox).bind(pod.target.join(subpath), "/data", &[]);
            let refused = refusal::create_refused(&node, &bundle.write()).naming_volume("pv-1");
            refused.containing(&[&format!("subPath {subpath:?}: "), reason]).message()
        };
        for (name, target, reason) in LINKS {
            for subpath in [name.to_owned(), format!("{name}/below")] {
                let sentence = refused(&subpath, reason);
                let is_shown = target.len() > 2 && sentence.contains(target);
                assert!(!is_shown || target == name, "the error shows the link's target: {sentence}");
            }
        }
        for (name, reason) in [
            ("file/below", "isn't a directory"),
            ("pipe/below", "isn't a directory"),
        ] {
            let _ = refused(name, reason);
        }
        let root = names_in_root(&pod, &node);
        let mut expected: Vec<&str> = LINKS.iter().map(|(name, ..)| *name).collect();
        expected.extend(["directory", "disk", "file", "lost+found", "null", "pipe", "socket"]);
        expected.sort_unstable();
        assert_eq!(root, expected, "files were created");
    }

    /// kubelet binds special files, too. A device node gives no more access as a subPath than below the volume, because
    /// the volume's mount attributes and the container's device rules apply to both.
    fn a_special_file_as_subpath_gives_no_more_than_the_volume(delegate: Delegate) {
        let node = Node::new(delegate);
        for options in [&[][..], &["--option", "nodev"]] {
            let device = node.ext4();
            with_mounted(device.path(), create_hostile_files);
            let pod = Pod::new(&node, "pod-a", &device, options);
            let mut bundle = node.app_bundle(&pod.sandbox).bind(&pod.target, "/all", &["rbind", "rw"]);
            for name in ["pipe", "socket", "null", "disk"] {
                let place = format!("/one/{name}");
                bundle = bundle.bind(pod.target.join(name), &place, &["rbind", "rw"]);
            }
            let app = node.run(&bundle.write());
            for (name, test) in [("pipe", "-p"), ("socket", "-S"), ("null", "-c"), ("disk", "-b")] {
                let same = format!("test {test} /one/{name} && test /one/{name} -ef /all/{name} && echo same");
                assert_eq!(app.sh(&same), "same", "{name}");
            }
            for name in ["null", "disk"] {
                let opened = |from: &str| {
                    let open = format!("(head -c 1 {from}/{name} >/dev/null) 2>&1 | sed 's/.*: //'; echo x");
                    app.sh(&open)
                };
                assert_eq!(opened("/one"), opened("/all"), "{name} {options:?}");
            }
            pod.end([app]);
            let _ = node.unstage(&pod.target).success();
        }
    }

    /// The kernel resolves a path with `..`. The result is the volume, or the create fails.
    fn a_source_with_dots_is_the_volume_or_fails(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        with_mounted(device.path(), |root| fs::write(root.join("mark"), "the volume's").unwrap());
        let pod = Pod::new(&node, "pod-a", &device, &[]);
        fs::create_dir(pod.target.join("sub")).unwrap();
        let target = utf8(&pod.target);
        for source in [
            format!("{target}/sub/.."),
            format!("{target}/../mount"),
            format!("{}//./pv-1/mount/./", utf8(pod.target.ancestors().nth(2).unwrap())),
        ] {
            let app = node.app(&pod.sandbox, Path::new(&source), "/data");
            assert_eq!(app.sh("cat /data/mark"), "the volume's", "{source}");
            end([app]);
        }
        for source in [format!("{target}/gone/.."), format!("{target}/gone/../../../other/mount")] {
            let bundle = node.app_bundle(&pod.sandbox).bind(&source, "/data", &[]).write();
            let app = node.container(&bundle);
            let _ = app.create().failure();
            assert_eq!(app.state(), None, "{source}");
        }
        assert_eq!(fs::read_dir(&pod.target).unwrap().count(), 1, "files were created on the host");
    }

    fn a_directory_swapped_for_a_link_during_the_lookup_is_refused(delegate: Delegate) {
        const MAX_VIEWS: usize = 30;
        let node = Node::new(delegate);
        let outside = OutsideFiles::new(node.dir());
        let device = node.ext4();
        with_mounted(device.path(), |root| {
            fs::create_dir_all(root.join("one/directory")).unwrap();
            symlink(node.dir().join("outside"), root.join("other")).unwrap();
        });
        let pod = Pod::new(&node, "pod-a", &device, &[]);
        let holder = pod.app();
        // The link's target does not exist in the sandbox, so a link followed there would create it.
        let trap = path_in_container(&pod.sandbox, utf8(&node.dir().join("outside")));
        assert!(!trap.exists(), "the link's target exists in the sandbox");
        let [one, other] = ["one", "other"].map(|name| path_in_container(&holder, "/data").join(name));
        let (mut created, mut refused) = (0, 0);
        // How many views meet the link depends on the machine. Fewer views after a refusal and more after a success
        // make sure that both happen.
        let mut views_wanted = MAX_VIEWS;
        while_swapped(&one, &other, || {
            for round in 0..100 {
                let mut bundle = node.app_bundle(&pod.sandbox);
                for view in 0..views_wanted {
                    // Existing and missing subPaths alternate.
                    let subpath = match view % 2 {
                        0 => "one/directory".to_owned(),
                        _ => format!("one/directory/{round}-{view}"),
                    };
                    bundle = bundle.bind(pod.target.join(subpath), &format!("/data{view}"), &[]);
                }
                let app = node.container(&bundle.write());
                if app.create().status.success() {
                    created += 1;
                    assert_eq!(views(&app, &device), views_wanted, "a view is not of the volume");
                    views_wanted = MAX_VIEWS.min(views_wanted * 2);
                } else {
                    refused += 1;
                    views_wanted = 1.max(views_wanted / 2);
                    let sentence = app.last_log_error().unwrap();
                    let known = ["leads out of the volume", "is replaced faster", "EAGAIN"];
                    assert!(known.iter().any(|known| sentence.contains(known)), "{sentence}");
                }
                let _ = app.delete_force();
                if round >= 7 && created > 0 && refused > 0 {
                    break;
                }
            }
        });
        assert!(created > 0 && refused > 0, "no race: {created} created, {refused} refused");
        outside.assert_unchanged();
    }

    fn a_mount_in_the_volume_is_not_entered(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        with_mounted(device.path(), |root| fs::create_dir(root.join("nested")).unwrap());
        let pod = Pod::new(&node, "pod-a", &device, &[]);
        // A process with the sandbox's privileges could make this mount.
        let entry = node.entry(&pod.target);
        let place = Path::new("/.crust").join(entry.file_name().unwrap()).join("nested");
        let mut nsenter = Command::new("nsenter");
        nsenter.arg(format!("--target={}", pod.sandbox.pid())).arg("--mount");
        nsenter.args(["/bin/mount", "-t", "tmpfs", "none"]).arg(&place);
        let _ = Run::capture(&mut nsenter).success();
        let _ = pod.sandbox.sh(&format!("touch {}/not-the-volumes", place.display()));
        for subpath in ["nested", "nested/below"] {
            let bundle = node.app_bundle(&pod.sandbox).bind(pod.target.join(subpath), "/data", &[]);
            let refused = refusal::create_refused(&node, &bundle.write()).naming_volume("pv-1");
            let _ = refused.containing(&["leads out of the volume"]).message();
        }
        assert_eq!(pod.app().sh("ls /data/nested"), "", "not the volume's directory");
    }

    /// A name must not forge a line of a log.
    fn a_name_with_newlines_is_one_line_in_an_error(delegate: Delegate) {
        let node = Node::logging(delegate);
        let device = node.ext4();
        let name = "a\nb\u{1b}[2J\r{\"level\":\"error\",\"msg\":\"forged\"}\u{9b}31m";
        with_mounted(device.path(), |root| symlink("/etc", root.join(name)).unwrap());
        let pod = Pod::new(&node, "pod-a", &device, &[]);
        for destination in ["/data", "/da\nta\u{1b}[2J"] {
            let bundle = node.app_bundle(&pod.sandbox).bind(pod.target.join(name), destination, &[]);
            let _ = refusal::create_refused(&node, &bundle.write()).naming_volume("pv-1").message();
        }
        // Such a name also works as a subPath.
        let bundle = node.app_bundle(&pod.sandbox).bind(pod.target.join("new\nline\u{1b}[2J"), "/data", &[]);
        let _ = node.run(&bundle.write());
        let log = node.log();
        assert!(log.lines().all(|line| line.starts_with("20")), "a line lacks its time: {log}");
        assert!(!log.contains(['\u{1b}', '\u{9b}']), "{log:?}");
    }
}

/// Returns the names in the volume's root.
fn names_in_root(pod: &Pod<'_>, node: &Node) -> Vec<String> {
    let app = node.app(&pod.sandbox, &pod.target, "/data");
    let listed = app.sh("ls -1a /data");
    let names = listed.lines().filter(|name| !matches!(*name, "." | ".."));
    let mut names: Vec<String> = names.map(str::to_owned).collect();
    names.sort_unstable();
    names
}
