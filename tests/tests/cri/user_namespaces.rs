//! Pods with a user namespace (`hostUsers: false`). They see the ids that are on the device, whichever ids their
//! processes have on the host.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use runcrust_tests::cri::runtime_v1::{
    ContainerConfig, IdMapping, NamespaceMode, NamespaceOption, UserNamespace,
};
use runcrust_tests::volume::with_mounted;
use runcrust_tests::{Containerd, Cri, CriPod, Node, POD, on_each_delegate};

use crate::scene::Scene;
use crate::{OTHER_POD, containerd, containerd_with_bare};

const THIRD_POD: &str = "cccccccc-bbbb-cccc-dddd-eeeeeeeeeeee";

/// The first ids on the host of two pods with user namespaces. Each pod has 65536 ids.
const RANGES: [u32; 2] = [700_000, 900_000];

/// A containerd version's support for user namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Support {
    /// containerd 1.6: the mappings are ignored, and the pod has the host's user namespace.
    Ignored,
    /// containerd 1.7: the pod has its user namespace, but mappings of mounts are refused. kubelet requests those since
    /// Kubernetes 1.27, so only older kubelets run such pods.
    Pods,
    /// The pod has its user namespace, and its mounts are mapped. Handlers report this feature.
    PodsAndMounts,
}

impl Support {
    /// Queries the handler's features as kubelet does. If containerd reports none, its version decides.
    ///
    /// # Panics
    ///
    /// If this version is unknown, or its delegate maps no mounts.
    #[track_caller]
    fn detect(cri: &Cri) -> Self {
        let version = cri.version().expect("Version").runtime_version;
        let is = |prefix| version.trim_start_matches('v').starts_with(prefix);
        match cri.features("crust") {
            Some(features) => {
                assert!(
                    features.user_namespaces,
                    "containerd {version}: its delegate maps no mounts"
                );
                Self::PodsAndMounts
            }
            None if is("1.6.") => Self::Ignored,
            None if is("1.7.") => Self::Pods,
            None => panic!("containerd {version} reports no features of the handler"),
        }
    }
}

/// A pod in its own network, because containerd cannot use the node's network with a user namespace.
struct UserPod<'a> {
    pod: CriPod<'a>,
    /// The first of the pod's ids on the host, or `None` for a pod without a user namespace.
    first: Option<u32>,
    support: Support,
}

impl<'a> UserPod<'a> {
    #[track_caller]
    fn run(containerd: &'a Containerd, uid: &str, attempt: u32, first: Option<u32>) -> Self {
        let config = containerd.pod(uid).attempt(attempt);
        let config = config.namespaces(|namespaces| set_namespaces(namespaces, first));
        Self {
            support: Support::detect(containerd.cri()),
            pod: CriPod::with_config(containerd, config),
            first,
        }
    }

    /// Returns the config of a sleeping container, as kubelet writes it.
    fn with(&self, name: &str, source: &Path) -> ContainerConfig {
        let config = self.pod.with(name, source);
        let config = config.namespaces(|namespaces| set_namespaces(namespaces, self.first));
        match self.first {
            Some(first) if self.support == Support::PodsAndMounts => {
                config.map_mounts(&mappings(first))
            }
            _ => config,
        }
    }

    /// Starts a container, and asserts that it has the expected user namespace.
    #[track_caller]
    fn start(&self, container: &ContainerConfig) -> String {
        let id = self.pod.start(container);
        let map = self.pod.cri().sh(&id, "tr -s ' ' </proc/self/uid_map");
        let expected = match self.first {
            Some(first) if self.support != Support::Ignored => format!("0 {first} 65536"),
            _ => "0 0 4294967295".to_owned(),
        };
        assert_eq!(map, expected, "{:?}", self.support);
        id
    }
}

fn set_namespaces(namespaces: &mut NamespaceOption, first: Option<u32>) {
    namespaces.network = NamespaceMode::Pod.into();
    namespaces.userns_options = first.map(|first| UserNamespace {
        mode: NamespaceMode::Pod.into(),
        uids: mappings(first),
        gids: mappings(first),
    });
}

