//! The part of a create that reads and decides, and changes nothing. A create goes on from here, and `crust explain`
//! ends here.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use crust_state::bundle::BundleRecord;
use crust_state::config::MountMode;
use crust_state::foreign::ForeignFile;
use crust_state::{DelegateKind, TargetPath};
use crust_volume::VolumeProperties;
use crust_volume::sandbox::Sandbox;

use super::Job;
use crate::invocation::CreateVerb;
use crate::node::CachedNode;
use crate::oci::{Document, ParserFamily};
use crate::plan::{
    CREATED_BEFORE, ConfigReading, ContainerPlan, Lookups, MountedIn, Plan, PlanInput, SandboxPlan,
    passes_on, plan,
};
use crate::programs;
use crate::rewrite::{self, ContainerVolumes, Hooks, Rewrite, RewrittenBundle};
use crate::role::Role;

/// The largest config that is rewritten, and written to a record. What the API server, kubelet and
/// CRI let through is far below.
const MOST_BYTES: usize = 16 << 20;

/// Acts on a config that concerns `who`, in the form of which there is one reading.
pub(crate) fn in_one_reading<T>(
    given: &Document<'_>,
    who: &str,
    act: impl FnOnce(&Document<'_>) -> Result<T>,
) -> Result<T> {
    let bytes = given.text().len();
    if bytes > MOST_BYTES {
        bail!(
            "{who}: config.json has {bytes} bytes, and with a volume it may have {MOST_BYTES}; hint: what \
             makes it so large? annotations, mounts?"
        );
    }
    match given.mask_duplicates().with_context(|| who.to_owned())? {
        None => act(given),
        Some(text) => act(&Document::parse(&text)?),
    }
}

/// The result of the first look at a config that the delegate doesn't get as it is. All later steps of the create
/// start from it: each source is looked up once, and each volume's entry read once before its lock is held.
pub(crate) struct FirstLook<'a, 'd> {
    /// The name of whom the config concerns, for an error.
    pub(crate) who: String,
    /// The sources that were looked up, until the plan takes them.
    pub(crate) lookups: Lookups<'d>,
    pub(crate) node: CachedNode<'a>,
}

impl<'a> Job<'a> {
    /// The configuration, relative to the caller's directory. `None`: there is none.
    pub(crate) fn read(&self) -> Result<Option<ForeignFile>> {
        Ok(ForeignFile::read(&self.config_path())?)
    }

    /// Returns the path of the configuration, as it was given.
    pub(crate) fn config_path(&self) -> PathBuf {
        let config = self.start.config.clone();
        config.unwrap_or_else(|| self.start.bundle.join("config.json"))
    }

    /// Looks whether a config concerns a volume. `None`: the delegate gets the config unchanged.
    pub(crate) fn first_look<'d>(
        &self,
        document: &Document<'d>,
    ) -> Result<Option<FirstLook<'a, 'd>>> {
        let node = CachedNode::new(self.config, self.crust, self.deadline)?;
        let mut lookups = Lookups::default();
        let who = if rewrite::is_marked(document, is_sandbox(document)) {
            Some(CREATED_BEFORE.to_owned())
        } else {
            let bundle = self.bundle()?;
            let look = self.look(document, &bundle);
            look.concern(self.config, &node, &mut lookups)
        };
        Ok(who.map(|who| FirstLook { who, lookups, node }))
    }

    fn look<'l, 'd>(&self, document: &'l Document<'d>, bundle: &'l Path) -> ConfigReading<'l, 'd> {
        ConfigReading {
            document,
            bundle,
            delegate: match self.kind {
                // youki accepts one spelling and no second key: the rules for Go refuse both, and more.
                DelegateKind::Runc | DelegateKind::Youki => ParserFamily::Go,
                DelegateKind::Crun => ParserFamily::C,
            },
        }
    }

    /// The bundle's directory, from which relative sources are taken.
    pub(crate) fn bundle(&self) -> Result<PathBuf> {
        std::path::absolute(&self.start.bundle).context("getcwd")
    }

    pub(crate) fn is_rewritten(&self, document: &Document<'_>) -> bool {
        rewrite::is_rewritten(document, is_sandbox(document), self.config)
    }

    /// Plans a create [`in_one_reading`] of a config that was `given` with others.
    pub(crate) fn plan(
        &self,
        document: &Document<'_>,
        given: &Document<'_>,
        first: &mut FirstLook<'_, '_>,
    ) -> Result<Plan> {
        let named = || first.who.clone();
        let mounts = document.mounts().with_context(named)?;
        let namespaces = document.namespaces().with_context(named)?;
        let bundle = self.bundle()?;
        let input = PlanInput {
            role: Role::from_annotations(|key| document.annotation(key)),
            bundle: &bundle,
            mounts: &mounts,
            namespaces: &namespaces,
            details: document,
            lookups: std::mem::take(&mut first.lookups),
            restores: self.start.verb == CreateVerb::Restore,
        };
        let plan = plan(input, self.config, &first.node)?;
        if plan == Plan::PassOn {
            passes_on(self.look(given, &bundle), self.config, &first.node)?;
        }
        Ok(plan)
    }

    /// The config's real path, by which its bundle is known whatever path it is given by.
    pub(crate) fn real_config(&self) -> Result<PathBuf> {
        let given = self.config_path();
        let config = given.canonicalize();
        config.with_context(|| format!("realpath {}", given.display()))
    }

    /// Returns the bundle as its record describes it; `config` is [the config's real path](Self::real_config).
    pub(crate) fn made(&self, config: PathBuf) -> Result<RewrittenBundle> {
        if config.to_str().is_none() {
            bail!(
                "{}: a bundle with volumes is recorded by its path, and that isn't UTF-8; hint: \
                 give the bundle another directory",
                config.display()
            );
        }
        let container = BundleRecord::container(self.globals.root.as_deref(), &self.start.id);
        Ok(RewrittenBundle {
            config,
            containers: vec![container],
        })
    }

    /// Plans the rewrite of a sandbox's config.
    pub(crate) fn sandbox_rewrite(
        &self,
        document: &Document<'_>,
        plan: &SandboxPlan,
        node: &CachedNode<'_>,
    ) -> Result<Rewrite> {
        // What can't be mounted fails here, where kubelet shows the reason as an event of the pod.
        for target in &plan.volumes {
            crust_volume::volume_properties(self.config, &*node.volume(target)?)?;
        }
        let rewritten = || {
            let rootfs = self.rootfs(document)?;
            rewrite::sandbox(&rootfs, plan, &self.hooks()?)
        };
        rewritten().with_context(|| plan.names())
    }

    /// Plans the rewrite of a container's config, and returns it with the hooks.
    pub(crate) fn container_rewrite(
        &self,
        document: &Document<'_>,
        plan: &ContainerPlan,
        node: &CachedNode<'_>,
    ) -> Result<(Rewrite, Hooks)> {
        let parts = || Ok::<_, anyhow::Error>((self.hooks()?, self.rootfs(document)?));
        let (hooks, rootfs) = parts().with_context(|| plan.names())?;
        if plan.way() == MountMode::Hook {
            hook_can_have_options(plan)?;
        }
        let known = ContainerVolumes {
            needs: &self.needs(plan, node)?,
            rootfs: &rootfs,
        };
        let rewrite = rewrite::container(document, plan, known, self.config, &hooks);
        Ok((rewrite.with_context(|| plan.names())?, hooks))
    }

    /// Returns the needs of each volume. Fails if the container can't have one.
    fn needs(
        &self,
        plan: &ContainerPlan,
        node: &CachedNode<'_>,
    ) -> Result<Vec<(TargetPath, VolumeProperties)>> {
        let mut needs = Vec::new();
        for volume in plan.volumes() {
            let need = crust_volume::volume_properties(self.config, &*node.volume(volume)?)?;
            if need.device_node && plan.ids.is_some() {
                bail!(
                    "volume {}: metadata.deviceNode or device_node = \"always\" gives the container \
                     the raw device, and in a user namespace no device can be made; hint: unset \
                     them, or use no user namespace (a pod: leave hostUsers unset)",
                    volume.volume_name()
                );
            }
            needs.push((volume.clone(), need));
        }
        Ok(needs)
    }

    /// The root file system's real path, as mountinfo shows it.
    fn rootfs(&self, document: &Document<'_>) -> Result<PathBuf> {
        let root = document.root_path()?.unwrap_or_default();
        let rootfs = self.start.bundle.join(&*root);
        let real = rootfs.canonicalize();
        real.with_context(|| format!("realpath {}", rootfs.display()))
    }

    fn hooks(&self) -> Result<Hooks> {
        Ok(Hooks {
            program: programs::find_hook(self.config)?,
            cli: programs::invocation_path(self.argv0)?,
            config: self.config.source.clone(),
            delegate: self.kind,
        })
    }
}

fn is_sandbox(document: &Document<'_>) -> bool {
    let role = Role::from_annotations(|key| document.annotation(key));
    matches!(role, Ok(Role::Sandbox { .. }))
}

/// The sandbox that a container's volumes are mounted in.
pub(crate) fn running_sandbox(plan: &ContainerPlan) -> Result<Option<Sandbox>> {
    match &plan.mounted_in {
        MountedIn::Sandbox(record) => {
            let sandbox = Sandbox::open(record);
            Ok(Some(sandbox.with_context(|| plan.names())?))
        }
        MountedIn::Container(_) | MountedIn::Hook(_) => Ok(None),
    }
}

/// Checks the options of mounts that a hook makes: it has to be able to set them.
fn hook_can_have_options(plan: &ContainerPlan) -> Result<()> {
    for mount in &plan.mounts {
        crust_volume::rootfs::bind_attributes(&mount.options)
            .with_context(|| format!("volume {}", mount.found.volume.volume_name()))?;
    }
    Ok(())
}
