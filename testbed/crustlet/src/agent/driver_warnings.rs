//! Warnings about the fields of `CSIDriver`s that crustlet doesn't support.

use std::collections::BTreeMap;

use k8s_openapi::api::storage::v1::CSIDriverSpec;

use crate::events::{Events, Regarding};
use crate::objects::{Kind, Name, Objects};

/// The unsupported fields of each driver that a warning was emitted for.
#[derive(Debug, Default)]
pub(super) struct DriverWarnings(BTreeMap<String, Vec<&'static str>>);

impl DriverWarnings {
    /// Emits a warning for each driver whose unsupported fields have changed.
    pub(super) fn emit(&mut self, objects: &Objects, events: &Events) {
        self.0.retain(|name, _| objects.drivers.contains_key(name));
        for (name, driver) in &objects.drivers {
            let unsupported = unsupported(&driver.spec);
            let previous = self.0.insert(name.clone(), unsupported.clone());
            if !unsupported.is_empty() && previous.as_ref() != Some(&unsupported) {
                let message = format!("driver {name}: {}", unsupported.join("; "));
                let regarding = Regarding::object(Kind::CSIDriver, &Name::new("", name));
                events.warning(regarding, "Unsupported", message);
            }
        }
    }
}

/// Returns a sentence for each unsupported field that a driver sets.
fn unsupported(spec: &CSIDriverSpec) -> Vec<&'static str> {
    let tokens = spec.token_requests.as_ref();
    let table = [
        (
            spec.attach_required == Some(true),
            "spec.attachRequired: crustlet doesn't attach volumes (ControllerPublishVolume)",
        ),
        (
            spec.requires_republish == Some(true),
            "spec.requiresRepublish: crustlet publishes a volume only once (NodePublishVolume)",
        ),
        (
            tokens.is_some_and(|tokens| !tokens.is_empty()),
            "spec.tokenRequests: crustlet has no service account tokens",
        ),
    ];
    let set = table.into_iter().filter(|(is_set, _)| *is_set);
    set.map(|(_, sentence)| sentence).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::manifest;

    #[test]
    fn unsupported_fields_are_warned_about_once_until_they_change() {
        let (mut warnings, events) = (DriverWarnings::default(), Events::default());
        let messages = |warnings: &mut DriverWarnings, spec: &str| {
            let text = format!(
                "apiVersion: storage.k8s.io/v1\nkind: CSIDriver\nmetadata: {{name: csi.example}}\nspec: {{{spec}}}"
            );
            let mut objects = Objects::default();
            objects.insert(manifest::read(&text).unwrap().remove(0));
            warnings.emit(&objects, &events);
            let (events, _) = events.watch();
            let messages: Vec<String> = events.iter().map(|event| event.message.clone()).collect();
            messages
        };
        let supported = "attachRequired: false, podInfoOnMount: true, storageCapacity: true";
        assert!(messages(&mut warnings, supported).is_empty());
        let attached = "attachRequired: true";
        let first = messages(&mut warnings, attached);
        assert_eq!(first.len(), 1, "{first:?}");
        assert!(first[0].starts_with("driver csi.example: spec.attachRequired: "));
        assert_eq!(messages(&mut warnings, attached), first);
        let all_fields =
            "attachRequired: true, requiresRepublish: true, tokenRequests: [{audience: a}]";
        let second = messages(&mut warnings, all_fields);
        assert_eq!(second.len(), 2, "{second:?}");
        for field in ["attachRequired", "requiresRepublish", "tokenRequests"] {
            assert!(second[1].contains(field), "{second:?}");
        }
    }
}
