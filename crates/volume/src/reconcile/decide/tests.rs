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
    ProcessState::Unknown("process 7 is of another pid namespace".into())
}

const DEAD: ProcessState = ProcessState::Ended(EndReason::Exited(7));

/// A volume that nobody has used, whose target directory is there.
fn seen() -> ObservedVolume {
    ObservedVolume {
        is_half: false,
        is_kata_layout: false,
        users: None,
        stray_user: None,
        has_stray_record: false,
        cli: None,
        pod: Pod::Gone,
        target: Target::There,
        devices: None,
    }
}

fn users<const N: usize>(users: [(&str, ProcessState); N]) -> Vec<(User, ProcessState)> {
    let users = users.into_iter();
    users.map(|(id, life)| (user(id), life)).collect()
}

/// `-` is removed and `?` left; a user by its id.
fn judged(seen: &ObservedVolume) -> Vec<String> {
    let parts = seen.judge().into_iter();
    let told = parts.map(|(part, verdict)| {
        let sign = if matches!(verdict, Remove(_)) {
            '-'
        } else {
            '?'
        };
        let name = match part {
            Part::User(user) => user.id,
            Part::Record => "record".into(),
            Part::Copy => "copy".into(),
            Part::RuntimeCli(_) => "cli".into(),
            Part::Half => "half".into(),
            Part::All => "all".into(),
        };
        format!("{sign}{name}")
    });
    told.collect()
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
        let seen = ObservedVolume {
            users: Some(given),
            cli: Some(("/cli".into(), true)),
            ..seen()
        };
        assert_eq!(judged(&seen), expected, "{seen:?}");
    }
}

#[test]
fn a_stray_record_goes_unless_it_names_a_possible_user() {
    let stray = ObservedVolume {
        has_stray_record: true,
        ..seen()
    };
    assert_eq!(judged(&stray), ["-record"]);
    let stray = ObservedVolume {
        stray_user: Some(user("a")),
        ..stray
    };
    assert_eq!(judged(&stray), ["?record"]);
    let gone = ObservedVolume {
        target: Target::Gone,
        devices: Some(Devices::Free),
        ..stray
    };
    assert_eq!(judged(&gone), ["?record"]);
}

#[test]
fn a_copy_of_a_record_in_use_is_brought_up_to_date() {
    let differs = |users| ObservedVolume {
        users: Some(users),
        has_stray_record: true,
        ..seen()
    };
    for (seen, expected) in [
        (differs(users([("a", ProcessState::Alive)])), &["-copy"][..]),
        (differs(users([("a", unknown())])), &["?a", "-copy"]),
        (differs(users([("a", DEAD)])), &["-a", "-record"]),
    ] {
        assert_eq!(judged(&seen), expected, "{seen:?}");
        let stray = ObservedVolume {
            stray_user: Some(user("b")),
            ..seen
        };
        assert!(
            judged(&stray).iter().all(|part| part != "-copy"),
            "{stray:?}"
        );
    }
    // All copies are written with that.
    let seen = differs(users([("a", ProcessState::Alive), ("b", DEAD)]));
    assert_eq!(judged(&seen), ["-b"]);
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
            device: "7:3".parse().unwrap(),
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
    // Below 10 they live.
    for (counts, other, expected) in [
        (Some(&[1][..]), &[1, 12][..], None),
        (Some(&[1, 2]), &[1], None),
        (Some(&[1]), &[1, 2], Some("2")),
        (Some(&[]), &[2], Some("2")),
        (None, &[12, 2], Some("2")),
        (None, &[12], None),
    ] {
        let counts = counts.map(record);
        let found = stray(counts.as_ref(), &[record(other)], |it| it.pid < 10);
        let found = found.map(|user| user.id);
        assert_eq!(found.as_deref(), expected, "{counts:?} {other:?}");
    }
}

#[test]
fn a_runtime_cli_without_a_record_goes_if_ours_and_unused() {
    let (free, held) = (Some(Devices::Free), Some(Devices::Held("somebody".into())));
    for (ours, devices, expected) in [
        (true, free.clone(), "-cli"),
        (true, held, "?cli"),
        (true, None, "?cli"),
        (false, free, "?cli"),
    ] {
        let seen = ObservedVolume {
            cli: Some(("/cli".into(), ours)),
            devices,
            ..seen()
        };
        assert!(seen.asks_devices());
        assert_eq!(judged(&seen), [expected], "{seen:?}");
        // Whoever answers for it has it.
        let half = ObservedVolume {
            is_half: true,
            ..seen.clone()
        };
        let gone = ObservedVolume {
            target: Target::Gone,
            ..seen
        };
        let with = |part: &str| match expected {
            "-cli" => vec!["-cli".to_owned(), part.to_owned()],
            other => vec![other.to_owned()],
        };
        assert_eq!(judged(&half), with("-half"), "{half:?}");
        assert_eq!(judged(&gone), with("-all"), "{gone:?}");
    }
}

