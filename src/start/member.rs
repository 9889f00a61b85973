//! A pod's container: its volumes are mounted in the sandbox, and lent to the delegate.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use crust_mount::attach::{Attachments, DetachedMount};
use crust_mount::sandbox::{Sandbox, View};
use crust_mount::volume::{self, Context, Host, NewContainer};
use crust_state::files::Directory;
use crust_state::record::UserMount;
use crust_state::{CrustDirectory, TargetPath};

use super::Job;
use super::bundle::Bundle;
use crate::oci::Document;
use crate::plan::{MemberPlan, PlannedMount};
use crate::rewrite;

impl Job<'_> {
    pub(super) fn member(
        &self,
        document: &Document<'_>,
        bundle: &Bundle<'_>,
        plan: &MemberPlan,
    ) -> Result<()> {
        let crust = CrustDirectory::create(&self.config.crust_root)?;
        let context = self.context(&crust, bundle.state());
        let id = self.id()?;
        let rewrite = rewrite::member(document, plan, self.config, &self.hooks()?)?;
        let sandbox = Sandbox::of(&plan.sandbox).with_context(|| volumes_of(plan))?;
        let mut announced = Vec::new();
        let done = self
            .lend(&context, &sandbox, plan, &id, &mut announced)
            .and_then(|()| bundle.commit(document, rewrite));
        if done.is_err() {
            for target in announced {
                // The first error is the one that counts; a dead process is no user anyhow.
                if let Err(error) = volume::withdraw(&context, target, &id) {
                    tracing::warn!("{error}");
                }
            }
        }
        done
    }

    /// Mounts every volume in the sandbox and attaches the container's views of them where only
    /// the delegate finds them. From here on this process is in a mount namespace of its own.
    fn lend<'p>(
        &self,
        context: &Context<'_>,
        sandbox: &Sandbox,
        plan: &'p MemberPlan,
        id: &str,
        announced: &mut Vec<&'p TargetPath>,
    ) -> Result<()> {
        let mut by_volume: BTreeMap<&TargetPath, Vec<&PlannedMount>> = BTreeMap::new();
        for mount in &plan.mounts {
            by_volume
                .entry(&mount.found.volume)
                .or_default()
                .push(mount);
        }
        let cli = self.hooks()?.cli;
        let host = Host {
            sandbox,
            record: &plan.sandbox,
            cli: &cli,
        };
        let mut views: Vec<(usize, DetachedMount)> = Vec::new();
        for (target, mounts) in by_volume {
            let locked = volume::lock(context, target)?;
            volume::ensure(context, &locked, host)?;
            for mount in &mounts {
                let view = View {
                    subpath: &mount.found.subpath,
                    read_only: mount.read_only,
                };
                let view = volume::view(&locked, sandbox, view)?;
                views.push((mount.index, view));
            }
            let container = NewContainer {
                id,
                sandbox: sandbox.id(),
                pod_uid: &plan.sandbox.pod_uid,
            };
            announced.push(target);
            volume::begin(
                &locked,
                container,
                mounts.iter().map(|mount| used(mount)).collect(),
            )?;
        }
        let directory = self.config.attach_directory();
        Directory::create(&directory)?;
        let attachments = Attachments::new(&directory).with_context(|| volumes_of(plan))?;
        for (index, view) in &views {
            attachments
                .add(&index.to_string(), view)
                .with_context(|| volumes_of(plan))?;
        }
        Ok(())
    }
}

fn used(mount: &PlannedMount) -> UserMount {
    UserMount {
        destination: mount.destination.clone(),
        source: mount.source.clone(),
    }
}

/// Names the volumes in an error that isn't of one of them.
fn volumes_of(plan: &MemberPlan) -> String {
    let names = plan
        .mounts
        .iter()
        .map(|mount| mount.found.volume.volume_name());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names.dedup();
    format!("volume {}", names.join(", "))
}
