//! What is read from directories, and written into them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use super::write::Outcome;
use super::{Directories, Loaded, Written, apply, delete, remove};
use crate::objects::{Kind, Name};

const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: app, image: app}]}\n";
const CLAIM: &str =
    "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data}\nspec: {}\n";

const NOW: &str = "2026-01-01T00:00:00Z";

fn loaded(directory: &Path) -> Loaded {
    Directories::new(&[directory.to_owned()]).read(&[], Instant::now())
}

fn web() -> Name {
    Name::new("default", "web")
}

#[test]
fn all_is_known_once_every_directory_was_read_whole() {
    let place = tempfile::tempdir().unwrap();
    let late = place.path().join("late");
    fs::write(place.path().join("pod.yaml"), POD).unwrap();
    let mut directories = Directories::new(&[place.path().to_owned(), late.clone()]);
    let read = directories.read(&[], Instant::now());
    assert!(!read.is_complete && read.objects.pods.contains_key(&web()));
    assert!(read.errors[0].to_string().contains("late"));
    fs::create_dir(&late).unwrap();
    fs::write(late.join("claim.yaml"), "kind: [").unwrap();
    assert!(
        !directories.read(&[], Instant::now()).is_complete,
        "what is in it isn't known"
    );
    fs::write(late.join("claim.yaml"), CLAIM).unwrap();
    let read = directories.read(&[], Instant::now());
    assert!(read.is_complete && read.objects.claims.len() == 1);
    fs::remove_dir_all(&late).unwrap();
    let read = directories.read(&[], Instant::now());
    assert!(read.is_complete, "it stays so");
    assert_eq!(read.objects.claims.len(), 1, "and nothing is taken back");
}

#[test]
fn a_file_that_is_half_written_counts_as_it_was() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("pod.yaml");
    fs::write(&file, POD).unwrap();
    let mut directories = Directories::new(&[place.path().to_owned()]);
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

/// `open(O_TRUNC)`, and `write` a moment later; or `rename` to a backup's name and a new file.
#[test]
fn what_is_less_than_it_was_counts_once_it_has_stayed_so() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("pod.yaml");
    let both = format!("{POD}---\n{CLAIM}");
    let mut directories = Directories::new(&[place.path().to_owned()]);
    let begun = Instant::now();
    let mut look = |milliseconds: u64| {
        let read = directories.read(&[], begun + Duration::from_millis(milliseconds));
        let there = (read.objects.pods.len(), read.objects.claims.len());
        (there, read.again.is_some(), read.is_complete)
    };
    fs::write(&file, "").unwrap();
    assert_eq!(look(0), ((0, 0), true, false), "it may be written yet");
    fs::write(&file, &both).unwrap();
    assert_eq!(look(100), ((1, 1), false, true));
    for (less, left) in [("", (0, 0)), (POD, (1, 0))] {
        fs::write(&file, less).unwrap();
        assert_eq!(look(200), ((1, 1), true, true));
        assert_eq!(look(699), ((1, 1), true, true));
        assert_eq!(look(700), (left, false, true));
        fs::write(&file, &both).unwrap();
        assert_eq!(look(800), ((1, 1), false, true));
    }
    // Each change begins anew.
    fs::write(&file, "").unwrap();
    look(2000);
    fs::write(&file, "# none\n").unwrap();
    assert_eq!(look(2400), ((1, 1), true, true));
    assert_eq!(look(2600), ((1, 1), true, true));
    fs::remove_file(&file).unwrap();
    assert_eq!(look(2800), ((1, 1), true, true));
    fs::write(&file, &both).unwrap();
    assert_eq!(look(3200), ((1, 1), false, true));
    fs::remove_file(&file).unwrap();
    assert_eq!(look(3300), ((1, 1), true, true));
    assert_eq!(look(3800), ((0, 0), false, true));
}

