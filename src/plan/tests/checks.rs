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

/// The options of a mount at `/a` and of the volume's, at `/a/data`, and of the root file system.
fn propagating(outer: &str, own: &str, root: &str) -> String {
    format!(
        r#"{{"mounts":[{{"destination":"/a","source":"/srv","options":["rbind"{outer}]}},
            {{"destination":"/b","source":"/srv","options":["rbind","rshared"]}},
            {{"destination":"/a/data/.","source":"{TARGET}","options":["bind"{own}]}},
            {{"destination":"/a/data/x","source":"/srv","options":["rbind","rshared"]}}],
            "linux":{{"namespaces":[{{"type":"mount"}}]{root}}}}}"#
    )
}

#[test]
fn a_volume_is_never_shared_with_the_host() {
    let shared_root = r#","rootfsPropagation":"rshared""#;
    let below = Some("/a/data/. is below /a, a mount that the container shares");
    let own = Some("its mount is to be shared with the host");
    for (outer, volume, root, refused) in [
        ("", "", "", None),
        ("", "", r#","rootfsPropagation":"rslave""#, None),
        (r#","rprivate""#, "", shared_root, None),
        (r#","rshared","rslave""#, "", shared_root, None),
        ("", r#","rslave""#, "", None),
        ("", "", shared_root, below),
        (r#","shared""#, "", "", below),
        (r#","rslave","rshared""#, r#","rprivate""#, "", below),
        ("", r#","rshared""#, "", own),
        (r#","rprivate""#, r#","shared""#, shared_root, own),
    ] {
        let text = propagating(outer, volume, root);
        for role in [member("s"), Role::Standalone] {
            let plan = planned(&text, role, &Config::default());
            let context = format!("{outer} {volume} {root}");
            match refused {
                None => assert!(
                    matches!(plan, Ok(Plan::Container(_))),
                    "{context}: {plan:?}"
                ),
                Some(why) => {
                    let error = plan.unwrap_err();
                    assert!(
                        error.contains(why) && error.contains("hint: "),
                        "{context}: {error}"
                    );
                }
            }
        }
    }
}
