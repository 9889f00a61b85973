//! `--restart`. The node has no systemd: a script in its root directory, where systemctl has to be run, records its
//! arguments.

use std::fs;

use crate::scene::Scene;

const SYSTEMCTL: &str = "#!/bin/sh\necho \"$@\" >> /calls\n[ \"$1\" != show ] || cat /answer\n";
const SHOW: &str = "show --property=ExecMainStartTimestampMonotonic,ReloadResult,ActiveState";
/// The call for docker, which is reloaded and not restarted: the time of a reload is not that of a start.
const SHOW_DOCKER: &str = "show --property=StateChangeTimestampMonotonic,ReloadResult,ActiveState";

/// Returns a node whose daemon is in this state, and started this many microseconds after the node.
fn node(state: &str, started: &str) -> Scene {
    let scene = Scene::new();
    scene.write("usr/bin/systemctl", SYSTEMCTL, 0o755);
    for applet in ["sh", "cat"] {
        let file = scene.at(&format!("bin/{applet}"));
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::copy("/bin/busybox", file).unwrap();
    }
    // The standard input of systemctl.
    scene.write("dev/null", "", 0o644);
    let answer = format!(
        "ActiveState={state}\nExecMainStartTimestampMonotonic={started}\n\
         StateChangeTimestampMonotonic={started}\nReloadResult=success\n"
    );
    scene.write("answer", &answer, 0o644);
    scene
}

/// Returns the arguments of the calls of systemctl since the last time.
fn calls(scene: &Scene) -> Vec<String> {
    let text = fs::read_to_string(scene.at("calls")).unwrap_or_default();
    let _ = fs::remove_file(scene.at("calls"));
    text.lines().map(str::to_owned).collect()
}

#[test]
fn a_daemon_older_than_its_changed_file_is_restarted() {
    let scene = node("active", "1");
    for (engine, asked) in [
        ("containerd", "restart containerd.service"),
        ("crio", "restart crio.service"),
        ("docker", "reload docker.service"),
    ] {
        let unit = asked.split_once(' ').unwrap().1;
        let show = if engine == "docker" {
            SHOW_DOCKER
        } else {
            SHOW
        };
        let expected = vec![format!("{show} {unit}"), asked.to_owned()];
        let done = scene
            .installed(&format!("install {engine} --restart"))
            .success();
        assert!(
            done.stdout.contains(&format!("done: systemctl {asked}")),
            "{done}"
        );
        assert_eq!(calls(&scene), expected);
        // A restart is repeated, in case the first one failed, or install was killed before it.
        let _ = scene
            .installed(&format!("install {engine} --restart"))
            .success();
        assert_eq!(calls(&scene), expected);
        let _ = scene
            .call(&format!("uninstall {engine} --restart"))
            .success();
        assert_eq!(calls(&scene), expected);
        let _ = scene.installed(&format!("install {engine}")).success();
        assert_eq!(calls(&scene), Vec::<String>::new());
    }
}

#[test]
fn a_current_or_stopped_daemon_is_left_alone() {
    // The daemon started in the future, about thirty years after the node.
    let scene = node("active", "1000000000000000");
    let done = scene.installed("install containerd --restart").success();
    assert!(
        done.stdout
            .contains("containerd.service has already read the configuration"),
        "{done}"
    );
    assert_eq!(calls(&scene), [format!("{SHOW} containerd.service")]);
    let scene = node("inactive", "0");
    let done = scene.installed("install containerd --restart").success();
    assert!(done.stdout.contains("isn't running"), "{done}");
    assert_eq!(calls(&scene).len(), 1);
    let done = scene.installed("install podman --restart").success();
    assert!(done.stdout.contains("nothing to restart"), "{done}");
    assert_eq!(calls(&scene), Vec::<String>::new());
}

#[test]
fn a_failed_restart_is_reported_and_the_file_stays_changed() {
    let scene = node("active", "1");
    let failing =
        format!("{SYSTEMCTL}[ \"$1\" = show ] || {{ echo 'Job failed.' >&2; exit 1; }}\n");
    scene.write("usr/bin/systemctl", &failing, 0o755);
    let failed = scene.installed("install containerd --restart").failure();
    assert!(
        failed
            .stderr
            .contains("systemctl restart containerd.service: Job failed"),
        "{failed}"
    );
    assert!(
        scene
            .read("etc/containerd/config.toml")
            .contains("runtimes.crust]")
    );
    fs::remove_file(scene.at("usr/bin/systemctl")).unwrap();
    let failed = scene.installed("install containerd --restart").failure();
    assert!(
        failed
            .stderr
            .contains("hint: restart containerd.service by hand"),
        "{failed}"
    );
}

#[test]
fn docker_is_reloaded_once_and_after_a_failed_reload() {
    let scene = node("active", "1");
    let reloaded = "ActiveState=active\nExecMainStartTimestampMonotonic=1\n\
                    StateChangeTimestampMonotonic=1000000000000000\nReloadResult=";
    scene.write("answer", &format!("{reloaded}success\n"), 0o644);
    let done = scene.installed("install docker --restart").success();
    assert!(
        done.stdout
            .contains("docker.service has already read the configuration"),
        "{done}"
    );
    assert_eq!(calls(&scene).len(), 1);
    scene.write("answer", &format!("{reloaded}exit-code\n"), 0o644);
    let done = scene.installed("install docker --restart").success();
    assert!(done.stdout.contains("done: systemctl reload"), "{done}");
    assert_eq!(calls(&scene).len(), 2);
}

#[test]
fn the_unit_can_have_another_name() {
    let scene = node("active", "1");
    let line = "install containerd --config /var/lib/k3s/config.toml --unit k3s.service";
    let run = scene.installed(&format!("{line} --handler one")).success();
    assert!(
        run.stdout.contains("systemctl restart k3s.service"),
        "{run}"
    );
    let _ = scene.installed(&format!("{line} --restart")).success();
    let expected = [
        format!("{SHOW} k3s.service"),
        "restart k3s.service".to_owned(),
    ];
    assert_eq!(calls(&scene), expected);
}
