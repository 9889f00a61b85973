//! Carries out the steps of claims: keeps their records, and has drivers create, expand and delete volumes.

mod driver_call;
mod driver_capabilities;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::mpsc;

use super::Completion;
use super::pods::Pods;
use super::volumes::Volumes;
use crate::claims::{
    ClaimStep, Notice, PlanInputs, RecordUpdate, Records, Store, StoreError, plan,
};
use crate::csi::DriverCapabilities;
use crate::events::{Events, Regarding};
use crate::objects::{Kind, Name, Objects, Pod};
use crate::operations::Context;
use crate::sources::{self, LoadedManifests};
use crate::volumes::backoff::Backoff;
use crate::volumes::spec::VolumeId;

use driver_call::{DriverCall, NodeExpandCall};
use driver_capabilities::{CAPABILITIES_MAX_AGE, KnownCapabilities, request_capabilities};

/// The object of a step. An object has one step at a time.
type ObjectKey = (Kind, Name);

/// All claims of the node.
#[derive(Debug)]
pub(crate) struct Claims {
    context: Context,
    completions: mpsc::UnboundedSender<Completion>,
    store: Store,
    capabilities: KnownCapabilities,
    backoff: Backoff<ObjectKey>,
    /// The drivers that registered or disconnected since the last reconcile.
    changed_drivers: BTreeSet<String>,
    /// Manifests that were removed and have to be read again.
    removed_manifests: Vec<PathBuf>,
    /// The calls in progress, with the volume that each call has reserved.
    in_progress: BTreeMap<ObjectKey, Option<VolumeId>>,
    /// The notices of the last plan, which have been emitted as events: those of waiting objects, and the others.
    emitted: [Vec<Notice>; 2],
}

/// The result of a task for a claim or its volume.
#[derive(Debug)]
pub(crate) enum ClaimTaskResult {
    /// The capabilities of a driver. `None` if it doesn't answer.
    Capabilities(String, Option<DriverCapabilities>),
    Step {
        key: ObjectKey,
        is_ok: bool,
        updates: Vec<RecordUpdate>,
        /// The object whose record is to be removed.
        forget: Option<ObjectKey>,
        notice: Option<Notice>,
    },
    /// The step wasn't carried out because the driver's capabilities differ from those that it was planned with.
    CapabilitiesChanged(ObjectKey, String, DriverCapabilities),
}

/// The state that steps are planned from.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClaimInputs<'a> {
    pub(super) loaded: &'a LoadedManifests,
    pub(super) objects: &'a Arc<Objects>,
    pub(super) pods: &'a Pods,
    /// Directories of volumes whose records can't be read.
    pub(super) unreadable_directories: &'a [PathBuf],
    pub(super) is_complete: bool,
}

impl Claims {
    /// The maximum number of plans in a row. Each record may allow another step: a volume is created, then it is bound,
    /// then its status is written. A longer chain is a bug.
    pub(super) const MAX_ROUNDS: usize = 16;

    /// Opens the store and reads all records. Fails if one of them can't be read.
    pub(super) fn open(
        context: &Context,
        completions: mpsc::UnboundedSender<Completion>,
    ) -> Result<Self, StoreError> {
        Ok(Self {
            store: Store::open(context.layout.root())?,
            context: context.clone(),
            completions,
            capabilities: KnownCapabilities::default(),
            backoff: Backoff::default(),
            changed_drivers: BTreeSet::new(),
            removed_manifests: Vec::new(),
            in_progress: BTreeMap::new(),
            emitted: [Vec::new(), Vec::new()],
        })
    }

    pub(super) const fn records(&self) -> &Records {
        self.store.records()
    }

    /// Requests the capabilities of all drivers again, and retries failed steps of the changed drivers at once.
    pub(super) fn drivers_changed(&mut self, changed: BTreeSet<String>) {
        self.capabilities.drivers_changed();
        self.changed_drivers.extend(changed);
    }

