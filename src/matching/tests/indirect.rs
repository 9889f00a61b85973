use std::path::Path;

use crust_state::config::Unstaged;
use rustix::io::Errno;

use super::host::{Host, IndexState};
use crate::matching::match_source;

const PV: &str = "/k/pods/u/volumes/kubernetes.io~csi/pv-1/mount";
const DOCKER: &str = "/var/lib/docker/volumes/v/_data";

/// Returns a node with `/` and these mounts, and with volumes staged at these target paths.
fn host<S: ToString>(mounts: &[S], staged: &[&str]) -> Host {
    let all = ["8:1 / /".to_owned()].into_iter();
    let all: Vec<String> = all.chain(mounts.iter().map(ToString::to_string)).collect();
    Host::new(&all, staged)
}

#[test]
fn a_bind_of_a_volume_matches_wherever_an_engine_made_it() {
    let assert_found = |mounts: &[&str], source: &str, expected: (&str, &str)| {
        let found = host(mounts, &["/staged", "/roots/v", PV, "/other"]).find(source);
        let (volume, subpath) = expected;
        let expected = (volume.to_owned(), subpath.to_owned());
        assert_eq!(found, Ok(Some(expected)), "{mounts:?} {source}");
    };
    let pv = |below: &str| format!("8:1 {PV}{below} /b");
    assert_found(&["8:1 /staged /b"], "/b", ("/staged", ""));
    assert_found(&[&pv("")], "/b", (PV, ""));
    assert_found(&[&pv("/a/b")], "/b", (PV, "a/b"));
    assert_found(&[&pv("")], "/b/below", (PV, "below"));
    assert_found(&[&pv("/a")], "/b/c", (PV, "a/c"));
    assert_found(&["8:1 /roots/v/sub /b"], "/b", ("/roots/v", "sub"));
    assert_found(
        &["8:1 /staged /var/lib/docker/volumes/v/_data"],
        DOCKER,
        ("/staged", ""),
    );
    // A bind of a bind; a bind of the root directory; a second path of kubelet's directory.
    assert_found(&["8:1 /staged /b", "8:1 /staged /c"], "/c", ("/staged", ""));
    assert_found(&["8:1 / /host"], "/host/staged", ("/staged", ""));
    assert_found(&["8:1 / /host"], &format!("/host{PV}/a"), (PV, "a"));
    assert_found(
        &["8:1 /k /mnt/kubelet"],
        &format!("/mnt/kubelet{}", &PV[2..]),
        (PV, ""),
    );
    // Kubelet's directory on a mount of its own, and a bind of a volume's directory on the same file system.
    let own = [
        "8:2 / /k",
        "8:2 /pods/u/volumes/kubernetes.io~csi/pv-1/mount/a /b",
    ];
    assert_found(&own, "/b", (PV, "a"));
    // A target path that leads over a bind, and a source that doesn't.
    let bound = host(&["8:1 /data/x /mnt/x"], &["/mnt/x/t"]);
    let expected = ("/mnt/x/t".to_owned(), String::new());
    assert_eq!(bound.find("/data/x/t"), Ok(Some(expected)));
}

#[test]
fn a_directory_of_no_volume_does_not_match() {
    for (mounts, source) in [
        // A bind of a directory above the volumes. Node agents have such binds.
        (&["8:1 /k /b"][..], "/b"),
        (&["8:1 /k/pods/u/volumes /b"], "/b"),
        (&["8:1 / /b"], "/b"),
        (&[], "/k/pods/u/volumes"),
        (&["8:2 / /k"], "/k"),
        // Directories beside the volume's and elsewhere.
        (&["8:1 /staged2 /b"], "/b"),
        (&["8:1 /stage /b"], "/b"),
        (&["8:9 /staged /b"], "/b"),
        (&["0:40 / /b tmpfs"], "/b"),
        (&["8:1 /unstaged /b"], "/b"),
        (&[], "/unstaged/a"),
        (&[], "/etc/hosts"),
        (&["8:1 /x//deleted /b"], "/b"),
    ] {
        let host = host(mounts, &["/staged", PV]);
        assert_eq!(host.find(source), Ok(None), "{mounts:?} {source}");
    }
}

