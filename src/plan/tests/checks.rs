//! What a config may not lead to.

use super::*;

#[test]
fn without_mounts_of_its_own_a_container_gets_no_volume() {
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
            let error = planned(&text, member("s"), settings).unwrap_err();
            assert!(
                error.starts_with("volume pv-1: without a mount namespace of its own"),
                "{error}"
            );
        }
        let text = with_namespaces("/etc", &namespaces.replace("/proc/100", "/run/pinned"));
        let error = planned(&text, role(UID), &always).unwrap_err();
        assert!(error.contains("without a mount namespace"), "{error}");
        let unneeded = planned(&text, role("uid-3"), &always);
        assert_eq!(unneeded, Ok(Plan::PassOn), "it has no volumes to hold");
    }
}