fn mappings(first: u32) -> Vec<IdMapping> {
    vec![IdMapping {
        host_id: first,
        container_id: 0,
        length: 65536,
    }]
}

on_each_delegate! {
    fn a_handler_has_its_delegates_features(delegate: Delegate) {
        let node = Node::new(delegate);
        let containerd = containerd_with_bare(&node);
        assert_eq!(containerd.cri().features("crust"), containerd.cri().features("bare"));
    }

    fn a_pods_files_have_its_own_ids_and_fsgroup(delegate: Delegate) {
        let node = Node::new(delegate);
        let fill = |root: &Path| {
            let file = root.join("before");
            fs::write(&file, "").unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
            chown(&file, Some(5), Some(7)).unwrap();
        };
        let full = |node: &Node| {
            let device = node.ext4();
            with_mounted(device.path(), fill);
            device
        };
        let scene = Scene::on_node(node, full, &["--fs-group", "2000"]);
        let Scene { device, target, containerd, .. } = &scene;
        let cri = scene.cri();
        let user = UserPod::run(containerd, POD, 0, Some(RANGES[0]));
        let one = user.start(&user.with("one", target));
        assert_eq!(cri.sh(&one, "stat -c '%u:%g %a' /data/before /data"), "5:2000 660\n0:2000 2775");
        let member = user.start(&user.with("member", &target.join("sub")).user(1000, &[2000]));
        let _ = cri.sh(&member, "echo hello > /data/file");
        assert_eq!(cri.sh(&one, "stat -c %u:%g /data/sub/file; cat /data/sub/file"), "1000:2000\nhello");
        // A new container, after a restart of containerd.
        cri.stop(&member).unwrap();
        containerd.restart();
        let restarted = user.with("member", &target.join("sub")).user(1000, &[2000]).attempt(1);
        let restarted = user.start(&restarted);
        assert_eq!(cri.sh(&restarted, "echo more >> /data/file; cat /data/file"), "hello\nmore");
        assert_eq!(cri.sh(&restarted, "stat -c %u:%g /data/file"), "1000:2000");
        scene.end(&user.pod);
        with_mounted(device.path(), |root| {
            let owner = |name: &str| fs::metadata(root.join(name)).map(|it| (it.uid(), it.gid())).unwrap();
            assert_eq!(["before", "sub", "sub/file"].map(owner), [(5, 2000), (0, 2000), (1000, 2000)]);
        });
    }

    fn pods_with_different_mappings_share_a_volume(delegate: Delegate) {
        let node = Node::new(delegate);
        let containerd = containerd(&node);
        let cri = containerd.cri();
        let device = node.ext4();
        let options = ["--fs-group", "2000", "--fs-group-change-policy", "OnRootMismatch"];
        let targets = [POD, OTHER_POD, THIRD_POD].map(|uid| (uid, node.stage(uid, "pv-1", &device, &options)));
        let [a, b] = RANGES.map(Some);
        let mut files = Vec::new();
        // The create in the first pod mounts the volume, so each round begins with another kind of pod.
        for (attempt, ids) in (0..).zip([[a, None, b], [None, b, a]]) {
            let pods = targets.iter().zip(ids).map(|((uid, target), first)| {
                let user = UserPod::run(&containerd, uid, attempt, first);
                let app = user.start(&user.with("one", target));
                let file = format!("{uid}-{attempt}");
                let _ = cri.sh(&app, &format!("echo x > /data/{file}; chown 5:6 /data/{file}"));
                files.push(file);
                (user, app)
            });
            let pods: Vec<(UserPod<'_>, String)> = pods.collect();
            for (_, app) in &pods {
                for file in &files {
                    assert_eq!(cri.sh(app, &format!("stat -c %u:%g /data /data/{file}")), "0:2000\n5:6");
                }
            }
            for (user, _) in &pods {
                user.pod.end();
            }
        }
        node.unstage_all(&targets.each_ref().map(|(_, target)| target.as_path()));
        assert!(device.is_free());
        with_mounted(device.path(), |root| {
            for file in &files {
                let found = fs::metadata(root.join(file)).unwrap();
                assert_eq!((found.uid(), found.gid()), (5, 6), "{file}");
            }
        });
    }
}