#[test]
fn the_mount_table_is_not_read_for_ordinary_sources() {
    let csi = "/k/pods/u/volumes/kubernetes.io~csi/plain/mount";
    let secret = "/k/pods/u/volumes/kubernetes.io~secret/s";
    let bind = "/k/pods/other/volume-subpaths/cache/app/0";
    for (mounts, source) in [
        (vec![format!("8:7 / {csi}")], csi.to_owned()),
        (vec![format!("8:7 / {csi}")], format!("{csi}/a")),
        (vec![format!("8:7 / {secret}")], secret.to_owned()),
        (vec![format!("8:7 /db {bind}")], bind.to_owned()),
        (
            vec!["8:2 / /k".to_owned()],
            "/k/pods/u/etc-hosts".to_owned(),
        ),
        (vec!["8:2 / /data".to_owned()], "/data/a".to_owned()),
        (vec![], "/home/user".to_owned()),
    ] {
        for staged in [&[PV][..], &[PV, "/staged"], &[PV, "/gone/staged"]] {
            let host = host(&mounts, staged);
            assert_eq!(host.find(&source), Ok(None), "{source}");
            assert_eq!(host.tables_read.get(), 0, "{source}");
        }
    }
}

#[test]
fn a_directory_below_an_unmatched_volume_is_refused() {
    let mounts = ["8:1 /staged/sub /b", "8:1 /lab/staged/sub /c"];
    let host = host(&mounts, &["/staged", "/lab/staged", "/roots/v"]);
    for (source, target, hint) in [
        // The configuration refuses match_roots = ["/"], so the hint doesn't suggest it.
        ("/staged/sub", "/staged", "hint: mount /staged as a whole"),
        ("/staged/a/b", "/staged", "hint: mount /staged as a whole"),
        ("/b/c", "/staged", "hint: mount /staged as a whole"),
        (
            "/lab/staged/x",
            "/lab/staged",
            "hint: set match_roots = [\"/lab\"]",
        ),
        ("/c", "/lab/staged", "hint: set match_roots = [\"/lab\"]"),
    ] {
        let volume = format!("volume {target}: ");
        host.assert_refused(source, &[&volume, source, "match_roots", hint]);
    }
    // A directory that contains a kubelet's directory belongs to all its volumes.
    let above = self::host::<&str>(&[], &["/k/pods"]);
    assert_eq!(above.find("/etc/hosts"), Ok(None));
    let above = self::host(&["8:2 / /srv/k"], &["/k"]);
    assert_eq!(above.find("/k/pods/u/etc-hosts"), Ok(None));
}

#[test]
fn a_bind_of_a_directory_that_was_removed_is_refused() {
    for (root, gone) in [
        ("/staged//deleted", "/gone"),
        ("/staged/sub//deleted", "/gone"),
        ("/staged//deleted", "/staged"),
    ] {
        let line = format!("8:1 {root} /b");
        let host = Host {
            gone: gone.into(),
            ..host(&[line], &["/staged"])
        };
        let expected = [
            "volume /staged: /b ",
            "target path /staged",
            "has been removed since",
        ];
        host.assert_refused("/b", &expected);
    }
    // The target path is on a file system of its own, so the root of the bind doesn't contain it.
    let own = ["8:3 / /srv", "8:3 /v//deleted /b"];
    host(&own, &["/srv/v"]).assert_refused("/b", &["target path /srv/v"]);
}

#[test]
fn a_read_only_bind_shows_the_volume_read_only() {
    for (source, read_only_root, expected) in [
        ("/b", false, false),
        ("/ro", false, true),
        // The node's own file system is read-only, the volume isn't.
        ("/ro", true, false),
    ] {
        let host = Host {
            read_only_root,
            ..host(&["8:1 /staged /b", "8:1 /staged /ro"], &["/staged"])
        };
        let found = match_source(Path::new(source), &host.config, &host).unwrap();
        assert_eq!(found.unwrap().read_only, expected, "{source}");
    }
}

#[test]
fn an_entry_that_cannot_be_read_fails_the_create() {
    let host = host(&["8:1 /broken /b"], &["/broken"]);
    host.assert_refused("/b", &["volume /broken: /run/crust/0/mountInfo.json"]);
}

