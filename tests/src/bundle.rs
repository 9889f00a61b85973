//! OCI bundles as containerd 1.6.20's CRI writes them, with a busybox in their rootfs.

pub(crate) mod rootfs;
mod spec;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::dir::unique;
use crate::{Container, TestDir};

/// What runs where nothing else is asked for: it does nothing until it is killed.
pub const IDLE: [&str; 2] = ["/bin/sleep", "2147483647"];

/// A pod, as the annotations of its containers name it.
#[derive(Debug, Clone)]
pub struct Pod {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.name`.
    pub name: String,
    /// `metadata.namespace`.
    pub namespace: String,
}

/// A bundle in the making. Nothing is on the disk before [`Bundle::write`].
#[derive(Debug, Clone)]
#[must_use]
pub struct Bundle {
    id: String,
    path: PathBuf,
    pod: Option<Pod>,
    spec: Value,
}

impl Bundle {
    /// A bundle as `podman` or a person writes it: no annotations, namespaces of its own.
    pub fn plain(dir: &TestDir) -> Self {
        let id = unique("plain");
        Self {
            path: dir.join("bundles").join(&id),
            spec: spec::plain(&id),
            pod: None,
            id,
        }
    }

    /// The sandbox of a new pod with this uid.
    pub fn sandbox(dir: &TestDir, uid: &str) -> Self {
        let id = unique("sandbox");
        let pod = Pod {
            uid: uid.to_owned(),
            name: "pod-1".to_owned(),
            namespace: "default".to_owned(),
        };
        let files = spec::SandboxFiles::make(dir, &id);
        let spec = spec::sandbox(&id, &pod, &files);
        Self {
            path: dir.join("bundles").join(&id),
            pod: Some(pod),
            spec,
            id,
        }
    }

    /// An app in the pod of a created sandbox: its network, IPC and UTS namespaces are the
    /// sandbox's, its pid namespace is its own.
    pub fn app_in(dir: &TestDir, sandbox: &Container) -> Self {
        let pod = sandbox.pod().expect("the sandbox of a pod");
        Self::app_of(dir, pod, sandbox.id(), sandbox.pid())
    }

    /// The same, of a sandbox by its id and the pid of its first process.
    pub fn app_of(dir: &TestDir, pod: &Pod, sandbox: &str, sandbox_pid: i32) -> Self {
        let id = unique("app");
        let spec = spec::app(dir, &id, pod, sandbox, sandbox_pid);
        Self {
            path: dir.join("bundles").join(&id),
            pod: Some(pod.clone()),
            spec,
            id,
        }
    }

    /// Another id, and so another directory; for the strange ones (`create`).
    pub fn with_id(mut self, id: &str) -> Self {
        let annotation = "io.kubernetes.cri.sandbox-id";
        if self
            .spec
            .pointer("/annotations")
            .and_then(|all| all.get(annotation))
            .is_some_and(|old| *old == self.id)
        {
            self.spec["annotations"][annotation] = id.into();
        }
        self.path.set_file_name(id);
        id.clone_into(&mut self.id);
        self
    }

    /// Another name for the directory than the id.
    pub fn in_directory(mut self, name: impl AsRef<OsStr>) -> Self {
        self.path.set_file_name(name.as_ref());
        self
    }

    /// Appends a bind mount, with `rbind,rprivate,rw` where no options are given.
    pub fn bind(mut self, source: impl AsRef<Path>, destination: &str, options: &[&str]) -> Self {
        let options: &[&str] = if options.is_empty() {
            &["rbind", "rprivate", "rw"]
        } else {
            options
        };
        self.push_mount(json!({
            "destination": destination,
            "type": "bind",
            "source": source.as_ref(),
            "options": options,
        }));
        self
    }

    /// Appends any mount.
    pub fn mount(mut self, mount: Value) -> Self {
        self.push_mount(mount);
        self
    }

    /// What the container runs.
    pub fn args<T: AsRef<str>>(mut self, args: impl IntoIterator<Item = T>) -> Self {
        let args: Vec<Value> = args.into_iter().map(|arg| arg.as_ref().into()).collect();
        self.spec["process"]["args"] = args.into();
        self
    }

    /// Runs a script with busybox's sh.
    pub fn script(self, script: &str) -> Self {
        self.args(["/bin/sh", "-ec", script])
    }

    /// Adds an annotation, or replaces one.
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.spec["annotations"][key] = value.into();
        self
    }

    /// The container sees its rootfs read-only.
    pub fn readonly_rootfs(mut self) -> Self {
        self.spec["root"]["readonly"] = true.into();
        self
    }

    /// Runs as another user, with these supplementary groups.
    pub fn user(mut self, uid: u32, gid: u32, groups: &[u32]) -> Self {
        self.spec["process"]["user"] = json!({"uid": uid, "gid": gid, "additionalGids": groups});
        self
    }

    /// Gives the container every capability that this machine can give, `CAP_MKNOD` and
    /// `CAP_SYS_ADMIN` among them. Its device rules stay: this is not a privileged container.
    pub fn all_capabilities(mut self) -> Self {
        let all = spec::all_capabilities();
        for set in ["bounding", "effective", "permitted", "inheritable"] {
            self.spec["process"]["capabilities"][set] = all.clone().into();
        }
        self
    }

    /// Joins a namespace (`pid`, `network`, …) of another process, or makes a new one for `None`.
    pub fn namespace(mut self, kind: &str, of: Option<i32>) -> Self {
        let namespaces = self.spec["linux"]["namespaces"]
            .as_array_mut()
            .expect("an array");
        namespaces.retain(|namespace| namespace["type"] != kind);
        namespaces.push(match of {
            Some(pid) => spec::namespace_of(kind, pid),
            None => json!({"type": kind}),
        });
        self
    }

    /// Gives it a user namespace, a new one or that of a process, whose ids 0 to 65535 are the
    /// host's from `first` on. Its rootfs is given to its root, as container managers do.
    pub fn user_namespace(self, first: u32, of: Option<i32>) -> Self {
        let mut bundle = self.namespace("user", of);
        let mappings = json!([{"containerID": 0, "hostID": first, "size": 65536}]);
        bundle.spec["linux"]["uidMappings"] = mappings.clone();
        bundle.spec["linux"]["gidMappings"] = mappings;
        bundle
    }

    /// The spec itself, for whatever has no method.
    pub fn spec_mut(&mut self) -> &mut Value {
        &mut self.spec
    }

    /// The spec as built; the file may differ since.
    pub fn spec(&self) -> &Value {
        &self.spec
    }

    /// The container's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The bundle's directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `config.json`.
    pub fn config_path(&self) -> PathBuf {
        self.path.join("config.json")
    }

    /// `config.json`'s bytes as they are now.
    pub fn config_bytes(&self) -> Vec<u8> {
        fs::read(self.config_path()).expect("a written bundle")
    }

    /// `config.json` as it is now.
    pub fn config(&self) -> Value {
        serde_json::from_slice(&self.config_bytes()).expect("config.json is JSON")
    }

    /// The container's root, on the host.
    pub fn rootfs(&self) -> PathBuf {
        self.path.join("rootfs")
    }

    /// The runtimes' `--root` in this test.
    pub fn runtime_root(&self) -> PathBuf {
        self.path
            .ancestors()
            .nth(2)
            .expect("<dir>/bundles/<id>")
            .join("rt")
    }

    /// The pod it belongs to.
    pub fn pod(&self) -> Option<&Pod> {
        self.pod.as_ref()
    }

    /// The name of its cgroup.
    pub fn cgroup(&self) -> &str {
        self.spec["linux"]["cgroupsPath"]
            .as_str()
            .unwrap_or_default()
    }

    /// Writes the bundle: `config.json` as Go writes it (compact), and a rootfs where there is
    /// none yet.
    pub fn write(self) -> Self {
        let bytes = serde_json::to_vec(&self.spec).expect("a Value is JSON");
        self.write_bytes(&bytes)
    }

    /// Writes the bundle with another `config.json`, byte for byte.
    pub fn write_bytes(self, config: &[u8]) -> Self {
        if !self.rootfs().exists() {
            rootfs::make(&self.rootfs());
        }
        let roots = |mappings: &str| {
            let id = self.spec["linux"][mappings][0]["hostID"].as_u64()?;
            Some(u32::try_from(id).expect("an id"))
        };
        if let (Some(user), Some(group)) = (roots("uidMappings"), roots("gidMappings")) {
            rootfs::give(&self.rootfs(), user, group);
        }
        // As containerd has it: others may pass through, not list.
        fs::set_permissions(&self.path, fs::Permissions::from_mode(0o711)).expect("chmod 0711");
        fs::write(self.config_path(), config).expect("write config.json");
        self
    }

    fn push_mount(&mut self, mount: Value) {
        self.spec["mounts"]
            .as_array_mut()
            .expect("mounts is an array")
            .push(mount);
    }
}

/// A config without arrays and objects that hold nothing: what an undone rewrite leaves of lists that it
/// made.
///
/// # Panics
///
/// When it isn't JSON, or nothing else.
pub fn without_empty(config: &[u8]) -> Value {
    fn strip(value: Value) -> Option<Value> {
        match value {
            Value::Array(list) => {
                let list: Vec<Value> = list
                    .into_iter()
                    .map(|it| strip(it).unwrap_or(Value::Null))
                    .collect();
                (!list.is_empty()).then_some(Value::Array(list))
            }
            Value::Object(map) => {
                let map = map
                    .into_iter()
                    .filter_map(|(key, it)| Some((key, strip(it)?)));
                let map: serde_json::Map<String, Value> = map.collect();
                (!map.is_empty()).then_some(Value::Object(map))
            }
            other => Some(other),
        }
    }
    let config = serde_json::from_slice(config).expect("JSON");
    strip(config).expect("a config")
}
