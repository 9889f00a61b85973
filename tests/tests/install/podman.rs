//! Runs podman with a configuration that `runcrust install` has edited.

use std::fs;

use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::{
    Delegate, Engine as _, Node, PODMAN_CONFIGURATION, Podman, StagedVolume, on_each_delegate,
};

use crate::scene::run;

on_each_delegate! {
    fn a_container_runs_between_install_and_uninstall(delegate: Delegate) {
        let staged = StagedVolume::on(Node::root_only(delegate, ""), &[]);
        let file = staged.dir().join("containers.conf");
        let before = format!("{PODMAN_CONFIGURATION}\n[engine.runtimes]\n# crun = [\"/usr/bin/crun\"]\n");
        fs::write(&file, &before).unwrap();
        let call = |verb| run(staged.handler().path(), &[verb, "podman", "--config", utf8(&file)]);
        let installed = call("install").success();
        assert!(!installed.stdout.contains("systemctl"), "{installed}");

        let podman = Podman::configured(staged.dir(), &file, "crust");
        let volume = format!("--volume={}:/data", staged.target.display());
        let _ = podman.start("one", &[&volume], 0).success();
        let _ = podman.sh("one", "echo hello > /data/file");
        assert_eq!(fs::read_dir(&staged.target).unwrap().count(), 0, "files are left on the host");
        assert_eq!(podman.inspect("one", "{{.OCIRuntime}}"), "crust");

        // podman looks up a runtime's features by its name in the configuration.
        let without_cgroups = podman.start("two", &["--cgroups=disabled", &volume], 0);
        match delegate {
            Delegate::Crun => {
                let _ = without_cgroups.success();
                assert_eq!(podman.sh("two", "cat /data/file"), "hello");
                let _ = podman.run(&["rm", "--force", "--time", "0", "two"]).success();
            }
            Delegate::Runc => drop(without_cgroups.failure()),
        }

        let refused = call("uninstall").failure();
        assert!(refused.stderr.contains("pv-1"), "{refused}");
        let _ = podman.run(&["rm", "--force", "--time", "0", "one"]).success();
        staged.device.wait_until_free(WAIT_TIMEOUT);
        let _ = staged.unstage().success();
        let _ = call("uninstall").success();
        assert_eq!(fs::read_to_string(&file).unwrap(), before);
    }
}
