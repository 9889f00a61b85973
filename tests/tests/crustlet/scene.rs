//! The fixture of this suite: a testbed with the classes of KEP-2857's stories, and claims with their volumes.

use std::ops::Deref;
use std::path::Path;

use crust_proto::csi::v1::VolumeCapability;
use crust_proto::csi::v1::volume_capability::AccessType;
use runcrust_tests::csi::{CsiVolume, filesystem, mount_of};
use runcrust_tests::manifests::{Pod, RuntimeClass, StorageClass, Volume, quantity};
use runcrust_tests::process::kill_and_wait;
use runcrust_tests::volume::with_mounted;
use runcrust_tests::{Delegate, LoopDevice, Setup, Testbed};

/// The storage class of the stories.
pub(crate) const CLASS: &str = "fast-storage";

/// The runtime class of the stories. Its handler is runcrust.
pub(crate) const MICROVM: &str = "microvm";

/// Arguments for a driver from before KEP-2857.
pub(crate) const WITHOUT_DEFERRAL: [&str; 2] = ["--without", "DEFER_FS_OPS"];

/// A testbed with the storage class and the runtime class of the stories.
#[derive(Debug)]
pub(crate) struct Scene(Testbed);

impl Deref for Scene {
    type Target = Testbed;

    fn deref(&self) -> &Testbed {
        &self.0
    }
}

/// A volume of the driver, and the claim that it is bound to.
#[derive(Debug)]
pub(crate) struct Storage {
    pub(crate) volume: CsiVolume,
    /// The name of the `PersistentVolume`. The volume's directories have the same name.
    pub(crate) pv: String,
    claim: String,
    object: Volume,
}

impl Storage {
    pub(crate) fn claim(&self) -> &str {
        &self.claim
    }
}

impl Scene {
    #[track_caller]
    pub(crate) fn new(delegate: Delegate) -> Self {
        Self::with(delegate, &Setup::default())
    }

    #[track_caller]
    pub(crate) fn with(delegate: Delegate, setup: &Setup<'_>) -> Self {
        Self::with_classes(delegate, setup, &StorageClass::new(CLASS), |_| {
            RuntimeClass::new(MICROVM, "crust")
        })
    }

    /// Sets up a testbed without any object.
    #[track_caller]
    pub(crate) fn bare(delegate: Delegate, setup: &Setup<'_>) -> Self {
        Self(Testbed::with(delegate, setup))
    }

    /// Sets up a testbed with the given classes.
    #[track_caller]
    pub(crate) fn with_classes(
        delegate: Delegate,
        setup: &Setup<'_>,
        storage: &StorageClass,
        runtime: impl FnOnce(&Testbed) -> RuntimeClass,
    ) -> Self {
        let Self(testbed) = Self::bare(delegate, setup);
        testbed.apply("classes", &[storage, &runtime(&testbed)]);
        Self(testbed)
    }

    /// Creates a claim with this name, bound to a volume with the file system `fstype`.
    #[track_caller]
    pub(crate) fn claim(&self, name: &str, fstype: &str) -> Storage {
        self.claim_with_capability(name, filesystem(fstype), |volume| volume)
    }

    /// Like [`Self::claim`], with mount options.
    #[track_caller]
    pub(crate) fn claim_with_options(&self, name: &str, fstype: &str, options: &[&str]) -> Storage {
        let mut capability = filesystem(fstype);
        mount_of(&mut capability).mount_flags = options.iter().map(|&it| it.to_owned()).collect();
        self.claim_with_capability(name, capability, |volume| volume)
    }

    /// Like [`Self::claim`], with any capability. `customize` changes the `PersistentVolume`.
    #[track_caller]
    pub(crate) fn claim_with_capability(
        &self,
        name: &str,
        capability: VolumeCapability,
        customize: impl FnOnce(Volume) -> Volume,
    ) -> Storage {
        let volume = self.volume(name, capability);
        let pv = format!("pv-{name}");
        let object = customize(Volume::new(&pv, &volume).class(CLASS));
        self.apply(&pv, &[&object, &object.claim(name)]);
        Storage {
            claim: name.to_owned(),
            volume,
            pv,
            object,
        }
    }

    /// Makes a claim request this size.
    pub(crate) fn request_size(&self, storage: &Storage, bytes: i64) {
        let Storage { claim, object, .. } = storage;
        self.apply(&storage.pv, &[object, &object.claim(claim).request(bytes)]);
    }

    /// Waits until a claim's status has this capacity.
    #[track_caller]
    pub(crate) fn wait_capacity(&self, storage: &Storage, bytes: i64) {
        self.crustlet.wait("the claim to have grown", || {
            let claim = self.crustlet.get("pvc", &storage.claim);
            claim["status"]["capacity"]["storage"] == quantity(bytes)
        });
    }

    /// Waits until a claim's status says that its volume cannot grow.
    #[track_caller]
    pub(crate) fn wait_no_growth(&self, storage: &Storage) {
        self.crustlet.wait("the claim's growth to fail", || {
            let claim = self.crustlet.get("pvc", &storage.claim);
            claim["status"]["resizeStatus"] == "PersistentVolumeClaimNodeExpansionFailed"
        });
    }

