//! Containers without a pod, of podman, docker or a plain bundle: errors name the container, and no pod or sandbox.

use runcrust_tests::{Bundle, Node, on_each_delegate, refusal};

on_each_delegate! {
    fn errors_about_a_plain_container_name_it(delegate: Delegate) {
        for (handler, staged) in [
            ("", &["--access-mode", "SINGLE_NODE_SINGLE_WRITER"][..]),
            ("shared = \"deny\"", &[]),
        ] {
            let node = Node::with(delegate, handler);
            let device = node.ext4();
            let target = node.dir().subdir("staged");
            let _ = node.try_stage(&target, device.path(), staged).success();
            let bundle = || Bundle::plain(node.dir()).bind(&target, "/data", &[]).write();
            let one = node.run(&bundle());
            let sentence = refusal::create_refused(&node, &bundle()).message();
            let uses = format!("container {} uses it", one.id());
            assert!(sentence.contains(&uses), "{sentence}");
            assert!(sentence.ends_with("wait until that container has ended"), "{sentence}");

            let used = format!("it is in use by container {}", one.id());
            for (run, next) in [
                (node.unstage(&target), "hint: stop that container first"),
                (
                    node.try_stage(&target, device.path(), &["--read-only"]),
                    "stage it with the same properties, or stop that container first",
                ),
            ] {
                let error = run.failure().stderr;
                assert!(error.contains(&used) && error.contains(next), "{error}");
                assert!(!error.contains("sandbox"), "{error}");
            }
        }
    }
}