#[test]
fn a_volume_without_its_target_goes_if_unneeded() {
    let gone = ObservedVolume {
        users: Some(users([("a", DEAD)])),
        target: Target::Gone,
        devices: Some(Devices::Free),
        ..seen()
    };
    assert!(gone.asks_devices());
    assert_eq!(judged(&gone), ["-a", "-all"]);
    let held = || Some(Devices::Held("somebody has it".into()));
    let unsure = || Pod::Unknown("its pod may have a sandbox".into());
    for (but, expected) in [
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
                pod: Pod::Lives,
                ..gone.clone()
            },
            &["-a", "-record"],
        ),
        (
            ObservedVolume {
                pod: unsure(),
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
                target: Target::There,
                ..gone.clone()
            },
            &["-a", "-record"],
        ),
        (
            ObservedVolume {
                target: Target::Awaited,
                ..gone.clone()
            },
            &["-a", "-record"],
        ),
        (
            ObservedVolume {
                target: Target::Unknown("EIO".into()),
                ..gone.clone()
            },
            &["-a", "-record", "?all"],
        ),
        // It is asked again when the pod has ended.
        (
            ObservedVolume {
                target: Target::Unknown("EIO".into()),
                pod: Pod::Lives,
                users: None,
                ..gone.clone()
            },
            &[],
        ),
    ] {
        assert_eq!(judged(&but), expected, "{but:?}");
    }
}

#[test]
fn half_an_entry_goes_unless_in_use_or_its_pod_may_return() {
    let half = ObservedVolume {
        is_half: true,
        ..seen()
    };
    assert!(!half.asks_devices());
    assert_eq!(judged(&half), ["-half"]);
    for (but, expected) in [
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
                pod: Pod::Lives,
                ..half.clone()
            },
            &[],
        ),
        (
            ObservedVolume {
                pod: Pod::Unknown("?".into()),
                ..half.clone()
            },
            &["?half"],
        ),
        (
            ObservedVolume {
                target: Target::Unknown("EIO".into()),
                ..half.clone()
            },
            &["-half"],
        ),
    ] {
        assert_eq!(judged(&but), expected, "{but:?}");
    }
}

#[test]
fn an_owner_without_an_entry_goes_unless_its_pod_may_come_back() {
    let (unsure, free, held) = (
        Pod::Unknown("?".into()),
        Devices::Free,
        Devices::Held("?".into()),
    );
    for (is_of_this_boot, has_entry, pod, device, expected) in [
        (true, Ok(true), Pod::Gone, None, None),
        (true, Ok(false), Pod::Gone, Some(free), Some(true)),
        (true, Ok(false), Pod::Gone, Some(held), Some(false)),
        (true, Ok(false), Pod::Lives, None, None),
        (true, Ok(false), unsure, None, Some(false)),
        (true, Err("EIO".to_owned()), Pod::Gone, None, Some(false)),
        (false, Ok(true), Pod::Lives, None, Some(true)),
    ] {
        let told = format!("{is_of_this_boot} {has_entry:?} {pod:?}");
        let look = || device.expect("a device isn't looked at for nothing");
        let verdict = owner(is_of_this_boot, has_entry, pod, look);
        let removed = verdict.map(|it| matches!(it, Remove(_)));
        assert_eq!(removed, expected, "{told}");
    }
}

#[test]
fn a_bundle_that_cannot_be_looked_at_may_be_there() {
    let bundle = |config, absence| bundle("a.json", config, || absence);
    assert_eq!(bundle(Ok(true), ConfigAbsence::Removed), None);
    assert!(matches!(
        bundle(Ok(false), ConfigAbsence::Removed),
        Some(Remove(_))
    ));
    let denied = io::Error::from(io::ErrorKind::PermissionDenied);
    for (config, absence, words) in [
        (Ok(false), ConfigAbsence::NotMounted, "is it mounted"),
        (Ok(false), ConfigAbsence::OtherBoot, "remove bundles/a.json"),
        (Err(denied), ConfigAbsence::Removed, "stat config.json: "),
    ] {
        let verdict = bundle(config, absence);
        assert!(
            matches!(&verdict, Some(Leave(why)) if why.contains(words)),
            "{verdict:?}"
        );
    }
}
