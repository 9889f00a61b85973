//! The read-only part of a create: it reads the config and decides what to do. `crust explain` runs only this part.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use crust_state::bundle::BundleRecord;
use crust_state::config::MountMode;
use crust_state::foreign::ForeignFile;
use crust_state::{DelegateKind, TargetPath};
use crust_volume::VolumeProperties;
use crust_volume::sandbox::Sandbox;

use super::CreateCall;
use crate::invocation::CreateVerb;
use crate::node::CachedNode;
use crate::oci::{Document, ParserFamily};
use crate::plan::{
    ConfigReading, ContainerPlan, MountedIn, Plan, PlanInput, RECREATED_BUNDLE, SandboxPlan,
    SourceLookups, check_pass_through, plan,
};
use crate::programs;
use crate::rewrite::{self, ContainerVolumes, Hooks, Rewrite, RewrittenBundle};
use crate::role::Role;

/// The size of the largest config that is rewritten, in bytes. Configs that come through the API server, kubelet and
/// CRI are much smaller.
const MAX_CONFIG_BYTES: usize = 16 << 20;

/// Calls `act` with a config in a form that all delegates read alike. `subject` is what the config concerns.
pub(crate) fn with_unambiguous_config<T>(
    given: &Document<'_>,
    subject: &str,
    act: impl FnOnce(&Document<'_>) -> Result<T>,
) -> Result<T> {
    let bytes = given.text().len();
    if bytes > MAX_CONFIG_BYTES {
        bail!(
            "{subject}: config.json has {bytes} bytes, but with a volume it may have at most {MAX_CONFIG_BYTES}; hint: \
             remove large annotations or mounts from the pod"
        );
    }
    match given
        .mask_duplicates()
        .with_context(|| subject.to_owned())?
    {
        None => act(given),
        Some(text) => act(&Document::parse(&text)?),
    }
}

/// The result of scanning a config that concerns a volume. All later steps of the create start from it, so that each
/// source is looked up once, and each volume's entry is read once before its lock is held.
pub(crate) struct ConfigScan<'a, 'd> {
    /// The volume, pod or bundle that the config concerns, as the subject of errors.
    pub(crate) subject: String,
    /// The sources that were looked up. The plan takes them.
    pub(crate) lookups: SourceLookups<'d>,
    pub(crate) node: CachedNode<'a>,
}

impl<'a> CreateCall<'a> {
    /// Reads the config. Returns `None` if the file doesn't exist.
    pub(crate) fn read_config(&self) -> Result<Option<ForeignFile>> {
        Ok(ForeignFile::read(&self.config_path())?)
    }

    /// Returns the path of the config. It is relative to the caller's directory if the caller gave a relative path.
    pub(crate) fn config_path(&self) -> PathBuf {
        let config = self.command.config.clone();
        config.unwrap_or_else(|| self.command.bundle.join("config.json"))
    }

    /// Scans a config for volumes. `None` if the delegate gets the config unchanged.
    pub(crate) fn scan<'d>(&self, document: &Document<'d>) -> Result<Option<ConfigScan<'a, 'd>>> {
        let node = CachedNode::new(self.config, self.crust, self.deadline)?;
        let mut lookups = SourceLookups::default();
        let subject = if rewrite::is_marked(document, is_sandbox(document)) {
            Some(RECREATED_BUNDLE.to_owned())
        } else {
            let bundle = self.bundle()?;
            let reading = self.reading(document, &bundle);
            reading.subject(self.config, &node, &mut lookups)
        };
        Ok(subject.map(|subject| ConfigScan {
            subject,
            lookups,
            node,
        }))
    }

    fn reading<'l, 'd>(
        &self,
        document: &'l Document<'d>,
        bundle: &'l Path,
    ) -> ConfigReading<'l, 'd> {
        ConfigReading {
            document,
            bundle,
            delegate: match self.delegate_kind {
                // youki accepts only one spelling of a key, and no repeated keys. The rules for Go cover that.
                DelegateKind::Runc | DelegateKind::Youki => ParserFamily::Go,
                DelegateKind::Crun => ParserFamily::C,
            },
        }
    }

    /// Returns the absolute path of the bundle, against which relative sources are resolved.
    pub(crate) fn bundle(&self) -> Result<PathBuf> {
        std::path::absolute(&self.command.bundle).context("getcwd")
    }

    pub(crate) fn is_rewritten(&self, document: &Document<'_>) -> bool {
        rewrite::is_rewritten(document, is_sandbox(document), self.config)
    }

    /// Plans a create. `given` is the config as its caller wrote it, and `document` the form of it that
    /// [`with_unambiguous_config`] provides.
    pub(crate) fn plan(
        &self,
        document: &Document<'_>,
        given: &Document<'_>,
        scan: &mut ConfigScan<'_, '_>,
    ) -> Result<Plan> {
        let subject = || scan.subject.clone();
        let mounts = document.mounts().with_context(subject)?;
        let namespaces = document.namespaces().with_context(subject)?;
        let bundle = self.bundle()?;
        let input = PlanInput {
            role: Role::from_annotations(|key| document.annotation(key)),
            bundle: &bundle,
            mounts: &mounts,
            namespaces: &namespaces,
            details: document,
            lookups: std::mem::take(&mut scan.lookups),
            restores: self.command.verb == CreateVerb::Restore,
        };
        let plan = plan(input, self.config, &scan.node)?;
        if plan == Plan::PassThrough {
            check_pass_through(self.reading(given, &bundle), self.config, &scan.node)?;
        }
        Ok(plan)
    }

    /// Returns the config's real path, which identifies the bundle by whichever path the caller gives it.
    pub(crate) fn real_config(&self) -> Result<PathBuf> {
        let given = self.config_path();
        let config = given.canonicalize();
        config.with_context(|| format!("realpath {}", given.display()))
    }

    /// Returns the data for the bundle's record. `config` is [the config's real path](Self::real_config).
    pub(crate) fn bundle_to_record(&self, config: PathBuf) -> Result<RewrittenBundle> {
        if config.to_str().is_none() {
            bail!(
                "{}: the path isn't UTF-8, and a bundle with volumes is recorded by its path; hint: \
                 give the bundle another directory",
                config.display()
            );
        }
        let container = BundleRecord::container_key(self.globals.root.as_deref(), &self.command.id);
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
        // A volume that can't be mounted fails the create here, and kubelet shows the reason as an event of the pod.
        for target in &plan.volumes {
            crust_volume::volume_properties(self.config, &*node.volume(target)?)?;
        }
        let rewritten = || {
            let rootfs = self.rootfs(document)?;
            rewrite::sandbox(&rootfs, plan, &self.hooks()?)
        };
        rewritten().with_context(|| plan.subject())
    }

    /// Plans the rewrite of a container's config. Also returns the hooks.
    pub(crate) fn container_rewrite(
        &self,
        document: &Document<'_>,
        plan: &ContainerPlan,
        node: &CachedNode<'_>,
    ) -> Result<(Rewrite, Hooks)> {
        let parts = || Ok::<_, anyhow::Error>((self.hooks()?, self.rootfs(document)?));
        let (hooks, rootfs) = parts().with_context(|| plan.subject())?;
        if plan.mount_mode() == MountMode::Hook {
            check_hook_options(plan)?;
        }
        let volumes = ContainerVolumes {
            properties: &self.properties(plan, node)?,
            rootfs: &rootfs,
        };
        let rewrite = rewrite::container(document, plan, volumes, self.config, &hooks);
        Ok((rewrite.with_context(|| plan.subject())?, hooks))
    }

    /// Returns the properties of each volume. Fails if the container can't have one of the volumes.
    fn properties(
        &self,
        plan: &ContainerPlan,
        node: &CachedNode<'_>,
    ) -> Result<Vec<(TargetPath, VolumeProperties)>> {
        let mut properties = Vec::new();
        for volume in plan.volumes() {
            let volume_properties =
                crust_volume::volume_properties(self.config, &*node.volume(volume)?)?;
            if volume_properties.device.is_none() && plan.mount_mode() == MountMode::Hook {
                bail!(
                    "volume {}: mount_mode = \"hook\" only mounts volumes on block devices; hint: remove mount_mode from \
                     runcrust's configuration",
                    volume.volume_name()
                );
            }
            if volume_properties.device_node && plan.ids.is_some() {
                bail!(
                    "volume {}: metadata.deviceNode or device_node = \"always\" gives the container \
                     the raw device, but in a user namespace no device node can be created; hint: \
                     unset both, or use no user namespace (in a pod: leave hostUsers unset)",
                    volume.volume_name()
                );
            }
            properties.push((volume.clone(), volume_properties));
        }
        Ok(properties)
    }

    /// Returns the root file system's real path, as mountinfo shows it.
    fn rootfs(&self, document: &Document<'_>) -> Result<PathBuf> {
        let root = document.root_path()?.unwrap_or_default();
        let rootfs = self.command.bundle.join(&*root);
        let real = rootfs.canonicalize();
        real.with_context(|| format!("realpath {}", rootfs.display()))
    }

    fn hooks(&self) -> Result<Hooks> {
        Ok(Hooks {
            program: programs::find_hook(self.config)?,
            cli: programs::invocation_path(self.argv0)?,
            config: self.config.source.clone(),
            delegate: self.delegate_kind,
        })
    }
}

fn is_sandbox(document: &Document<'_>) -> bool {
    let role = Role::from_annotations(|key| document.annotation(key));
    matches!(role, Ok(Role::Sandbox { .. }))
}

/// Opens the sandbox that a container's volumes are mounted in; `None` if they aren't mounted in a sandbox.
pub(crate) fn running_sandbox(plan: &ContainerPlan) -> Result<Option<Sandbox>> {
    match &plan.mounted_in {
        MountedIn::Sandbox(record) => {
            let sandbox = Sandbox::open(record);
            Ok(Some(sandbox.with_context(|| plan.subject())?))
        }
        MountedIn::Container(_) | MountedIn::Hook(_) => Ok(None),
    }
}

/// Checks that a hook can set the options of the mounts that it makes.
fn check_hook_options(plan: &ContainerPlan) -> Result<()> {
    for mount in &plan.mounts {
        crust_volume::rootfs::bind_attributes(&mount.options)
            .with_context(|| format!("volume {}", mount.found.volume.volume_name()))?;
    }
    Ok(())
}
