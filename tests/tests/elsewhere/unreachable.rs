//! Target paths on a file system whose server hangs or is dead: creates of other containers work.

use std::fs;
use std::path::Path;

use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::{Bundle, HungFilesystem, Node, Run, StagedPair, mounts, on_each_delegate};

/// Runs `crust explain` for a bundle with this source, and panics if the command hangs.
fn explain(node: &Node, source: &Path) -> String {
    let bundle = Bundle::plain(node.dir()).bind(source, "/data", &[]).write();
    let mut explain = node.handler().command();
    explain.args(["crust", "explain", "--json", utf8(bundle.path())]);
    let run = Run::capture_within(&mut explain, WAIT_TIMEOUT);
    let run = run.unwrap_or_else(|| panic!("{}: no answer", source.display()));
    run.success().stdout
}

on_each_delegate! {
    /// The create does not wait for a file server, because the delegate's bind mount does not either.
    fn a_hung_source_is_passed_through(delegate: Delegate) {
        let scene = StagedPair::new(delegate);
        let directory = scene.node.dir().subdir("fuse");
        let hung = HungFilesystem::mount(&directory);
        let explanation = explain(&scene.node, &directory);
        drop(hung);
        assert!(explanation.contains("pass-on"), "{explanation}");
    }

    fn a_hung_target_path_delays_no_other_container(delegate: Delegate) {
        let scene = StagedPair::new(delegate);
        let (node, device) = (&scene.node, &scene.devices[1]);
        let far = node.dir().subdir("far");
        for target in [far.clone(), far.join("volume"), far.join("volume/deep")] {
            fs::create_dir_all(&target).unwrap();
            let _ = node.try_stage(&target, device.path(), &[]).success();
        }
        let memory = node.dir().subdir("memory");
        mounts::tmpfs(&memory);
        let other = node.dir().subdir("other");
        let others = [memory.clone(), scene.bind("bind-of-other", &other), "/etc/hosts".into()];
        let volumes = [scene.bind("bind", &scene.plain), scene.bind("csi", &scene.csi)];
        let index = node.handler().state_dir().join("targets.json");
        let mut hung = HungFilesystem::mount(&far);
        for has_index in [true, false] {
            if !has_index {
                fs::remove_file(&index).unwrap();
            }
            for other in &others {
                let explanation = explain(node, other);
                assert!(explanation.contains("pass-on"), "index: {has_index}, {explanation}");
            }
            for volume in &volumes {
                let explanation = explain(node, volume);
                assert!(!explanation.contains("pass-on"), "index: {has_index}, {explanation}");
            }
        }
        // Access now fails with ENOTCONN.
        hung.fail();
        for source in [&memory, &other] {
            let app = node.run(&Bundle::plain(node.dir()).bind(source, "/data", &[]).write());
            let _ = app.sh("echo x > /data/file");
            assert!(source.join("file").exists(), "{}", source.display());
        }
        for volume in &volumes {
            scene.assert_serves(volume, "volume");
        }
    }
}
