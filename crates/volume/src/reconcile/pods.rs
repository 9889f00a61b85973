//! The pods that have a sandbox, by the sandboxes' records.

use std::ffi::OsStr;

use crust_state::sandbox::SandboxRecord;
use crust_state::state_directory::{Records, StateError};
use crust_state::{Life, TargetPath};

use super::decide::Pod;

/// What is known of the pods of a node.
#[derive(Debug, Default)]
pub(super) struct Pods {
    live: Vec<String>,
    /// Whose sandbox can't be looked at, and why; of a record that can't be read, anybody's.
    unsure: Vec<(Option<String>, String)>,
}

impl Pods {
    pub(super) fn of(records: &Result<Records<String, SandboxRecord>, StateError>) -> Self {
        let mut pods = Self::default();
        let records = match records {
            Ok(records) => records,
            Err(error) => {
                pods.unsure.push((None, error.to_string()));
                return pods;
            }
        };
        for (_, record) in records {
            match record {
                Ok(record) => pods.add(record),
                Err(error) => pods.unsure.push((None, error.to_string())),
            }
        }
        pods
    }

    fn add(&mut self, record: &SandboxRecord) {
        match record.process.life() {
            Life::Lives => self.live.push(record.pod_uid.clone()),
            Life::Ended(_) => {}
            Life::Unknown(why) => self.unsure.push((Some(record.pod_uid.clone()), why)),
        }
    }

    /// The pod that a target path names. What names none is no pod's, and its users are on record.
    pub(super) fn of_target(&self, target: &TargetPath) -> Pod {
        let Some(uid) = target.pod_uid() else {
            return Pod::Gone;
        };
        if self.live.iter().any(|live| OsStr::new(live) == uid) {
            return Pod::Lives;
        }
        let is_its =
            |whose: &Option<String>| whose.as_ref().is_none_or(|whose| OsStr::new(whose) == uid);
        let unsure = self.unsure.iter().find(|(whose, _)| is_its(whose));
        match unsure {
            Some((_, why)) => Pod::Unknown(format!("its pod may have a sandbox: {why}")),
            None => Pod::Gone,
        }
    }
}