/// Who mends a file writes it anew, and what it had counts meanwhile as what can't be read.
#[test]
fn a_file_that_is_being_mended_is_not_mended_yet() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("pod.yaml");
    fs::write(&file, POD).unwrap();
    let mut directories = Directories::new(&[place.path().to_owned()]);
    let begun = Instant::now();
    let mut look = |milliseconds: u64| {
        let read = directories.read(&[], begun + Duration::from_millis(milliseconds));
        (read.objects.pods.len(), read.errors.len())
    };
    look(0);
    fs::write(&file, "kind: [").unwrap();
    assert_eq!(look(100), (1, 1));
    fs::remove_file(&file).unwrap();
    assert_eq!(look(200), (1, 1));
    fs::write(&file, "").unwrap();
    assert_eq!(look(300), (1, 1));
    fs::write(&file, POD).unwrap();
    assert_eq!(look(400), (1, 0));
    fs::write(&file, "kind: [").unwrap();
    look(500);
    fs::write(&file, "").unwrap();
    assert_eq!(look(600), (1, 1));
    assert_eq!(look(1100), (0, 0), "so it stays");
}

/// The other one of the file's objects is no less there than before.
#[test]
fn what_is_less_takes_no_other_object_with_it() {
    let place = tempfile::tempdir().unwrap();
    let (one, other) = (place.path().join("a.yaml"), place.path().join("b.yaml"));
    fs::write(&one, format!("{POD}---\n{CLAIM}")).unwrap();
    fs::write(&other, POD).unwrap();
    let mut directories = Directories::new(&[place.path().to_owned()]);
    directories.read(&[], Instant::now());
    fs::write(&one, POD).unwrap();
    let read = directories.read(&[], Instant::now());
    assert_eq!(read.origins[&(Kind::Pod, web())].path, one);
    assert_eq!(read.objects.claims.len(), 1);
}

#[test]
fn what_moved_to_another_file_is_there_once() {
    let place = tempfile::tempdir().unwrap();
    let (one, other) = (place.path().join("a.yaml"), place.path().join("b.yaml"));
    fs::write(&one, POD).unwrap();
    let mut directories = Directories::new(&[place.path().to_owned()]);
    directories.read(&[], Instant::now());
    fs::rename(&one, &other).unwrap();
    let read = directories.read(&[], Instant::now());
    assert!(read.errors.is_empty(), "{:?}", read.errors);
    assert_eq!(read.origins[&(Kind::Pod, web())].path, other);
}

/// What was mounted there was unmounted.
#[test]
fn another_directory_with_nothing_in_it_takes_nothing_back() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("manifests");
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("pod.yaml"), POD).unwrap();
    let mut directories = Directories::new(std::slice::from_ref(&directory));
    directories.read(&[], Instant::now());
    fs::rename(&directory, place.path().join("aside")).unwrap();
    fs::create_dir(&directory).unwrap();
    let later = Instant::now() + Duration::from_secs(60);
    for now in [Instant::now(), later] {
        let read = directories.read(&[], now);
        assert!(read.objects.pods.contains_key(&web()));
        assert!(read.errors[0].reason.contains("another directory"));
    }
    fs::write(directory.join("claim.yaml"), CLAIM).unwrap();
    directories.read(&[], later);
    let read = directories.read(&[], later + Duration::from_secs(1));
    assert_eq!((read.objects.pods.len(), read.objects.claims.len()), (0, 1));
    assert!(read.errors.is_empty(), "{:?}", read.errors);
}

#[test]
fn only_manifests_by_their_names_are_read_and_an_object_once() {
    let place = tempfile::tempdir().unwrap();
    for name in [".pod.yaml.swp", ".pod.yaml", "pod.yaml~", "README"] {
        fs::write(place.path().join(name), "{{").unwrap();
    }
    fs::create_dir(place.path().join("directory.yaml")).unwrap();
    fs::write(place.path().join("a.json"), POD).unwrap();
    fs::write(place.path().join("b.yml"), POD).unwrap();
    let read = loaded(place.path());
    let told: Vec<String> = read.errors.iter().map(ToString::to_string).collect();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].contains("directory.yaml: it is no regular file"));
    assert!(told[1].contains("b.yml: Pod default/web is in "));
    let origin = &read.origins[&(Kind::Pod, web())];
    assert_eq!(origin.path, place.path().join("a.json"));
}

fn applied(directory: &Path, text: &str) -> Result<Vec<Outcome>, String> {
    applied_while(directory, text, &BTreeMap::new())
}

/// The same where pods were begun, with these volumes deferred.
fn applied_while(
    directory: &Path,
    text: &str,
    begun: &BTreeMap<Name, BTreeSet<String>>,
) -> Result<Vec<Outcome>, String> {
    let mut uid = || Ok("given".to_owned());
    let loaded = &loaded(directory);
    let standing = Written { loaded, begun };
    let applied = apply(directory, standing, text, NOW, &mut uid);
    let applied = applied.map_err(|error| error.to_string())?;
    Ok(applied.into_iter().map(|it| it.outcome).collect())
}

