//! Two pods with three volumes each, one of which is for one pod at a time and both want.

use std::fmt::Write as _;

use runcrust_tests::manifests::{Claim, Pod};
use runcrust_tests::random::Random;
use runcrust_tests::volume::min_size_mib;

use super::site::CLASS;

/// A pod writes so many lines to each of its volumes.
pub(super) const LINES: usize = 3;

const GROUP: u32 = 2000;

/// Finds on a volume all lines that were written before, so many at least, and adds some.
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

/// A pod, and what is made for it.
#[derive(Debug)]
pub(super) struct Wish {
    pub(super) pod: Pod,
    /// Those that it alone has.
    pub(super) claims: Vec<(String, Claim)>,
    /// Whether its container ends when it has written.
    pub(super) ends: bool,
}

/// Both of them.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) shared: (String, Claim),
    pub(super) wishes: [Wish; 2],
}

impl Pair {
    /// By names that nobody else has.
    pub(super) fn new(name: &str, random: &mut Random) -> Self {
        let shared = format!("{name}-shared");
        let class = *random.pick(&["ext4", "xfs"]);
        let claim = claim(&shared, class).mode("ReadWriteOncePod");
        let part = part(random);
        // What the first has written the second finds, whoever mounts it.
        let wishes = [("one", 0), ("two", LINES)].map(|(which, had)| {
            let mut wish = Building::new(&format!("{name}-{which}"), random);
            wish.claimed(&shared, random.once_in(2), part, had);
            wish.own(random);
            if which == "two" && random.once_in(2) {
                wish.ephemeral(random);
            } else {
                wish.own(random);
            }
            wish.done()
        });
        Self {
            shared: (shared, claim),
            wishes,
        }
    }
}

fn claim(name: &str, class: &str) -> Claim {
    let bytes = i64::try_from(min_size_mib(class) << 20).expect("it is small");
    Claim::of_class(name, class, bytes)
}

/// Which part of a volume a container has.
fn part(random: &mut Random) -> &'static str {
    if random.once_in(3) {
        "subPath: a/b"
    } else {
        ""
    }
}

struct Building {
    pod: Pod,
    claims: Vec<(String, Claim)>,
    ends: bool,
    has_group: bool,
    script: String,
    volumes: usize,
}

impl Building {
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

    /// A volume of a claim's that is there.
    fn claimed(&mut self, claim: &str, is_deferred: bool, part: &str, had: usize) {
        let pod = self.pod.clone();
        self.pod = if is_deferred {
            pod.deferred(claim)
        } else {
            pod.claim(claim)
        };
        self.mount(claim, part, had);
    }

    /// One of a claim of its own.
    fn own(&mut self, random: &mut Random) {
        let class = if random.once_in(3) { "xfs" } else { "ext4" };
        let name = format!("{}-{}", self.pod.name(), self.volumes);
        self.claims.push((name.clone(), claim(&name, class)));
        let part = part(random);
        self.claimed(&name, random.once_in(2), part, 0);
    }

    /// One that is made for it.
    fn ephemeral(&mut self, random: &mut Random) {
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

    fn mount(&mut self, volume: &str, part: &str, had: usize) {
        let path = format!("/v{}", self.volumes);
        self.pod = self.pod.clone().mount_as(volume, &path, part);
        let group = if self.has_group {
            GROUP.to_string()
        } else {
            String::new()
        };
        let _ = writeln!(self.script, "work {path} {had} {group}");
        self.volumes += 1;
    }

    fn done(mut self) -> Wish {
        self.script += "touch /tmp/done\n";
        if !self.ends {
            self.script += "exec sleep 2147483647\n";
        }
        Wish {
            pod: self.pod.script(&self.script),
            claims: self.claims,
            ends: self.ends,
        }
    }
}
