use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use proptest::prelude::*;

use super::*;

fn target(path: &str) -> TargetPath {
    TargetPath::new(path).unwrap()
}

#[test]
fn spellings_of_one_directory_have_one_digest() {
    for spelling in ["/a/b", "//a//b", "/a/./b", "/a/b/", "/./a/b/.", "/a/b//"] {
        assert_eq!(target(spelling).as_path(), Path::new("/a/b"), "{spelling}");
    }
}

#[test]
fn the_digest_is_the_plain_sha256_of_the_path() {
    // printf %s /var/lib/kubelet | sha256sum
    assert_eq!(
        target("/var/lib/kubelet/").digest().to_string(),
        "586662b34db37d81f453e302e159271124e64a49b8664da7bd82684c9662c5d6",
    );
}

#[test]
fn paths_that_cannot_be_target_paths_are_refused() {
    let relative = TargetPath::new("a/b").unwrap_err();
    assert_eq!(relative, TargetPathError::Relative("a/b".into()));
    assert_eq!(
        TargetPath::new("").unwrap_err(),
        TargetPathError::Relative("".into())
    );
    let parent = TargetPath::new("/a/../b").unwrap_err();
    assert_eq!(parent, TargetPathError::Parent("/a/../b".into()));
    assert_eq!(
        TargetPath::new("/a/..").unwrap_err(),
        TargetPathError::Parent("/a/..".into())
    );
    for root in ["/", "///.//"] {
        let error = TargetPath::new(root).unwrap_err();
        assert_eq!(error, TargetPathError::Root(root.into()));
    }
    let nul = TargetPath::new("/a\0b").unwrap_err();
    assert_eq!(nul, TargetPathError::Nul("/a\0b".into()));
    assert!(
        TargetPath::new("/a/..b/...").is_ok(),
        "only `..` itself is the parent"
    );
}

#[test]
fn a_displayed_path_has_no_terminal_escapes() {
    for (path, expected) in [
        (OsStr::new("/pods/größer"), "/pods/größer"),
        (OsStr::new("/pv\u{202e}1\n"), "/pv\\u{202e}1\\n"),
        (OsStr::from_bytes(b"/\xff"), "/\u{fffd}"),
    ] {
        let target = TargetPath::new(path).unwrap();
        assert_eq!(target.to_string(), expected);
        assert_eq!(target.as_path(), path, "the path itself is unchanged");
    }
}

#[test]
fn a_csi_path_names_its_pod_and_its_volume() {
    let path = target("/var/lib/kubelet/pods/uid-1/volumes/kubernetes.io~csi/pv-1/mount/db/main");
    let volume = path.csi_volume().unwrap();
    assert_eq!(path.pod_uid(), Some(OsStr::new("uid-1")));
    assert_eq!(volume.name, "pv-1");
    assert_eq!(
        volume.directory(),
        Path::new("/var/lib/kubelet/pods/uid-1/volumes/kubernetes.io~csi/pv-1/mount")
    );
    assert_eq!(path.volume_name(), "pv-1");
}

#[test]
fn a_csi_path_within_a_csi_volume_belongs_to_the_outer_volume() {
    let path =
        target("/k/pods/u/volumes/kubernetes.io~csi/a/mount/volumes/kubernetes.io~csi/b/mount");
    let volume = path.csi_volume().unwrap();
    assert_eq!(volume.name, "a");
    assert_eq!(
        volume.directory(),
        Path::new("/k/pods/u/volumes/kubernetes.io~csi/a/mount")
    );
}

#[test]
fn other_paths_name_no_csi_volume() {
    for path in [
        "/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/pv",
        "/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/pv/vol_data.json",
        "/var/lib/kubelet/pods/u/volumes/kubernetes.io~secret/pv/mount",
        "/var/lib/kubelet/pods/u/kubernetes.io~csi/pv/mount",
    ] {
        assert_eq!(target(path).csi_volume(), None, "{path}");
    }
    let podless = target("/x/volumes/kubernetes.io~csi/pv/mount");
    assert!(podless.csi_volume().is_some());
    assert_eq!(podless.pod_uid(), None);
    assert_eq!(target("/pods/a").pod_uid(), None);
    assert_eq!(
        target("/pods/pods/a/volumes").pod_uid(),
        Some(OsStr::new("a"))
    );
}

#[test]
fn kubelets_subpath_binds_name_their_pod_and_volume() {
    let csi = "/k/pods/u/volumes/kubernetes.io~csi";
    for below in [
        "",
        "/app",
        "/app/0",
        "/app/0/deeper",
        "/pods/x/volume-subpaths/y/z",
    ] {
        let bind = target(&format!("/k/pods/u/volume-subpaths/pv-1{below}"));
        let bind = bind.subpath_bind().unwrap();
        assert_eq!(bind.volume(), "pv-1");
        assert_eq!(bind.csi_directory(), Path::new(csi));
        assert_eq!(bind.target(), target(&format!("{csi}/pv-1/mount")));
    }
    let at_root = target("/pods/u/volume-subpaths/v/c/0").subpath_bind();
    let volumes = "/pods/u/volumes/kubernetes.io~csi";
    assert_eq!(at_root.unwrap().csi_directory(), Path::new(volumes));
    for other in [
        "/k/pods/u/volume-subpaths",
        "/k/pods/volume-subpaths/v/c/0",
        "/k/pod/u/volume-subpaths/v/c/0",
        "/pods/u/volumes/x/y",
        "/a",
    ] {
        assert_eq!(target(other).subpath_bind(), None, "{other}");
    }
}