#[test]
fn apply_writes_a_file_per_object_and_repeats_do_nothing() {
    use Outcome::{Configured, Created, Unchanged};
    let place = tempfile::tempdir().unwrap();
    let text = format!("{POD}---\n{CLAIM}");
    assert_eq!(applied(place.path(), &text), Ok(vec![Created, Created]));
    assert_eq!(applied(place.path(), &text), Ok(vec![Unchanged, Unchanged]));
    let grown = CLAIM.replace("spec: {}", "spec: {volumeName: pv}");
    assert_eq!(applied(place.path(), &grown), Ok(vec![Configured]));
    let read = loaded(place.path());
    assert_eq!(read.objects.pods[&web()].uid, "given");
    let origin = &read.origins[&(Kind::Pod, web())];
    assert_eq!(origin.path, place.path().join("pod_default_web.yaml"));
    // One that can't be written keeps the others from it.
    let other = POD.replace("image: app", "image: other");
    let refused = applied(place.path(), &format!("{CLAIM}---\n{other}")).unwrap_err();
    assert!(refused.contains("Pod default/web is there"), "{refused}");
    let claim = Name::new("default", "data");
    let claims = &loaded(place.path()).objects.claims;
    let spec = claims[&claim].spec.as_ref().unwrap();
    assert_eq!(spec.volume_name.as_deref(), Some("pv"));
}

#[test]
fn a_pods_volume_may_become_deferred_and_not_back() {
    let place = tempfile::tempdir().unwrap();
    let with = |defer: &str| {
        let volumes = format!("volumes: [{{name: v, csi: {{driver: d.e{defer}}}}}], containers");
        POD.replace("containers", &volumes)
    };
    let deferred = with(", deferFSMount: true");
    assert_eq!(applied(place.path(), &with("")), Ok(vec![Outcome::Created]));
    assert_eq!(
        applied(place.path(), &deferred),
        Ok(vec![Outcome::Configured])
    );
    assert!(applied(place.path(), &with("")).is_err());
}

/// Once it has begun who mounts its volumes is what it is, whether the pod or a policy has said so.
#[test]
fn a_pod_that_has_begun_keeps_who_mounts_its_volumes() {
    let place = tempfile::tempdir().unwrap();
    let with = |defer: &str| {
        let volumes = format!("volumes: [{{name: v, csi: {{driver: d.e{defer}}}}}], containers");
        POD.replace("containers", &volumes)
    };
    let (plain, deferred) = (with(""), with(", deferFSMount: true"));
    let begun = |is_deferred: bool| {
        let volumes = BTreeSet::from_iter(is_deferred.then(|| "v".to_owned()));
        BTreeMap::from([(web(), volumes)])
    };
    applied(place.path(), &plain).unwrap();
    let refused = applied_while(place.path(), &deferred, &begun(false)).unwrap_err();
    assert!(
        refused.starts_with("Pod default/web has begun, and who mounts its volumes is fixed"),
        "{refused}"
    );
    let unchanged = Ok(vec![Outcome::Unchanged]);
    assert_eq!(
        applied_while(place.path(), &plain, &begun(true)),
        unchanged,
        "a policy's"
    );
    let configured = Ok(vec![Outcome::Configured]);
    assert_eq!(
        applied_while(place.path(), &deferred, &begun(true)),
        configured
    );
    let refused = applied_while(place.path(), &plain, &begun(true)).unwrap_err();
    assert!(refused.contains("has begun"), "{refused}");
    let on_node = deferred.replace("volumes:", "nodeName: here, volumes:");
    assert_eq!(
        applied_while(place.path(), &on_node, &begun(true)),
        configured
    );
}

