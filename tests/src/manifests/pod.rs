//! A builder for pods: the container `app`, and optionally others.

use std::fmt::{self, Display, Write as _};

use super::YamlFlow;
use crate::APP_IMAGE;
use crate::node::digest;

/// A pod of the harness's image in the node's network. Its container sleeps, and its uid is derived from its name.
#[derive(Debug, Clone)]
pub struct Pod {
    name: String,
    /// Lines of `spec`.
    spec: String,
    /// Items of `spec.securityContext`.
    security: Vec<String>,
    command: Vec<String>,
    /// Items of `spec.volumes`.
    volumes: Vec<String>,
    /// Items of the container's `volumeMounts`.
    mounts: Vec<String>,
    /// Lines of the container.
    app: String,
    /// Further containers.
    others: Vec<String>,
    /// Init containers.
    init: Vec<String>,
}

impl Pod {
    /// Makes a pod under the container runtime's default handler.
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

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the uid, which is derived from the name.
    pub fn uid(&self) -> String {
        let digits = digest(&self.name);
        let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &digits[part]);
        parts.join("-")
    }

    /// Sets `runtimeClassName`.
    #[must_use]
    pub fn class(mut self, name: &str) -> Self {
        self.line(&format!("runtimeClassName: {name}"));
        self
    }

    #[must_use]
    pub fn restart_policy(mut self, policy: &str) -> Self {
        self.line(&format!("restartPolicy: {policy}"));
        self
    }

    #[must_use]
    pub fn fs_group(mut self, gid: u32) -> Self {
        self.security.push(format!("fsGroup: {gid}"));
        self
    }

    /// Sets `fsGroupChangePolicy`.
    #[must_use]
    pub fn change_policy(mut self, policy: &str) -> Self {
        self.security.push(format!("fsGroupChangePolicy: {policy}"));
        self
    }

    /// Sets a shell script as the container's command.
    #[must_use]
    pub fn script(mut self, script: &str) -> Self {
        self.command = ["/bin/sh", "-ec", script].map(str::to_owned).to_vec();
        self
    }

    /// Adds the volume of a claim, without `deferFSMount`. The volume has the claim's name.
    #[must_use]
    pub fn claim(self, claim: &str) -> Self {
        self.claim_as(claim, "")
    }

    /// Adds the volume of a claim with `deferFSMount: true`.
    #[must_use]
    pub fn deferred(self, claim: &str) -> Self {
        self.claim_as(claim, "deferFSMount: true")
    }

    /// Adds the volume of a claim with further fields, such as `readOnly: true`.
    #[must_use]
    pub fn claim_as(mut self, claim: &str, fields: &str) -> Self {
        let fields = joined(&format!("claimName: {claim}"), fields);
        let volume = format!("{{name: {claim}, persistentVolumeClaim: {{{fields}}}}}");
        self.volumes.push(volume);
        self
    }

    /// Adds a volume with any source, such as `csi: {…}`.
    #[must_use]
    pub fn volume(mut self, name: &str, source: &str) -> Self {
        self.volumes.push(format!("{{name: {name}, {source}}}"));
        self
    }

    /// Mounts a volume in the container.
    #[must_use]
    pub fn mount(self, volume: &str, path: &str) -> Self {
        self.mount_as(volume, path, "")
    }

    /// Mounts a volume in the container with further fields, such as `subPath: a/b, readOnly: true`.
    #[must_use]
    pub fn mount_as(mut self, volume: &str, path: &str, fields: &str) -> Self {
        let fields = joined(&format!("name: {volume}, mountPath: {path}"), fields);
        self.mounts.push(format!("{{{fields}}}"));
        self
    }

    /// Adds a variable to the container's environment.
    #[must_use]
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        if self.app.is_empty() {
            self.app += "    env:\n";
        }
        let _ = writeln!(
            self.app,
            "    - {{name: {name}, value: {}}}",
            YamlFlow(value)
        );
        self
    }

    /// Adds a container that runs a script. Each of `mounts` is the name of a volume and a path.
    #[must_use]
    pub fn add_container(mut self, name: &str, script: &str, mounts: &[(&str, &str)]) -> Self {
        self.others.push(container(name, script, mounts));
        self
    }

    /// Adds an init container that runs a script. Each of `mounts` is the name of a volume and a path.
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
    let (command, mounts) = (YamlFlow(["/bin/sh", "-ec", script]), mounts.join(", "));
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
            writeln!(f, "    command: {}", YamlFlow(&self.command))?;
        }
        f.write_str(&self.app)?;
        f.write_str(&list("volumeMounts", "    ", &self.mounts))?;
        self.others
            .iter()
            .try_for_each(|it| writeln!(f, "  - {it}"))
    }
}
