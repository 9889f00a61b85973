//! System calls of runcrust before the delegate runs.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use runcrust_tests::kubelet::SubPath;
use runcrust_tests::{
    Bundle, Container, Node, Run, Runtime, StagedVolume, mounts, on_each_delegate,
};

use crate::traced_calls::{Trace, TracedCalls};

/// Returns inode, ctime and content of a file, to detect any change.
fn identity(path: &Path) -> (u64, i64, i64, Vec<u8>) {
    let stat = fs::symlink_metadata(path).expect("stat");
    (
        stat.ino(),
        stat.ctime(),
        stat.ctime_nsec(),
        fs::read(path).expect("read"),
    )
}

/// Creates a container without volumes, and asserts that runcrust changes nothing and reads each file once.
#[track_caller]
fn pass_through(node: &Node, bundle: &Bundle) -> (Container, TracedCalls) {
    let (before, records) = (identity(&bundle.config_path()), node.records());
    let container = node.container(bundle);
    let trace = Trace::in_directory(node.dir().path());
    let _ = container
        .create_with(trace.wrap(&container.create_command()))
        .success();
    let (part, execs) = trace.part();
    part.assert_changes_nothing();
    assert_eq!(execs, 2, "other execs than runcrust's and the delegate's");
    let delegate = format!("execve({:?}, ", node.handler().delegate().program());
    assert!(part.exec.starts_with(&delegate), "{}", part.exec);
    assert_eq!(part.opened("config.json"), 1, "{part:#?}");
    let configuration = format!("{}.toml", node.handler().name());
    assert_eq!(part.opened(&configuration), 1, "{part:#?}");
    assert_eq!(identity(&bundle.config_path()), before);
    assert_eq!(node.records(), records);
    let _ = container.start().success();
    (container, part)
}

/// Stages a volume of another pod, so that the crust directory exists and is not empty.
fn stage_for_another(node: &Node) -> runcrust_tests::LoopDevice {
    let device = node.ext4();
    let _ = node.stage("pod-z", "pv-9", &device, &[]);
    device
}