#[test]
fn what_is_deleted_says_so_until_its_file_goes() {
    let place = tempfile::tempdir().unwrap();
    applied(place.path(), POD).unwrap();
    let now = "2026-01-02T00:00:00Z";
    let read = loaded(place.path());
    delete(&read, Kind::Pod, &web(), now, Some(3)).unwrap();
    let read = loaded(place.path());
    let pod = &read.objects.pods[&web()];
    assert!(pod.is_deleted());
    assert_eq!(pod.grace(), 3);
    let refused = applied(place.path(), POD).unwrap_err();
    assert!(refused.contains("being deleted"), "{refused}");
    let file = place.path().join("pod_default_web.yaml");
    let deleted = fs::read_to_string(&file).unwrap();
    fs::write(&file, POD).unwrap();
    let error = remove(&read, Kind::Pod, &web()).unwrap_err().to_string();
    assert!(error.contains("was written again"), "{error}");
    fs::write(&file, deleted).unwrap();
    remove(&read, Kind::Pod, &web()).unwrap();
    let read = loaded(place.path());
    assert!(read.objects.pods.is_empty());
    let error = remove(&read, Kind::Pod, &web()).unwrap_err();
    assert_eq!(error.to_string(), "Pod default/web not found");
}

/// Somebody writes the next one into it.
#[test]
fn a_file_that_is_being_written_again_is_not_taken_away() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("pod.yaml");
    fs::write(&file, POD).unwrap();
    let read = loaded(place.path());
    for text in ["", "kind: [", CLAIM] {
        fs::write(&file, text).unwrap();
        let error = remove(&read, Kind::Pod, &web()).unwrap_err().to_string();
        assert!(error.contains("written again"), "{error}");
        assert_eq!(fs::read_to_string(&file).unwrap(), text);
    }
    fs::remove_file(&file).unwrap();
    assert_eq!(remove(&read, Kind::Pod, &web()).unwrap(), file);
}

#[test]
fn a_file_of_several_objects_is_its_authors_to_change() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("all.yaml");
    fs::write(&file, format!("{POD}---\n{CLAIM}")).unwrap();
    let read = loaded(place.path());
    let told = [
        delete(&read, Kind::Pod, &web(), "2026-01-01T00:00:00Z", None),
        remove(&read, Kind::Pod, &web()).map(drop),
    ];
    for refused in told {
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("all.yaml with other objects"), "{refused}");
    }
    assert!(applied(place.path(), POD).is_err());
}

#[test]
fn what_others_can_write_is_no_manifest() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("manifests");
    fs::create_dir(&directory).unwrap();
    let file = directory.join("pod.yaml");
    fs::write(&file, POD).unwrap();
    let mode = |path: &Path, mode: u32| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    let refused = |path: &Path, reason: &str| {
        let read = loaded(&directory);
        let [error] = &read.errors[..] else {
            panic!("{:?}", read.errors);
        };
        let expected = format!("{} {reason}; hint: ", path.display());
        assert!(error.reason.starts_with(&expected), "{error}");
        assert!(read.objects.pods.is_empty() && !read.is_complete);
    };
    mode(&file, 0o664);
    refused(&file, "can be written by others than root");
    mode(&file, 0o644);
    std::os::unix::fs::chown(&file, Some(1000), None).unwrap();
    refused(&file, "isn't owned by root");
    std::os::unix::fs::chown(&file, Some(0), Some(1000)).unwrap();
    assert!(loaded(&directory).is_complete);
    mode(&directory, 0o775);
    refused(&directory, "can be written by others than root");
    mode(&directory, 0o755);
    // Nor is what others can put there.
    mode(place.path(), 0o777);
    refused(place.path(), "can be written by others than root");
    let written = applied(&directory, CLAIM).unwrap_err();
    assert!(
        written.contains("what is in a manifest runs as root"),
        "{written}"
    );
}

#[test]
fn what_was_written_before_the_disk_failed_is_told() {
    let place = tempfile::tempdir().unwrap();
    // No file can take its place.
    fs::create_dir(place.path().join("pod_default_web.yaml")).unwrap();
    let text = format!("{CLAIM}---\n{POD}");
    let (loaded, begun) = (&loaded(place.path()), &BTreeMap::new());
    let standing = Written { loaded, begun };
    let mut uid = || Ok("given".to_owned());
    let error = apply(place.path(), standing, &text, NOW, &mut uid).unwrap_err();
    let told = crust_state::sentence(&error);
    let expected = "PersistentVolumeClaim default/data written, and nothing after that: rename";
    assert!(told.starts_with(expected), "{told}");
    assert!(
        place
            .path()
            .join("persistentvolumeclaim_default_data.yaml")
            .exists()
    );
}
