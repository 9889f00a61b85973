//! Tests of reading and writing manifest directories.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use super::write::ApplyOutcome;
use super::{CurrentState, LoadedManifests, ManifestDirectories, apply, delete, remove};
use crate::objects::{Kind, Name};

const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: app, image: app}]}\n";
const CLAIM: &str =
    "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data}\nspec: {}\n";

const NOW: &str = "2026-01-01T00:00:00Z";

fn load(directory: &Path) -> LoadedManifests {
    ManifestDirectories::new(&[directory.to_owned()]).read(&[], Instant::now())
}

fn web() -> Name {
    Name::new("default", "web")
}

#[test]
fn the_manifests_are_complete_once_every_file_was_read() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing");
    fs::write(dir.path().join("pod.yaml"), POD).unwrap();
    let mut directories = ManifestDirectories::new(&[dir.path().to_owned(), missing.clone()]);
    let read = directories.read(&[], Instant::now());
    assert!(!read.is_complete && read.objects.pods.contains_key(&web()));
    assert!(read.errors[0].to_string().contains("missing"));
    fs::create_dir(&missing).unwrap();
    fs::write(missing.join("claim.yaml"), "kind: [").unwrap();
    assert!(
        !directories.read(&[], Instant::now()).is_complete,
        "a file could never be read"
    );
    fs::write(missing.join("claim.yaml"), CLAIM).unwrap();
    let read = directories.read(&[], Instant::now());
    assert!(read.is_complete && read.objects.claims.len() == 1);
    fs::remove_dir_all(&missing).unwrap();
    let read = directories.read(&[], Instant::now());
    assert!(read.is_complete, "the manifests stay complete");
    assert_eq!(read.objects.claims.len(), 1, "the objects are kept");
}

#[test]
fn an_unreadable_file_keeps_its_last_contents() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pod.yaml");
    fs::write(&file, POD).unwrap();
    let mut directories = ManifestDirectories::new(&[dir.path().to_owned()]);
    directories.read(&[], Instant::now());
    fs::write(&file, &POD[..60]).unwrap();
    for _ in 0..2 {
        let read = directories.read(&[], Instant::now());
        assert!(read.objects.pods.contains_key(&web()));
        assert_eq!(read.errors.len(), 1, "{:?}", read.errors);
        assert_eq!(read.errors[0].path, file);
    }
    fs::remove_file(&file).unwrap();
    let read = directories.read(std::slice::from_ref(&file), Instant::now());
    assert!(read.objects.pods.is_empty() && read.errors.is_empty());
}

/// Editors write with `open(O_TRUNC)` and a later `write`, or rename the file to a backup and create a new one.
#[test]
fn a_loss_of_objects_is_accepted_after_a_delay() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pod.yaml");
    let both = format!("{POD}---\n{CLAIM}");
    let mut directories = ManifestDirectories::new(&[dir.path().to_owned()]);
    let start = Instant::now();
    let mut read_at = |milliseconds: u64| {
        let read = directories.read(&[], start + Duration::from_millis(milliseconds));
        let counts = (read.objects.pods.len(), read.objects.claims.len());
        (counts, read.retry_after.is_some(), read.is_complete)
    };
    fs::write(&file, "").unwrap();
    assert_eq!(
        read_at(0),
        ((0, 0), true, false),
        "the file may not have been written yet"
    );
    fs::write(&file, &both).unwrap();
    assert_eq!(read_at(100), ((1, 1), false, true));
    for (fewer, counts) in [("", (0, 0)), (POD, (1, 0))] {
        fs::write(&file, fewer).unwrap();
        assert_eq!(read_at(200), ((1, 1), true, true));
        assert_eq!(read_at(699), ((1, 1), true, true));
        assert_eq!(read_at(700), (counts, false, true));
        fs::write(&file, &both).unwrap();
        assert_eq!(read_at(800), ((1, 1), false, true));
    }
    // Each change starts the delay again.
    fs::write(&file, "").unwrap();
    read_at(2000);
    fs::write(&file, "# none\n").unwrap();
    assert_eq!(read_at(2400), ((1, 1), true, true));
    assert_eq!(read_at(2600), ((1, 1), true, true));
    fs::remove_file(&file).unwrap();
    assert_eq!(read_at(2800), ((1, 1), true, true));
    fs::write(&file, &both).unwrap();
    assert_eq!(read_at(3200), ((1, 1), false, true));
    fs::remove_file(&file).unwrap();
    assert_eq!(read_at(3300), ((1, 1), true, true));
    assert_eq!(read_at(3800), ((0, 0), false, true));
}

