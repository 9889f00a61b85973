//! Tests of the whole life of claims and their volumes.

mod binding;
mod deletion;
mod edits;
mod expansion;
mod provisioning;

use crust_proto::csi::v1::controller_service_capability::rpc::Type as ControllerRpc;
use crust_proto::csi::v1::node_service_capability::rpc::Type as Rpc;
use crust_proto::csi::v1::{CreateVolumeResponse, Volume};

use super::*;
use crate::objects::manifest::read;
use crate::volumes::actual::{ActualMount, Certainty, Mounter};
use crate::volumes::spec::{Lifecycle, VolumeId};

/// The time of all records.
const NOW: &str = "2026-01-01T00:00:00Z";

const GI: i64 = 1 << 30;

const CLASS: &str = "
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: fast}
provisioner: csi.example
allowVolumeExpansion: true
mountOptions: [noatime]
parameters:
  type: fast
  csi.storage.k8s.io/fstype: ext4
  csi.storage.k8s.io/provisioner-secret-name: maker
  csi.storage.k8s.io/provisioner-secret-namespace: keys
  csi.storage.k8s.io/node-expand-secret-name: grower
  csi.storage.k8s.io/node-expand-secret-namespace: keys
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: late}
provisioner: csi.example
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: by-hand}
provisioner: kubernetes.io/no-provisioner
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: elsewhere}
provisioner: other.example
";

fn claim(spec: &str) -> String {
    format!(
        "
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: data}}
spec: {{accessModes: [ReadWriteOnce], {spec}}}
"
    )
}

fn claim_of_size(size: &str) -> String {
    claim(&format!(
        "storageClassName: fast, resources: {{requests: {{storage: {size}}}}}"
    ))
}

fn volume(name: &str, spec: &str) -> String {
    format!(
        "
apiVersion: v1
kind: PersistentVolume
metadata: {{name: {name}}}
spec:
  accessModes: [ReadWriteOnce, ReadOnlyMany]
  csi: {{driver: csi.example, volumeHandle: {name}}}
  {spec}
"
    )
}

/// Returns the manifest of a pod with one volume.
fn pod(name: &str, volume: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {name}, uid: {name}-uid}}
spec:
  containers: [{{name: app, image: app}}]
  volumes: [{{name: v, {volume}}}]
"
    )
}

const DATA: &str = "persistentVolumeClaim: {claimName: data}";

/// The state of a node from which steps are planned, without drivers to call and without a disk.
struct Fixture {
    manifests: Objects,
    records: Records,
    actual: ActualState,
    drivers: BTreeMap<String, DriverCapabilities>,
    is_complete: bool,
    unreadable_manifest: Option<&'static str>,
    unreadable_directories: Vec<PathBuf>,
    uids: u32,
    notices: Vec<Notice>,
}

impl Fixture {
    fn new(manifests: &[&str]) -> Self {
        let mut fixture = Self {
            manifests: Objects::default(),
            records: Records::default(),
            actual: ActualState::default(),
            drivers: BTreeMap::new(),
            is_complete: true,
            unreadable_manifest: None,
            unreadable_directories: Vec::new(),
            uids: 0,
            notices: Vec::new(),
        };
        let all = DriverCapabilities {
            controller: [
                ControllerRpc::CreateDeleteVolume,
                ControllerRpc::ExpandVolume,
                ControllerRpc::SingleNodeMultiWriter,
            ]
            .into_iter()
            .collect(),
            node: [Rpc::ExpandVolume, Rpc::DeferFsOps].into_iter().collect(),
        };
        fixture.drivers.insert("csi.example".to_owned(), all);
        fixture.apply(&[&[CLASS], manifests].concat());
        fixture
    }

    fn apply(&mut self, manifests: &[&str]) {
        for manifest in manifests
            .iter()
            .flat_map(|text| read(text).expect("manifests"))
        {
            self.manifests.insert(manifest);
        }
    }

    /// Deletes the claim as the agent does once no pod uses it.
    fn delete_claim(&mut self) {
        let kind = Kind::PersistentVolumeClaim;
        self.write(RecordUpdate::deleted(
            kind,
            &Name::new("default", "data"),
            NOW,
        ));
        self.remove(Kind::PersistentVolumeClaim, "data");
    }

    fn remove(&mut self, kind: Kind, name: &str) {
        let namespace = if kind.is_namespaced() { "default" } else { "" };
        let name = Name::new(namespace, name);
        self.manifests.documents.remove(&(kind, name.clone()));
        self.manifests.pods.remove(&name);
        self.manifests.claims.remove(&name);
        self.manifests.volumes.remove(&name.name);
    }

    fn objects(&self) -> Objects {
        self.records.apply_to(&self.manifests)
    }

    fn plan(&self) -> Plan {
        let pods: Vec<Arc<Pod>> = self.manifests.pods.values().cloned().collect();
        plan(&PlanInputs {
            manifests: &self.manifests,
            objects: &self.objects(),
            records: &self.records,
            pods: &pods,
            actual: &self.actual,
            drivers: &self.drivers,
            layout: &layout(),
            unreadable_directories: &self.unreadable_directories,
            is_complete: self.is_complete,
            unreadable_manifest: self.unreadable_manifest,
        })
    }