#[test]
fn ancestors_are_nearest_first_with_the_rest_of_the_path() {
    let path = target("/k/a/b");
    let ancestors: Vec<_> = path
        .ancestors()
        .map(|(at, rest)| (at.to_string(), rest.to_owned()))
        .collect();
    let expected = [("/k/a/b", ""), ("/k/a", "b"), ("/k", "a/b"), ("/", "k/a/b")];
    assert_eq!(
        ancestors,
        expected.map(|(at, rest)| (at.to_owned(), PathBuf::from(rest)))
    );
}

#[test]
fn existing_links_are_resolved_and_missing_components_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let real = dir.path().canonicalize().unwrap();
    std::fs::create_dir(real.join("data")).unwrap();
    std::os::unix::fs::symlink("data", real.join("kubelet")).unwrap();
    let given = TargetPath::new(real.join("kubelet/pods/u")).unwrap();
    assert_eq!(
        given.resolved().unwrap().as_path(),
        real.join("data/pods/u")
    );
    std::os::unix::fs::symlink("nowhere", real.join("dangling")).unwrap();
    let dangling = TargetPath::new(real.join("dangling/x")).unwrap();
    assert!(dangling.resolved().is_err());
}

#[test]
fn only_a_lower_case_digest_is_parsed() {
    let digest = target("/a").digest();
    assert_eq!(digest.to_string().parse::<Digest>().unwrap(), digest);
    let upper = digest.to_string().to_uppercase();
    for bad in [&upper, "", "abc", ".tmp", &format!("{digest}0")] {
        assert!(bad.parse::<Digest>().is_err(), "{bad}");
    }
}

proptest! {
    #[test]
    fn normalising_twice_changes_nothing(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
        let mut path = vec![b'/'];
        path.extend(bytes);
        if let Ok(once) = TargetPath::new(OsString::from_vec(path)) {
            prop_assert_eq!(&TargetPath::new(once.as_path()).unwrap(), &once);
            prop_assert!(once.as_path().is_absolute());
        }
    }

    #[test]
    fn redundant_separators_do_not_change_the_digest(
        names in proptest::collection::vec("[a-z.~-]{1,8}", 1..6),
        padding in proptest::collection::vec("(/|/\\./|//|/\\.//)", 7),
    ) {
        prop_assume!(names.iter().all(|name| name != "." && name != ".."));
        let plain = format!("/{}", names.join("/"));
        let mut padded = String::new();
        for (name, pad) in names.iter().zip(&padding) {
            padded.push_str(pad);
            padded.push_str(name);
        }
        padded.push_str(&padding[6]);
        prop_assert_eq!(target(&padded).digest(), target(&plain).digest());
    }

    #[test]
    fn different_paths_have_different_digests(a in "(/[a-c]{1,3}){1,3}", b in "(/[a-c]{1,3}){1,3}") {
        prop_assert_eq!(a == b, target(&a).digest() == target(&b).digest());
    }

    #[test]
    fn a_parent_component_is_refused_at_any_position(
        names in proptest::collection::vec("[a-z]{1,4}", 0..5), at in 0usize..6,
    ) {
        let mut names = names;
        names.insert(at.min(names.len()), "..".to_owned());
        let refused = TargetPath::new(format!("/{}", names.join("/")));
        prop_assert!(matches!(refused, Err(TargetPathError::Parent(_))));
    }
}

#[test]
fn a_csi_path_names_its_kubelet_directory() {
    for (path, expected) in [
        (
            "/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/pv/mount",
            Some("/var/lib/kubelet"),
        ),
        (
            "/k0s/kubelet/pods/u/volumes/kubernetes.io~csi/pv/mount/sub/dir",
            Some("/k0s/kubelet"),
        ),
        ("/pods/u/volumes/kubernetes.io~csi/pv/mount", Some("/")),
        (
            "/var/lib/kubelet/others/u/volumes/kubernetes.io~csi/pv/mount",
            None,
        ),
        ("/volumes/kubernetes.io~csi/pv/mount", None),
        ("/srv/data", None),
    ] {
        let target = TargetPath::new(path).unwrap();
        assert_eq!(target.kubelet_dir(), expected.map(Path::new), "{path}");
    }
}

#[test]
fn a_path_below_a_csi_volume_is_split_at_the_volumes_directory() {
    let directory = "/k/pods/u/volumes/kubernetes.io~csi/pv-1/mount";
    for below in ["", "a", "a/b"] {
        let path = target(&format!("{directory}/{below}"));
        let expected = Some((target(directory), Path::new(below)));
        assert_eq!(path.csi_directory(), expected, "{below}");
    }
    assert_eq!(target("/k/pods/u/volumes").csi_directory(), None);
}