/// A file that couldn't be read is empty for a moment while it is rewritten.
#[test]
fn a_truncated_unreadable_file_keeps_its_last_contents() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pod.yaml");
    fs::write(&file, POD).unwrap();
    let mut directories = ManifestDirectories::new(&[dir.path().to_owned()]);
    let start = Instant::now();
    let mut read_at = |milliseconds: u64| {
        let read = directories.read(&[], start + Duration::from_millis(milliseconds));
        (read.objects.pods.len(), read.errors.len())
    };
    read_at(0);
    fs::write(&file, "kind: [").unwrap();
    assert_eq!(read_at(100), (1, 1));
    fs::remove_file(&file).unwrap();
    assert_eq!(read_at(200), (1, 1));
    fs::write(&file, "").unwrap();
    assert_eq!(read_at(300), (1, 1));
    fs::write(&file, POD).unwrap();
    assert_eq!(read_at(400), (1, 0));
    fs::write(&file, "kind: [").unwrap();
    read_at(500);
    fs::write(&file, "").unwrap();
    assert_eq!(read_at(600), (1, 1));
    assert_eq!(read_at(1100), (0, 0), "the loss is accepted");
}

/// The file that has lost one object still has the other one.
#[test]
fn a_loss_does_not_affect_other_objects_of_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let (one, other) = (dir.path().join("a.yaml"), dir.path().join("b.yaml"));
    fs::write(&one, format!("{POD}---\n{CLAIM}")).unwrap();
    fs::write(&other, POD).unwrap();
    let mut directories = ManifestDirectories::new(&[dir.path().to_owned()]);
    directories.read(&[], Instant::now());
    fs::write(&one, POD).unwrap();
    let read = directories.read(&[], Instant::now());
    assert_eq!(read.origins[&(Kind::Pod, web())].path, one);
    assert_eq!(read.objects.claims.len(), 1);
}

#[test]
fn an_object_that_is_moved_to_another_file_is_read_once() {
    let dir = tempfile::tempdir().unwrap();
    let (one, other) = (dir.path().join("a.yaml"), dir.path().join("b.yaml"));
    fs::write(&one, POD).unwrap();
    let mut directories = ManifestDirectories::new(&[dir.path().to_owned()]);
    directories.read(&[], Instant::now());
    fs::rename(&one, &other).unwrap();
    let read = directories.read(&[], Instant::now());
    assert!(read.errors.is_empty(), "{:?}", read.errors);
    assert_eq!(read.origins[&(Kind::Pod, web())].path, other);
}

/// A file system was unmounted from the directory.
#[test]
fn a_directory_replaced_by_an_empty_one_keeps_its_objects() {
    let dir = tempfile::tempdir().unwrap();
    let directory = dir.path().join("manifests");
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("pod.yaml"), POD).unwrap();
    let mut directories = ManifestDirectories::new(std::slice::from_ref(&directory));
    directories.read(&[], Instant::now());
    fs::rename(&directory, dir.path().join("aside")).unwrap();
    fs::create_dir(&directory).unwrap();
    let later = Instant::now() + Duration::from_secs(60);
    for now in [Instant::now(), later] {
        let read = directories.read(&[], now);
        assert!(read.objects.pods.contains_key(&web()));
        assert!(read.errors[0].reason.contains("replaced by an empty one"));
    }
    fs::write(directory.join("claim.yaml"), CLAIM).unwrap();
    directories.read(&[], later);
    let read = directories.read(&[], later + Duration::from_secs(1));
    assert_eq!((read.objects.pods.len(), read.objects.claims.len()), (0, 1));
    assert!(read.errors.is_empty(), "{:?}", read.errors);
}

#[test]
fn other_files_and_duplicate_objects_are_skipped() {
    let dir = tempfile::tempdir().unwrap();
    for name in [".pod.yaml.swp", ".pod.yaml", "pod.yaml~", "README"] {
        fs::write(dir.path().join(name), "{{").unwrap();
    }
    fs::create_dir(dir.path().join("directory.yaml")).unwrap();
    fs::write(dir.path().join("a.json"), POD).unwrap();
    fs::write(dir.path().join("b.yml"), POD).unwrap();
    let read = load(dir.path());
    let errors: Vec<String> = read.errors.iter().map(ToString::to_string).collect();
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert!(errors[0].contains("directory.yaml: not a regular file"));
    assert!(errors[1].contains("b.yml: Pod default/web is also in "));
    let origin = &read.origins[&(Kind::Pod, web())];
    assert_eq!(origin.path, dir.path().join("a.json"));
}

