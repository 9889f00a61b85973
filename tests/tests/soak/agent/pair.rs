//! A pair of pods with three volumes each, one of which they share, one pod at a time.

use std::fmt::Write as _;

use runcrust_tests::manifests::{Claim, Pod};
use runcrust_tests::random::Random;
use runcrust_tests::volume::min_size_mib;

use super::node::CLASS;

/// Number of lines that a pod writes to each of its volumes.
pub(super) const LINES: usize = 3;

const GROUP: u32 = 2000;

/// A shell function that verifies all lines on a volume, of which there have to be at least `$2`, and adds three.
const WORK: &str = r#"
    work() {
        file=$1/lines
        touch $file
        n=$(wc -l < $file)
        if [ $n -lt $2 ]; then echo "$file has $n lines, and had $2" >&2; exit 1; fi
        busybox seq 1 $n | cmp - $file
        for more in 1 2 3; do
            n=$((n + 1))
            echo $n | dd of=$file oflag=append conv=notrunc,fsync 2>/dev/null
        done
        if [ -n "$3" ] && [ $(stat -c %g $1) != $3 ]; then echo "$1 isn't group $3's" >&2; exit 1; fi
    }
"#;

/// A pod and its own claims.
#[derive(Debug)]
pub(super) struct PodPlan {
    pub(super) pod: Pod,
    /// The claims that only this pod uses.
    pub(super) claims: Vec<(String, Claim)>,
    /// Whether its container ends after it has written.
    pub(super) ends: bool,
}

/// Two pods that share a claim.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) shared: (String, Claim),
    pub(super) plans: [PodPlan; 2],
}

impl Pair {
    /// Creates a pair with random properties. `name` has to be unique.
    pub(super) fn new(name: &str, random: &mut Random) -> Self {
        let shared = format!("{name}-shared");
        let class = *random.pick(&["ext4", "xfs"]);
        let claim = claim(&shared, class).mode("ReadWriteOncePod");
        let part = part(random);
        // The second pod finds the data of the first, whichever program mounts the volume.
        let plans = [("one", 0), ("two", LINES)].map(|(which, least_lines)| {
            let mut plan = PlanBuilder::new(&format!("{name}-{which}"), random);
            plan.add_claimed(&shared, random.once_in(2), part, least_lines);
            plan.add_volume(random);
            if which == "two" && random.once_in(2) {
                plan.add_ephemeral(random);
            } else {
                plan.add_volume(random);
            }
            plan.build()
        });
        Self {
            shared: (shared, claim),
            plans,
        }
    }
}

fn claim(name: &str, class: &str) -> Claim {
    let bytes = i64::try_from(min_size_mib(class) << 20).expect("a small number");
    Claim::of_class(name, class, bytes)
}

/// Returns a subPath or the whole volume, at random.
fn part(random: &mut Random) -> &'static str {
    if random.once_in(3) {
        "subPath: a/b"
    } else {
        ""
    }
}

struct PlanBuilder {
    pod: Pod,
    claims: Vec<(String, Claim)>,
    ends: bool,
    has_group: bool,
    script: String,
    volumes: usize,
}

impl PlanBuilder {
    fn new(name: &str, random: &mut Random) -> Self {
        let (ends, has_group) = (random.once_in(4), random.once_in(2));
        let mut pod = Pod::new(name).class(CLASS);
        if ends {
            pod = pod.restart_policy("OnFailure");
        }
        if has_group {
            pod = pod.fs_group(GROUP);
        }
        Self {
            pod,
            claims: Vec::new(),
            ends,
            has_group,
            script: WORK.to_owned(),
            volumes: 0,
        }
    }

    /// Adds the volume of an existing claim, with at least `had` lines.
    fn add_claimed(&mut self, claim: &str, is_deferred: bool, part: &str, least_lines: usize) {
        let pod = self.pod.clone();
        self.pod = if is_deferred {
            pod.deferred(claim)
        } else {
            pod.claim(claim)
        };
        self.mount(claim, part, least_lines);
    }

    /// Adds a volume with a claim of its own.
    fn add_volume(&mut self, random: &mut Random) {
        let class = if random.once_in(3) { "xfs" } else { "ext4" };
        let name = format!("{}-{}", self.pod.name(), self.volumes);
        self.claims.push((name.clone(), claim(&name, class)));
        let part = part(random);
        self.add_claimed(&name, random.once_in(2), part, 0);
    }

    /// Adds an ephemeral volume.
    fn add_ephemeral(&mut self, random: &mut Random) {
        let defer = random.once_in(2);
        let size = min_size_mib("ext4");
        let spec = format!(
            "{{accessModes: [ReadWriteOnce], storageClassName: ext4, resources: {{requests: {{storage: {size}Mi}}}}}}"
        );
        let source =
            format!("ephemeral: {{deferFSMount: {defer}, volumeClaimTemplate: {{spec: {spec}}}}}");
        self.pod = self.pod.clone().volume("scratch", &source);
        self.mount("scratch", "", 0);
    }

    fn mount(&mut self, volume: &str, part: &str, least_lines: usize) {
        let path = format!("/v{}", self.volumes);
        self.pod = self.pod.clone().mount_as(volume, &path, part);
        let group = if self.has_group {
            GROUP.to_string()
        } else {
            String::new()
        };
        let _ = writeln!(self.script, "work {path} {least_lines} {group}");
        self.volumes += 1;
    }

    fn build(mut self) -> PodPlan {
        self.script += "touch /tmp/done\n";
        if !self.ends {
            self.script += "exec sleep 2147483647\n";
        }
        PodPlan {
            pod: self.pod.script(&self.script),
            claims: self.claims,
            ends: self.ends,
        }
    }
}
