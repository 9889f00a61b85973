//! Requirements on `runtime-cli` and the answers of the program that it names.

use runcrust_tests::node::utf8;
use serde_json::{Value, json};

use super::sources::{API, CLI, OVERVIEW, USE};
use crate::requirement::{Group, deferred};
use crate::scene::{Container, Entry, Pod, Scene, assert_error, expect, json_output};

pub(super) const GROUP: Group = Group {
    name: "cli",
    requirements: &[
        deferred(
            "cli-in-use",
            OVERVIEW,
            "While a container has the volume, its entry (or both entries) has runtime-cli: one line, the absolute path of a program.",
            in_use,
        ),
        deferred(
            "cli-gone",
            USE,
            "Once no container has the volume, its entry (or both entries) has no runtime-cli.",
            removes_cli,
        ),
        deferred(
            "cli-stats-shape",
            CLI,
            "`crust stats` prints one object with usage in BYTES and INODES and volume_condition, and nothing on standard error.",
            stats_shape,
        ),
        deferred(
            "cli-stats-numbers",
            API,
            "The numbers are those of statfs; available is what users other than root can use.",
            stats_numbers,
        ),
        deferred(
            "cli-stats-grow",
            API,
            "Written data appears in the next stats.",
            stats_grow,
        ),
        deferred(
            "cli-not-found",
            CLI,
            "Stats of a path for which nothing is staged fail with NOT_FOUND: exit code not 0, one JSON object on standard error, nothing on standard output.",
            not_found,
        ),
        deferred(
            "cli-stats-not-in-use",
            CLI,
            "Stats of a volume that is staged but not in use fail with FAILED_PRECONDITION.",
            not_in_use,
        ),
        deferred(
            "cli-stats-again",
            CLI,
            "Stats do not keep the volume in use: its device is free once the pod has ended.",
            stats_let_go,
        ),
        deferred(
            "cli-stage",
            CLI,
            "`crust stage` with the same arguments changes nothing; with others, while the volume is in use, it fails with FAILED_PRECONDITION.",
            stage,
        )
        .should(),
        deferred(
            "cli-unstage-in-use",
            CLI,
            "`crust unstage` of a volume in use fails with FAILED_PRECONDITION, and the volume stays.",
            unstage_in_use,
        )
        .should(),
        deferred(
            "cli-unstage",
            CLI,
            "`crust unstage` of a volume that is no longer in use removes its entry; of an unknown path it succeeds.",
            unstage,
        )
        .should(),
    ],
};

fn in_use(scene: &Scene<'_>) {
    let volume = scene.volume();
    for pod in [scene.pod(), Pod::behind_a_link(scene)] {
        let target = pod.stage(&volume.info());
        let app = pod.app_with(&volume, &target);
        let _ = pod.cli(&target);
        pod.entry(&target, |entry| {
            for file in entry.runtime_clis() {
                assert!(file.exists(), "{} is missing", file.display());
            }
        });
        pod.end([app]);
    }
}

fn removes_cli(scene: &Scene<'_>) {
    let volume = scene.volume();
    for pod in [scene.pod(), Pod::behind_a_link(scene)] {
        let target = pod.stage(&volume.info());
        let one = pod.app_with(&volume, &target);
        let two = pod.app_with(&volume, &target);
        let _ = pod.cli(&target);
        one.end();
        let _ = pod.cli(&target);
        pod.end([two]);
        for file in pod.entry(&target, Entry::runtime_clis) {
            let what = format!("removal of {}", file.display());
            scene.wait(&what, || !file.exists());
        }
        scene.wait("the device free", || volume.is_free());
    }
}

fn stats_shape(scene: &Scene<'_>) {
    let volume = scene.volume();
    let pod = scene.pod();
    let target = pod.stage(&volume.info());
    let _app = pod.app_with(&volume, &target);
    let run = pod.cli(&target).stats(&target);
    let stats = json_output(&run);
    expect("standard error", &run.stderr, &String::new());
    let usage = stats["usage"].as_array().cloned().unwrap_or_default();
    let units: Vec<&Value> = usage.iter().map(|usage| &usage["unit"]).collect();
    let both = units.len() == 2
        && ["BYTES", "INODES"]
            .iter()
            .all(|unit| units.contains(&&json!(unit)));
    assert!(both, "usage is not in BYTES and INODES: {stats}");
    let numbers = ["total", "used", "available"];
    let whole = usage
        .iter()
        .all(|usage| numbers.iter().all(|key| usage[key].is_u64()));
    assert!(
        whole,
        "total, used and available are not all numbers: {stats}"
    );
    let condition = &stats["volume_condition"];
    let is_normal = condition["abnormal"] == false && condition["message"].is_string();
    assert!(is_normal, "volume_condition is not normal: {stats}");
}

/// Returns one number of the stats.
#[track_caller]
fn usage(stats: &Value, unit: &str, key: &str) -> u64 {
    let usage = stats["usage"].as_array().cloned().unwrap_or_default();
    let of_unit = usage.iter().find(|usage| usage["unit"] == unit);
    let number = of_unit.and_then(|usage| usage[key].as_u64());
    number.unwrap_or_else(|| panic!("no {key} in {unit}: {stats}"))
}