#[test]
fn an_overlay_with_a_volume_as_layer_is_refused() {
    let mounts = [
        "0:50 / /merged overlay",
        "8:1 /staged /b",
        "0:50 /s /part overlay",
    ];
    for (layers, is_refused) in [
        (&["/staged"][..], true),
        (&["/lower", "/staged"], true),
        (&["/b"], true),
        (&["/staged/sub"], true),
        (&["staged", "/lower"], false),
        (&["/lower", "/stage"], false),
        (&[], false),
        // An overlay over its own mount point, as systemd-sysext makes on /usr.
        (&["/merged", "/upper"], false),
        (&["/merged/a", "/merged/b", "/merged"], false),
        (&["/merged", "/staged"], true),
    ] {
        let host = Host {
            layers: layers.to_vec(),
            ..host(&mounts, &["/staged"])
        };
        for source in ["/merged", "/merged/a/b", "/part", "/part/a"] {
            if is_refused {
                host.assert_refused(source, &["volume /staged: "]);
            } else {
                assert_eq!(host.find(source), Ok(None), "{layers:?} {source}");
            }
        }
        let is_refused = is_refused || layers.contains(&"staged");
        let options = format!("lowerdir={},upperdir=/u", layers.join(":"));
        let bundle = Path::new("/");
        let refused = crate::matching::refuse_overlay(
            "/data",
            &[options.into()],
            bundle,
            &host.config,
            &host,
        );
        assert_eq!(refused.is_err(), is_refused, "{layers:?}");
    }
}

#[test]
fn a_volume_inside_an_overlays_layer_is_refused() {
    let host = Host {
        layers: vec!["/data"],
        ..host(&["0:50 / /merged overlay"], &["/data/staged"])
    };
    host.assert_refused("/merged/staged", &["volume /data/staged: ", "overlay"]);
    for source in ["/merged", "/merged/other"] {
        assert_eq!(host.find(source), Ok(None), "{source}");
    }
}

#[test]
fn an_overlay_as_root_costs_no_read_of_the_mount_table() {
    let host = Host {
        mounts: vec!["0:50 / / overlay".to_owned()],
        layers: vec!["/staged"],
        ..host::<&str>(&[], &["/staged"])
    };
    for source in ["/etc/hosts", "/memory", "/memory/a"] {
        assert_eq!(host.find(source), Ok(None), "{source}");
        assert_eq!(host.tables_read.get(), 0, "{source}");
    }
}

#[test]
fn a_failed_lookup_refuses_the_mount() {
    let cases = [
        // Pairs of a source and the path whose lookup fails.
        ("/b", "/b"),
        ("/b", "/staged"),
        ("/b/c", "/b/c"),
        ("/etc/hosts", "/etc/hosts"),
    ];
    for (source, failing) in cases {
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::IO] {
            let host = Host {
                failing: Some((failing, errno)),
                ..host(&["8:1 /staged/v29/sub /b"], &["/staged"])
            };
            host.assert_refused(source, &[failing, "; hint: "]);
        }
    }
}

#[test]
fn the_nearest_of_nested_target_paths_matches() {
    let mounts = [
        "8:1 /roots/y/b/sub /bind",
        "8:1 /lab/y/b/sub /other",
        "8:1 /roots/y/c /beside",
    ];
    for staged in [
        ["/roots/y", "/roots/y/b", "/lab/y", "/lab/y/b"],
        ["/roots/y/b", "/roots/y", "/lab/y/b", "/lab/y"],
    ] {
        let host = host(&mounts, &staged);
        for (source, volume, subpath) in [
            ("/bind", "/roots/y/b", "sub"),
            ("/bind/x", "/roots/y/b", "sub/x"),
            ("/beside", "/roots/y", "c"),
            ("/roots/y/b/sub", "/roots/y/b", "sub"),
        ] {
            let expected = (volume.to_owned(), subpath.to_owned());
            assert_eq!(host.find(source), Ok(Some(expected)), "{source} {staged:?}");
        }
        for source in ["/other", "/lab/y/b/sub"] {
            host.assert_refused(source, &["volume /lab/y/b: "]);
        }
    }
    // A target path that is no longer staged matches nothing.
    let host = self::host(&["8:1 /unstaged/a /b"], &["/staged"]);
    assert_eq!(host.find("/b"), Ok(None));
}

/// The file system was mounted at the target path after the stage, or the volume was staged in another mount namespace.
#[test]
fn a_target_on_an_unindexed_file_system_is_found() {
    let host = Host {
        index: IndexState::WithoutDevices,
        ..host(
            &["8:5 / /lab/late", "8:5 /vol /b", "8:5 /vol/sub /sub"],
            &["/lab/late/vol"],
        )
    };
    let expected = ("/lab/late/vol".to_owned(), String::new());
    assert_eq!(host.find("/b"), Ok(Some(expected)));
    host.assert_refused("/sub", &["volume /lab/late/vol: "]);
    assert_eq!(host.find("/etc/hosts"), Ok(None));
}

