//! Tests of claims, from their manifests to their volumes and back.

mod binding;
mod deletion;
mod edits;
mod growth;
mod provisioning;

use crust_proto::csi::v1::controller_service_capability::rpc::Type as ControllerRpc;
use crust_proto::csi::v1::node_service_capability::rpc::Type as Rpc;
use crust_proto::csi::v1::{CreateVolumeResponse, Volume};

use super::*;
use crate::objects::manifest::read;
use crate::volumes::actual::{ActualMount, Certainty, Mounter};
use crate::volumes::spec::{Lifecycle, VolumeId};

/// When all is made.
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

fn wanting(size: &str) -> String {
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

/// A pod with a volume.
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

/// A node, but for its drivers' calls and its disk.
struct Bench {
    written: Objects,
    records: Records,
    actual: ActualState,
    drivers: BTreeMap<String, DriverCapabilities>,
    is_known: bool,
    unread: Option<&'static str>,
    broken: Vec<PathBuf>,
    uids: u32,
    told: Vec<Notice>,
}

impl Bench {
    fn new(manifests: &[&str]) -> Self {
        let mut bench = Self {
            written: Objects::default(),
            records: Records::default(),
            actual: ActualState::default(),
            drivers: BTreeMap::new(),
            is_known: true,
            unread: None,
            broken: Vec::new(),
            uids: 0,
            told: Vec::new(),
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
        bench.drivers.insert("csi.example".to_owned(), all);
        bench.apply(&[&[CLASS], manifests].concat());
        bench
    }

    fn apply(&mut self, manifests: &[&str]) {
        for manifest in manifests.iter().flat_map(|it| read(it).expect("manifests")) {
            self.written.insert(manifest);
        }
    }

    /// As the agent does once nobody has a claim that was deleted.
    fn delete_claim(&mut self) {
        let kind = Kind::PersistentVolumeClaim;
        self.write(Write::deleted(kind, &Name::new("default", "data"), NOW));
        self.remove(Kind::PersistentVolumeClaim, "data");
    }

    fn remove(&mut self, kind: Kind, name: &str) {
        let namespace = if kind.is_namespaced() { "default" } else { "" };
        let name = Name::new(namespace, name);
        self.written.documents.remove(&(kind, name.clone()));
        self.written.pods.remove(&name);
        self.written.claims.remove(&name);
        self.written.volumes.remove(&name.name);
    }

    fn view(&self) -> Objects {
        self.records.view(&self.written)
    }

    fn plan(&self) -> Plan {
        let pods: Vec<Arc<Pod>> = self.written.pods.values().cloned().collect();
        plan(&World {
            written: &self.written,
            objects: &self.view(),
            records: &self.records,
            pods: &pods,
            actual: &self.actual,
            drivers: &self.drivers,
            layout: &layout(),
            broken: &self.broken,
            is_known: self.is_known,
            unread: self.unread,
        })
    }

    fn write(&mut self, write: Write) {
        self.uids += 1;
        let uid = format!("uid-{}", self.uids);
        if let Some(record) = self.records.next(&write, || uid, || NOW.to_owned()) {
            self.records.insert(write.kind, write.name, record);
        }
        self.told.extend(write.notice);
    }

    fn write_all(&mut self, writes: Vec<Write>) {
        for write in writes {
            self.write(write);
        }
    }

    fn forget(&mut self, step: &Step) {
        let Step::Forget(kind, name) = step else {
            panic!("{step:?}");
        };
        self.records.remove(*kind, name);
    }

    /// Does what needs no driver, until there is only what does.
    fn settle(&mut self) -> Plan {
        for _ in 0..10 {
            let mut plan = self.plan();
            let pure = |step: &mut Step| {
                matches!(step, Step::Write(_) | Step::Forget(..) | Step::Remove(_))
            };
            let steps: Vec<Step> = plan.steps.extract_if(.., pure).collect();
            if steps.is_empty() {
                return plan;
            }
            for step in steps {
                match step {
                    Step::Write(write) => self.write(*write),
                    Step::Remove(_) => self.delete_claim(),
                    step => self.forget(&step),
                }
            }
            self.told.extend(plan.notices);
        }
        panic!("it never settles: {:?}", self.plan());
    }

    /// The one thing that is to be asked.
    fn step(&mut self) -> Step {
        let mut plan = self.settle();
        assert_eq!(
            (plan.steps.len(), &plan.waiting),
            (1, &Vec::new()),
            "{plan:?}"
        );
        plan.steps.remove(0)
    }

    /// The one thing that is waited for.
    fn waiting(&mut self) -> Notice {
        let mut plan = self.settle();
        assert_eq!(
            (plan.waiting.len(), &plan.steps),
            (1, &Vec::new()),
            "{plan:?}"
        );
        plan.waiting.remove(0)
    }

    /// The one thing that is told besides.
    fn notice(&mut self) -> Notice {
        let mut plan = self.settle();
        let others = (&plan.steps, &plan.waiting);
        assert_eq!(
            (plan.notices.len(), others),
            (1, (&Vec::new(), &Vec::new())),
            "{plan:?}"
        );
        plan.notices.remove(0)
    }

    fn rest(&mut self) {
        assert_eq!(self.settle(), Plan::default());
    }

    /// A claim that has a volume of a driver's, 1 GiB.
    fn provisioned() -> Self {
        let mut bench = Self::new(&[&wanting("1Gi")]);
        bench.create();
        bench.rest();
        bench
    }

    fn create(&mut self) {
        let step = self.step();
        let Step::Create(create) = step else {
            panic!("{step:?}");
        };
        let made = create.made(answer("handle-1", 0)).expect("a volume");
        self.write(made);
    }

    fn grow(&mut self) -> Box<Grow> {
        match self.step() {
            Step::Grow(grow) => grow,
            step => panic!("{step:?}"),
        }
    }

    fn grow_on_node(&mut self) -> Box<GrowOnNode> {
        match self.step() {
            Step::GrowOnNode(grow) => grow,
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
        status::document(&self.view(), &self.records, kind, &name).expect("a document")
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

    /// The reasons of what was told since the last time.
    fn reasons(&mut self) -> Vec<&'static str> {
        self.told.drain(..).map(|it| it.reason).collect()
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

fn answer(handle: &str, capacity_bytes: i64) -> CreateVolumeResponse {
    CreateVolumeResponse {
        volume: Some(Volume {
            capacity_bytes,
            volume_id: handle.to_owned(),
            volume_context: [("k".to_owned(), "v".to_owned())].into(),
            ..Volume::default()
        }),
    }
}
