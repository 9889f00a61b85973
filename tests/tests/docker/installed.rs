//! A daemon whose configuration `runcrust install` has edited.

use std::fs;
use std::process::Command;

use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::{Docker, Engine as _, Node, Run, StagedVolume, on_each_delegate, wait_until};
use serde_json::json;

use crate::scene::volume;

on_each_delegate! {
    #[ignore = "needs docker; runs in another Debian: make engines"]
    fn the_handler_works_from_reload_to_uninstall(delegate: Delegate) {
        let staged = StagedVolume::on(Node::root_only(delegate, ""), &[]);
        let bare = delegate.program();
        let docker = Docker::start(staged.dir(), delegate, &[("bare", &bare)], json!({}));
        let file = docker.configuration();
        let before = fs::read_to_string(&file).unwrap();
        let call = |words: &[&str]| {
            let mut command = Command::new(staged.handler().path());
            command.env_clear().env("PATH", "/usr/bin:/bin");
            Run::capture(command.args(words).args(["docker", "--config", utf8(&file)]))
        };
        let runtimes = || docker.run(&["info", "--format", "{{json .Runtimes}}"]).success().stdout;
        let has_handler = || runtimes().contains("\"crust\"");
        let volume = volume(&staged.target, "");

        let _ = call(&["install"]).success();
        docker.reload();
        wait_until("docker to know the handler", WAIT_TIMEOUT, has_handler);
        let _ = docker.start_container("one", &["--runtime=crust", &volume]).success();
        let _ = docker.sh("one", "echo hello > /data/file");
        assert_eq!(fs::read_dir(&staged.target).unwrap().count(), 0, "files are left on the host");

        let refused = call(&["uninstall"]).failure();
        let id = docker.inspect("one", "{{.Id}}");
        refused.assert_contains(&["pv-1", &id[..12]]);
        let _ = docker.run(&["restart", "-t0", "one"]).success();
        assert_eq!(docker.sh("one", "cat /data/file"), "hello");

        docker.remove(&["one"]);
        staged.device.wait_until_free(WAIT_TIMEOUT);
        let _ = staged.unstage().success();
        let _ = docker.start_container("two", &["--runtime=crust"]).success();
        let _ = call(&["uninstall"]).success();
        assert_eq!(fs::read_to_string(&file).unwrap(), before);
        docker.reload();
        wait_until("docker to forget the handler", WAIT_TIMEOUT, || !has_handler());
        // A running container can still be stopped and removed, but not started again.
        assert_eq!(docker.sh("two", "echo lives"), "lives");
        let _ = docker.run(&["stop", "-t0", "two"]).success();
        let _ = docker.run(&["start", "two"]).failure();
        docker.remove(&["two"]);
    }
}
