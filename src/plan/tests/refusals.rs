//! Configs that are refused because a volume would appear on the host, or because the container has no mount namespace
//! of its own.

use super::*;

/// Plans a volume at `destination` after these mounts, with these additional options and root propagation.
fn plan_volume(
    mounts: &[&str],
    destination: &str,
    options: &str,
    root: &str,
) -> Result<(), String> {
    let mounts: Vec<String> = mounts.iter().map(|mount| format!("{{{mount}}},")).collect();
    let mounts = mounts.concat();
    let text = format!(
        r#"{{"root":{{"path":"rootfs"}},"mounts":[{mounts}
            {{"destination":"{destination}","source":"{TARGET}","options":["bind"{options}]}},
            {{"destination":"{destination}/x","source":"/srv","options":["rbind","rshared"]}}],
            "linux":{{"namespaces":[{{"type":"mount"}}],"rootfsPropagation":"{root}"}}}}"#
    );
    for role in [member("s"), Role::Standalone] {
        match plan_config(&text, role, &Config::default())? {
            Plan::Container(_) => {}
            other => panic!("{other:?}"),
        }
    }
    Ok(())
}

fn bind(destination: &str, options: &str) -> String {
    format!(r#""destination":"{destination}","source":"/srv","options":["rbind"{options}]"#)
}

fn tmpfs(destination: &str, options: &str) -> String {
    format!(
        r#""destination":"{destination}","source":"t","type":"tmpfs","options":["rw"{options}]"#
    )
}

fn volume(destination: &str, options: &str) -> String {
    format!(r#""destination":"{destination}","source":"{TARGET}/v","options":["rbind"{options}]"#)
}

#[test]
fn a_shared_volume_mount_is_refused() {
    for options in [r#","rshared""#, r#","rslave","shared""#] {
        let error = plan_volume(&[], "/data", options, "rprivate").unwrap_err();
        assert!(
            error.starts_with("volume pv-1: its mount is to be shared with the host")
                && error.contains("hint: "),
            "{error}"
        );
    }
    for options in ["", r#","rslave""#, r#","rshared","rprivate""#] {
        assert_eq!(
            plan_volume(&[], "/data", options, "rshared"),
            Ok(()),
            "{options}"
        );
    }
}

#[test]
fn a_volume_below_a_mount_shared_with_the_host_is_refused() {
    let (shared, private) = (r#","rshared""#, r#","rprivate""#);
    for (mounts, destination, root, by) in [
        (vec![bind("/a", shared)], "/a/data/.", "rshared", "/a"),
        (vec![bind("/a", shared)], "/a/data", "", "/a"),
        (
            vec![bind("/a", r#","rslave","shared""#)],
            "/a/data",
            "",
            "/a",
        ),
        // A bind without a propagation option is a peer of its source.
        (vec![bind("/a", "")], "/a/data", "rshared", "/a"),
        // "private" doesn't apply to submounts.
        (
            vec![bind("/a", r#","private""#)],
            "/a/data",
            "rshared",
            "/a",
        ),
        // Through a symbolic link in the image.
        (vec![bind("/a", shared)], "/link/data", "rshared", "/a"),
        (vec![bind("/link", shared)], "/a/data", "rshared", "/link"),
        // The last mount with a destination is the one that is mounted on.
        (
            vec![bind("/a", private), bind("/a", shared)],
            "/a/data",
            "rshared",
            "/a",
        ),
        // A new file system on a shared mount.
        (
            vec![bind("/a", shared), tmpfs("/a/t", "")],
            "/a/t/data",
            "rshared",
            "/a",
        ),
        (vec![tmpfs("/t", shared)], "/t/data", "rshared", "/t"),
    ] {
        let listed: Vec<&str> = mounts.iter().map(String::as_str).collect();
        let error = plan_volume(&listed, destination, "", root).unwrap_err();
        let expected =
            format!("volume pv-1: {destination} is below {by}, a mount that the container shares");
        assert!(
            error.starts_with(&expected) && error.contains("hint: "),
            "{listed:?} {destination}: {error}"
        );
    }
}

#[test]
fn a_volume_below_a_private_mount_is_accepted() {
    let (shared, private) = (r#","rshared""#, r#","rprivate""#);
    for (mounts, destination, root) in [
        (vec![bind("/a", "")], "/a/data", ""),
        (vec![bind("/a", "")], "/a/data", "rslave"),
        (vec![bind("/a", private)], "/a/data", "rshared"),
        (
            vec![bind("/a", r#","rshared","rslave""#)],
            "/a/data",
            "rshared",
        ),
        (vec![bind("/a", shared)], "/ab/data", "rshared"),
        (
            vec![bind("/a", shared), bind("/a", private)],
            "/a/data",
            "rshared",
        ),
        (
            vec![bind("/a", shared), bind("/a/b", private)],
            "/a/b/data",
            "rshared",
        ),
        // Mounts that runtimes write, and that aren't shared with the host.
        (vec![tmpfs("/run", "")], "/run/data", "rshared"),
        (vec![volume("/v", "")], "/v/data", "rshared"),
        (vec![volume("/v", private)], "/v/data", "rshared"),
    ] {
        let listed: Vec<&str> = mounts.iter().map(String::as_str).collect();
        assert_eq!(
            plan_volume(&listed, destination, "", root),
            Ok(()),
            "{listed:?} {destination} {root}"
        );
    }
}

#[test]
fn a_container_without_a_mount_namespace_gets_no_volume() {
    let hook = Config {
        mount_mode: MountMode::Hook,
        ..Config::default()
    };
    let always = Config {
        sandbox: SandboxMode::Always,
        ..Config::default()
    };
    let role = |uid: &str| Role::Sandbox {
        pod_uid: Some(uid.to_owned()),
    };
    for namespaces in [
        "",
        r#"{"type":"pid"}"#,
        r#"{"type":"mount","path":"/proc/100/ns/mnt"}"#,
    ] {
        let text = with_namespaces(TARGET, namespaces);
        for settings in [&Config::default(), &hook] {
            let error = plan_config(&text, member("s"), settings).unwrap_err();
            assert!(
                error.starts_with("volume pv-1: without a mount namespace of its own"),
                "{error}"
            );
        }
        let text = with_namespaces("/etc", &namespaces.replace("/proc/100", "/run/pinned"));
        let error = plan_config(&text, role(UID), &always).unwrap_err();
        assert!(error.contains("without a mount namespace"), "{error}");
        let unneeded = plan_config(&text, role("uid-3"), &always);
        assert_eq!(unneeded, Ok(Plan::PassThrough), "no volumes to hold");
    }
}