    /// Starts all steps that can be started now.
    ///
    /// Returns whether a record was written, and how long to wait before the next attempt. After a record was written,
    /// further steps may be possible.
    pub(super) fn reconcile(
        &mut self,
        inputs: ClaimInputs<'_>,
        volumes: &mut Volumes,
        now: Instant,
    ) -> (bool, Option<Duration>) {
        let pods: Vec<Arc<Pod>> = inputs.pods.specs().values().cloned().collect();
        let unreadable_manifest = inputs.loaded.errors.first();
        let unreadable_manifest = unreadable_manifest.map(|error| {
            format!(
                "waiting until all manifests can be read: {error}; hint: correct or remove that manifest"
            )
        });
        let plan = plan(&PlanInputs {
            manifests: &inputs.loaded.objects,
            objects: inputs.objects,
            records: self.store.records(),
            pods: &pods,
            actual: volumes.actual(),
            layout: &self.context.layout,
            unreadable_directories: inputs.unreadable_directories,
            drivers: self.capabilities.known(),
            is_complete: inputs.is_complete,
            unreadable_manifest: unreadable_manifest.as_deref(),
        });
        let (names, is_idle) = (driver_names(inputs.objects), plan.waiting.is_empty());
        for name in self.capabilities.take_due(&names, is_idle, now) {
            request_capabilities(name, &self.context, &self.completions);
        }
        let mut pause = (!is_idle).then_some(CAPABILITIES_MAX_AGE);
        let [waiting, notices] = &mut self.emitted;
        if !self.capabilities.has_recent_request(now) {
            emit_new(waiting, plan.waiting, &self.context.events);
        }
        emit_new(notices, plan.notices, &self.context.events);
        let kept: BTreeSet<ObjectKey> = plan.steps.iter().map(ClaimStep::object).collect();
        let in_progress = &self.in_progress;
        self.backoff
            .retain(|key| kept.contains(key) || in_progress.contains_key(key));
        let changed = std::mem::take(&mut self.changed_drivers);
        let mut is_changed = false;
        for step in plan.steps {
            let key = step.object();
            if self.in_progress.contains_key(&key) {
                continue;
            }
            let has_new_driver = step.driver().is_some_and(|driver| changed.contains(driver));
            if let Some(remaining) = self
                .backoff
                .remaining(&key, now)
                .filter(|_| !has_new_driver)
            {
                pause = Some(pause.map_or(remaining, |pause| pause.min(remaining)));
                continue;
            }
            is_changed |= self.carry_out(key, step, inputs, volumes);
        }
        (is_changed, pause)
    }

    /// Carries out a step, or starts its call. Returns whether a record was written.
    fn carry_out(
        &mut self,
        key: ObjectKey,
        step: ClaimStep,
        inputs: ClaimInputs<'_>,
        volumes: &mut Volumes,
    ) -> bool {
        let objects = inputs.objects;
        let (call, started) = match step {
            ClaimStep::Update(update) => return self.update(*update),
            ClaimStep::Forget(kind, name) => return self.forget(kind, &name),
            ClaimStep::RemoveManifest(claim) => {
                self.remove_manifest(inputs.loaded, &claim);
                return false;
            }
            ClaimStep::Create(create) => (DriverCall::Create(create), None),
            // A pod needs the volume, but the actual state doesn't have it yet.
            ClaimStep::Delete(delete) if volumes.is_desired(&delete.id()) => return false,
            ClaimStep::Delete(delete) => (DriverCall::Delete(delete), None),
            ClaimStep::ControllerExpand(expand) => {
                let started = expand.started();
                (DriverCall::ControllerExpand(expand), Some(started))
            }
            ClaimStep::NodeExpand(expand) => {
                let started = expand.started();
                let Some(call) = NodeExpandCall::new(*expand, inputs.pods, volumes) else {
                    return false;
                };
                (DriverCall::NodeExpand(Box::new(call)), Some(started))
            }
        };
        self.begin(key, call, objects, volumes) && started.is_some_and(|update| self.update(update))
    }

    /// Removes the manifest of a deleted claim that no pod uses any more.
    fn remove_manifest(&mut self, loaded: &LoadedManifests, name: &Name) {
        let kind = Kind::PersistentVolumeClaim;
        let deleted = RecordUpdate::deleted(kind, name, &now());
        if !self.store.records().is_deleted(kind, name) && self.store_update(&deleted).is_none() {
            return;
        }
        match sources::remove(loaded, kind, name) {
            Ok(removed) => self.removed_manifests.push(removed),
            Err(error) => {
                self.backoff.fail(&(kind, name.clone()), Instant::now());
                let message = crust_state::error_message(&error);
                let events = &self.context.events;
                events.warning(Regarding::object(kind, name), "FailedDelete", message);
            }
        }
    }

    /// Returns the manifests that were removed since the last call. They have to be read again.
    pub(super) fn take_removed_manifests(&mut self) -> Vec<PathBuf> {
        std::mem::take(&mut self.removed_manifests)
    }

    /// Marks a provisioned volume as deleted. Returns false for any other volume, which is deleted with its manifest.
    pub(super) fn delete_volume(&mut self, name: &Name) -> Result<bool, StoreError> {
        let is_provisioned = self.store.records().is_provisioned(&name.name);
        if is_provisioned {
            let deleted = RecordUpdate::deleted(Kind::PersistentVolume, name, &now());
            self.store.write(&deleted)?;
        }
        Ok(is_provisioned)
    }

