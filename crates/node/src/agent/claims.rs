//! Claims: bound to volumes that are made, grow and are destroyed, as what is decided about them is kept.

mod call;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::Done;
use super::pods::Pods;
use super::volumes::Volumes;
use crate::claims::{Notice, Records, Step, Store, StoreError, World, Write, plan};
use crate::csi::Abilities;
use crate::objects::{Kind, Name, Objects, Pod};
use crate::operations::{self, Context};
use crate::sources::{self, Loaded};
use crate::volumes::backoff::Backoff;

use call::{Call, OnNode};

/// How long what a driver has said that it can do counts where something waits for it.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// Steps follow from one another: made, bound, written. More than so many at a time are a mistake of ours.
const ROUNDS: usize = 16;

/// Which object: a step at a time for each.
type Key = (Kind, Name);

/// All claims of the node.
#[derive(Debug)]
pub(crate) struct Claims {
    context: Context,
    done: mpsc::UnboundedSender<Done>,
    store: Store,
    /// What drivers can do, as far as they have said.
    drivers: BTreeMap<String, Abilities>,
    asked: Option<Instant>,
    /// Of which the answer is known, or is to come.
    asked_for: BTreeSet<String>,
    is_asking: bool,
    backoff: Backoff<Key>,
    under_way: BTreeSet<Key>,
    told: Vec<Notice>,
}

/// What has ended.
#[derive(Debug)]
pub(crate) enum ClaimDone {
    /// Drivers have said what they can do.
    Asked(BTreeMap<String, Abilities>),
    /// A step.
    Step {
        key: Key,
        is_ok: bool,
        /// To be written.
        writes: Vec<Write>,
        /// To be forgotten.
        forget: Option<Key>,
        /// To be told.
        notice: Option<Notice>,
    },
    /// The driver can do something else than it could: nothing was done.
    Other(Key, String, Abilities),
}

/// What is decided by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look<'a> {
    pub(super) loaded: &'a Loaded,
    pub(super) objects: &'a Arc<Objects>,
    pub(super) pods: &'a Pods,
    pub(super) volumes: &'a Volumes,
    pub(super) is_known: bool,
}

impl Claims {
    /// Those that are on the disk.
    pub(super) fn open(
        context: &Context,
        done: mpsc::UnboundedSender<Done>,
    ) -> Result<Self, StoreError> {
        Ok(Self {
            store: Store::open(context.layout.root())?,
            context: context.clone(),
            done,
            drivers: BTreeMap::new(),
            asked: None,
            asked_for: BTreeSet::new(),
            is_asking: false,
            backoff: Backoff::default(),
            under_way: BTreeSet::new(),
            told: Vec::new(),
        })
    }

    /// What was decided.
    pub(super) const fn records(&self) -> &Records {
        self.store.records()
    }

    /// Drivers came or went.
    pub(super) fn drivers_changed(&mut self) {
        self.asked_for.clear();
        self.backoff = Backoff::default();
    }

    /// Begins what can be begun. Whether something was written: the objects are others then, and there may be
    /// more to do. When to look again though nothing happens.
    pub(super) fn step(&mut self, look: Look<'_>, now: Instant) -> (bool, Option<Duration>) {
        let pods: Vec<Arc<Pod>> = look.pods.written().values().cloned().collect();
        let world = World {
            objects: look.objects,
            records: self.store.records(),
            pods: &pods,
            actual: look.volumes.actual(),
            drivers: &self.drivers,
            complete: look.is_known && look.loaded.errors.is_empty(),
        };
        let plan = plan(&world);
        let unused: Vec<Name> = world
            .objects
            .claims
            .iter()
            .filter(|(_, claim)| claim.metadata.deletion_timestamp.is_some())
            .filter(|(name, _)| world.complete && !world.is_used(name))
            .map(|(name, _)| name.clone())
            .collect();
        for name in unused {
            self.remove(look.loaded, &name);
        }
        self.ask(look.objects, plan.waiting.is_empty(), now);
        // Whoever is being asked may have all that is waited for.
        if !self.is_asking {
            self.tell(&plan.waiting);
        }
        let mut is_changed = false;
        let mut pause = (!plan.waiting.is_empty()).then_some(ASK_AGAIN);
        for step in plan.steps {
            let key = step.of();
            if self.under_way.contains(&key) {
                continue;
            }
            if let Some(remaining) = self.backoff.remaining(&key, now) {
                pause = Some(pause.map_or(remaining, |it| it.min(remaining)));
                continue;
            }
            match step {
                Step::Write(write) => is_changed |= self.write(*write),
                Step::Forget(kind, name) => is_changed |= self.forget(kind, &name),
                Step::Create(it) => self.begin(key, Call::Create(it), look.objects),
                Step::Delete(it) => self.begin(key, Call::Delete(it), look.objects),
                Step::Grow(it) => {
                    is_changed |= self.write(it.begun());
                    self.begin(key, Call::Grow(it), look.objects);
                }
                Step::GrowOnNode(it) => {
                    if let Some(on_node) = OnNode::of(*it, look) {
                        is_changed |= self.write(on_node.grow.begun());
                        self.begin(key, Call::OnNode(Box::new(on_node)), look.objects);
                    }
                }
            }
        }
        (is_changed, pause)
    }

