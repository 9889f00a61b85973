//! Requirements on growing a volume in use. They use xfs, because growing a mounted ext4 needs a capability that not
//! every test machine grants.

use super::sources::{API, RESIZE};
use crate::requirement::{Group, Prerequisite, Requirement, deferred};
use crate::scene::{Cli, Container, Pod, Scene, Volume, assert_error, expect, json_output};

pub(super) const GROUP: Group = Group {
    name: "resize",
    requirements: &[
        xfs(
            "resize-grows",
            API,
            "`crust resize` grows the file system of a volume in use to the size of its device, and prints the capacity.",
            grows,
        ),
        xfs(
            "resize-again",
            RESIZE,
            "A repeated resize succeeds, and changes nothing.",
            repeated,
        ),
        xfs(
            "resize-too-small-device",
            RESIZE,
            "A minimum above the device's size fails with OUT_OF_RANGE.",
            too_small,
        ),
        xfs(
            "resize-maximum",
            RESIZE,
            "On a device larger than the maximum the file system grows to the maximum.",
            maximum,
        ),
        xfs(
            "resize-no-shrink",
            RESIZE,
            "A maximum below the present size fails with OUT_OF_RANGE, and nothing shrinks.",
            no_shrink,
        ),
        xfs(
            "resize-bad-limits",
            RESIZE,
            "A size that is not a number, and a minimum above the maximum, fail with INVALID_ARGUMENT.",
            bad_limits,
        ),
    ],
};

const fn xfs(
    id: &'static str,
    source: &'static str,
    sentence: &'static str,
    check: fn(&Scene<'_>),
) -> Requirement {
    deferred(id, source, sentence, check).needs(Prerequisite::FileSystem("xfs"))
}

const MIB: u64 = 1 << 20;
/// The size of the device, and of the file system, when it is made.
const BEFORE: u64 = 300 * MIB;
/// The size that the device grows to.
const AFTER: u64 = 400 * MIB;
/// A multiple of the block size that leaves enough of the last allocation group.
const BETWEEN: u64 = 350 * MIB;

/// A volume in use, with the program that `runtime-cli` names.
struct InUse<'p> {
    cli: Cli,
    target: std::path::PathBuf,
    app: Container,
    volume: &'p Volume,
}

impl<'p> InUse<'p> {
    #[track_caller]
    fn new(pod: &Pod<'_>, volume: &'p Volume) -> Self {
        let target = pod.stage(&volume.info());
        let app = pod.app_with(volume, &target);
        Self {
            cli: pod.cli(&target),
            target,
            app,
            volume,
        }
    }

    /// Resizes the volume, and returns the capacity that is printed.
    #[track_caller]
    fn grown(&self, min: u64, max: u64) -> u64 {
        let answer = json_output(&self.cli.resize(&self.target, min, max));
        let capacity = answer["capacity_bytes"].as_u64();
        capacity.unwrap_or_else(|| panic!("no capacity_bytes: {answer}"))
    }

    /// Returns the size of the file system that the workload sees, in bytes.
    #[track_caller]
    fn size(&self) -> u64 {
        let text = self.app.sh("stat -f -c '%S %b' /data");
        let numbers: Vec<u64> = text.split(' ').flat_map(str::parse).collect();
        numbers.iter().product()
    }

    #[track_caller]
    fn refuses(&self, min: u64, max: u64, code: &str) {
        let before = self.size();
        assert_error(&self.cli.resize(&self.target, min, max), code);
        expect("the size after it", &self.size(), &before);
        self.volume.assert_shown_at(&self.app, "/data");
    }
}

fn grows(scene: &Scene<'_>) {
    let volume = scene.volume_with_fstype("xfs");
    let pod = scene.pod();
    let used = InUse::new(&pod, &volume);
    let before = used.size();
    volume.device().set_size(AFTER);
    expect("the capacity", &used.grown(AFTER, 0), &AFTER);
    let size = used.size();
    let grown = size.saturating_sub(before);
    assert!(
        grown > 80 * MIB,
        "the size was {before} bytes, and is {size}"
    );
    let _ = used.app.sh("echo still > /data/file; cat /data/file");
    volume.assert_shown_at(&used.app, "/data");
}

fn repeated(scene: &Scene<'_>) {
    let volume = scene.volume_with_fstype("xfs");
    let pod = scene.pod();
    let used = InUse::new(&pod, &volume);
    expect("the capacity, without growth", &used.grown(0, 0), &BEFORE);
    volume.device().set_size(AFTER);
    let _ = used.grown(AFTER, 0);
    let size = used.size();
    expect(
        "the capacity, the second time",
        &used.grown(AFTER, 0),
        &AFTER,
    );
    expect("the size", &used.size(), &size);
}

fn too_small(scene: &Scene<'_>) {
    let volume = scene.volume_with_fstype("xfs");
    let pod = scene.pod();
    let used = InUse::new(&pod, &volume);
    used.refuses(AFTER, 0, "OUT_OF_RANGE");
    volume.device().set_size(AFTER);
    expect("the capacity then", &used.grown(AFTER, 0), &AFTER);
}

fn maximum(scene: &Scene<'_>) {
    let volume = scene.volume_with_fstype("xfs");
    let pod = scene.pod();
    let used = InUse::new(&pod, &volume);
    let before = used.size();
    volume.device().set_size(AFTER);
    expect("the capacity", &used.grown(0, BETWEEN), &BETWEEN);
    let size = used.size();
    assert!(
        before < size && size <= BETWEEN,
        "the size was {before} bytes, and is {size}"
    );
    expect("the capacity without a maximum", &used.grown(0, 0), &AFTER);
}

fn no_shrink(scene: &Scene<'_>) {
    let volume = scene.volume_with_fstype("xfs");
    let pod = scene.pod();
    let used = InUse::new(&pod, &volume);
    used.refuses(0, BEFORE / 2, "OUT_OF_RANGE");
    expect("the capacity", &used.grown(0, BEFORE), &BEFORE);
}

fn bad_limits(scene: &Scene<'_>) {
    let volume = scene.volume_with_fstype("xfs");
    let pod = scene.pod();
    let used = InUse::new(&pod, &volume);
    used.refuses(AFTER, BEFORE, "INVALID_ARGUMENT");
    let target = used.target.to_str().expect("UTF-8");
    for bad in [["many", "0"], ["-1", "0"]] {
        let run = used.cli.run(&[&["resize", target], &bad[..]].concat());
        assert_error(&run, "INVALID_ARGUMENT");
    }
    expect("the capacity", &used.grown(BEFORE, AFTER), &BEFORE);
}