    /// Writes a record, and emits the update's notice. Returns whether the record has changed.
    fn update(&mut self, update: RecordUpdate) -> bool {
        let written = self.store_update(&update);
        // A notice of an unchanged record is emitted too: its count shows that the step was retried.
        if let Some(notice) = update.notice.filter(|_| written.is_some()) {
            notice.emit(&self.context.events);
        }
        written == Some(true)
    }

    /// Writes a record. Returns whether it has changed, or `None` if it can't be written.
    fn store_update(&mut self, update: &RecordUpdate) -> Option<bool> {
        let written = self.store.write(update);
        if let Err(error) = &written {
            self.store_failed(&(update.kind, update.name.clone()), error);
        }
        written.ok()
    }

    fn forget(&mut self, kind: Kind, name: &Name) -> bool {
        match self.store.forget(kind, name) {
            Ok(()) => true,
            Err(error) => {
                self.store_failed(&(kind, name.clone()), &error);
                false
            }
        }
    }

    fn store_failed(&mut self, key: &ObjectKey, error: &StoreError) {
        let (kind, name) = key;
        tracing::error!("{kind} {name}: {}", crust_state::error_message(error));
        self.backoff.fail(key, Instant::now());
    }

    /// Starts a call. Returns false if the call has to wait for another operation on the volume.
    fn begin(
        &mut self,
        key: ObjectKey,
        call: DriverCall,
        objects: &Arc<Objects>,
        volumes: &mut Volumes,
    ) -> bool {
        let reservation = call.reservation();
        if let Some((id, name)) = &reservation
            && !volumes.reserve(id, name)
        {
            return false;
        }
        self.in_progress
            .insert(key.clone(), reservation.map(|(id, _)| id));
        let known = self.capabilities.known().get(call.driver()).cloned();
        let (context, objects, completions) = (
            self.context.clone(),
            Arc::clone(objects),
            self.completions.clone(),
        );
        if let DriverCall::Create(create) = &call {
            create.started().emit(&context.events);
        }
        tokio::spawn(async move {
            let result = call.carry_out(&context, &objects, key, known).await;
            let _ = completions.send(Completion::Claim(result));
        });
        true
    }

    fn end_call(&mut self, key: &ObjectKey, volumes: &mut Volumes) {
        if let Some(id) = self.in_progress.remove(key).flatten() {
            volumes.release(&id);
        }
    }

    /// Handles the result of a task. Returns whether a record was written.
    pub(super) fn handle_result(&mut self, result: ClaimTaskResult, volumes: &mut Volumes) -> bool {
        match result {
            ClaimTaskResult::Capabilities(driver, capabilities) => {
                self.capabilities.record_answer(driver, capabilities);
                false
            }
            ClaimTaskResult::CapabilitiesChanged(key, driver, capabilities) => {
                self.end_call(&key, volumes);
                self.capabilities.insert(driver, capabilities);
                // The backoff keeps a driver whose answers vary from being asked in a loop.
                self.backoff.fail(&key, Instant::now());
                false
            }
            ClaimTaskResult::Step {
                key,
                is_ok,
                updates,
                forget,
                notice,
            } => {
                self.end_call(&key, volumes);
                if is_ok {
                    self.backoff.succeed(&key);
                } else {
                    self.backoff.fail(&key, Instant::now());
                }
                if let Some(notice) = notice {
                    notice.emit(&self.context.events);
                }
                let mut is_changed = false;
                for update in updates {
                    is_changed |= self.update(update);
                }
                if let Some((kind, name)) = forget {
                    is_changed |= self.forget(kind, &name);
                }
                is_changed
            }
        }
    }
}

/// Emits the notices that weren't part of the last plan, and remembers all of them.
fn emit_new(emitted: &mut Vec<Notice>, notices: Vec<Notice>, events: &Events) {
    for notice in &notices {
        if !emitted.contains(notice) {
            notice.clone().emit(events);
        }
    }
    *emitted = notices;
}

/// Returns the current time in the form of `metadata.deletionTimestamp`.
fn now() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
}

/// Returns the drivers that may have a volume: those of storage classes and of volumes.
fn driver_names(objects: &Objects) -> BTreeSet<String> {
    let classes = objects.storage_classes.values();
    let classes = classes.map(|class| class.object.provisioner.clone());
    let volumes = objects.volumes.values().filter_map(|volume| {
        let csi = volume.spec.as_ref()?.csi.as_ref()?;
        Some(csi.driver.clone())
    });
    classes.chain(volumes).collect()
}