#[test]
fn volumes_match_by_both_paths_of_a_bound_kubelet_directory() {
    let other = PV.replacen("/k/", "/lab/k/", 1);
    for mounts in [&["8:1 /lab/k /k"][..], &["8:1 /lab/k/pods /k/pods"]] {
        let host = host(mounts, &[PV]);
        for (below, subpath) in [("", ""), ("/a/b", "a/b")] {
            let expected = (PV.to_owned(), subpath.to_owned());
            let found = host.find(&format!("{other}{below}"));
            assert_eq!(found, Ok(Some(expected)), "{mounts:?} {below}");
        }
        assert_eq!(host.find("/lab/k/pods/u/etc-hosts"), Ok(None));
    }
}

#[test]
fn a_bind_at_a_csi_target_path_matches_or_is_refused() {
    let csi = "/k/pods/u/volumes/kubernetes.io~csi/plain/mount";
    let mount = |root: &str| format!("8:1 {root} {csi}");
    let expected = ("/staged".to_owned(), String::new());
    let whole = host(&[mount("/staged")], &["/staged"]);
    assert_eq!(whole.find(csi), Ok(Some(expected)));
    let part = host(&[mount("/staged/sub")], &["/staged"]);
    part.assert_refused(csi, &["volume /staged: "]);
    let plain = host(&[mount("/data/plain")], &["/staged", PV]);
    assert_eq!(plain.find(csi), Ok(None));
}

#[test]
fn a_mount_below_a_target_path_is_refused_with_the_reason() {
    let mounts = [
        "8:5 / /staged/other",
        "0:60 / /staged/nfs nfs4",
        "8:1 /data /staged/bind",
    ];
    let host = host(&mounts, &["/staged"]);
    for source in [
        "/staged/other",
        "/staged/other/a",
        "/staged/nfs",
        "/staged/bind",
    ] {
        host.assert_refused(
            source,
            &["volume /staged: ", source, "something else is mounted"],
        );
        let error = host.find(source).unwrap_err();
        assert!(!error.contains("match_roots"), "{error}");
    }
}

/// runc removes the `..` of a relative source textually before it binds the source. The kernel would follow the link
/// first.
#[test]
fn a_source_with_dots_after_a_link_is_refused_if_ambiguous() {
    let host_with = |staged: &[&str]| Host {
        link: Some(("/bundle/link", "/other/dir")),
        ..host::<&str>(&[], staged)
    };
    let source = "/bundle/link/../vol";
    for staged in ["/bundle/vol", "/other/vol"] {
        let expected = [
            source,
            &format!("volume {staged}"),
            "no volume",
            "hint: give the source without",
        ];
        host_with(&[staged]).assert_refused(source, &expected);
    }
    host_with(&["/bundle/vol", "/other/vol"]).assert_refused(source, &["volume /other/vol"]);
    assert_eq!(host_with(&["/vol"]).find(source), Ok(None));
    let expected = Some(("/bundle/vol".to_owned(), String::new()));
    for source in [
        "/bundle/plain/../vol",
        "/bundle/x/y/../../vol",
        "/bundle/vol",
    ] {
        assert_eq!(
            host_with(&["/bundle/vol"]).find(source),
            Ok(expected.clone()),
            "{source}"
        );
    }
}

/// The cost of a create grows with the sum of its mounts and the staged volumes, not with their product.
#[test]
fn target_paths_are_looked_up_once_for_all_sources() {
    let targets: Vec<String> = (0..50).map(|number| format!("/lab/v{number}")).collect();
    let lookups = |sources: usize| {
        let mounts = (0..sources).map(|number| format!("8:1 /data/{number} /b{number}"));
        let mounts: Vec<String> = mounts.collect();
        let staged: Vec<&str> = targets.iter().map(String::as_str).collect();
        let host = host(&mounts, &[&staged[..], &[PV]].concat());
        for number in 0..sources {
            for source in [format!("/b{number}"), format!("/data/{number}")] {
                assert_eq!(host.find(&source), Ok(None), "{source}");
            }
        }
        let looked_up = host.looked_up.borrow();
        let is_below_targets =
            |path: &&std::path::PathBuf| path.starts_with("/lab") || path.starts_with("/k");
        [
            looked_up.iter().filter(is_below_targets).count(),
            looked_up.len(),
        ]
    };
    let [few, many] = [1, 20].map(lookups);
    assert_eq!(few[0], many[0], "lookups of target paths");
    // Each bind takes two lookups: its identity and its location. The other sources are on the root directory's mount,
    // like all target paths.
    assert_eq!(many[1] - few[1], 19 * 2, "lookups of sources");
}

