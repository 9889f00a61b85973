//! Explains what a create of a bundle would do now: it runs the read-only part of a create, and serialises the plan
//! with details about the mounts and volumes. It changes nothing.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use crust_blockfs::user_namespace::UserNamespace;
use crust_state::config::MountMode;
use crust_state::record::User;
use crust_state::{StateDirectory, TargetPath, error_message};
use crust_volume::{Context, MountPreview, PreviewPod, preview_mount};
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};

use crate::node::CachedNode;
use crate::oci::{Document, Mount, pretty};
use crate::plan::{ContainerPlan, Plan, PlanError, PlannedMount, SandboxPlan, plan_mount};
use crate::rewrite::Rewrite;
use crate::role::{self, Role, RoleError};
use crate::start::{
    ConfigScan, CreateCall, original_config, running_sandbox, with_unambiguous_config,
};
use crate::users;

/// The explanation of a create. `crust explain --json` prints it serialised. Its keys and those of the plan are a
/// stable interface: docs/protocol.md, "explain".
#[derive(Debug, Default, Serialize)]
pub(crate) struct Explanation {
    /// Path of the config that was read.
    pub(crate) config: String,
    /// Whether an earlier create rewrote the config. All other fields describe the config before that rewrite.
    pub(crate) rewritten: bool,
    /// `None` if the create is refused before the role is determined. `mounts`, `plan`, `volumes`, `rewrite` and `diff`
    /// are empty then, too.
    pub(crate) role: Option<ExplainedRole>,
    pub(crate) mounts: Vec<ExplainedMount>,
    pub(crate) plan: Option<Plan>,
    pub(crate) volumes: Vec<ExplainedVolume>,
    /// The reasons why a create would be refused. The create would end with the first.
    pub(crate) refusals: Vec<String>,
    pub(crate) rewrite: Option<Rewrite>,
    /// Unified diff of the config, with one line for each value.
    pub(crate) diff: String,
}

/// The container's role in its pod.
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
    /// `None` if the mount doesn't show a volume.
    #[serde(rename = "match")]
    pub(crate) planned: Option<PlannedMount>,
    /// A likely reason why the mount doesn't show a volume.
    pub(crate) note: Option<String>,
    pub(crate) error: Option<String>,
}

/// A volume of the container, or of the sandbox's pod.
#[derive(Debug, Serialize)]
pub(crate) struct ExplainedVolume {
    pub(crate) volume: String,
    pub(crate) target_path: String,
    /// `None` if the volume can't be mounted.
    #[serde(flatten)]
    pub(crate) preview: Option<MountPreview>,
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "users_or_none"
    )]
    pub(crate) users: Option<Vec<User>>,
    /// The reason why the pod can't use the volume.
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

/// Explains the create of a bundle. `config` is the content of its config. Reasons for a refusal are part of the
/// explanation.
pub(crate) fn explain(call: CreateCall<'_>, config: &[u8]) -> Explanation {
    let mut explanation = Explanation {
        config: call.config_path().display().to_string(),
        ..Explanation::default()
    };
    if let Err(error) = explanation.explain_create(&call, config) {
        explanation.refuse(&error);
    }
    explanation
}

/// The size of the largest config whose diff is shown, in bytes. The cost of a diff grows with the square of the number
/// of lines.
const MAX_DIFF_BYTES: usize = 256 << 10;

impl Explanation {
    /// Adds the error that a create would end with.
    fn refuse(&mut self, error: &anyhow::Error) {
        self.add_refusal(error_message(error.as_ref()));
    }

    /// Adds a refusal, unless it was added before.
    fn add_refusal(&mut self, sentence: String) {
        if !self.refusals.contains(&sentence) {
            self.refusals.push(sentence);
        }
    }

