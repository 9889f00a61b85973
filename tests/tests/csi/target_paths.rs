//! Target paths: which volume a path belongs to, and paths at which something exists already.

use std::fs;

use runcrust_tests::csi::{CsiVolume, block, filesystem};
use runcrust_tests::{Csi, Delegate, Node, POD, host};
use tonic::Code;

use crate::scene::deferring_driver;
use crate::{deferred_publish_request, expect_error};

fn two_staged_volumes(csi: &Csi) -> [CsiVolume; 2] {
    let volumes = ["pv-1", "pv-2"].map(|name| csi.volume(name, filesystem("ext4")));
    for volume in &volumes {
        csi.call(volume.stage()).unwrap();
    }
    volumes
}

#[test]
fn two_volumes_race_for_a_target_and_one_gets_it() {
    let (node, _ops, csi) = deferring_driver(Delegate::Runc, &[]);
    let [one, other] = two_staged_volumes(&csi);
    for round in 0..10 {
        let target = csi.target(POD, &format!("pv-{round}"));
        let answers = if round % 2 == 0 {
            csi.call_both(one.publish(&target), other.publish(&target))
        } else {
            csi.call_both(
                deferred_publish_request(&one, &target),
                deferred_publish_request(&other, &target),
            )
        };
        let (winner, loser) = match (&answers.0, &answers.1) {
            (Ok(_), Err(_)) => (&one, &other),
            (Err(_), Ok(_)) => (&other, &one),
            _ => panic!("round {round}: {answers:?}"),
        };
        expect_error(csi.call(loser.unpublish(&target)), Code::FailedPrecondition);
        let mounted = host::mounts_below(&target).len();
        let staged = usize::from(node.entry(&target).exists());
        assert_eq!(mounted + staged, 1, "round {round}");
        csi.call(winner.unpublish(&target)).unwrap();
        assert!(!target.exists() && !node.entry(&target).exists());
    }
}

#[test]
fn an_entry_of_another_driver_stays() {
    let (node, _ops, csi) = deferring_driver(Delegate::Runc, &[]);
    let foreign_device = node.ext4();
    let target = csi.target(POD, "pv-theirs");
    fs::create_dir_all(&target).unwrap();
    let _ = node
        .try_stage(&target, foreign_device.path(), &[])
        .success();
    let entry = node.entry(&target).join("mountInfo.json");
    let staged = fs::read(&entry).unwrap();
    let volume = csi.volume("pv-1", filesystem("ext4"));
    csi.call(volume.stage()).unwrap();
    for error in [
        expect_error(
            csi.call(deferred_publish_request(&volume, &target)),
            Code::FailedPrecondition,
        ),
        expect_error(
            csi.call(volume.unpublish(&target)),
            Code::FailedPrecondition,
        ),
    ] {
        assert!(error.contains("another volume"), "{error}");
    }
    assert_eq!(fs::read(&entry).unwrap(), staged);
    csi.call(volume.unstage())
        .expect("the volume is not published");
}

/// A full disk, or an older copy of the record, may be the reason for an outdated record.
#[test]
fn an_outdated_record_does_not_claim_a_target() {
    let (node, _ops, csi) = deferring_driver(Delegate::Runc, &[]);
    let [one, other] = two_staged_volumes(&csi);
    let target = csi.target(POD, "pv");
    csi.call(deferred_publish_request(&one, &target)).unwrap();
    let record = csi.data().join("volumes").join(format!("{}.json", one.id));
    let older = fs::read(&record).unwrap();
    csi.call(one.unpublish(&target)).unwrap();
    fs::write(&record, older).unwrap();
    csi.call(one.unstage()).unwrap();
    // The other volume may get the device's number from here on.
    csi.call(other.unstage()).unwrap();
    csi.call(other.stage()).unwrap();

    csi.call(deferred_publish_request(&other, &target)).unwrap();
    fs::create_dir(target.join("subpath")).unwrap();
    csi.call(other.unpublish(&target)).unwrap();
    assert!(!target.exists() && !node.entry(&target).exists());
    csi.call(other.unstage()).unwrap();
    csi.call(one.unpublish(&target)).unwrap();
    csi.call(one.delete()).unwrap();
}

#[test]
fn files_of_the_host_at_a_target_stay() {
    let node = Node::trusted(Delegate::Runc, "");
    let csi = Csi::start(&node);
    let volume = csi.volume("pv-1", filesystem("ext4"));
    csi.call(volume.stage()).unwrap();
    let directory = node.dir().subdir("directory");
    fs::create_dir(directory.join("empty")).unwrap();
    let raw = csi.volume("pv-2", block());
    csi.call(raw.stage()).unwrap();
    let file = node.dir().join("file");
    fs::write(&file, "data").unwrap();
    for error in [
        expect_error(
            csi.call(volume.publish(&directory)),
            Code::FailedPrecondition,
        ),
        expect_error(csi.call(raw.publish(&file)), Code::FailedPrecondition),
        expect_error(csi.call(raw.publish(&directory)), Code::FailedPrecondition),
    ] {
        assert!(error.contains("the path exists"), "{error}");
    }
    csi.call(volume.unpublish(&directory)).unwrap();
    csi.call(raw.unpublish(&file)).unwrap();
    assert!(directory.join("empty").exists());
    assert_eq!(fs::read_to_string(&file).unwrap(), "data");
    // csi-sanity may have created an empty directory as the target.
    let empty = node.dir().subdir("vacant");
    csi.call(volume.publish(&empty)).unwrap();
    csi.call(volume.unpublish(&empty)).unwrap();
    csi.call(volume.unstage()).unwrap();
    csi.call(raw.unstage()).unwrap();
}
