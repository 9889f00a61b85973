//! What most of these tests begin with: the classes of KEP-2857's stories, claims, and what is seen of them.

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

/// Their runtime class, whose handler is runcrust.
pub(crate) const MICROVM: &str = "microvm";

/// A driver of before KEP-2857.
pub(crate) const OLDER: [&str; 2] = ["--without", "DEFER_FS_OPS"];

/// A testbed with the classes.
#[derive(Debug)]
pub(crate) struct Scene(Testbed);

impl Deref for Scene {
    type Target = Testbed;

    fn deref(&self) -> &Testbed {
        &self.0
    }
}

/// A volume of the driver's, and the claim that it is bound to.
#[derive(Debug)]
pub(crate) struct Storage {
    pub(crate) volume: CsiVolume,
    /// Its name, which its directories have.
    pub(crate) pv: String,
    claim: String,
    object: Volume,
}

impl Storage {
    /// The claim's name.
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
        Self::of(delegate, setup, &StorageClass::new(CLASS), |_| {
            RuntimeClass::new(MICROVM, "crust")
        })
    }

    /// Without any object.
    #[track_caller]
    pub(crate) fn bare(delegate: Delegate, setup: &Setup<'_>) -> Self {
        Self(Testbed::with(delegate, setup))
    }

    /// With classes of the test's own.
    #[track_caller]
    pub(crate) fn of(
        delegate: Delegate,
        setup: &Setup<'_>,
        storage: &StorageClass,
        runtime: impl FnOnce(&Testbed) -> RuntimeClass,
    ) -> Self {
        let Self(testbed) = Self::bare(delegate, setup);
        testbed.apply("classes", &[storage, &runtime(&testbed)]);
        Self(testbed)
    }

    /// A claim by this name, of a volume with an ext4 or another file system.
    #[track_caller]
    pub(crate) fn claim(&self, name: &str, fstype: &str) -> Storage {
        self.claim_of(name, filesystem(fstype), |volume| volume)
    }

    /// The same with mount options.
    #[track_caller]
    pub(crate) fn claim_with(&self, name: &str, fstype: &str, options: &[&str]) -> Storage {
        let mut capability = filesystem(fstype);
        mount_of(&mut capability).mount_flags = options.iter().map(|&it| it.to_owned()).collect();
        self.claim_of(name, capability, |volume| volume)
    }

    /// The same, by any capability and with what else the `PersistentVolume` says.
    #[track_caller]
    pub(crate) fn claim_of(
        &self,
        name: &str,
        capability: VolumeCapability,
        say: impl FnOnce(Volume) -> Volume,
    ) -> Storage {
        let volume = self.volume(name, capability);
        let pv = format!("pv-{name}");
        let object = say(Volume::new(&pv, &volume).class(CLASS));
        self.apply(&pv, &[&object, &object.claim(name)]);
        Storage {
            claim: name.to_owned(),
            volume,
            pv,
            object,
        }
    }

    /// Has a claim ask for so many bytes.
    pub(crate) fn ask_for(&self, storage: &Storage, bytes: i64) {
        let Storage { claim, object, .. } = storage;
        self.apply(&storage.pv, &[object, &object.claim(claim).request(bytes)]);
    }

    /// Waits until a claim's status says that it has so many bytes.
    #[track_caller]
    pub(crate) fn wait_capacity(&self, storage: &Storage, bytes: i64) {
        self.crustlet.wait("the claim to have grown", || {
            let claim = self.crustlet.get("pvc", &storage.claim);
            claim["status"]["capacity"]["storage"] == quantity(bytes)
        });
    }

    /// Waits until a claim's status says that it can't grow.
    #[track_caller]
    pub(crate) fn wait_no_growth(&self, storage: &Storage) {
        self.crustlet.wait("the claim's growth to fail", || {
            let claim = self.crustlet.get("pvc", &storage.claim);
            claim["status"]["resizeStatus"] == "PersistentVolumeClaimNodeExpansionFailed"
        });
    }

    /// Waits until the agent tells of a claim's volume what its pod sees.
    #[track_caller]
    pub(crate) fn wait_stats(&self, storage: &Storage, pod: &Pod, path: &str) {
        let seen = self.size(pod, path);
        self.crustlet.wait("the volume's size to be told", || {
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
        // They are whole, and far below 2^53.
        #[expect(clippy::cast_possible_truncation, reason = "as said")]
        Some(value as i64)
    }

    /// In bytes: all of a file system, as a pod sees it.
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
        kill_and_wait(self.cri().pid(&killed).expect("it runs"));
        self.crustlet.wait("another container to run", || {
            let running = self.running(pod);
            running.len() == 1 && running[0] != killed
        });
    }

    /// `volumes_published_with_deferred_ops_total`
    pub(crate) fn published_deferred(&self) -> f64 {
        let name = "volumes_published_with_deferred_ops_total";
        self.crustlet.metrics().count(name, &[])
    }

    /// [`Testbed::assert_deferred`]
    #[track_caller]
    pub(crate) fn assert_deferred(&self, pod: &Pod, storage: &Storage) {
        self.0.assert_deferred(pod, &storage.pv, &storage.volume);
    }

    /// [`Testbed::assert_not_on_the_host`]
    #[track_caller]
    pub(crate) fn assert_not_on_the_host(&self, pod: &Pod, storage: &Storage) {
        self.0
            .assert_not_on_the_host(pod, &storage.pv, &storage.volume);
    }

    /// [`Testbed::assert_plain`]
    #[track_caller]
    pub(crate) fn assert_plain(&self, pod: &Pod, storage: &Storage) {
        self.0.assert_plain(pod, &storage.pv, &storage.volume);
    }

    /// [`Testbed::assert_nothing_left`]
    #[track_caller]
    pub(crate) fn assert_nothing_left(&self, all: &[&Storage]) {
        let volumes: Vec<&CsiVolume> = all.iter().map(|storage| &storage.volume).collect();
        self.0.assert_nothing_left(&volumes);
    }

    /// Looks at what is on a volume that nobody uses.
    #[track_caller]
    pub(crate) fn look<T: Send>(
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

/// One of these with a claim's volume at `/data`, deferred or not.
pub(crate) fn pod_with(name: &str, claim: &str, is_deferred: bool) -> Pod {
    let pod = microvm(name);
    let pod = if is_deferred {
        pod.deferred(claim)
    } else {
        pod.claim(claim)
    };
    pod.mount(claim, "/data")
}

/// `volume_mount_group`, `volume_supplemental_group` and the latter's change policy.
pub(crate) fn groups(capability: Option<&VolumeCapability>) -> [&str; 3] {
    let capability = capability.expect("it is REQUIRED");
    let Some(AccessType::Mount(mount)) = &capability.access_type else {
        panic!("{capability:?}");
    };
    [
        &mount.volume_mount_group,
        &mount.volume_supplemental_group,
        &mount.volume_supplemental_group_change_policy,
    ]
}

/// A policy of the stories' pair, with what it can do after the mount: `fsGroup: true`. `None`: it has no rule.
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

/// All that KEP-2857's stories have in it.
pub(crate) const ALL: [&str; 3] = [
    "fsGroup: true",
    "fsGroupChangePolicy: [Always, OnRootMismatch]",
    "subPath: true",
];
