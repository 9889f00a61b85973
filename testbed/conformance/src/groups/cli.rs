//! `runtime-cli` and what it answers.

use runcrust_tests::node::utf8;
use serde_json::{Value, json};

use super::sources::{API, CLI, OVERVIEW, USE};
use crate::requirement::{Group, deferred};
use crate::scene::{Container, Entry, Pod, Scene, answer, expect, is_error};

pub(super) const GROUP: Group = Group {
    name: "cli",
    requirements: &[
        deferred(
            "cli-in-use",
            OVERVIEW,
            "While a container has the volume its entry, both where there are two, has runtime-cli: one line, a program's absolute path.",
            in_use,
        ),
        deferred(
            "cli-gone",
            USE,
            "Once no container has the volume there is no runtime-cli, in neither entry where there are two.",
            gone,
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
            "The numbers are those of statfs; available is what a user other than root can use.",
            stats_numbers,
        ),
        deferred(
            "cli-stats-grow",
            API,
            "What is written shows in the next stats.",
            stats_grow,
        ),
        deferred(
            "cli-not-found",
            CLI,
            "Stats of a path that nothing is staged for are an error NOT_FOUND: exit non-zero, one JSON object on standard error, nothing on standard output.",
            not_found,
        ),
        deferred(
            "cli-stats-not-in-use",
            CLI,
            "Stats of a volume that is staged and not in use are an error FAILED_PRECONDITION.",
            not_in_use,
        ),
        deferred(
            "cli-stats-again",
            CLI,
            "Stats don't hold the volume: asked while it is in use, it is free once the pod has ended.",
            stats_let_go,
        ),
        deferred(
            "cli-stage",
            CLI,
            "`crust stage` of the same again changes nothing, of something else in use is FAILED_PRECONDITION.",
            stage,
        )
        .should(),
        deferred(
            "cli-unstage-in-use",
            CLI,
            "`crust unstage` of a volume in use is FAILED_PRECONDITION, and the volume stays.",
            unstage_in_use,
        )
        .should(),
        deferred(
            "cli-unstage",
            CLI,
            "`crust unstage` of a volume that isn't in use any more removes its entry; of an unknown path it is fine.",
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
                assert!(file.exists(), "there is no {}", file.display());
            }
        });
        pod.end([app]);
    }
}

fn gone(scene: &Scene<'_>) {
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
            let what = format!("{} gone", file.display());
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
    let stats = answer(&run);
    expect("standard error", &run.stderr, &String::new());
    let usage = stats["usage"].as_array().cloned().unwrap_or_default();
    let units: Vec<&Value> = usage.iter().map(|usage| &usage["unit"]).collect();
    let both = units.len() == 2
        && ["BYTES", "INODES"]
            .iter()
            .all(|unit| units.contains(&&json!(unit)));
    assert!(both, "its usage isn't in BYTES and INODES: {stats}");
    let numbers = ["total", "used", "available"];
    let whole = usage
        .iter()
        .all(|usage| numbers.iter().all(|key| usage[key].is_u64()));
    assert!(
        whole,
        "total, used and available aren't all numbers: {stats}"
    );
    let condition = &stats["volume_condition"];
    let well = condition["abnormal"] == false && condition["message"].is_string();
    assert!(well, "its condition isn't that of a sound volume: {stats}");
}

/// One number of stats.
#[track_caller]
fn usage(stats: &Value, unit: &str, key: &str) -> u64 {
    let usage = stats["usage"].as_array().cloned().unwrap_or_default();
    let of_unit = usage.iter().find(|usage| usage["unit"] == unit);
    let number = of_unit.and_then(|usage| usage[key].as_u64());
    number.unwrap_or_else(|| panic!("there is no {key} in {unit}: {stats}"))
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
    let wanted = statfs(&app);
    let stats = answer(&pod.cli(&target).stats(&target));
    let names =
        ["BYTES", "INODES"].map(|unit| ["total", "used", "available"].map(|key| (unit, key)));
    for ((unit, key), wanted) in names.concat().into_iter().zip(wanted) {
        expect(
            &format!("{key} in {unit}"),
            &usage(&stats, unit, key),
            &wanted,
        );
    }
}

fn stats_grow(scene: &Scene<'_>) {
    let volume = scene.volume();
    let pod = scene.pod();
    let target = pod.stage(&volume.info());
    let app = pod.app_with(&volume, &target);
    let cli = pod.cli(&target);
    let before = usage(&answer(&cli.stats(&target)), "BYTES", "used");
    let _ = app.sh("dd if=/dev/zero of=/data/file bs=64k count=32 2>/dev/null; sync");
    let after = usage(&answer(&cli.stats(&target)), "BYTES", "used");
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
    is_error(&cli.stats(&unknown), "NOT_FOUND");
    let _ = answer(&cli.stats(&target));
}

fn not_in_use(scene: &Scene<'_>) {
    let (volume, unused) = (scene.volume(), scene.volume());
    let pod = scene.pod();
    let target = pod.stage(&volume.info());
    let other = scene.pod();
    let unused = other.stage(&unused.info());
    let _app = pod.app_with(&volume, &target);
    let cli = pod.cli(&target);
    is_error(&cli.stats(&unused), "FAILED_PRECONDITION");
    let _ = answer(&cli.stats(&target));
}

fn stats_let_go(scene: &Scene<'_>) {
    let volume = scene.volume();
    let pod = scene.pod();
    let target = pod.stage(&volume.info());
    let app = pod.app_with(&volume, &target);
    let cli = pod.cli(&target);
    for _ in 0..3 {
        let _ = answer(&cli.stats(&target));
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
    expect("what it prints", &answer(&cli.run(&same)), &json!({}));
    let other = [&same[..], &["--option", "commit=9"]].concat();
    is_error(&cli.run(&other), "FAILED_PRECONDITION");
}

fn unstage_in_use(scene: &Scene<'_>) {
    let volume = scene.volume();
    let pod = scene.pod();
    let target = pod.stage(&volume.info());
    let app = pod.app_with(&volume, &target);
    let unstage = ["unstage", utf8(&target)];
    let cli = pod.cli(&target);
    is_error(&cli.run(&unstage), "FAILED_PRECONDITION");
    volume.is_at(&app, "/data");
    let again = pod.app_with(&volume, &target);
    pod.end([app, again]);
    let _ = answer(&cli.run(&unstage));
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
        expect("what it prints", &answer(&run), &json!({}));
        let entry = pod.entry(&target, |entry| entry.path().to_owned());
        assert!(!entry.exists(), "there still is {}", entry.display());
        assert!(volume.is_free(), "the device isn't free");
    }
}
