use std::io;

use crust_state::record::{Superblock, UserKind, Version};
use crust_state::{EndReason, Process};

use super::*;

fn user(id: &str) -> User {
    User {
        kind: UserKind::Container,
        id: id.into(),
        sandbox: "s".into(),
        pod_uid: "uid".into(),
        process: Process {
            pid: 7,
            start_time: 1,
            boot_id: String::new(),
            pid_namespace: None,
        },
        mounts: Vec::new(),
        other_mounts: Vec::new(),
    }
}

fn unknown() -> ProcessState {
    ProcessState::Unknown("process 7 is in another pid namespace".into())
}

const DEAD: ProcessState = ProcessState::Ended(EndReason::Exited(7));

/// Returns a volume without users whose target directory exists.
fn unused_volume() -> ObservedVolume {
    ObservedVolume {
        is_half: false,
        is_kata_layout: false,
        users: None,
        stray_user: None,
        has_stray_record: false,
        cli: None,
        pod: PodState::Gone,
        target: TargetState::Present,
        devices: None,
    }
}

fn users<const N: usize>(users: [(&str, ProcessState); N]) -> Vec<(User, ProcessState)> {
    let users = users.into_iter();
    users
        .map(|(id, process_state)| (user(id), process_state))
        .collect()
}

/// Returns the decisions as short texts: `-part` for a removed part and `?part` for one that is left. A user is named
/// by its id.
fn decisions(observed: &ObservedVolume) -> Vec<String> {
    let parts = observed.decide().into_iter();
    let texts = parts.map(|(part, decision)| {
        let sign = if matches!(decision, Remove(_)) {
            '-'
        } else {
            '?'
        };
        let name = match part {
            VolumePart::User(user) => user.id,
            VolumePart::Record => "record".into(),
            VolumePart::Copy => "copy".into(),
            VolumePart::RuntimeCli(_) => "cli".into(),
            VolumePart::Half => "half".into(),
            VolumePart::All => "all".into(),
        };
        format!("{sign}{name}")
    });
    texts.collect()
}

#[test]
fn live_users_are_skipped_and_uncertain_ones_stay() {
    assert_eq!(process(&ProcessState::Alive), None);
    assert_eq!(process(&DEAD), Some(Remove("process 7 has ended".into())));
    assert!(matches!(process(&unknown()), Some(Leave(_))));
    for (given, expected) in [
        (users([("a", ProcessState::Alive)]), &[][..]),
        (users([("a", ProcessState::Alive), ("b", DEAD)]), &["-b"]),
        (users([("a", unknown()), ("b", DEAD)]), &["?a", "-b"]),
        (users([("a", DEAD), ("b", DEAD)]), &["-a", "-b", "-record"]),
        (
            users([("a", ProcessState::Ended(EndReason::Rebooted))]),
            &["-a", "-record"],
        ),
        (users([]), &["-record"]),
    ] {
        let observed = ObservedVolume {
            users: Some(given),
            cli: Some(("/cli".into(), true)),
            ..unused_volume()
        };
        assert_eq!(decisions(&observed), expected, "{observed:?}");
    }
}

#[test]
fn a_stray_record_is_removed_unless_it_names_a_possible_user() {
    let stray = ObservedVolume {
        has_stray_record: true,
        ..unused_volume()
    };
    assert_eq!(decisions(&stray), ["-record"]);
    let stray = ObservedVolume {
        stray_user: Some(user("a")),
        ..stray
    };
    assert_eq!(decisions(&stray), ["?record"]);
    let gone = ObservedVolume {
        target: TargetState::Gone,
        devices: Some(DeviceState::Free),
        ..stray
    };
    assert_eq!(decisions(&gone), ["?record"]);
}

#[test]
fn an_outdated_copy_of_a_record_in_use_is_removed() {
    let differs = |users| ObservedVolume {
        users: Some(users),
        has_stray_record: true,
        ..unused_volume()
    };
    for (observed, expected) in [
        (differs(users([("a", ProcessState::Alive)])), &["-copy"][..]),
        (differs(users([("a", unknown())])), &["?a", "-copy"]),
        (differs(users([("a", DEAD)])), &["-a", "-record"]),
    ] {
        assert_eq!(decisions(&observed), expected, "{observed:?}");
        let stray = ObservedVolume {
            stray_user: Some(user("b")),
            ..observed
        };
        assert!(
            decisions(&stray).iter().all(|part| part != "-copy"),
            "{stray:?}"
        );
    }
    // Removing a user writes all copies of the record.
    let observed = differs(users([("a", ProcessState::Alive), ("b", DEAD)]));
    assert_eq!(decisions(&observed), ["-b"]);
}