    /// A claim that was deleted, and that no pod has any more.
    fn remove(&mut self, loaded: &Loaded, name: &Name) {
        let kind = Kind::PersistentVolumeClaim;
        if self
            .backoff
            .remaining(&(kind, name.clone()), Instant::now())
            .is_some()
        {
            return;
        }
        if let Err(error) = sources::remove(loaded, kind, name) {
            self.backoff.fail(&(kind, name.clone()), Instant::now());
            tracing::warn!("{}", crust_state::sentence(&error));
        }
    }

    /// Asks drivers what they can do: those that weren't asked, and all where something waits for them.
    fn ask(&mut self, objects: &Objects, is_idle: bool, now: Instant) {
        let names = drivers_of(objects);
        let is_old = self
            .asked
            .is_none_or(|asked| now.duration_since(asked) > ASK_AGAIN);
        let is_missing = names.iter().any(|name| !self.drivers.contains_key(name));
        let is_new = !names.is_subset(&self.asked_for);
        let is_due = is_new || (is_old && (is_missing || !is_idle));
        if self.is_asking || !is_due {
            return;
        }
        self.asked = Some(now);
        self.asked_for.clone_from(&names);
        self.is_asking = true;
        let (drivers, done) = (self.context.drivers.clone(), self.done.clone());
        tokio::spawn(async move {
            let mut told = BTreeMap::new();
            for name in names {
                if let Some(driver) = drivers.get(&name)
                    && let Ok(abilities) = operations::abilities(&driver).await
                {
                    told.insert(name, abilities);
                }
            }
            let _ = done.send(Done::Claim(ClaimDone::Asked(told)));
        });
    }

    /// Tells what claims wait for, once each.
    fn tell(&mut self, waiting: &[Notice]) {
        for notice in waiting {
            if !self.told.contains(notice) {
                notice.clone().tell(&self.context.events);
            }
        }
        self.told = waiting.to_vec();
    }

    fn write(&mut self, write: Write) -> bool {
        match self.store.write(&write) {
            Ok(()) => {
                if let Some(notice) = write.notice {
                    notice.tell(&self.context.events);
                }
                true
            }
            Err(error) => {
                self.failed(&(write.kind, write.name), &error);
                false
            }
        }
    }

    fn forget(&mut self, kind: Kind, name: &Name) -> bool {
        match self.store.forget(kind, name) {
            Ok(()) => true,
            Err(error) => {
                self.failed(&(kind, name.clone()), &error);
                false
            }
        }
    }

    fn failed(&mut self, key: &Key, error: &StoreError) {
        let (kind, name) = key;
        tracing::error!("{kind} {name}: {}", crust_state::sentence(error));
        self.backoff.fail(key, Instant::now());
    }

    fn begin(&mut self, key: Key, call: Call, objects: &Arc<Objects>) {
        self.under_way.insert(key.clone());
        let known = self.drivers.get(call.driver()).cloned();
        let (context, objects, done) =
            (self.context.clone(), Arc::clone(objects), self.done.clone());
        if let Call::Create(create) = &call {
            create.begun().tell(&context.events);
        }
        tokio::spawn(async move {
            let ended = call.carry_out(&context, &objects, key, known).await;
            let _ = done.send(Done::Claim(ended));
        });
    }

    /// What has ended. Whether something was written.
    pub(super) fn take(&mut self, done: ClaimDone) -> bool {
        match done {
            ClaimDone::Asked(drivers) => {
                self.is_asking = false;
                self.drivers = drivers;
                false
            }
            ClaimDone::Other(key, driver, abilities) => {
                self.under_way.remove(&key);
                self.drivers.insert(driver, abilities);
                false
            }
            ClaimDone::Step {
                key,
                is_ok,
                writes,
                forget,
                notice,
            } => {
                self.under_way.remove(&key);
                if is_ok {
                    self.backoff.succeed(&key);
                } else {
                    self.backoff.fail(&key, Instant::now());
                }
                if let Some(notice) = notice {
                    notice.tell(&self.context.events);
                }
                let mut is_changed = false;
                for write in writes {
                    is_changed |= self.write(write);
                }
                if let Some((kind, name)) = forget {
                    is_changed |= self.forget(kind, &name);
                }
                is_changed
            }
        }
    }

    /// How often what was written may lead to more at once.
    pub(super) const fn rounds() -> usize {
        ROUNDS
    }
}

/// Drivers that somebody may have a volume of.
fn drivers_of(objects: &Objects) -> BTreeSet<String> {
    let classes = objects.storage_classes.values();
    let classes = classes.map(|class| class.object.provisioner.clone());
    let volumes = objects.volumes.values().filter_map(|volume| {
        let csi = volume.spec.as_ref()?.csi.as_ref()?;
        Some(csi.driver.clone())
    });
    classes.chain(volumes).collect()
}
