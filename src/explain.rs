//! Explains what a create of a bundle would come to now: the plan of the create's own code, serialised, and what
//! stands beside it. Nothing is done.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use crust_blockfs::user_namespace::UserNamespace;
use crust_state::config::MountMode;
use crust_state::record::User;
use crust_state::{StateDirectory, TargetPath, sentence};
use crust_volume::{Context, MountPreview, PreviewPod, preview_mount};
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};

use crate::node::CachedNode;
use crate::oci::{Document, Mount, pretty};
use crate::plan::{ContainerPlan, Plan, PlanError, PlannedMount, SandboxPlan, planned};
use crate::rewrite::Rewrite;
use crate::role::{self, Role, RoleError};
use crate::start::{FirstLook, Job, in_one_reading, original, running_sandbox};
use crate::users;

/// The explanation of a create. Serialised it is what `crust explain --json` prints: its keys, and those of the plan,
/// are promised in docs/protocol.md, "explain".
#[derive(Debug, Default, Serialize)]
pub(crate) struct Explanation {
    /// The file that was read.
    pub(crate) config: String,
    /// Whether an earlier create rewrote it; all else is of what it was before.
    pub(crate) rewritten: bool,
    /// `None`, as everything below, if a create is refused before it comes to that.
    pub(crate) role: Option<ExplainedRole>,
    pub(crate) mounts: Vec<ExplainedMount>,
    pub(crate) plan: Option<Plan>,
    pub(crate) volumes: Vec<ExplainedVolume>,
    /// The reasons why a create would be refused. Its error would be the first.
    pub(crate) refusals: Vec<String>,
    pub(crate) rewrite: Option<Rewrite>,
    /// The change of the config, with a line for each value.
    pub(crate) diff: String,
}

/// The container's role in its pod, with the annotations that it was derived from.
#[derive(Debug)]
pub(crate) struct ExplainedRole {
    pub(crate) role: Result<Role, RoleError>,
    /// Annotations that the role was derived from.
    pub(crate) annotations: BTreeMap<&'static str, String>,
}

/// A mount of the config, and what is planned for it.
#[derive(Debug, Serialize)]
pub(crate) struct ExplainedMount {
    pub(crate) index: usize,
    pub(crate) destination: String,
    pub(crate) source: Option<String>,
    /// `None` if it isn't of a volume.
    #[serde(rename = "match")]
    pub(crate) planned: Option<PlannedMount>,
    /// A likely reason why it isn't of a volume.
    pub(crate) note: Option<String>,
    pub(crate) error: Option<String>,
}

/// A volume of the container, or of the sandbox's pod.
#[derive(Debug, Serialize)]
pub(crate) struct ExplainedVolume {
    pub(crate) volume: String,
    pub(crate) target_path: String,
    /// `None` if it can't be mounted.
    #[serde(flatten)]
    pub(crate) preview: Option<MountPreview>,
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "users_or_none"
    )]
    pub(crate) users: Option<Vec<User>>,
    /// The reason why the pod can't have it.
    pub(crate) problem: Option<String>,
}

impl Serialize for ExplainedRole {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut keys = serializer.serialize_map(None)?;
        match &self.role {
            Ok(Role::Sandbox { pod_uid }) => {
                keys.serialize_entry("kind", "sandbox")?;
                keys.serialize_entry("pod_uid", pod_uid)?;
            }
            Ok(Role::AppContainer {
                sandbox_id,
                pod_uid,
            }) => {
                keys.serialize_entry("kind", "container")?;
                keys.serialize_entry("sandbox", sandbox_id)?;
                keys.serialize_entry("pod_uid", pod_uid)?;
            }
            Ok(Role::Standalone) => keys.serialize_entry("kind", "standalone")?,
            Err(error) => {
                keys.serialize_entry("kind", "unknown")?;
                keys.serialize_entry("error", &error.to_string())?;
            }
        }
        keys.serialize_entry("annotations", &self.annotations)?;
        keys.end()
    }
}

#[expect(clippy::ref_option, reason = "serde passes the field's reference")]
fn users_or_none<S: Serializer>(
    users: &Option<Vec<User>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    users::serialize_users(users.as_deref().unwrap_or_default(), serializer)
}

/// Explains the create of a bundle whose config has these bytes. That it would be refused is an
/// explanation, too.
pub(crate) fn explain(job: Job<'_>, config: &[u8]) -> Explanation {
    let mut explanation = Explanation {
        config: job.config_path().display().to_string(),
        ..Explanation::default()
    };
    if let Err(error) = explanation.fill(&job, config) {
        explanation.refuse(&error);
    }
    explanation
}

/// The bytes of the largest config whose difference is shown: comparing lines costs their square.
const MOST_SHOWN: usize = 256 << 10;

impl Explanation {
    /// Adds an error that a create would end with.
    fn refuse(&mut self, error: &anyhow::Error) {
        self.refuse_saying(sentence(error.as_ref()));
    }

    /// Adds a sentence, unless another step has added the same.
    fn refuse_saying(&mut self, sentence: String) {
        if !self.refusals.contains(&sentence) {
            self.refusals.push(sentence);
        }
    }