#[test]
fn a_possible_user_missing_in_the_record_is_stray() {
    let record = |pids: &[i32]| {
        let users = pids.iter().map(|pid| {
            let mut user = user(&pid.to_string());
            user.process.pid = *pid;
            user
        });
        VolumeRecord {
            version: Version,
            backing: "7:3".parse().unwrap(),
            superblocks: Vec::new(),
            refused_fs_group: None,
            superblock: Superblock {
                fstype: "ext4".into(),
                options: Vec::new(),
                read_only: false,
            },
            exclusive: false,
            prepared_for: Vec::new(),
            users: users.collect(),
        }
    };
    // Processes with a pid below 10 are alive.
    for (authoritative, other, expected) in [
        (Some(&[1][..]), &[1, 12][..], None),
        (Some(&[1, 2]), &[1], None),
        (Some(&[1]), &[1, 2], Some("2")),
        (Some(&[]), &[2], Some("2")),
        (None, &[12, 2], Some("2")),
        (None, &[12], None),
    ] {
        let authoritative = authoritative.map(record);
        let found = find_stray_user(authoritative.as_ref(), &[record(other)], |it| it.pid < 10);
        let found = found.map(|user| user.id);
        assert_eq!(found.as_deref(), expected, "{authoritative:?} {other:?}");
    }
}

#[test]
fn an_unused_runtime_cli_without_a_record_is_removed() {
    let (free, held) = (
        Some(DeviceState::Free),
        Some(DeviceState::Held("in use".into())),
    );
    for (is_this_runtime, devices, expected) in [
        (true, free.clone(), "-cli"),
        (true, held, "?cli"),
        (true, None, "?cli"),
        (false, free, "?cli"),
    ] {
        let observed = ObservedVolume {
            cli: Some(("/cli".into(), is_this_runtime)),
            devices,
            ..unused_volume()
        };
        assert!(observed.needs_devices());
        assert_eq!(decisions(&observed), [expected], "{observed:?}");
        // The runtime that the file names may use the volume, so its entries are left with the file.
        let half = ObservedVolume {
            is_half: true,
            ..observed.clone()
        };
        let gone = ObservedVolume {
            target: TargetState::Gone,
            ..observed
        };
        let with = |part: &str| match expected {
            "-cli" => vec!["-cli".to_owned(), part.to_owned()],
            other => vec![other.to_owned()],
        };
        assert_eq!(decisions(&half), with("-half"), "{half:?}");
        assert_eq!(decisions(&gone), with("-all"), "{gone:?}");
    }
}

#[test]
fn a_volume_without_its_target_is_removed_if_unused() {
    let gone = ObservedVolume {
        users: Some(users([("a", DEAD)])),
        target: TargetState::Gone,
        devices: Some(DeviceState::Free),
        ..unused_volume()
    };
    assert!(gone.needs_devices());
    assert_eq!(decisions(&gone), ["-a", "-all"]);
    let held = || Some(DeviceState::Held("in use".into()));
    let unknown_pod = || PodState::Unknown("its pod may have a sandbox".into());
    for (changed, expected) in [
        (
            ObservedVolume {
                users: None,
                ..gone.clone()
            },
            &["-all"][..],
        ),
        (
            ObservedVolume {
                users: Some(users([("a", ProcessState::Alive)])),
                ..gone.clone()
            },
            &[],
        ),
        (
            ObservedVolume {
                users: Some(users([("a", unknown())])),
                ..gone.clone()
            },
            &["?a"],
        ),
        (
            ObservedVolume {
                pod: PodState::Alive,
                ..gone.clone()
            },
            &["-a", "-record"],
        ),
        (
            ObservedVolume {
                pod: unknown_pod(),
                ..gone.clone()
            },
            &["-a", "-record", "?all"],
        ),
        (
            ObservedVolume {
                devices: held(),
                ..gone.clone()
            },
            &["-a", "-record", "?all"],
        ),
        (
            ObservedVolume {
                devices: None,
                ..gone.clone()
            },
            &["-a", "-record", "?all"],
        ),
        (
            ObservedVolume {
                is_kata_layout: true,
                ..gone.clone()
            },
            &["-a", "-record"],
        ),
        (
            ObservedVolume {
                target: TargetState::Present,
                ..gone.clone()
            },
            &["-a", "-record"],
        ),
        (
            ObservedVolume {
                target: TargetState::NotYetCreated,
                ..gone.clone()
            },
            &["-a", "-record"],
        ),
        (
            ObservedVolume {
                target: TargetState::Unknown("EIO".into()),
                ..gone.clone()
            },
            &["-a", "-record", "?all"],
        ),
        // Nothing is reported while the pod is alive. A later run decides, after the pod has ended.
        (
            ObservedVolume {
                target: TargetState::Unknown("EIO".into()),
                pod: PodState::Alive,
                users: None,
                ..gone.clone()
            },
            &[],
        ),
    ] {
        assert_eq!(decisions(&changed), expected, "{changed:?}");
    }
}

