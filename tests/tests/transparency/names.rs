//! Ids, paths and values that look like something else.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use runcrust_tests::{Bundle, on_each_delegate};

use crate::container_pair::ContainerPair;
use crate::probed_node::{ProbedNode, os_strings};

/// Runs both containers from create to delete, twice.
fn run_twice(pair: &ContainerPair) {
    let globals = "--root @ROOT --log @LOG --log-format json";
    for line in [
        "create --bundle @BUNDLE --pid-file @PIDFILE @ID",
        "state @ID",
        "start @ID",
    ] {
        let _ = pair.assert_same(&format!("{globals} {line}")).success();
    }
    pair.wait_for_program("sleep");
    for line in ["state @ID", "ps --format json @ID", "exec @ID /bin/true"] {
        let _ = pair.assert_same(&format!("{globals} {line}")).success();
    }
    pair.end();
    let _ = pair.assert_same(&format!("{globals} state @ID")).failure();
    let run = "run --detach --bundle @BUNDLE --pid-file @PIDFILE @ID";
    let _ = pair.assert_same(&format!("{globals} {run}")).success();
    pair.end();
}

on_each_delegate! {
    /// `crust` and `install` are runcrust's commands, but only in the position of a command.
    fn containers_named_like_commands_work(delegate: Delegate) {
        for id in ["create", "run", "restore", "crust", "install", "uninstall", "state", "c.r-u_s+t"] {
            run_twice(&ContainerPair::plain(delegate, |bundle| bundle.with_id(id)));
        }
    }

    fn containers_named_like_commands_have_their_volume(delegate: Delegate) {
        for id in ["create", "crust", "install"] {
            let pair = ContainerPair::apps(delegate, |bundle| bundle.with_id(id));
            run_twice(&pair);
            assert!(pair.has_a_volume());
        }
    }

    fn a_bundles_path_may_have_blanks_and_quotes(delegate: Delegate) {
        let change = |bundle: Bundle| bundle.in_directory(" a b\tc'\"$(x)\u{e9}\n");
        run_twice(&ContainerPair::plain(delegate, change));
        let pair = ContainerPair::apps(delegate, change);
        run_twice(&pair);
        assert!(pair.has_a_volume());
    }

    fn values_named_crust_are_not_the_command(delegate: Delegate) {
        let probed = ProbedNode::new(delegate);
        for line in [
            "state crust",
            "--root crust state id",
            "--root=crust --log crust kill crust 9",
            "--log=crust start crust",
            "exec id crust",
            "exec crust crust stage",
            "delete --force crust",
            "--help crust",
            "help crust",
            "list crust",
        ] {
            let words: Vec<&str> = line.split_whitespace().collect();
            let _ = probed.assert_same("", &os_strings(&words));
        }
        let bundle = probed.bundle();
        let path = bundle.path().to_str().unwrap();
        let _ = probed.assert_same("", &os_strings(&["create", "--bundle", path, "crust"]));
        let _ = probed.assert_same("", &os_strings(&["create", "--bundle", path, "--pid-file", "crust", "id"]));
    }

    fn paths_that_are_not_utf8_are_passed_on(delegate: Delegate) {
        let probed = ProbedNode::new(delegate);
        let odd = OsStr::from_bytes(b"caf\xe9 \n\xff\xfe");
        let bundle = Bundle::plain(probed.node.dir()).in_directory(odd).write();
        let log = probed.node.dir().join(odd);
        let globals = [OsStr::new("--root"), odd, OsStr::new("--log"), log.as_os_str()];
        let bundle = bundle.path().as_os_str();
        for call in [
            [OsStr::new("state"), odd].as_slice(),
            &[OsStr::new("update"), OsStr::new("--resources"), odd, odd],
            &[OsStr::new("exec"), OsStr::new("--process"), odd, odd, odd],
            &[OsStr::new("checkpoint"), OsStr::new("--image-path"), odd, odd],
            &[OsStr::new("create"), OsStr::new("--bundle"), bundle, odd],
            &[OsStr::new("run"), OsStr::new("-b"), bundle, OsStr::new("--pid-file"), odd, odd],
        ] {
            let arguments: Vec<&OsStr> = globals.iter().chain(call).copied().collect();
            let _ = probed.assert_same("", &arguments);
        }
    }

    /// The delegates could not read back what they write about such a bundle: runc and crun 1.8 refuse it, and crun
    /// 1.28 creates a container that it cannot read.
    fn a_bundle_that_is_not_utf8_is_passed_to_the_delegate(delegate: Delegate) {
        let odd = OsStr::from_bytes(b"caf\xe9 \xff");
        let pair = ContainerPair::plain(delegate, |bundle| bundle.in_directory(odd));
        // The bundle is the working directory, because the words of a call are UTF-8 here.
        let _ = pair.assert_same("--root @ROOT --log @WORK/log create @ID");
        let _ = pair.assert_same("--root @ROOT state @ID").failure();
    }
}
