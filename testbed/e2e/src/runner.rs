//! Runs the scenarios one after another, each in a namespace of its own, and reports.

use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};
use tokio::signal::ctrl_c;
use tokio::signal::unix::{SignalKind, signal};

use crate::arguments::{Arguments, print_result};
use crate::cluster::Cluster;
use crate::install::Installation;
use crate::manifest;
use crate::node::{NodeShell, remove_namespace};
use crate::report::{Outcome, Report, ScenarioResult, Skip, Versions};
use crate::scenarios::{self, Scenario};
use crate::test::{Test, describe_pod};
use crate::wait::{Progress, Timeout};

/// Runs the program, and returns whether no scenario failed.
pub(crate) async fn run(arguments: &Arguments) -> Result<bool> {
    let selected: Vec<&Scenario> = scenarios::all()
        .filter(|scenario| arguments.selects(scenario.name))
        .collect();
    if arguments.list {
        for scenario in selected {
            let needs = if scenario.is_disruptive {
                " (--disrupt)"
            } else {
                ""
            };
            print_result(format_args!("{}{needs}: {}", scenario.name, scenario.about));
        }
        return Ok(true);
    }
    if selected.is_empty() {
        bail!("no scenario has such a name; hint: crust-e2e --list");
    }
    let cluster = Cluster::connect(arguments).await?;
    let installation = match &arguments.install {
        Some(directory) => Some(Installation::install(&cluster, arguments, directory).await?),
        None => None,
    };
    check_installed(&cluster, arguments).await?;
    let node = NodeShell::start(&cluster, arguments).await?;
    let ran = tokio::select! {
        ran = run_all(&cluster, &node, arguments, &selected) => ran,
        signal = interrupted() => match signal {
            Ok(()) => remove_namespaces(&cluster, arguments, &selected).await,
            Err(error) => Err(error),
        },
    };
    if let Ok(report) = &ran {
        if arguments.json {
            print_result(format_args!("{:#}", report.to_json()));
        } else {
            print_result(format_args!("\n{report}"));
        }
    }
    let is_kept = arguments.keep && ran.as_ref().is_ok_and(Report::has_failed);
    let uninstalled = match installation {
        // Without the driver, the pods that are kept could not end.
        Some(_) if is_kept => {
            arguments.print("what was installed stays, because pods of failed scenarios are kept");
            Ok(())
        }
        Some(installation) => installation.remove(&node).await,
        None => Ok(()),
    };
    let removed = node.remove().await;
    let report = ran?;
    uninstalled.context("remove what was installed")?;
    removed.context("remove the pod that looks at the node")?;
    Ok(!report.has_failed())
}

/// Returns when the program is told to end.
async fn interrupted() -> Result<()> {
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        result = ctrl_c() => result?,
        _ = terminated.recv() => {}
    }
    Ok(())
}

/// Removes what an interrupted run has left, and returns the error to report.
async fn remove_namespaces(
    cluster: &Cluster,
    arguments: &Arguments,
    selected: &[&Scenario],
) -> Result<Report> {
    arguments.print("interrupted: the scenario's namespace is being removed");
    for scenario in selected {
        remove_namespace(cluster, arguments, &namespace(scenario)).await?;
    }
    bail!("interrupted")
}

/// Returns the name of a scenario's namespace.
fn namespace(scenario: &Scenario) -> String {
    format!("crust-e2e-{}", scenario.name)
}

/// Fails if the cluster lacks what every scenario needs.
async fn check_installed(cluster: &Cluster, arguments: &Arguments) -> Result<()> {
    for (kind, name, hint) in [
        ("RuntimeClass", &arguments.runtime_class, "--runtime-class"),
        ("StorageClass", &arguments.storage_class, "--storage-class"),
    ] {
        if cluster.get("", kind, name).await?.is_none() {
            bail!(
                "the cluster has no {kind} {name}; hint: install runcrust and a driver that defers (docs/operators.md), \
                 let --install do that, or name another one with {hint}"
            );
        }
    }
    Ok(())
}

async fn run_all(
    cluster: &Cluster,
    node: &NodeShell<'_>,
    arguments: &Arguments,
    selected: &[&Scenario],
) -> Result<Report> {
    let mut report = Report {
        versions: versions(cluster, node, arguments).await?,
        results: Vec::new(),
    };
    for scenario in selected {
        let print = |line: &str| arguments.print(line);
        print(&format!("{}: {}", scenario.name, scenario.about));
        let started = Instant::now();
        let outcome = if scenario.is_disruptive && !arguments.disrupt {
            Outcome::Skipped("it disrupts the node; run it with --disrupt".to_owned())
        } else {
            run_scenario(cluster, node, arguments, scenario).await
        };
        match &outcome {
            Outcome::Passed => print("  passed"),
            Outcome::Skipped(reason) => print(&format!("  skipped: {reason}")),
            Outcome::Failed { error, details } => {
                print(&format!("  FAILED: {error}"));
                for line in details {
                    print(&format!("    {line}"));
                }
            }
        }
        report.results.push(ScenarioResult {
            name: scenario.name,
            outcome,
            duration: started.elapsed(),
        });
    }
    Ok(report)
}