#[test]
fn a_half_staged_volume_of_a_gone_pod_is_removed_if_unused() {
    let half = ObservedVolume {
        is_half: true,
        ..unused_volume()
    };
    assert!(!half.needs_devices());
    assert_eq!(decisions(&half), ["-half"]);
    for (changed, expected) in [
        (
            ObservedVolume {
                users: Some(users([("a", DEAD)])),
                ..half.clone()
            },
            &["-a", "-half"][..],
        ),
        (
            ObservedVolume {
                users: Some(users([("a", ProcessState::Alive)])),
                ..half.clone()
            },
            &[],
        ),
        (
            ObservedVolume {
                pod: PodState::Alive,
                ..half.clone()
            },
            &[],
        ),
        (
            ObservedVolume {
                pod: PodState::Unknown("?".into()),
                ..half.clone()
            },
            &["?half"],
        ),
        (
            ObservedVolume {
                target: TargetState::Unknown("EIO".into()),
                ..half.clone()
            },
            &["-half"],
        ),
    ] {
        assert_eq!(decisions(&changed), expected, "{changed:?}");
    }
}

#[test]
fn an_owner_without_an_entry_is_removed_if_its_pod_is_gone() {
    let (unknown_pod, free, held) = (
        PodState::Unknown("?".into()),
        DeviceState::Free,
        DeviceState::Held("?".into()),
    );
    for (is_of_this_boot, has_entry, pod, device, expected) in [
        (true, Ok(true), PodState::Gone, None, None),
        (true, Ok(false), PodState::Gone, Some(free), Some(true)),
        (true, Ok(false), PodState::Gone, Some(held), Some(false)),
        (true, Ok(false), PodState::Alive, None, None),
        (true, Ok(false), unknown_pod, None, Some(false)),
        (
            true,
            Err("EIO".to_owned()),
            PodState::Gone,
            None,
            Some(false),
        ),
        (false, Ok(true), PodState::Alive, None, Some(true)),
    ] {
        let case = format!("{is_of_this_boot} {has_entry:?} {pod:?}");
        let device_state = || device.expect("no device is checked needlessly");
        let decision = owner(is_of_this_boot, has_entry, pod, device_state);
        let removed = decision.map(|it| matches!(it, Remove(_)));
        assert_eq!(removed, expected, "{case}");
    }
}

#[test]
fn a_bundle_that_cannot_be_examined_is_left() {
    let bundle = |config, absence| bundle("a.json", config, || absence);
    assert_eq!(bundle(Ok(true), ConfigAbsence::Removed), None);
    assert!(matches!(
        bundle(Ok(false), ConfigAbsence::Removed),
        Some(Remove(_))
    ));
    let denied = io::Error::from(io::ErrorKind::PermissionDenied);
    for (config, absence, words) in [
        (
            Ok(false),
            ConfigAbsence::NotMounted,
            "check that the file system is mounted",
        ),
        (Ok(false), ConfigAbsence::OtherBoot, "remove bundles/a.json"),
        (Err(denied), ConfigAbsence::Removed, "stat config.json: "),
    ] {
        let decision = bundle(config, absence);
        assert!(
            matches!(&decision, Some(Leave(reason)) if reason.contains(words)),
            "{decision:?}"
        );
    }
}