/// A removed directory can only be reached by an earlier bind, so only roots of mounts are looked up.
#[test]
fn a_missing_target_path_costs_no_read_of_the_mount_table() {
    let host = Host {
        gone: "/lab".into(),
        ..host(&["8:1 /data /b", "8:1 /lab/v//deleted /c"], &["/lab/v"])
    };
    for source in ["/etc/hosts", "/data/x"] {
        assert_eq!(host.find(source), Ok(None), "{source}");
    }
    assert_eq!(host.tables_read.get(), 0);
    host.assert_refused("/c", &["volume /lab/v: ", "has been removed since"]);
    assert_eq!(host.find("/b"), Ok(None));
}

/// A file on an overlay may have the device number of a layer.
#[test]
fn a_file_of_an_overlay_is_refused_whatever_its_device() {
    let host = Host {
        layers: vec!["/staged"],
        ..host(&["8:9 / /merged overlay"], &["/staged"])
    };
    host.assert_refused("/merged/file", &["volume /staged: ", "overlay"]);
}

/// A server that doesn't answer must not block every create of the node.
#[test]
fn a_target_on_a_silent_server_is_found_by_the_mount_table() {
    let targets = ["/far/v", "/far", "/staged"];
    let mounts = [
        "0:77 / /far fuse",
        "0:77 /v /b",
        "8:1 /staged /c",
        "0:40 / /m tmpfs",
        "8:1 /x /d",
    ];
    for index in [IndexState::Complete, IndexState::Missing] {
        let host = Host {
            silent: Some("/far"),
            index,
            ..host(&mounts, &targets)
        };
        for source in ["/m", "/m/a", "/d", "/d/a", "/etc/hosts"] {
            assert_eq!(host.find(source), Ok(None), "{source}");
        }
        let looked_up = host.looked_up.take();
        let is_far = |path: &&std::path::PathBuf| path.starts_with("/far");
        assert_eq!(looked_up.iter().find(is_far), None);
        for (source, volume) in [("/b", "/far/v"), ("/c", "/staged")] {
            let expected = (volume.to_owned(), String::new());
            assert_eq!(host.find(source), Ok(Some(expected)), "{source}");
        }
        host.assert_refused("/staged/sub", &["volume /staged: ", "match_roots"]);
    }
}

/// A bind is treated like the target path itself: refused if the entry is broken or lost, else passed through.
#[test]
fn a_bind_of_a_volume_whose_entry_is_broken_or_lost_is_refused() {
    let csi = "/k/pods/u/volumes/kubernetes.io~csi";
    for (name, what) in [
        ("broken", "/run/crust/0/mountInfo.json"),
        ("lost", "nothing is staged for"),
    ] {
        for below in ["", "/sub"] {
            let line = format!("8:1 {csi}/{name}/mount{below} /b");
            let mut host = host(&[line], &[PV]);
            host.is_bare = true;
            host.config.unstaged = Unstaged::Refuse;
            let volume = format!("volume {name}: ");
            host.assert_refused("/b", &[&volume, what]);
            host.assert_refused("/b/a", &[&volume, what]);
        }
    }
    for root in [
        "/k/pods/u/volumes/kubernetes.io~empty-dir/cache",
        "/data",
        "/k/pods/u/volumes/kubernetes.io~csi/lost",
    ] {
        let mut host = host(&[format!("8:1 {root} /b")], &[PV]);
        host.is_bare = true;
        host.config.unstaged = Unstaged::Refuse;
        assert_eq!(host.find("/b"), Ok(None), "{root}");
    }
}

/// A target path leads to what is mounted over it.
#[test]
fn a_directory_hidden_by_a_mount_does_not_match() {
    for bind in ["8:1 /mnt/v /b", "8:1 / /b"] {
        let host = host(&["8:5 / /mnt", bind], &["/mnt/v", PV]);
        let source = if bind.ends_with("/ /b") {
            "/b/mnt/v"
        } else {
            "/b"
        };
        assert_eq!(host.find(source), Ok(None), "{bind}");
    }
    let mounts = [format!("8:5 / {PV}"), format!("8:1 {PV}/a /b")];
    let mut host = host(&mounts, &["/staged"]);
    host.is_bare = true;
    host.config.unstaged = Unstaged::Refuse;
    assert_eq!(host.find("/b"), Ok(None));
}

/// Kubelet binds each subPath, so thousands of mounts may be of one directory.
#[test]
fn a_location_of_no_volume_is_looked_up_once() {
    let mounts: Vec<String> = (0..100)
        .map(|number| format!("8:1 /data /b{number}"))
        .collect();
    let host = host(&mounts, &[PV]);
    for number in 0..100 {
        assert_eq!(host.find(&format!("/b{number}")), Ok(None));
    }
    assert_eq!(host.paths_to_calls.get(), 1);
}