    fn write(&mut self, update: RecordUpdate) {
        self.uids += 1;
        let uid = format!("uid-{}", self.uids);
        if let Some(record) = self.records.updated(&update, || uid, || NOW.to_owned()) {
            self.records.insert(update.kind, update.name, record);
        }
        self.notices.extend(update.notice);
    }

    fn write_all(&mut self, updates: Vec<RecordUpdate>) {
        for update in updates {
            self.write(update);
        }
    }

    fn forget(&mut self, step: &ClaimStep) {
        let ClaimStep::Forget(kind, name) = step else {
            panic!("{step:?}");
        };
        self.records.remove(*kind, name);
    }

    /// Carries out steps until all that remain need a driver, and returns the remaining plan.
    fn settle(&mut self) -> Plan {
        for _ in 0..10 {
            let mut plan = self.plan();
            let needs_no_driver = |step: &mut ClaimStep| {
                matches!(
                    step,
                    ClaimStep::Update(_) | ClaimStep::Forget(..) | ClaimStep::RemoveManifest(_)
                )
            };
            let steps: Vec<ClaimStep> = plan.steps.extract_if(.., needs_no_driver).collect();
            if steps.is_empty() {
                return plan;
            }
            for step in steps {
                match step {
                    ClaimStep::Update(update) => self.write(*update),
                    ClaimStep::RemoveManifest(_) => self.delete_claim(),
                    step => self.forget(&step),
                }
            }
            self.notices.extend(plan.notices);
        }
        panic!("the plan never settles: {:?}", self.plan());
    }

    /// Calls [`Self::settle`], and returns the only remaining step.
    fn only_step(&mut self) -> ClaimStep {
        let mut plan = self.settle();
        assert_eq!(
            (plan.steps.len(), &plan.waiting),
            (1, &Vec::new()),
            "{plan:?}"
        );
        plan.steps.remove(0)
    }

    /// Calls [`Self::settle`], and returns the only event about a waiting object.
    fn only_waiting(&mut self) -> Notice {
        let mut plan = self.settle();
        assert_eq!(
            (plan.waiting.len(), &plan.steps),
            (1, &Vec::new()),
            "{plan:?}"
        );
        plan.waiting.remove(0)
    }

    /// Calls [`Self::settle`], and returns the only event. Fails if the event is about a waiting object.
    fn only_notice(&mut self) -> Notice {
        let mut plan = self.settle();
        let others = (&plan.steps, &plan.waiting);
        assert_eq!(
            (plan.notices.len(), others),
            (1, (&Vec::new(), &Vec::new())),
            "{plan:?}"
        );
        plan.notices.remove(0)
    }

    fn assert_settled(&mut self) {
        assert_eq!(self.settle(), Plan::default());
    }

    /// Returns a node with a claim that has a provisioned volume of 1 GiB.
    fn with_provisioned_volume() -> Self {
        let mut fixture = Self::new(&[&claim_of_size("1Gi")]);
        fixture.create();
        fixture.assert_settled();
        fixture
    }

    fn create(&mut self) {
        let step = self.only_step();
        let ClaimStep::Create(create) = step else {
            panic!("{step:?}");
        };
        let volume_record = create
            .volume_record(response("handle-1", 0))
            .expect("a volume");
        self.write(volume_record);
    }

    fn controller_expand(&mut self) -> Box<ControllerExpand> {
        match self.only_step() {
            ClaimStep::ControllerExpand(call) => call,
            step => panic!("{step:?}"),
        }
    }

    fn node_expand(&mut self) -> Box<NodeExpand> {
        match self.only_step() {
            ClaimStep::NodeExpand(call) => call,
            step => panic!("{step:?}"),
        }
    }

    fn mount(&mut self, mounter: Mounter) {
        let entry = self.actual.entry(&id(), Lifecycle::Persistent);
        let mount = ActualMount {
            certainty: Certainty::Certain,
            directory: "pv".to_owned(),
            mounter,
            runtime_mount: None,
        };
        entry.mounts.insert("web-uid".to_owned(), mount);
    }

    fn document(&self, kind: Kind, name: &str) -> Value {
        let namespace = if kind.is_namespaced() { "default" } else { "" };
        let name = Name::new(namespace, name);
        status::document(&self.objects(), &self.records, kind, &name).expect("a document")
    }

    fn claim(&self) -> Value {
        self.document(Kind::PersistentVolumeClaim, "data")
    }

    fn phase(&self, kind: Kind, name: &str) -> String {
        let document = self.document(kind, name);
        document["status"]["phase"]
            .as_str()
            .expect("a phase")
            .to_owned()
    }

    /// Returns the reasons of the events since the last call.
    fn take_reasons(&mut self) -> Vec<&'static str> {
        self.notices.drain(..).map(|notice| notice.reason).collect()
    }
}

fn layout() -> RootDirLayout {
    RootDirLayout::new("/root-dir".as_ref())
}

fn id() -> VolumeId {
    VolumeId {
        driver: "csi.example".to_owned(),
        handle: "handle-1".to_owned(),
    }
}

fn response(handle: &str, capacity_bytes: i64) -> CreateVolumeResponse {
    CreateVolumeResponse {
        volume: Some(Volume {
            capacity_bytes,
            volume_id: handle.to_owned(),
            volume_context: [("k".to_owned(), "v".to_owned())].into(),
            ..Volume::default()
        }),
    }
}
