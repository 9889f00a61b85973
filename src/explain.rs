//! What a create of a bundle would come to now: decided by the create's own code, and nothing done.

mod told;
mod volumes;

use std::path::Path;

use anyhow::{Context as _, Result};
use crust_blockfs::ids::Ids;
use crust_state::config::MountMode;
use crust_state::{StateDirectory, TargetPath, sentence};
use crust_volume::Of;

use crate::node::ThisNode;
use crate::oci::{Document, Mount, pretty};
use crate::plan::{ContainerPlan, Plan, PlanError, PlannedMount, SandboxPlan, planned};
use crate::rewrite::Rewrite;
use crate::role::{self, Role};
use crate::start::{FirstLook, Job, in_one_reading, original, running_sandbox};

pub(crate) use told::{
    AccessTold, ByTold, Explanation, Kind, Layout, MatchTold, MountTold, Place, PlanTold, RoleTold,
    StagedTold, VolumeTold,
};
use volumes::look;

/// Explains the create of a bundle whose config has these bytes. That it would be refused is an
/// explanation, too.
pub(crate) fn explain(job: Job<'_>, config: &[u8]) -> Explanation {
    let mut explanation = Explanation {
        config: shown(&job.config_path()),
        ..Explanation::default()
    };
    if let Err(error) = explanation.fill(&job, config) {
        explanation.refuse(&error);
    }
    explanation
}

/// Of a config, in bytes; to compare lines costs their square.
const MOST_SHOWN: usize = 256 << 10;

impl Explanation {
    /// An error that a create would end with.
    fn refuse(&mut self, error: &anyhow::Error) {
        self.refuse_saying(sentence(error.as_ref()));
    }

    /// What several steps find is told once.
    fn refuse_saying(&mut self, sentence: String) {
        if !self.refusals.contains(&sentence) {
            self.refusals.push(sentence);
        }
    }

    /// What there is, unless a create would be refused here; it goes on with what else can be told.
    fn unless_refused<T>(&mut self, outcome: Result<T>) -> Option<T> {
        outcome.map_err(|error| self.refuse(&error)).ok()
    }

    fn fill(&mut self, job: &Job<'_>, config: &[u8]) -> Result<()> {
        let text = String::from_utf8_lossy(config);
        let written = Document::at_first(&text)?;
        let Some(first) = job.first_look(&written)? else {
            self.role = Some(role_of(&written));
            // None of them was found to be of a volume. What can't be read is the delegate's business.
            let read = written.mounts().unwrap_or_default();
            self.mounts = mounts(job, &read, |_| Ok(None));
            self.plan = Some(PlanTold::PassOn);
            return Ok(());
        };
        let who = first.who.clone();
        let before = self.before(job, config, &who)?;
        let given = before.as_deref().unwrap_or(config);
        let written = Document::parse(given).with_context(|| who.clone())?;
        in_one_reading(&written, &who, |document| {
            self.planned(job, config, (document, &written), first)
        })
    }

    /// Of a config as it was `given`, and the one reading of it; `config` is what an earlier create may have
    /// made of it.
    fn planned(
        &mut self,
        job: &Job<'_>,
        config: &[u8],
        (document, given): (&Document<'_>, &Document<'_>),
        first: FirstLook<'_, '_>,
    ) -> Result<()> {
        self.role = Some(role_of(document));
        let read = document.mounts().with_context(|| first.who.clone())?;
        let bundle = job.bundle()?;
        let mut first = first;
        self.mounts = mounts(job, &read, |mount| {
            planned(mount, &bundle, &mut first.lookups, job.config, &first.node)
        });
        let plan = job.plan(document, given, &mut first)?;
        let node = &first.node;
        let given = given.text().as_bytes();
        let after = match plan {
            Plan::PassOn => {
                self.plan = Some(PlanTold::PassOn);
                self.diff = self.difference(config, given);
                return Ok(());
            }
            Plan::Sandbox(plan) => self.sandbox(job, document, &plan, node)?,
            Plan::Container(plan) => self.container(job, document, &plan, node)?,
        };
        if let Some(after) = after {
            self.diff = self.difference(given, &after);
        }
        Ok(())
    }

    /// A config that an earlier create rewrote, as it was before that.
    fn before(&mut self, job: &Job<'_>, config: &[u8], who: &str) -> Result<Option<Vec<u8>>> {
        let given = Document::parse(config).with_context(|| who.to_owned())?;
        in_one_reading(&given, who, |document| {
            if !job.is_rewritten(document) {
                return Ok(None);
            }
            self.rewritten = true;
            let state = StateDirectory::at(&job.config.state_dir)?;
            let (_, text) = original(&state, &job.made(job.real_config()?)?, document, job.config)?;
            Ok(Some(text))
        })
    }

