//! `gc`: removes stale state, and lists what it removed and what it kept.

use std::fmt::{self, Display};
use std::path::Path;

use crust_volume::{Context, ItemReport, ReconcileMode, ReconcileReport, StateItem};
use serde_json::{Map, Value, json};

use super::output::{self, CommandOutput, OutputFormat, Table};
use super::path_json;
use crate::programs::SELF_EXE;
use crate::users;

#[derive(Debug, clap::Args)]
pub(super) struct GcArgs {
    /// List what would be removed, without removing it
    #[arg(long)]
    pub(super) dry_run: bool,
    #[command(flatten)]
    format: OutputFormat,
}

pub(super) fn gc(context: &Context<'_>, arguments: &GcArgs) -> CommandOutput {
    let mode = if arguments.dry_run {
        ReconcileMode::DryRun
    } else {
        ReconcileMode::Remove
    };
    let report = crust_volume::reconcile(context, mode, Path::new(SELF_EXE));
    CommandOutput::new(&GcReport { mode, report }, arguments.format)
}

struct GcReport {
    mode: ReconcileMode,
    report: ReconcileReport,
}

impl GcReport {
    /// Returns the items that were kept, and those that couldn't be removed.
    fn kept(&self) -> impl Iterator<Item = &ItemReport> {
        self.report.left.iter().chain(&self.report.failed)
    }
}

impl output::Printable for GcReport {
    fn json(&self) -> Value {
        let removed: Vec<Value> = self.report.removed.iter().map(item_json).collect();
        let left: Vec<Value> = self.kept().map(item_json).collect();
        json!({"dry_run": self.mode == ReconcileMode::DryRun, "removed": removed, "left": left})
    }
}

impl Display for GcReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (removed, left) = match self.mode {
            ReconcileMode::Remove => ("removed", "left"),
            ReconcileMode::DryRun => ("would remove", "would leave"),
        };
        let mut table = Table::default();
        let mut count = |verb: &str, report: &ItemReport| {
            table.row([verb, &report.item.to_string(), &report.reason]);
            1
        };
        let counts: (u32, u32) = (
            self.report
                .removed
                .iter()
                .map(|it| count(removed, it))
                .sum(),
            self.kept().map(|it| count(left, it)).sum(),
        );
        table.row([format!("{removed} {}, {left} {}", counts.0, counts.1)]);
        table.fmt(formatter)
    }
}

fn item_json(ItemReport { item, reason }: &ItemReport) -> Value {
    let mut object = Map::new();
    let mut set = |key: &str, value: Value| object.insert(key.to_owned(), value);
    set("kind", item.kind().into());
    if let Some(volume) = item.volume() {
        set("volume", volume.volume_name().into());
        set("target_path", path_json(volume));
    }
    match item {
        StateItem::Bundle(path)
        | StateItem::Entry(path)
        | StateItem::Leftover(path)
        | StateItem::Directory(path) => {
            set("path", path_json(path));
        }
        StateItem::Sandbox { id, pod_uid } => {
            set("id", id.clone().into());
            set("pod_uid", pod_uid.clone().into());
        }
        StateItem::User { user, .. } | StateItem::Requests { user, .. } => {
            set("user", users::user_json(user));
        }
        StateItem::RuntimeCli { cli, .. } => {
            set("runtime_cli", path_json(cli));
        }
        StateItem::Owner { backing, .. } => {
            set("device", backing.to_string().into());
        }
        StateItem::Record(_) | StateItem::Copy(_) | StateItem::Half(_) | StateItem::Volume(_) => {}
    }
    set("why", reason.clone().into());
    Value::Object(object)
}

#[cfg(test)]
mod tests {
    use super::output::Printable as _;
    use super::*;

    fn gc_report(mode: ReconcileMode) -> GcReport {
        let report_of = |item, reason: &str| ItemReport {
            item,
            reason: reason.to_owned(),
        };
        let sandbox = StateItem::Sandbox {
            id: "s".into(),
            pod_uid: Some("uid".into()),
        };
        let report = ReconcileReport {
            removed: vec![report_of(sandbox, "process 7 has ended")],
            left: vec![report_of(
                StateItem::Entry("/run/crust/x".into()),
                "isn't JSON",
            )],
            failed: vec![report_of(
                StateItem::Leftover("/run/crust/.x".into()),
                "rmdir: EROFS",
            )],
        };
        GcReport { mode, report }
    }

    #[test]
    fn each_item_has_a_line_and_the_last_line_has_the_counts() {
        let expected = "removed  record of sandbox s of pod uid  process 7 has ended\n\
                        left     entry /run/crust/x              isn't JSON\n\
                        left     /run/crust/.x                   rmdir: EROFS\n\
                        removed 1, left 2";
        assert_eq!(gc_report(ReconcileMode::Remove).to_string(), expected);
        let dry = gc_report(ReconcileMode::DryRun).to_string();
        assert!(dry.ends_with("\nwould remove 1, would leave 2"), "{dry}");
    }

    #[test]
    fn json_output_is_one_object() {
        let expected = json!({
            "dry_run": true,
            "removed": [{"kind": "sandbox", "id": "s", "pod_uid": "uid", "why": "process 7 has ended"}],
            "left": [
                {"kind": "entry", "path": "/run/crust/x", "why": "isn't JSON"},
                {"kind": "leftover", "path": "/run/crust/.x", "why": "rmdir: EROFS"},
            ],
        });
        assert_eq!(gc_report(ReconcileMode::DryRun).json(), expected);
    }
}
