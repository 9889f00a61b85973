//! Keys that are duplicate, in another case, or contain a NUL. Delegates parse them differently, and none of them may
//! give a container the host's empty directory instead of a volume.

use std::fs;

use runcrust_tests::bundle::without_empty;
use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::{Bundle, Delegate, Node, POD, StagedVolume, on_each_delegate, refusal};
use serde_json::json;

use crate::{MountLists, Scene, data, with_members};

/// Asserts that the create is refused, with an error that names the volume and contains `named`.
#[track_caller]
fn assert_refused(scene: &Scene, bundle: &Bundle, named: &[&str]) {
    let refused = refusal::create_refused(&scene.node, bundle);
    let _ = refused
        .naming_volume("pv-1")
        .containing(named)
        .containing(&["config.json", "hint: "])
        .message();
}

on_each_delegate! {
    /// By itself runc uses the last list, and older versions of crun the first.
    fn the_last_of_two_lists_of_mounts_counts(delegate: Delegate) {
        let scene = Scene::on(Node::with(delegate, "unstaged = \"pass\""));
        let bundle = scene.app(|lists| {
            format!(r#""mounts":{},"mo\u0075nts" :{}"#, lists.host(), lists.volume())
        });
        let text = bundle.config_bytes();
        for _ in 0..2 {
            scene.assert_sees(&bundle, "of-the-volume").end();
        }

        scene.sandbox.end();
        scene.device.wait_until_free(WAIT_TIMEOUT);
        let _ = scene.node.unstage(&scene.target).success();
        fs::create_dir_all(&scene.target).unwrap();
        scene.node.run(&scene.node.sandbox_bundle(POD).write());
        let container = scene.node.container(&bundle);
        let _ = container.create();
        let now = bundle.config_bytes();
        assert_eq!(without_empty(&now), without_empty(&text));
        let now = String::from_utf8(now).unwrap();
        assert!(now.contains(r#""mo\u0075nts" :["#) && now.contains(r#""mounts":["#), "{now}");
        assert!(!now.contains("x-runcrust"), "the restored config has renamed keys: {now}");
    }

    fn a_volume_in_the_first_list_only_is_refused_for_crun(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let bundle = scene.app(|lists| {
            format!(r#""mounts":{},"mounts":{}"#, lists.volume(), lists.host())
        });
        match delegate {
            Delegate::Runc => drop(scene.assert_sees(&bundle, "of-the-host")),
            Delegate::Crun => assert_refused(&scene, &bundle, &["twice"]),
        }
        if delegate == Delegate::Runc {
            return;
        }
        let with = |last: &str| {
            scene.app(|lists| format!(r#""mounts":{},"mounts":{last}"#, lists.volume()))
        };
        for last in ["null", "[]"] {
            assert_refused(&scene, &with(last), &["twice"]);
        }
        let refused = refusal::create_refused(&scene.node, &with("7")).naming_volume("pv-1");
        let _ = refused.containing(&["config.json: mounts is a number"]).message();
    }

    /// Go decodes the second list into the elements of the first one.
    fn a_mount_that_go_completes_from_an_earlier_list_is_refused(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let bundle = scene.app(|lists| {
            let bare = r#"{"destination":"/data","type":"bind","options":["rbind"]}"#;
            format!(r#""mounts":{},"mounts":{}"#, lists.volume(), lists.with_mount(bare))
        });
        assert_refused(&scene, &bundle, &["twice"]);
    }

    fn the_last_of_two_sources_counts(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let both = |first: &str, last: &str| data(&format!(r#"{first},"source":{last},"source":null"#));
        let mounts = |lists: &MountLists, volume_first: bool| {
            let (target, host) = (json!(lists.target).to_string(), json!(lists.host).to_string());
            let mount = if volume_first { both(&target, &host) } else { both(&host, &target) };
            format!(r#""mounts":{}"#, lists.with_mount(&mount))
        };
        let bundle = scene.app(|lists| mounts(lists, false));
        let _app = scene.assert_sees(&bundle, "of-the-volume");
        let bundle = scene.app(|lists| mounts(lists, true));
        assert_refused(&scene, &bundle, &["twice"]);
    }

    /// Go merges the two objects; other parsers do not.
    fn duplicate_objects_are_refused_with_a_volume(delegate: Delegate) {
        let scene = Scene::new(delegate);
        for (key, member) in [
            ("linux", r#""linux":{"devices":[]}"#),
            ("hooks", r#""hooks":{},"hooks":{}"#),
            ("root", r#""root":{"readonly":true}"#),
        ] {
            let bundle = scene.app(|lists| format!(r#""mounts":{},{member}"#, lists.volume()));
            assert_refused(&scene, &bundle, &[&format!("{key:?} twice")]);
        }
        let bundle = scene.app(|lists| format!(r#""mounts":{},"linux":null"#, lists.volume()));
        let _app = scene.assert_sees(&bundle, "of-the-volume");
    }

    fn a_volume_under_a_key_in_another_case_is_refused(delegate: Delegate) {
        let scene = Scene::new(delegate);
        for (key, members) in [
            ("Mounts", &|lists: &MountLists| format!(r#""mounts":{},"Mounts":{}"#, lists.host(), lists.volume())),
            ("mountſ", &|lists: &MountLists| format!(r#""mounts":{},"mountſ":{}"#, lists.volume(), lists.host())),
            ("SOURCE", &|lists: &MountLists| {
                let host = json!(lists.host).to_string();
                let mount = data(&format!("{host},\"SOURCE\":{}", json!(lists.target)));
                format!(r#""mounts":{}"#, lists.with_mount(&mount))
            }),
            ("rootFS", &|lists: &MountLists| format!(r#""mounts":{},"rootFS":1"#, lists.volume())),
            ("HOOKS", &|lists: &MountLists| format!(r#""mounts":{},"HOOKS":null"#, lists.volume())),
        ] as [(&str, &dyn Fn(&MountLists) -> String); 5] {
            let bundle = scene.app(members);
            if key == "rootFS" {
                let _app = scene.assert_sees(&bundle, "of-the-volume");
            } else {
                assert_refused(&scene, &bundle, &[&format!("{key:?}")]);
            }
        }
    }

    /// In C a string ends at the NUL, so crun would bind-mount the volume's directory.
    fn a_nul_hides_no_volume(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let source = scene.app(|lists| {
            let target = json!(format!("{}\0x", lists.target.display()));
            format!(r#""mounts":{}"#, lists.with_mount(&data(&target.to_string())))
        });
        let list = scene.app(|lists| {
            format!(r#""mounts\u0000x":{},"mounts":{}"#, lists.volume(), lists.host())
        });
        let key = scene.app(|lists| {
            let (target, host) = (json!(lists.target), json!(lists.host));
            let mount = data(&host.to_string()).replacen('{', &format!("{{\"source\\u0000\":{target},"), 1);
            format!(r#""mounts":{}"#, lists.with_mount(&mount))
        });
        let destination = scene.app(|lists| {
            let mount = data(&json!(lists.target).to_string()).replace("/data", r"/data\u0000/x");
            format!(r#""mounts":{}"#, lists.with_mount(&mount))
        });
        for (bundle, named) in [
            (source, "source has a NUL"),
            (list, r#""mounts\0x""#),
            (key, r#""source\0""#),
            (destination, "destination has a NUL"),
        ] {
            assert_refused(&scene, &bundle, &[named]);
        }
    }

    /// Go accepts such a config, and each parser reads it differently.
    fn a_config_that_is_not_utf8_is_refused_with_a_volume(delegate: Delegate) {
        let scene = Scene::new(delegate);
        for source in [json!(scene.target), json!(scene.host)] {
            let bundle = scene.app(|lists| {
                let other = data("\"/odd\u{7f}\"").replace("/data", "/other");
                format!(r#""mounts":{}"#, lists.with_mount(&format!("{other},{}", data(&source.to_string()))))
            });
            let text = bundle.config_bytes();
            let odd = text.into_iter().map(|byte| if byte == 0x7f { 0xff } else { byte });
            fs::write(bundle.config_path(), odd.collect::<Vec<_>>()).unwrap();
            let refused = refusal::create_refused(&scene.node, &bundle);
            let _ = refused.containing(&["a mount: config.json isn't UTF-8"]).message();
        }
    }

    fn a_sandboxs_ambiguous_config_is_treated_the_same(delegate: Delegate) {
        let volume = StagedVolume::new(delegate);
        let bundle = volume.sandbox_bundle(POD);
        let mounts = bundle.spec()["mounts"].to_string();
        let twice = format!(r#""mounts":[],"mounts":{mounts},"hooks":null,"hooks":{{"poststop":null,"poststop":[]}}"#);
        let text = with_members(&bundle, &twice);
        let bundle = bundle.write_bytes(text.as_bytes());
        let sandbox = volume.run(&bundle);
        let app = volume.app(&sandbox);
        assert_eq!(app.sh("ls /data"), "lost+found");

        let bundle = volume.sandbox_bundle(POD);
        let text = with_members(&bundle, &format!(r#""mounts":{mounts},"Hooks":{{}}"#));
        let refused = refusal::create_refused(&volume, &bundle.write_bytes(text.as_bytes()));
        let _ = refused.containing(&["config.json", "\"Hooks\"", POD]).message();
    }
}
