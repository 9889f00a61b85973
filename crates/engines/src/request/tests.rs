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

#[test]
fn a_handler_goes_by_whatever_name_it_has() {
    let text = "{\"runtimes\": {\"My.crust\": {\"path\": \"/usr/bin/runcrust\"}}}";
    let (root, node) = node(&[("etc/docker/daemon.json", text)]);
    let mut request = removal(Engine::Docker);
    for name in handlers(&node, Engine::Docker, None).unwrap() {
        request.handler = name;
        uninstall(&node, &request).unwrap().apply(&node).unwrap();
    }
    let left = fs::read_to_string(root.path().join("etc/docker/daemon.json"));
    assert_eq!(left.unwrap(), "{}");
}

fn removal(engine: Engine) -> Request {
    Request {
        engine,
        config: None,
        handler: "crust".to_owned(),
        program: None,
        is_crun: false,
        systemd_cgroup: None,
    }
}

/// containerd fails there, too.
#[test]
fn a_directory_that_a_pattern_finds_is_told_as_the_node_names_it() {
    let (_root, node) = node(&[
        (
            "etc/containerd/config.toml",
            "version = 2\nimports = ['/etc/containerd/*.d']\n",
        ),
        ("etc/containerd/certs.d/hosts.toml", ""),
    ]);
    let error = uninstall(&node, &removal(Engine::Containerd)).unwrap_err();
    let error = error.to_string();
    let words = "/etc/containerd/certs.d isn't a file";
    assert!(error.starts_with(words), "{error}");
    assert!(error.contains("`imports`"), "{error}");
}

#[test]
fn a_file_that_is_not_roots_is_named_once() {
    let (root, node) = node(&[("etc/docker/daemon.json", "{}")]);
    let request = removal(Engine::Docker);
    let told = |place: &str| {
        let place = root.path().join(place);
        fs::set_permissions(&place, fs::Permissions::from_mode(0o777)).unwrap();
        let error = uninstall(&node, &request).unwrap_err().to_string();
        fs::set_permissions(&place, fs::Permissions::from_mode(0o755)).unwrap();
        error
    };
    let (file, above) = (told("etc/docker/daemon.json"), told("etc"));
    let words = "/etc/docker/daemon.json can be written";
    assert!(file.starts_with(words), "{file}");
    assert!(above.starts_with("/etc/docker: /etc can be"), "{above}");
}