    /// Returns the value of a result. Adds an error as a refusal, so that the explanation can go on without the value.
    fn value_or_refuse<T>(&mut self, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.refuse(&error)).ok()
    }

    fn explain_create(&mut self, call: &CreateCall<'_>, config: &[u8]) -> Result<()> {
        let text = String::from_utf8_lossy(config);
        let lossy = Document::parse_lossy(&text)?;
        let Some(scan) = call.scan(&lossy)? else {
            self.role = Some(explain_role(&lossy));
            // No mount's source leads to a volume. Mounts that can't be parsed are left to the delegate.
            let mounts = lossy.mounts().unwrap_or_default();
            self.mounts = explain_mounts(call, &mounts, |_| Ok(None));
            self.plan = Some(Plan::PassThrough);
            return Ok(());
        };
        let subject = scan.subject.clone();
        let original = self.config_before_rewrite(call, config, &subject)?;
        let original = original.as_deref().unwrap_or(config);
        let given = Document::parse(original).with_context(|| subject.clone())?;
        with_unambiguous_config(&given, &subject, |document| {
            self.explain_plan(call, config, (document, &given), scan)
        })
    }

    /// Explains the plan of a config. `given` is the config as its caller wrote it, and `document` the form of it that
    /// [`with_unambiguous_config`] provides. `config` is the file's content, which an earlier create may have
    /// rewritten.
    fn explain_plan(
        &mut self,
        call: &CreateCall<'_>,
        config: &[u8],
        (document, given): (&Document<'_>, &Document<'_>),
        scan: ConfigScan<'_, '_>,
    ) -> Result<()> {
        self.role = Some(explain_role(document));
        let mounts = document.mounts().with_context(|| scan.subject.clone())?;
        let bundle = call.bundle()?;
        // The lookups may borrow from `mounts` from here on.
        let mut scan = scan;
        self.mounts = explain_mounts(call, &mounts, |mount| {
            plan_mount(mount, &bundle, &mut scan.lookups, call.config, &scan.node)
        });
        let plan = call.plan(document, given, &mut scan)?;
        let given = given.text().as_bytes();
        let rewrite = match &plan {
            Plan::PassThrough => {
                self.diff = self.diff(config, given);
                Ok(None)
            }
            Plan::Sandbox(plan) => self.explain_sandbox(call, document, plan, &scan.node),
            Plan::Container(plan) => self.explain_container(call, document, plan, &scan.node),
        };
        self.plan = Some(plan);
        if let Some(rewrite) = rewrite? {
            // A create would fail if the bundle can't be recorded.
            call.bundle_to_record(call.real_config()?)?;
            self.diff = self.diff(given, &rewrite.text(document)?);
            self.rewrite = Some(rewrite);
        }
        Ok(())
    }

    /// Returns the config as it was before an earlier create rewrote it; `None` if no create has rewritten it.
    fn config_before_rewrite(
        &mut self,
        call: &CreateCall<'_>,
        config: &[u8],
        subject: &str,
    ) -> Result<Option<Vec<u8>>> {
        let given = Document::parse(config).with_context(|| subject.to_owned())?;
        with_unambiguous_config(&given, subject, |document| {
            if !call.is_rewritten(document) {
                return Ok(None);
            }
            self.rewritten = true;
            let state = StateDirectory::open_lazily(&call.config.state_dir)?;
            let (_, text) = original_config(
                &state,
                &call.bundle_to_record(call.real_config()?)?,
                document,
                call.config,
            )?;
            Ok(Some(text))
        })
    }

    fn explain_sandbox(
        &mut self,
        call: &CreateCall<'_>,
        document: &Document<'_>,
        plan: &SandboxPlan,
        node: &CachedNode<'_>,
    ) -> Result<Option<Rewrite>> {
        let rewrite = self.value_or_refuse(call.sandbox_rewrite(document, plan, node));
        let state = StateDirectory::open_lazily(&call.config.state_dir)?;
        let context = call.context(&state);
        for volume in &plan.volumes {
            // If the sandbox's hook can't mount a volume, the create of the sandbox succeeds. The create of the
            // container with the volume is refused.
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

    fn explain_container(
        &mut self,
        call: &CreateCall<'_>,
        document: &Document<'_>,
        plan: &ContainerPlan,
        node: &CachedNode<'_>,
    ) -> Result<Option<Rewrite>> {
        let rewrite = self.value_or_refuse(call.container_rewrite(document, plan, node));
        let state = StateDirectory::open_lazily(&call.config.state_dir)?;
        let context = call.context(&state);
        let sandbox = self.value_or_refuse(running_sandbox(plan)).flatten();
        if let (MountMode::Bind, Some(ids @ UserNamespace::Joined(_))) =
            (plan.mount_mode(), &plan.ids)
        {
            self.value_or_refuse(ids.open().with_context(|| plan.subject()));
        }
        let id = call.command.id.to_string_lossy();
        for volume in plan.volumes() {
            let pod = PreviewPod {
                uid: &plan.mounted_in.pod_uid(volume, &id),
                sandbox: sandbox.as_ref(),
                label: plan.label(),
            };
            let volume = ExplainedVolume::new(&context, volume, pod);
            if let Some(problem) = &volume.problem {
                self.add_refusal(problem.clone());
            }
            self.volumes.push(volume);
        }
        Ok(rewrite.map(|(rewrite, _)| rewrite))
    }

    /// Returns the unified diff of two configs, with one line for each value.
    fn diff(&self, before: &[u8], after: &[u8]) -> String {
        if before.len().max(after.len()) > MAX_DIFF_BYTES {
            let path = &self.config;
            return format!("--- {path}: more than {MAX_DIFF_BYTES} bytes, the diff isn't shown\n");
        }
        let [before, after] = [before, after].map(|text| pretty(&String::from_utf8_lossy(text)));
        crust_engines::unified(&self.config, Some(&before), Some(&after))
    }
}

impl ExplainedVolume {
    /// Explains the use of a volume by a pod.
    fn new(context: &Context<'_>, target: &TargetPath, pod: PreviewPod<'_>) -> Self {
        let mut found = preview_mount(context, target, pod);
        let problem = match &found {
            Ok(preview) => preview.access.as_ref().err(),
            Err(error) => Some(error),
        };
        Self {
            volume: target.volume_name(),
            target_path: target.as_path().display().to_string(),
            problem: problem.map(|error| error_message(error)),
            users: found.as_mut().ok().map(|it| std::mem::take(&mut it.users)),
            preview: found.ok(),
        }
    }
}

fn explain_role(document: &Document<'_>) -> ExplainedRole {
    let annotation = |key: &str| document.annotation(key);
    ExplainedRole {
        role: Role::from_annotations(annotation),
        annotations: role::role_annotations(annotation),
    }
}

/// Explains the config's mounts. `plan` plans one of them.
fn explain_mounts<'m>(
    call: &CreateCall<'_>,
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
            Ok(None) => explained.note = unstaged_note(source, call),
            Err(error) => explained.error = Some(error_message(&error)),
        }
        explained
    });
    explained.collect()
}

/// Returns a note for a source that has the path of a CSI volume although nothing is staged for it; `None` for any
/// other source.
fn unstaged_note(source: &str, call: &CreateCall<'_>) -> Option<String> {
    let path = TargetPath::new(source).ok()?;
    let bind = path.subpath_bind().map(|bind| bind.target());
    let volume = path
        .csi_volume()
        .map(|volume| volume.directory().to_owned());
    let volume = volume.and_then(|directory| TargetPath::new(directory).ok());
    let target = bind.or(volume)?;
    let entry = call.config.crust_root.join(target.digest().to_string());
    let staged = call.crust.has_entry(&target).ok()?;
    (!staged).then(|| {
        format!(
            "nothing is staged for {target}: there is no {}",
            entry.display()
        )
    })
}
