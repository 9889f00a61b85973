//! A pod with a container, `app`, and maybe others.

use std::fmt::{self, Display, Write as _};

use super::Flow;
use crate::APP_IMAGE;
use crate::node::digest;

/// A pod of the harness's image, in the node's network, whose container sleeps. Its uid is its name's.
#[derive(Debug, Clone)]
pub struct Pod {
    name: String,
    /// In `spec`, a line each.
    spec: String,
    /// In `spec.securityContext`.
    security: Vec<String>,
    command: Vec<String>,
    /// In `spec.volumes`.
    volumes: Vec<String>,
    /// In the container's `volumeMounts`.
    mounts: Vec<String>,
    /// In the container, a line each.
    app: String,
    /// Beside the container.
    others: Vec<String>,
    /// Before it.
    init: Vec<String>,
}

impl Pod {
    /// One by this name, under the container runtime's first handler.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            spec: String::new(),
            security: Vec::new(),
            command: Vec::new(),
            volumes: Vec::new(),
            mounts: Vec::new(),
            app: String::new(),
            others: Vec::new(),
            init: Vec::new(),
        }
    }

    /// `metadata.name`
    pub fn name(&self) -> &str {
        &self.name
    }

    /// `metadata.uid`
    pub fn uid(&self) -> String {
        let digits = digest(&self.name);
        let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &digits[part]);
        parts.join("-")
    }

    /// `runtimeClassName`
    #[must_use]
    pub fn class(mut self, name: &str) -> Self {
        self.line(&format!("runtimeClassName: {name}"));
        self
    }

    /// `restartPolicy`
    #[must_use]
    pub fn restart_policy(mut self, policy: &str) -> Self {
        self.line(&format!("restartPolicy: {policy}"));
        self
    }

    /// `fsGroup`
    #[must_use]
    pub fn fs_group(mut self, gid: u32) -> Self {
        self.security.push(format!("fsGroup: {gid}"));
        self
    }

    /// `fsGroupChangePolicy`
    #[must_use]
    pub fn change_policy(mut self, policy: &str) -> Self {
        self.security.push(format!("fsGroupChangePolicy: {policy}"));
        self
    }

    /// What the container runs instead, in a shell.
    #[must_use]
    pub fn script(mut self, script: &str) -> Self {
        self.command = ["/bin/sh", "-ec", script].map(str::to_owned).to_vec();
        self
    }

    /// A volume that is a claim's, by the claim's name; nothing is said of deferral.
    #[must_use]
    pub fn claim(self, claim: &str) -> Self {
        self.claim_as(claim, "")
    }

    /// The same with `deferFSMount: true`.
    #[must_use]
    pub fn deferred(self, claim: &str) -> Self {
        self.claim_as(claim, "deferFSMount: true")
    }

    /// The same with further fields: `readOnly: true`.
    #[must_use]
    pub fn claim_as(mut self, claim: &str, fields: &str) -> Self {
        let fields = joined(&format!("claimName: {claim}"), fields);
        let volume = format!("{{name: {claim}, persistentVolumeClaim: {{{fields}}}}}");
        self.volumes.push(volume);
        self
    }

    /// A volume of any kind: `csi: {…}`.
    #[must_use]
    pub fn volume(mut self, name: &str, source: &str) -> Self {
        self.volumes.push(format!("{{name: {name}, {source}}}"));
        self
    }

    /// Where the container has a volume.
    #[must_use]
    pub fn mount(self, volume: &str, path: &str) -> Self {
        self.mount_as(volume, path, "")
    }

    /// The same with further fields: `subPath: a/b, readOnly: true`.
    #[must_use]
    pub fn mount_as(mut self, volume: &str, path: &str, fields: &str) -> Self {
        let fields = joined(&format!("name: {volume}, mountPath: {path}"), fields);
        self.mounts.push(format!("{{{fields}}}"));
        self
    }

    /// A variable of the container's environment.
    #[must_use]
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        if self.app.is_empty() {
            self.app += "    env:\n";
        }
        let _ = writeln!(self.app, "    - {{name: {name}, value: {}}}", Flow(value));
        self
    }

    /// One more container, with volumes by their names and paths.
    #[must_use]
    pub fn add_container(mut self, name: &str, script: &str, mounts: &[(&str, &str)]) -> Self {
        self.others.push(container(name, script, mounts));
        self
    }

    /// A container that is to end before the others begin.
    #[must_use]
    pub fn init(mut self, name: &str, script: &str, mounts: &[(&str, &str)]) -> Self {
        self.init.push(container(name, script, mounts));
        self
    }

    fn line(&mut self, line: &str) {
        self.spec += "  ";
        self.spec += line;
        self.spec.push('\n');
    }
}

fn container(name: &str, script: &str, mounts: &[(&str, &str)]) -> String {
    let mounts = mounts.iter();
    let mounts: Vec<String> = mounts
        .map(|(volume, path)| format!("{{name: {volume}, mountPath: {path}}}"))
        .collect();
    let (command, mounts) = (Flow(["/bin/sh", "-ec", script]), mounts.join(", "));
    format!(
        "{{name: {name}, image: {APP_IMAGE}, imagePullPolicy: Never, command: {command}, volumeMounts: [{mounts}]}}"
    )
}

fn joined(first: &str, second: &str) -> String {
    let parts = [first, second].into_iter().filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join(", ")
}

impl Display for Pod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, spec, .. } = self;
        let uid = self.uid();
        let list = |name: &str, indent: &str, items: &[String]| {
            let mut text = String::new();
            if !items.is_empty() {
                let _ = writeln!(text, "{indent}{name}:");
            }
            for item in items {
                let _ = writeln!(text, "{indent}- {item}");
            }
            text
        };
        write!(
            f,
            "\
apiVersion: v1
kind: Pod
metadata:
  name: {name}
  uid: {uid}
spec:
{spec}  hostNetwork: true
  terminationGracePeriodSeconds: 1
"
        )?;
        if !self.security.is_empty() {
            writeln!(f, "  securityContext: {{{}}}", self.security.join(", "))?;
        }
        f.write_str(&list("volumes", "  ", &self.volumes))?;
        f.write_str(&list("initContainers", "  ", &self.init))?;
        write!(
            f,
            "  \
  containers:
  - name: app
    image: {APP_IMAGE}
    imagePullPolicy: Never
"
        )?;
        if !self.command.is_empty() {
            writeln!(f, "    command: {}", Flow(&self.command))?;
        }
        f.write_str(&self.app)?;
        f.write_str(&list("volumeMounts", "    ", &self.mounts))?;
        self.others
            .iter()
            .try_for_each(|it| writeln!(f, "  - {it}"))
    }
}