on_each_delegate! {
    fn a_plain_bundle_costs_one_exec(delegate: Delegate) {
        let node = Node::new(delegate);
        let _device = stage_for_another(&node);
        let data = node.dir().subdir("data");
        let bundle = Bundle::plain(node.dir()).bind(&data, "/data", &[]).write();
        let (_container, part) = pass_through(&node, &bundle);
        assert_eq!(part.listed(), <[String; 0]>::default());

        let bare = Bundle::plain(node.dir()).bind(&data, "/data", &[]).write();
        let bare = Container::new(&Runtime::bare(delegate), &bare);
        let trace = Trace::in_directory(node.dir().path());
        let _ = bare.create_with(trace.wrap(&bare.create_command())).success();
        assert_eq!(trace.execs(), 1, "other execs than the bare delegate's");
    }

    fn a_pod_without_deferred_volumes_costs_one_exec_each(delegate: Delegate) {
        let node = Node::new(delegate);
        let _device = stage_for_another(&node);
        // A CSI volume that its driver has mounted, as without deferral.
        let target = node.target("pod-a", "pv-1");
        mounts::tmpfs(&target);

        let (sandbox, part) = pass_through(&node, &node.sandbox_bundle("pod-a").write());
        let directory = target.parent().and_then(Path::parent).unwrap();
        assert_eq!(part.listed(), [directory.to_str().unwrap()], "not one listing");

        let bundle = node.app_bundle(&sandbox).bind(&target, "/data", &[]).write();
        let (app, part) = pass_through(&node, &bundle);
        assert_eq!(part.listed(), <[String; 0]>::default());
        let _ = app.sh("echo hello > /data/file");
        assert_eq!(fs::read_to_string(target.join("file")).unwrap(), "hello\n");
    }

    fn a_pod_without_csi_volumes_lists_no_directory(delegate: Delegate) {
        let node = Node::new(delegate);
        let _device = stage_for_another(&node);
        let (sandbox, part) = pass_through(&node, &node.sandbox_bundle("pod-a").write());
        assert_eq!(part.listed(), <[String; 0]>::default());
        let (_app, part) = pass_through(&node, &node.app_bundle(&sandbox).write());
        assert_eq!(part.listed(), <[String; 0]>::default());
    }

    fn a_subpath_on_another_file_system_reads_no_mount_table(delegate: Delegate) {
        let node = Node::on_root_mount(delegate);
        let _device = stage_for_another(&node);
        let target = node.target("pod-a", "pv-1");
        mounts::tmpfs(&target);
        let bind = |volume, directory| {
            let of_app = SubPath { pod_uid: "pod-a", volume, directory, path: "db", index: 0 };
            of_app.bind(&node.handler().kubelet_dir())
        };
        let cache = node.dir().subdir("kubelet/pods/pod-a/volumes/kubernetes.io~empty-dir/cache");
        let (csi, empty) = (bind("pv-1", &target), bind("cache", &cache));
        let (sandbox, _) = pass_through(&node, &node.sandbox_bundle("pod-a").write());
        let (app, part) = pass_through(&node, &node.app_bundle(&sandbox).bind(&csi, "/csi", &[]).write());
        assert_eq!(part.opened("mountinfo"), 0, "{part:#?}");
        let directory = target.parent().and_then(Path::parent).unwrap();
        assert_eq!(part.listed(), [directory.to_str().unwrap()], "to find the pod's staged volumes");
        let _ = app.sh("echo hello > /csi/file");
        // A source on the file system of the target paths may show any volume: kubelet bind-mounts a hostPath's
        // subPath in this way.
        let (app, part) = pass_through(&node, &node.app_bundle(&sandbox).bind(&empty, "/empty", &[]).write());
        assert_eq!(part.opened("mountinfo"), 1, "{part:#?}");
        let _ = app.sh("echo hello > /empty/file");
        for host in [&target, &cache] {
            assert_eq!(fs::read_to_string(host.join("db/file")).unwrap(), "hello\n");
        }
    }

    fn katas_directory_is_searched_only_if_configured(delegate: Delegate) {
        let katas = Path::new("/run/kata-containers");
        for (extra, opens) in [("", 0), ("kata_layout = true", 1)] {
            let node = Node::with(delegate, extra);
            let _device = stage_for_another(&node);
            let data = node.dir().subdir("data");
            let bundle = Bundle::plain(node.dir()).bind(&data, "/data", &[]).write();
            let (_container, part) = pass_through(&node, &bundle);
            let named = part.naming_path(katas);
            assert_eq!(named.len().min(1), opens, "{named:#?}");
            assert_eq!(part.listed(), <[String; 0]>::default());
        }
    }

    fn a_node_without_a_crust_directory_lists_nothing(delegate: Delegate) {
        let node = Node::new(delegate);
        let target = node.target("pod-a", "pv-1");
        fs::write(target.join("file"), "hello\n").unwrap();
        let (sandbox, part) = pass_through(&node, &node.sandbox_bundle("pod-a").write());
        assert_eq!(part.listed(), <[String; 0]>::default());
        let (_app, part) = pass_through(&node, &node.app_bundle(&sandbox).write());
        assert_eq!(part.listed(), <[String; 0]>::default());
        let (_plain, part) = pass_through(&node, &Bundle::plain(node.dir()).write());
        assert_eq!(part.listed(), <[String; 0]>::default());
        for path in [node.handler().crust_root(), node.handler().state_dir()] {
            assert!(!path.exists(), "{} was created", path.display());
        }
    }

    /// The commands of the rest of a container's life, and queries.
    fn other_commands_do_not_read_the_bundle(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        let bundle = volume.app_bundle(&sandbox).write();
        let app = volume.container(&bundle);
        let _ = app.create().success();
        let trace = Trace::in_directory(volume.dir().path());
        let id = app.id();
        for arguments in [
            vec!["state", id],
            vec!["start", id],
            vec!["ps", id],
            vec!["exec", id, "/bin/true"],
            vec!["list"],
            vec!["features"],
            vec!["--version"],
            vec!["kill", id, "KILL"],
            vec!["delete", "--force", id],
            vec!["no-such-command"],
        ] {
            let _ = Run::capture(&mut trace.wrap(&app.command(&arguments)));
            let (part, execs) = trace.part();
            part.assert_changes_nothing();
            // Further execs are the delegate's.
            assert!(execs >= 2, "{arguments:?}");
            assert_eq!(part.opened("config.json"), 0, "{arguments:?}: {part:#?}");
            let state: [PathBuf; 4] = [
                bundle.path().to_owned(),
                volume.handler().crust_root(),
                volume.handler().state_dir(),
                volume.handler().kubelet_dir(),
            ];
            for path in &state {
                assert_eq!(part.naming_path(path), <[&str; 0]>::default(), "{arguments:?}");
            }
            assert_eq!(part.listed(), <[String; 0]>::default());
        }
    }
}
