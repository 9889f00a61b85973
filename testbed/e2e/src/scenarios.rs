//! The scenarios. Each has a manifest with all objects that it creates, and a function that creates them and looks.
//!
//! | module | scenarios |
//! |---|---|
//! | `basics` | a volume is made, mounted in the sandbox, and has its group, its subPaths and its modes |
//! | `containers` | kinds of containers, and settings of pods that concern isolation |
//! | `volumes` | sources of volumes, access modes, growth, stats |
//! | `workloads` | controllers, restarts, deletions, many pods at once |
//! | `disruptions` | programs of the node that are killed or restarted |

mod basics;
mod containers;
mod disruptions;
mod volumes;
mod workloads;

use std::pin::Pin;

use anyhow::Result;

use crate::test::Test;

/// A future of a scenario that is being run.
type Running<'t> = Pin<Box<dyn Future<Output = Result<()>> + 't>>;

/// A scenario, which runs in a namespace of its own.
pub(crate) struct Scenario {
    /// The name, which is also a part of the namespace's name.
    pub(crate) name: &'static str,
    /// The expected behaviour, in one sentence.
    pub(crate) about: &'static str,
    /// Whether it kills or stops programs of the node, which other pods need.
    pub(crate) is_disruptive: bool,
    /// The objects that it creates, apart from those of [`COMMON`].
    pub(crate) manifest: &'static str,
    pub(crate) run: for<'t> fn(&'t Test<'t>) -> Running<'t>,
}

/// Returns all scenarios, those that disrupt the node last.
pub(crate) fn all() -> impl Iterator<Item = &'static Scenario> {
    [
        basics::SCENARIOS,
        containers::SCENARIOS,
        volumes::SCENARIOS,
        workloads::SCENARIOS,
        disruptions::SCENARIOS,
    ]
    .into_iter()
    .flatten()
}

/// Objects of several scenarios: a claim, and two pods that have it.
pub(crate) const COMMON: &str = "
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {storageClassName: crust-deferred}
---
apiVersion: v1
kind: Pod
metadata: {name: first}
spec:
  runtimeClassName: crust
  containers: [{name: a, image: busybox, command: [sleep, '1000000'], volumeMounts: [{name: v, mountPath: /data}]}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]
---
apiVersion: v1
kind: Pod
metadata: {name: second}
spec:
  runtimeClassName: crust
  containers: [{name: a, image: busybox, command: [sleep, '1000000'], volumeMounts: [{name: v, mountPath: /data}]}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]
";

/// Makes a [`Scenario`] of a name, a sentence, a manifest and an async function.
macro_rules! scenario {
    ($name:literal, $about:literal, $manifest:expr, $run:path) => {
        scenario!($name, $about, $manifest, $run, false)
    };
    ($name:literal, $about:literal, $manifest:expr, $run:path, $is_disruptive:literal) => {
        crate::scenarios::Scenario {
            name: $name,
            about: $about,
            is_disruptive: $is_disruptive,
            manifest: $manifest,
            run: |test| Box::pin($run(test)),
        }
    };
}
use scenario;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use clap::Parser;

    use super::*;
    use crate::arguments::Arguments;
    use crate::manifest;

    #[test]
    fn manifests_have_only_fields_of_their_types() {
        let arguments = Arguments::parse_from(["crust-e2e"]);
        for scenario in all() {
            let objects = manifest::read(scenario.manifest);
            let objects = objects.unwrap_or_else(|error| panic!("{}: {error}", scenario.name));
            let ids: HashSet<String> = objects.iter().map(manifest::id).collect();
            assert_eq!(
                ids.len(),
                objects.len(),
                "{}: a name is used twice",
                scenario.name
            );
            for object in objects {
                let object = manifest::adapt(object, &arguments, "node-1").unwrap();
                manifest::tests::check_strictly(&serde_json::to_value(object).unwrap());
            }
        }
    }

    #[test]
    fn names_are_unique_and_fit_into_a_namespaces_name() {
        let names: Vec<&str> = all().map(|scenario| scenario.name).collect();
        let unique: HashSet<&&str> = names.iter().collect();
        assert_eq!(unique.len(), names.len());
        for name in names {
            let fits = |letter: char| letter.is_ascii_lowercase() || letter == '-';
            assert!(name.len() < 40 && name.chars().all(fits), "{name}");
        }
    }

    #[test]
    fn each_scenario_is_described_in_one_sentence() {
        for scenario in all() {
            let about = scenario.about;
            let first = about.chars().next().is_some_and(char::is_uppercase);
            assert!(
                first && !about.ends_with('.') && !about.contains(". "),
                "{about}"
            );
        }
    }

    #[test]
    fn the_documentation_lists_the_scenarios_in_their_order() {
        let document = include_str!("../../../docs/e2e.md");
        let (_, section) = document.split_once("\n## Scenarios\n").unwrap();
        let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
        let listed: Vec<(&str, &str)> = rows
            .map(|row| {
                let (name, rest) = row.split_once("` | ").unwrap();
                (name, rest.split_once(" | ").unwrap().0)
            })
            .collect();
        let expected: Vec<(&str, &str)> = all().map(|it| (it.name, it.about)).collect();
        assert_eq!(listed, expected);
    }
}