    fn sandbox(
        &mut self,
        job: &Job<'_>,
        document: &Document<'_>,
        plan: &SandboxPlan,
        node: &ThisNode<'_>,
    ) -> Result<Option<Vec<u8>>> {
        self.plan = Some(PlanTold::of_sandbox(plan));
        let rewrite = self.unless_refused(job.sandbox_rewrite(document, plan, node));
        let state = StateDirectory::at(&job.config.state_dir)?;
        let context = job.context(&state);
        for volume in &plan.volumes {
            // A hook mounts them: what it can't mount, the container's create is refused with.
            let pod = Of {
                uid: &plan.pod_uid,
                sandbox: None,
                label: plan.label.as_deref(),
            };
            self.volumes.push(look(&context, volume, pod));
        }
        self.rewritten_by(job, document, rewrite)
    }

    fn container(
        &mut self,
        job: &Job<'_>,
        document: &Document<'_>,
        plan: &ContainerPlan,
        node: &ThisNode<'_>,
    ) -> Result<Option<Vec<u8>>> {
        self.plan = Some(PlanTold::of_container(plan));
        let rewrite = self.unless_refused(job.container_rewrite(document, plan, node));
        let state = StateDirectory::at(&job.config.state_dir)?;
        let context = job.context(&state);
        let sandbox = self.unless_refused(running_sandbox(plan)).flatten();
        if let (MountMode::Bind, Some(ids @ Ids::Joined(_))) = (plan.way, &plan.ids) {
            self.unless_refused(ids.open().with_context(|| plan.names()));
        }
        let id = job.start.id.to_string_lossy();
        for volume in plan.volumes() {
            let pod = Of {
                uid: &plan.pod.uid(volume, &id),
                sandbox: sandbox.as_ref(),
                label: plan.label(),
            };
            let told = look(&context, volume, pod);
            if let Some(problem) = &told.problem {
                self.refuse_saying(problem.clone());
            }
            self.volumes.push(told);
        }
        let rewrite = rewrite.map(|(rewrite, _)| rewrite);
        self.rewritten_by(job, document, rewrite)
    }

    fn rewritten_by(
        &mut self,
        job: &Job<'_>,
        document: &Document<'_>,
        rewrite: Option<Rewrite>,
    ) -> Result<Option<Vec<u8>>> {
        let Some(rewrite) = rewrite else {
            return Ok(None);
        };
        let (text, record) = rewrite.apply(document, job.made(job.real_config()?)?)?;
        self.rewrite = Some(record.into());
        Ok(Some(text))
    }

    /// For people: with a line for each value.
    fn difference(&self, before: &[u8], after: &[u8]) -> String {
        if before.len().max(after.len()) > MOST_SHOWN {
            let path = &self.config;
            return format!(
                "--- {path}: more than {MOST_SHOWN} bytes, whose difference isn't shown\n"
            );
        }
        let [before, after] = [before, after].map(|text| pretty(&String::from_utf8_lossy(text)));
        crust_engines::unified(&self.config, Some(&before), Some(&after))
    }
}

fn role_of(document: &Document<'_>) -> RoleTold {
    let annotation = |key: &str| document.annotation(key);
    let annotations = role::evidence(annotation);
    RoleTold::new(Role::of(annotation), annotations)
}

fn mounts<'m>(
    job: &Job<'_>,
    mounts: &'m [Mount<'m>],
    mut plan: impl FnMut(&'m Mount<'m>) -> Result<Option<PlannedMount>, PlanError>,
) -> Vec<MountTold> {
    let told = mounts.iter().map(|mount| {
        let source = mount.source.as_deref().unwrap_or_default();
        let mut told = MountTold {
            index: mount.index,
            destination: mount.destination.to_string(),
            source: mount.source.as_deref().map(str::to_owned),
            found: None,
            note: None,
            error: None,
        };
        match plan(mount) {
            Ok(Some(planned)) => told.found = Some(matched(&planned)),
            Ok(None) => told.note = unstaged(source, job),
            Err(error) => told.error = Some(sentence(&error)),
        }
        told
    });
    told.collect()
}

fn matched(planned: &PlannedMount) -> MatchTold {
    MatchTold::new(&planned.found, planned.read_only, planned.maps_ids)
}

/// Of a source that is a CSI volume's by its name: where it isn't staged.
fn unstaged(source: &str, job: &Job<'_>) -> Option<String> {
    let path = TargetPath::new(source).ok()?;
    let bind = path.subpath_bind().map(|bind| bind.target());
    let volume = path
        .csi_volume()
        .map(|volume| volume.directory().to_owned());
    let volume = volume.and_then(|directory| TargetPath::new(directory).ok());
    let target = bind.or(volume)?;
    let entry = job.config.crust_root.join(target.digest().to_string());
    let staged = job.crust.has_entry(&target).ok()?;
    (!staged).then(|| {
        format!(
            "nothing is staged for {target}: there is no {}",
            entry.display()
        )
    })
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}