    /// Waits until the agent's metrics show the size of a claim's volume that its pod sees.
    #[track_caller]
    pub(crate) fn wait_stats(&self, storage: &Storage, pod: &Pod, path: &str) {
        let seen = self.size(pod, path);
        self.crustlet.wait("the volume's size to be reported", || {
            self.stat(storage, "kubelet_volume_stats_capacity_bytes") == Some(seen)
        });
        assert!(self.stat(storage, "kubelet_volume_stats_used_bytes") < Some(seen));
        assert!(self.stat(storage, "kubelet_volume_stats_inodes_used") > Some(0));
        let abnormal = "kubelet_volume_stats_health_status_abnormal";
        assert_eq!(self.stat(storage, abnormal), Some(0));
    }

    pub(crate) fn stat(&self, storage: &Storage, name: &str) -> Option<i64> {
        let labels = [
            ("namespace", "default"),
            ("persistentvolumeclaim", &storage.claim),
        ];
        let value = self.crustlet.metrics().value(name, &labels)?;
        // The values are whole numbers, far below 2^53.
        #[expect(clippy::cast_possible_truncation, reason = "a whole number below 2^53")]
        Some(value as i64)
    }

    /// Returns the size of a whole file system in bytes, as a pod sees it.
    #[track_caller]
    pub(crate) fn size(&self, pod: &Pod, path: &str) -> i64 {
        let text = self.sh(pod, &format!("stat -f -c '%S %b' {path}"));
        let words = text.split(' ').map(str::parse::<i64>);
        words.map(|word| word.expect("a number")).product()
    }

    /// Kills a pod's container, and waits until another one runs in its place.
    #[track_caller]
    pub(crate) fn kill_container(&self, pod: &Pod) {
        let killed = self.container(pod);
        kill_and_wait(self.cri().pid(&killed).expect("a running container"));
        self.crustlet.wait("another container to run", || {
            let running = self.running(pod);
            running.len() == 1 && running[0] != killed
        });
    }

    /// Returns the counter `volumes_published_with_deferred_ops_total`.
    pub(crate) fn published_deferred(&self) -> f64 {
        let name = "volumes_published_with_deferred_ops_total";
        self.crustlet.metrics().count(name, &[])
    }

    /// Calls [`Testbed::assert_deferred`].
    #[track_caller]
    pub(crate) fn assert_deferred(&self, pod: &Pod, storage: &Storage) {
        self.0.assert_deferred(pod, &storage.pv, &storage.volume);
    }

    /// Calls [`Testbed::assert_not_on_the_host`].
    #[track_caller]
    pub(crate) fn assert_not_on_the_host(&self, pod: &Pod, storage: &Storage) {
        self.0
            .assert_not_on_the_host(pod, &storage.pv, &storage.volume);
    }

    /// Calls [`Testbed::assert_plain`].
    #[track_caller]
    pub(crate) fn assert_plain(&self, pod: &Pod, storage: &Storage) {
        self.0.assert_plain(pod, &storage.pv, &storage.volume);
    }

    /// Calls [`Testbed::assert_nothing_left`].
    #[track_caller]
    pub(crate) fn assert_nothing_left(&self, all: &[&Storage]) {
        let volumes: Vec<&CsiVolume> = all.iter().map(|storage| &storage.volume).collect();
        self.0.assert_nothing_left(&volumes);
    }

    /// Mounts a volume that is not in use, and runs `work` with its root.
    #[track_caller]
    pub(crate) fn inspect<T: Send>(
        &self,
        storage: &Storage,
        work: impl FnOnce(&Path) -> T + Send,
    ) -> T {
        let device = LoopDevice::on(&self.csi.image(&storage.volume.id));
        with_mounted(device.path(), work)
    }
}

/// A pod of the stories' runtime class.
pub(crate) fn microvm(name: &str) -> Pod {
    Pod::new(name).class(MICROVM)
}

/// A pod of this class with the volume of a claim at `/data`, deferred or not.
pub(crate) fn pod_with(name: &str, claim: &str, is_deferred: bool) -> Pod {
    let pod = microvm(name);
    let pod = if is_deferred {
        pod.deferred(claim)
    } else {
        pod.claim(claim)
    };
    pod.mount(claim, "/data")
}

/// Returns `volume_mount_group`, `volume_supplemental_group` and `volume_supplemental_group_change_policy`.
pub(crate) fn groups(capability: Option<&VolumeCapability>) -> [&str; 3] {
    let capability = capability.expect("volume_capability is REQUIRED");
    let Some(AccessType::Mount(mount)) = &capability.access_type else {
        panic!("{capability:?}");
    };
    [
        &mount.volume_mount_group,
        &mount.volume_supplemental_group,
        &mount.volume_supplemental_group_change_policy,
    ]
}

/// An admission policy for the two classes of the stories, with these entries of `postMount`. `None` means a policy
/// without a rule.
pub(crate) fn policy(post_mount: Option<&[&str]>) -> String {
    let rule = |post_mount: &[&str]| {
        let post_mount = post_mount.join(", ");
        format!(
            "{{storageClassName: {CLASS}, runtimeClassName: {MICROVM}, postMount: {{{post_mount}}}}}"
        )
    };
    let rule = post_mount.map(rule).unwrap_or_default();
    format!("apiVersion: crustlet.crust.dev/v1alpha1\nkind: DeferPolicy\nrules: [{rule}]\n")
}

/// All entries of `postMount` that occur in KEP-2857's stories.
pub(crate) const ALL_POST_MOUNT: [&str; 3] = [
    "fsGroup: true",
    "fsGroupChangePolicy: [Always, OnRootMismatch]",
    "subPath: true",
];
