use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::*;

/// A node with these files.
fn node(files: &[(&str, &str)]) -> (tempfile::TempDir, Node) {
    let root = tempfile::Builder::new().tempdir_in("/run").unwrap();
    fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for (path, text) in files {
        let file = root.path().join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
    let node = Node::new(root.path());
    (root, node)
}

#[test]
fn the_handlers_are_those_of_every_file_and_of_runcrust_alone() {
    let (_root, node) = node(&[
        (
            "etc/containerd/config.toml",
            "version = 2\nimports = ['/etc/containerd/conf.d/*']\n\
             [plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes]\n\
             runc.options.BinaryName = '/usr/bin/runc'\n\
             one.options.BinaryName = '/usr/bin/runcrust'\n\
             two.options.BinaryName = '/opt/runcrust-crun'\n",
        ),
        (
            "etc/containerd/conf.d/1.toml",
            "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes]\n\
             one.options.BinaryName = '/usr/bin/runcrust'\n\
             four.options.BinaryName = '/usr/bin/runcrust'\n",
        ),
        (
            "etc/containerd/conf.d/2.toml",
            "[plugins.cri.containerd.runtimes]\nold.options.BinaryName = '/usr/bin/runcrust'\n",
        ),
        (
            "etc/crio/crio.conf",
            "[crio.runtime.runtimes]\nb.runtime_path = '/usr/bin/runcrust'\nrunc.runtime_path = ''\n",
        ),
        (
            "etc/crio/crio.conf.d/99-runcrust.conf",
            "[crio.runtime.runtimes.a]\nruntime_path = '/usr/local/bin/runcrust'\n",
        ),
        (
            "usr/share/containers/containers.conf",
            "[engine.runtimes]\ncrun = ['/usr/bin/crun']\nv = ['/usr/bin/crun', '/usr/bin/runcrust']\n",
        ),
        (
            "etc/containers/containers.conf",
            "[engine.runtimes]\ncrust = ['/usr/bin/runcrust']\n",
        ),
        (
            "etc/docker/daemon.json",
            "{\"runtimes\": {\"z\": {\"path\": \"/runcrust\"}, \"n\": null, \"k\": {}},\n\
             \"runtimes\": {\"crust\": {\"path\": \"/usr/bin/runcrust\"}, \"r\": {\"path\": \"/usr/bin/runc\"}}}",
        ),
        (
            "srv/other.toml",
            "[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes]\n\
             other.options.BinaryName = '/usr/bin/runcrust'\n",
        ),
    ]);
    for (engine, expected) in [
        (Engine::Containerd, &["four", "old", "one", "two"][..]),
        (Engine::Crio, &["a", "b"]),
        (Engine::Podman, &["crust", "v"]),
        (Engine::Docker, &["crust", "z"]),
    ] {
        assert_eq!(handlers(&node, engine, None).unwrap(), expected);
    }
    let named = Some(Path::new("/srv/other.toml"));
    let found = handlers(&node, Engine::Containerd, named).unwrap();
    assert_eq!(found, ["other"]);
}

#[test]
fn a_node_without_an_engine_has_none_of_its_handlers() {
    let (_root, node) = node(&[]);
    let engines = [
        Engine::Containerd,
        Engine::Crio,
        Engine::Podman,
        Engine::Docker,
    ];
    for engine in engines {
        assert_eq!(
            handlers(&node, engine, None).unwrap(),
            Vec::<String>::new(),
            "{engine:?}"
        );
        // What can't be read may have some.
        let file = node.find(engine.default_file());
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "[").unwrap();
        let error = handlers(&node, engine, None).unwrap_err();
        assert!(matches!(error, HandlerError::Syntax { .. }), "{error}");
    }
}