fn applied(directory: &Path, text: &str) -> Result<Vec<ApplyOutcome>, String> {
    applied_with(directory, text, &BTreeMap::new())
}

/// Applies manifests while pods have started, with these deferred volumes.
fn applied_with(
    directory: &Path,
    text: &str,
    started: &BTreeMap<Name, BTreeSet<String>>,
) -> Result<Vec<ApplyOutcome>, String> {
    let mut uid = || Ok("given".to_owned());
    let loaded = &load(directory);
    let current = CurrentState { loaded, started };
    let applied = apply(directory, current, text, NOW, &mut uid);
    let applied = applied.map_err(|error| error.to_string())?;
    Ok(applied.into_iter().map(|applied| applied.outcome).collect())
}

#[test]
fn apply_writes_one_file_per_object_and_is_idempotent() {
    use ApplyOutcome::{Configured, Created, Unchanged};
    let dir = tempfile::tempdir().unwrap();
    let text = format!("{POD}---\n{CLAIM}");
    assert_eq!(applied(dir.path(), &text), Ok(vec![Created, Created]));
    assert_eq!(applied(dir.path(), &text), Ok(vec![Unchanged, Unchanged]));
    let changed = CLAIM.replace("spec: {}", "spec: {volumeName: pv}");
    assert_eq!(applied(dir.path(), &changed), Ok(vec![Configured]));
    let read = load(dir.path());
    assert_eq!(read.objects.pods[&web()].uid, "given");
    let origin = &read.origins[&(Kind::Pod, web())];
    assert_eq!(origin.path, dir.path().join("pod_default_web.yaml"));
    // If one of the objects is refused, none is written.
    let changed_pod = POD.replace("image: app", "image: other");
    let error = applied(dir.path(), &format!("{CLAIM}---\n{changed_pod}")).unwrap_err();
    assert!(error.contains("Pod default/web already exists"), "{error}");
    let claim = Name::new("default", "data");
    let claims = &load(dir.path()).objects.claims;
    let spec = claims[&claim].spec.as_ref().unwrap();
    assert_eq!(spec.volume_name.as_deref(), Some("pv"));
}

#[test]
fn a_volume_can_become_deferred_but_not_the_reverse() {
    let dir = tempfile::tempdir().unwrap();
    let pod_with_volume = |defer: &str| {
        let volumes = format!("volumes: [{{name: v, csi: {{driver: d.e{defer}}}}}], containers");
        POD.replace("containers", &volumes)
    };
    let deferred = pod_with_volume(", deferFSMount: true");
    assert_eq!(
        applied(dir.path(), &pod_with_volume("")),
        Ok(vec![ApplyOutcome::Created])
    );
    assert_eq!(
        applied(dir.path(), &deferred),
        Ok(vec![ApplyOutcome::Configured])
    );
    assert!(applied(dir.path(), &pod_with_volume("")).is_err());
}

/// The mounter of a started pod's volumes is fixed, whether the pod or a policy deferred them.
#[test]
fn the_mounters_of_a_started_pod_cannot_change() {
    let dir = tempfile::tempdir().unwrap();
    let pod_with_volume = |defer: &str| {
        let volumes = format!("volumes: [{{name: v, csi: {{driver: d.e{defer}}}}}], containers");
        POD.replace("containers", &volumes)
    };
    let plain = pod_with_volume("");
    let deferred = pod_with_volume(", deferFSMount: true");
    let started = |is_deferred: bool| {
        let volumes = BTreeSet::from_iter(is_deferred.then(|| "v".to_owned()));
        BTreeMap::from([(web(), volumes)])
    };
    applied(dir.path(), &plain).unwrap();
    let error = applied_with(dir.path(), &deferred, &started(false)).unwrap_err();
    assert!(
        error.starts_with(
            "Pod default/web has started, and the mounters of its volumes cannot change"
        ),
        "{error}"
    );
    let unchanged = Ok(vec![ApplyOutcome::Unchanged]);
    assert_eq!(
        applied_with(dir.path(), &plain, &started(true)),
        unchanged,
        "the volume was deferred by a policy"
    );
    let configured = Ok(vec![ApplyOutcome::Configured]);
    assert_eq!(
        applied_with(dir.path(), &deferred, &started(true)),
        configured
    );
    let error = applied_with(dir.path(), &plain, &started(true)).unwrap_err();
    assert!(error.contains("has started"), "{error}");
    let on_node = deferred.replace("volumes:", "nodeName: here, volumes:");
    assert_eq!(
        applied_with(dir.path(), &on_node, &started(true)),
        configured
    );
}