/// Returns the total, used and available bytes and inodes that statfs(2) reports in the container.
#[track_caller]
fn statfs(app: &Container) -> [u64; 6] {
    let text = app.sh("sync; stat -f -c '%S %b %f %a %c %d' /data");
    let numbers: Vec<u64> = text.split(' ').flat_map(str::parse).collect();
    let [size, blocks, free, available, inodes, inodes_free] = numbers[..] else {
        panic!("stat -f in the container: {text:?}");
    };
    let bytes = [blocks, blocks - free, available].map(|count| count * size);
    let inodes = [inodes, inodes - inodes_free, inodes_free];
    [bytes, inodes].concat().try_into().expect("six")
}

fn stats_numbers(scene: &Scene<'_>) {
    let volume = scene.volume();
    let pod = scene.pod();
    let target = pod.stage(&volume.info());
    let app = pod.app_with(&volume, &target);
    let _ = app.sh("dd if=/dev/zero of=/data/file bs=64k count=16 2>/dev/null");
    let expected = statfs(&app);
    let stats = json_output(&pod.cli(&target).stats(&target));
    let names =
        ["BYTES", "INODES"].map(|unit| ["total", "used", "available"].map(|key| (unit, key)));
    for ((unit, key), expected) in names.concat().into_iter().zip(expected) {
        expect(
            &format!("{key} in {unit}"),
            &usage(&stats, unit, key),
            &expected,
        );
    }
}

fn stats_grow(scene: &Scene<'_>) {
    let volume = scene.volume();
    let pod = scene.pod();
    let target = pod.stage(&volume.info());
    let app = pod.app_with(&volume, &target);
    let cli = pod.cli(&target);
    let before = usage(&json_output(&cli.stats(&target)), "BYTES", "used");
    let _ = app.sh("dd if=/dev/zero of=/data/file bs=64k count=32 2>/dev/null; sync");
    let after = usage(&json_output(&cli.stats(&target)), "BYTES", "used");
    assert!(
        after >= before + (2 << 20),
        "2 MiB were written: {before}, then {after}"
    );
}

fn not_found(scene: &Scene<'_>) {
    let volume = scene.volume();
    let pod = scene.pod();
    let target = pod.stage(&volume.info());
    let _app = pod.app_with(&volume, &target);
    let unknown = pod.target("pv-unknown");
    let cli = pod.cli(&target);
    assert_error(&cli.stats(&unknown), "NOT_FOUND");
    let _ = json_output(&cli.stats(&target));
}

fn not_in_use(scene: &Scene<'_>) {
    let (volume, unused) = (scene.volume(), scene.volume());
    let pod = scene.pod();
    let target = pod.stage(&volume.info());
    let other = scene.pod();
    let unused = other.stage(&unused.info());
    let _app = pod.app_with(&volume, &target);
    let cli = pod.cli(&target);
    assert_error(&cli.stats(&unused), "FAILED_PRECONDITION");
    let _ = json_output(&cli.stats(&target));
}

fn stats_let_go(scene: &Scene<'_>) {
    let volume = scene.volume();
    let pod = scene.pod();
    let target = pod.stage(&volume.info());
    let app = pod.app_with(&volume, &target);
    let cli = pod.cli(&target);
    for _ in 0..3 {
        let _ = json_output(&cli.stats(&target));
    }
    pod.end([app]);
    scene.wait("the device free", || volume.is_free());
}

fn stage(scene: &Scene<'_>) {
    let volume = scene.volume();
    let pod = scene.pod();
    let target = pod.stage(&volume.info());
    let _app = pod.app_with(&volume, &target);
    let cli = pod.cli(&target);
    let device = utf8(volume.device().path());
    let same = [
        "stage",
        utf8(&target),
        "--device",
        device,
        "--fstype",
        "ext4",
    ];
    expect("standard output", &json_output(&cli.run(&same)), &json!({}));
    let other = [&same[..], &["--option", "commit=9"]].concat();
    assert_error(&cli.run(&other), "FAILED_PRECONDITION");
}

fn unstage_in_use(scene: &Scene<'_>) {
    let volume = scene.volume();
    let pod = scene.pod();
    let target = pod.stage(&volume.info());
    let app = pod.app_with(&volume, &target);
    let unstage = ["unstage", utf8(&target)];
    let cli = pod.cli(&target);
    assert_error(&cli.run(&unstage), "FAILED_PRECONDITION");
    volume.assert_shown_at(&app, "/data");
    let second = pod.app_with(&volume, &target);
    pod.end([app, second]);
    let _ = json_output(&cli.run(&unstage));
}

fn unstage(scene: &Scene<'_>) {
    let volume = scene.volume();
    let pod = scene.pod();
    let target = pod.stage(&volume.info());
    let app = pod.app_with(&volume, &target);
    let cli = pod.cli(&target);
    pod.end([app]);
    for _ in 0..2 {
        let run = cli.run(&["unstage", utf8(&target)]);
        expect("standard output", &json_output(&run), &json!({}));
        let entry = pod.entry(&target, |entry| entry.path().to_owned());
        assert!(!entry.exists(), "{} still exists", entry.display());
        assert!(volume.is_free(), "the device is not free");
    }
}