    /// Returns what there is. A create would be refused at an error; an explanation goes on without.
    fn unless_refused<T>(&mut self, outcome: Result<T>) -> Option<T> {
        outcome.map_err(|error| self.refuse(&error)).ok()
    }

    fn fill(&mut self, job: &Job<'_>, config: &[u8]) -> Result<()> {
        let text = String::from_utf8_lossy(config);
        let written = Document::parse_lossy(&text)?;
        let Some(first) = job.first_look(&written)? else {
            self.role = Some(role_of(&written));
            // None of them was found to be of a volume. What can't be read is the delegate's business.
            let read = written.mounts().unwrap_or_default();
            self.mounts = mounts(job, &read, |_| Ok(None));
            self.plan = Some(Plan::PassOn);
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

    /// Explains a config as it was `given`, and the one reading of it; `config` is what an earlier create may have
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
        let given = given.text().as_bytes();
        let rewrite = match &plan {
            Plan::PassOn => {
                self.diff = self.difference(config, given);
                Ok(None)
            }
            Plan::Sandbox(plan) => self.sandbox(job, document, plan, &first.node),
            Plan::Container(plan) => self.container(job, document, plan, &first.node),
        };
        self.plan = Some(plan);
        if let Some(rewrite) = rewrite? {
            // The create would record it by its bundle's path.
            job.made(job.real_config()?)?;
            self.diff = self.difference(given, &rewrite.text(document)?);
            self.rewrite = Some(rewrite);
        }
        Ok(())
    }

    /// Returns a config that an earlier create rewrote as it was before that.
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
        node: &CachedNode<'_>,
    ) -> Result<Option<Rewrite>> {
        let rewrite = self.unless_refused(job.sandbox_rewrite(document, plan, node));
        let state = StateDirectory::at(&job.config.state_dir)?;
        let context = job.context(&state);
        for volume in &plan.volumes {
            // A hook mounts them: what it can't mount, the container's create is refused with.
            let pod = PreviewPod {
                uid: &plan.pod_uid,
                sandbox: None,
                label: plan.label.as_deref(),
            };
            self.volumes
                .push(ExplainedVolume::new(&context, volume, pod));
        }
        Ok(rewrite)
    }

    fn container(
        &mut self,
        job: &Job<'_>,
        document: &Document<'_>,
        plan: &ContainerPlan,
        node: &CachedNode<'_>,
    ) -> Result<Option<Rewrite>> {
        let rewrite = self.unless_refused(job.container_rewrite(document, plan, node));
        let state = StateDirectory::at(&job.config.state_dir)?;
        let context = job.context(&state);
        let sandbox = self.unless_refused(running_sandbox(plan)).flatten();
        if let (MountMode::Bind, Some(ids @ UserNamespace::Joined(_))) = (plan.way(), &plan.ids) {
            self.unless_refused(ids.open().with_context(|| plan.names()));
        }
        let id = job.start.id.to_string_lossy();
        for volume in plan.volumes() {
            let pod = PreviewPod {
                uid: &plan.mounted_in.pod_uid(volume, &id),
                sandbox: sandbox.as_ref(),
                label: plan.label(),
            };
            let volume = ExplainedVolume::new(&context, volume, pod);
            if let Some(problem) = &volume.problem {
                self.refuse_saying(problem.clone());
            }
            self.volumes.push(volume);
        }
        Ok(rewrite.map(|(rewrite, _)| rewrite))
    }

    /// Returns the difference of two configs, with a line for each value.
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

impl ExplainedVolume {
    /// Looks at a volume for a pod.
    fn new(context: &Context<'_>, target: &TargetPath, pod: PreviewPod<'_>) -> Self {
        let mut found = preview_mount(context, target, pod);
        let problem = match &found {
            Ok(preview) => preview.access.as_ref().err(),
            Err(error) => Some(error),
        };
        Self {
            volume: target.volume_name(),
            target_path: target.as_path().display().to_string(),
            problem: problem.map(|error| sentence(error)),
            users: found.as_mut().ok().map(|it| std::mem::take(&mut it.users)),
            preview: found.ok(),
        }
    }
}

fn role_of(document: &Document<'_>) -> ExplainedRole {
    let annotation = |key: &str| document.annotation(key);
    ExplainedRole {
        role: Role::from_annotations(annotation),
        annotations: role::role_annotations(annotation),
    }
}

/// Explains the config's mounts by what `plan` returns for each.
fn mounts<'m>(
    job: &Job<'_>,
    mounts: &'m [Mount<'m>],
    mut plan: impl FnMut(&'m Mount<'m>) -> Result<Option<PlannedMount>, PlanError>,
) -> Vec<ExplainedMount> {
    let explained = mounts.iter().map(|mount| {
        let source = mount.source.as_deref().unwrap_or_default();
        let mut explained = ExplainedMount {
            index: mount.index,
            destination: mount.destination.to_string(),
            source: mount.source.as_deref().map(str::to_owned),
            planned: None,
            note: None,
            error: None,
        };
        match plan(mount) {
            Ok(planned @ Some(_)) => explained.planned = planned,
            Ok(None) => explained.note = unstaged(source, job),
            Err(error) => explained.error = Some(sentence(&error)),
        }
        explained
    });
    explained.collect()
}

/// Returns a note for a source that is a CSI volume's by its name, and for which nothing is staged.
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
