//! Warnings of what `CSIDriver`s ask for and crustlet doesn't do, once for each.

use std::collections::BTreeMap;

use k8s_openapi::api::storage::v1::CSIDriverSpec;

use crate::events::{Events, Regarding};
use crate::objects::{Kind, Name, Objects};

/// The warnings that were given about each driver.
#[derive(Debug, Default)]
pub(super) struct DriverWarnings(BTreeMap<String, Vec<&'static str>>);

impl DriverWarnings {
    /// Warns of the drivers that ask for something else than before.
    pub(super) fn tell(&mut self, objects: &Objects, events: &Events) {
        self.0.retain(|name, _| objects.drivers.contains_key(name));
        for (name, driver) in &objects.drivers {
            let asked = ignored(&driver.spec);
            let told = self.0.insert(name.clone(), asked.clone());
            if !asked.is_empty() && told.as_ref() != Some(&asked) {
                let message = format!("driver {name}: {}", asked.join("; "));
                let regarding = Regarding::object(Kind::CSIDriver, &Name::new("", name));
                events.warning(regarding, "Unsupported", message);
            }
        }
    }
}

/// Returns what a driver asks for and doesn't get, each as a sentence.
fn ignored(spec: &CSIDriverSpec) -> Vec<&'static str> {
    let tokens = spec.token_requests.as_ref();
    let table = [
        (
            spec.attach_required == Some(true),
            "spec.attachRequired: crustlet attaches no volumes (ControllerPublishVolume)",
        ),
        (
            spec.requires_republish == Some(true),
            "spec.requiresRepublish: a volume is published once (NodePublishVolume)",
        ),
        (
            tokens.is_some_and(|it| !it.is_empty()),
            "spec.tokenRequests: there are no tokens of service accounts",
        ),
    ];
    let asked = table.into_iter().filter(|(is_asked, _)| *is_asked);
    asked.map(|(_, told)| told).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::manifest;

    #[test]
    fn an_unmet_driver_request_is_logged_once_until_it_changes() {
        let (mut ignored, events) = (DriverWarnings::default(), Events::default());
        let told = |ignored: &mut DriverWarnings, spec: &str| {
            let text = format!(
                "apiVersion: storage.k8s.io/v1\nkind: CSIDriver\nmetadata: {{name: csi.example}}\nspec: {{{spec}}}"
            );
            let mut objects = Objects::default();
            objects.insert(manifest::read(&text).unwrap().remove(0));
            ignored.tell(&objects, &events);
            let (kept, _) = events.watch();
            let told: Vec<String> = kept.iter().map(|it| it.message.clone()).collect();
            told
        };
        let fine = "attachRequired: false, podInfoOnMount: true, storageCapacity: true";
        assert!(told(&mut ignored, fine).is_empty());
        let attached = "attachRequired: true";
        let first = told(&mut ignored, attached);
        assert_eq!(first.len(), 1, "{first:?}");
        assert!(first[0].starts_with("driver csi.example: spec.attachRequired: "));
        assert_eq!(told(&mut ignored, attached), first);
        let more = "attachRequired: true, requiresRepublish: true, tokenRequests: [{audience: a}]";
        let second = told(&mut ignored, more);
        assert_eq!(second.len(), 2, "{second:?}");
        for field in ["attachRequired", "requiresRepublish", "tokenRequests"] {
            assert!(second[1].contains(field), "{second:?}");
        }
    }
}