#[test]
fn a_deleted_object_is_marked_until_its_file_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    applied(dir.path(), POD).unwrap();
    let now = "2026-01-02T00:00:00Z";
    let read = load(dir.path());
    delete(&read, Kind::Pod, &web(), now, Some(3)).unwrap();
    let read = load(dir.path());
    let pod = &read.objects.pods[&web()];
    assert!(pod.is_deleted());
    assert_eq!(pod.grace(), 3);
    let error = applied(dir.path(), POD).unwrap_err();
    assert!(error.contains("being deleted"), "{error}");
    let file = dir.path().join("pod_default_web.yaml");
    let deleted = fs::read_to_string(&file).unwrap();
    fs::write(&file, POD).unwrap();
    let error = remove(&read, Kind::Pod, &web()).unwrap_err().to_string();
    assert!(error.contains("has changed since"), "{error}");
    fs::write(&file, deleted).unwrap();
    remove(&read, Kind::Pod, &web()).unwrap();
    let read = load(dir.path());
    assert!(read.objects.pods.is_empty());
    let error = remove(&read, Kind::Pod, &web()).unwrap_err();
    assert_eq!(error.to_string(), "Pod default/web not found");
}

/// Another program may be writing a new object to the file.
#[test]
fn a_file_that_has_changed_is_not_removed() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pod.yaml");
    fs::write(&file, POD).unwrap();
    let read = load(dir.path());
    for text in ["", "kind: [", CLAIM] {
        fs::write(&file, text).unwrap();
        let error = remove(&read, Kind::Pod, &web()).unwrap_err().to_string();
        assert!(error.contains("has changed since"), "{error}");
        assert_eq!(fs::read_to_string(&file).unwrap(), text);
    }
    fs::remove_file(&file).unwrap();
    assert_eq!(remove(&read, Kind::Pod, &web()).unwrap(), file);
}

#[test]
fn a_file_with_several_objects_is_not_changed() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("all.yaml");
    fs::write(&file, format!("{POD}---\n{CLAIM}")).unwrap();
    let read = load(dir.path());
    let errors = [
        delete(&read, Kind::Pod, &web(), "2026-01-01T00:00:00Z", None),
        remove(&read, Kind::Pod, &web()).map(drop),
    ];
    for error in errors {
        let error = error.unwrap_err().to_string();
        assert!(error.contains("all.yaml with other objects"), "{error}");
    }
    assert!(applied(dir.path(), POD).is_err());
}

#[test]
fn manifests_that_others_can_write_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let directory = dir.path().join("manifests");
    fs::create_dir(&directory).unwrap();
    let file = directory.join("pod.yaml");
    fs::write(&file, POD).unwrap();
    let mode = |path: &Path, mode: u32| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    let assert_refused = |path: &Path, reason: &str| {
        let read = load(&directory);
        let [error] = &read.errors[..] else {
            panic!("{:?}", read.errors);
        };
        let expected = format!("{} {reason}; hint: ", path.display());
        assert!(error.reason.starts_with(&expected), "{error}");
        assert!(read.objects.pods.is_empty() && !read.is_complete);
    };
    mode(&file, 0o664);
    assert_refused(&file, "can be written by others than root");
    mode(&file, 0o644);
    std::os::unix::fs::chown(&file, Some(1000), None).unwrap();
    assert_refused(&file, "isn't owned by root");
    std::os::unix::fs::chown(&file, Some(0), Some(1000)).unwrap();
    assert!(load(&directory).is_complete);
    mode(&directory, 0o775);
    assert_refused(&directory, "can be written by others than root");
    mode(&directory, 0o755);
    // Users other than root could replace the directory.
    mode(dir.path(), 0o777);
    assert_refused(dir.path(), "can be written by others than root");
    let error = applied(&directory, CLAIM).unwrap_err();
    assert!(error.contains("manifests are run as root"), "{error}");
}

#[test]
fn the_error_names_the_objects_that_were_written() {
    let dir = tempfile::tempdir().unwrap();
    // A directory can't be replaced by a file.
    fs::create_dir(dir.path().join("pod_default_web.yaml")).unwrap();
    let text = format!("{CLAIM}---\n{POD}");
    let (loaded, started) = (&load(dir.path()), &BTreeMap::new());
    let current = CurrentState { loaded, started };
    let mut uid = || Ok("given".to_owned());
    let error = apply(dir.path(), current, &text, NOW, &mut uid).unwrap_err();
    let message = crust_state::error_message(&error);
    let expected = "wrote only PersistentVolumeClaim default/data: rename";
    assert!(message.starts_with(expected), "{message}");
    assert!(
        dir.path()
            .join("persistentvolumeclaim_default_data.yaml")
            .exists()
    );
}