/// Runs a scenario in a new namespace, and removes the namespace.
async fn run_scenario(
    cluster: &Cluster,
    node: &NodeShell<'_>,
    arguments: &Arguments,
    scenario: &Scenario,
) -> Outcome {
    let test = Test::new(
        (cluster, node),
        arguments,
        namespace(scenario),
        scenario.manifest,
    );
    let ran = async {
        create_namespace(&test).await?;
        (scenario.run)(&test).await
    };
    let ran = ran.await;
    if let Err(error) = &ran
        && let Some(skip) = error.downcast_ref::<Skip>()
    {
        let reason = skip.0.clone();
        return match clean_up(&test).await {
            Ok(()) => Outcome::Skipped(reason),
            Err(error) => failed(&error, Vec::new()),
        };
    }
    match ran {
        Ok(()) => match clean_up(&test).await {
            Ok(()) => Outcome::Passed,
            Err(error) => failed(&error.context("clean up"), describe(&test).await),
        },
        Err(error) => {
            let mut details = describe(&test).await;
            if !arguments.keep
                && let Err(also) = clean_up(&test).await
            {
                details.push(format!("clean up: {also:#}"));
            }
            failed(&error, details)
        }
    }
}

fn failed(error: &anyhow::Error, details: Vec<String>) -> Outcome {
    Outcome::Failed {
        error: format!("{error:#}"),
        details,
    }
}

async fn create_namespace(test: &Test<'_>) -> Result<()> {
    remove_namespace(test.cluster, test.arguments, &test.namespace).await?;
    // Some scenarios have privileged pods.
    let labels = json!({"pod-security.kubernetes.io/enforce": "privileged"});
    let namespace = json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": test.namespace, "labels": labels},
    });
    let namespace = manifest::adapt(namespace, test.arguments, test.cluster.node())?;
    test.cluster.create("", &namespace).await
}

/// Removes the namespace and the classes of a scenario. Waits until the volumes are deleted, and checks that nothing of
/// its pods is left on the node.
async fn clean_up(test: &Test<'_>) -> Result<()> {
    remove_namespace(test.cluster, test.arguments, &test.namespace).await?;
    let timeout = Timeout::new(test.arguments);
    let volumes_are_deleted = async || {
        let volumes = test.cluster.list("", "PersistentVolume").await?;
        let own = volumes
            .iter()
            .filter(|it| it["spec"]["claimRef"]["namespace"] == *test.namespace);
        let left: Vec<&Value> = own.map(|volume| &volume["metadata"]["name"]).collect();
        Ok(Progress::of(left.is_empty(), &format_args!("{left:?}")))
    };
    timeout
        .wait_until("the volumes are deleted", volumes_are_deleted)
        .await?;
    for class in test.cluster.list("", "StorageClass").await? {
        let name = class["metadata"]["name"].as_str().unwrap_or_default();
        if name.starts_with(&format!("{}-", test.namespace)) {
            test.cluster.delete("", "StorageClass", name, None).await?;
        }
    }
    let nothing_is_left = async || {
        let left = test.node.leftovers().await?;
        Ok(Progress::of(left.is_empty(), &format_args!("{left:?}")))
    };
    timeout
        .wait_until("nothing is left on the node", nothing_is_left)
        .await
}

fn first_container(pod: &Value) -> Option<&str> {
    pod["spec"]["containers"][0]["name"].as_str()
}

/// Describes the pods and claims of a scenario that failed, with their events and the ends of the pods' logs.
async fn describe(test: &Test<'_>) -> Vec<String> {
    let mut lines = Vec::new();
    for kind in ["PersistentVolumeClaim", "Pod"] {
        let objects = test.cluster.list(&test.namespace, kind).await;
        for object in objects.unwrap_or_default() {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            lines.push(match kind {
                "Pod" => format!("pod {name}: {}", describe_pod(&object)),
                _ => format!("claim {name}: {}", object["status"]["phase"]),
            });
            let events = test.cluster.events(&test.namespace, name).await;
            let events = events.unwrap_or_default();
            lines.extend(events.into_iter().map(|event| format!("  {event}")));
            if kind == "Pod"
                && let Ok(log) = test
                    .cluster
                    .log(&test.namespace, name, first_container(&object))
                    .await
            {
                let tail: Vec<&str> = log.lines().rev().take(5).collect();
                lines.extend(tail.into_iter().rev().map(|line| format!("  log: {line}")));
            }
        }
    }
    lines
}

async fn versions(
    cluster: &Cluster,
    node: &NodeShell<'_>,
    arguments: &Arguments,
) -> Result<Versions> {
    let info = cluster
        .node_object()
        .await?
        .status
        .and_then(|status| status.node_info);
    let info = info.ok_or_else(|| anyhow!("node {} reports no versions", cluster.node()))?;
    Ok(Versions {
        kubernetes: cluster.version().await?,
        engine: info.container_runtime_version,
        kernel: info.kernel_version,
        runcrust: node
            .run(&format!("{} crust --version", arguments.runcrust))
            .await?,
    })
}
