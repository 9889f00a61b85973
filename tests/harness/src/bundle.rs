//! OCI bundles as the CRI of containerd 1.6.20 writes them, with busybox in the root file system.

pub mod rootfs;
mod spec;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::dir::unique;
use crate::{Container, TestDir};

/// The default command of containers: it sleeps until it is killed.
pub const IDLE: [&str; 2] = ["/bin/sleep", "2147483647"];

/// A pod as it is named in the annotations of its containers.
#[derive(Debug, Clone)]
pub struct PodIdentity {
    pub uid: String,
    pub name: String,
    pub namespace: String,
}

/// A bundle that is being built. Nothing is on disk before [`Bundle::write`].
#[derive(Debug, Clone)]
#[must_use]
pub struct Bundle {
    id: String,
    path: PathBuf,
    pod: Option<PodIdentity>,
    spec: Value,
}

impl Bundle {
    /// Builds a bundle as podman or a user writes it: without annotations, and with new namespaces.
    pub fn plain(dir: &TestDir) -> Self {
        let id = unique("plain");
        Self {
            path: dir.join("bundles").join(&id),
            spec: spec::plain(&id),
            pod: None,
            id,
        }
    }

    /// Builds the sandbox of a new pod with this uid.
    pub fn sandbox(dir: &TestDir, uid: &str) -> Self {
        let id = unique("sandbox");
        let pod = PodIdentity {
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

    /// Builds an app in the pod of a created sandbox. It shares the sandbox's network, IPC and UTS namespaces, and has
    /// its own pid namespace.
    pub fn app_in(dir: &TestDir, sandbox: &Container) -> Self {
        let pod = sandbox.pod().expect("the sandbox of a pod");
        Self::app_of(dir, pod, sandbox.id(), sandbox.pid())
    }

    /// Builds an app for a sandbox that is given by its id and the pid of its first process.
    pub fn app_of(dir: &TestDir, pod: &PodIdentity, sandbox: &str, sandbox_pid: i32) -> Self {
        let id = unique("app");
        let spec = spec::app(dir, &id, pod, sandbox, sandbox_pid);
        Self {
            path: dir.join("bundles").join(&id),
            pod: Some(pod.clone()),
            spec,
            id,
        }
    }

    /// Changes the id and the directory's name to `id`, for ids that look like something else (`create`).
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

    /// Gives the directory a name other than the id.
    pub fn in_directory(mut self, name: impl AsRef<OsStr>) -> Self {
        self.path.set_file_name(name.as_ref());
        self
    }

    /// Appends a bind mount. Without options it gets `rbind,rprivate,rw`.
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

    pub fn mount(mut self, mount: Value) -> Self {
        self.push_mount(mount);
        self
    }

    /// Sets the container's command.
    pub fn args<T: AsRef<str>>(mut self, args: impl IntoIterator<Item = T>) -> Self {
        let args: Vec<Value> = args.into_iter().map(|arg| arg.as_ref().into()).collect();
        self.spec["process"]["args"] = args.into();
        self
    }

    /// Sets a script for busybox's sh as the command.
    pub fn script(self, script: &str) -> Self {
        self.args(["/bin/sh", "-ec", script])
    }

    /// Sets an annotation.
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.spec["annotations"][key] = value.into();
        self
    }

    pub fn readonly_rootfs(mut self) -> Self {
        self.spec["root"]["readonly"] = true.into();
        self
    }

    pub fn user(mut self, uid: u32, gid: u32, groups: &[u32]) -> Self {
        self.spec["process"]["user"] = json!({"uid": uid, "gid": gid, "additionalGids": groups});
        self
    }

    /// Gives the container every capability that this machine can give, including `CAP_MKNOD` and `CAP_SYS_ADMIN`. Its
    /// device rules stay: it is not a privileged container.
    pub fn all_capabilities(mut self) -> Self {
        let all = spec::all_capabilities();
        for set in ["bounding", "effective", "permitted", "inheritable"] {
            self.spec["process"]["capabilities"][set] = all.clone().into();
        }
        self
    }

    /// Joins the namespace of this kind (`pid`, `network`, …) of a process; `None` makes a new one.
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

    /// Puts the container into a user namespace, a new one or that of a process. Container ids 0 to 65535 are the
    /// host's ids from `first` on. The root file system is given to the mapped root, as container managers do.
    pub fn user_namespace(self, first: u32, of: Option<i32>) -> Self {
        let mut bundle = self.namespace("user", of);
        let mappings = json!([{"containerID": 0, "hostID": first, "size": 65536}]);
        bundle.spec["linux"]["uidMappings"] = mappings.clone();
        bundle.spec["linux"]["gidMappings"] = mappings;
        bundle
    }

    /// Returns the spec for changes that have no method here.
    pub fn spec_mut(&mut self) -> &mut Value {
        &mut self.spec
    }

    /// Returns the spec as it was built; the file may have changed since.
    pub fn spec(&self) -> &Value {
        &self.spec
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn config_path(&self) -> PathBuf {
        self.path.join("config.json")
    }

    /// Reads `config.json` as it is now.
    pub fn config_bytes(&self) -> Vec<u8> {
        fs::read(self.config_path()).expect("a written bundle")
    }

    /// Parses `config.json` as it is now.
    pub fn config(&self) -> Value {
        serde_json::from_slice(&self.config_bytes()).expect("config.json is JSON")
    }

    /// Returns the container's root file system on the host.
    pub fn rootfs(&self) -> PathBuf {
        self.path.join("rootfs")
    }

    /// Returns the `--root` of the runtimes in this test.
    pub fn runtime_root(&self) -> PathBuf {
        self.path
            .ancestors()
            .nth(2)
            .expect("<dir>/bundles/<id>")
            .join("rt")
    }

    pub fn pod(&self) -> Option<&PodIdentity> {
        self.pod.as_ref()
    }

    /// Returns the name of the container's cgroup.
    pub fn cgroup(&self) -> &str {
        self.spec["linux"]["cgroupsPath"]
            .as_str()
            .unwrap_or_default()
    }

    /// Writes the bundle: `config.json` compact, as Go writes it, and a root file system if there is none yet.
    pub fn write(self) -> Self {
        let bytes = serde_json::to_vec(&self.spec).expect("a Value is JSON");
        self.write_bytes(&bytes)
    }

    /// Writes the bundle with these bytes as `config.json`.
    pub fn write_bytes(self, config: &[u8]) -> Self {
        if !self.rootfs().exists() {
            rootfs::make(&self.rootfs());
        }
        let roots = |mappings: &str| {
            let id = self.spec["linux"][mappings][0]["hostID"].as_u64()?;
            Some(u32::try_from(id).expect("an id"))
        };
        if let (Some(user), Some(group)) = (roots("uidMappings"), roots("gidMappings")) {
            rootfs::chown(&self.rootfs(), user, group);
        }
        // Mode 0711 as in containerd: other users may traverse the directory, not list it.
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

/// Parses a config and removes empty arrays and objects, which remain where an undone rewrite had added lists.
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
