//! `crustlet admit`: applies a policy to pods, without an agent.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use crust_blockfs::bounded;
use serde_json::{Value, json};

use crate::admission::{DeferPolicy, admit};
use crate::objects::manifest::{Manifest, Object, read};
use crate::objects::{Kind, Objects};

/// The largest size of a file of manifests, in bytes.
const MAX_FILE_SIZE: u64 = 16 << 20;

/// The arguments of `crustlet admit`.
#[derive(Debug, Args)]
pub(crate) struct Admit {
    /// YAML manifests; - for standard input. They may include the claims and classes that the pods use
    file: PathBuf,
    /// Policy file, as for "crustlet serve". If it is not set, no volume is deferred
    #[arg(long, value_name = "FILE")]
    admission_policy: Option<PathBuf>,
    /// Directory of manifests that the pods use; repeatable
    #[arg(long, value_name = "DIR")]
    manifests: Vec<PathBuf>,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "yaml")]
    output: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Yaml,
    Json,
}

impl Admit {
    /// Prints the admitted manifests to stdout, and the decision about each volume to stderr.
    pub(crate) fn run(&self) -> ExitCode {
        match self.admit() {
            Ok(AdmitOutput { text, decisions }) => {
                let _ = io::stderr().write_all(decisions.as_bytes());
                if let Err(error) = io::stdout().write_all(text.as_bytes()) {
                    return fail(&anyhow::Error::new(error).context("write to standard output"));
                }
                ExitCode::SUCCESS
            }
            Err(error) => fail(&error),
        }
    }

    fn admit(&self) -> anyhow::Result<AdmitOutput> {
        let policy = self.admission_policy.as_deref().map(DeferPolicy::load);
        let policy = policy.transpose()?.unwrap_or_default();
        let mut objects = Objects::default();
        for directory in &self.manifests {
            for file in manifest_files(directory)? {
                let text = bounded::read_to_string(&file, MAX_FILE_SIZE);
                let manifests = parse(&file, text)?;
                for manifest in manifests {
                    objects.insert(manifest);
                }
            }
        }
        let file = if self.file == Path::new("-") {
            Path::new("/dev/stdin")
        } else {
            &self.file
        };
        let text = bounded::read_to_string(file, MAX_FILE_SIZE);
        let manifests = parse(&self.file, text)?;
        if !manifests.iter().any(|manifest| manifest.kind == Kind::Pod) {
            bail!("{}: no Pod found", self.file.display());
        }
        admit_manifests(&policy, objects, manifests, self.output)
    }
}

fn fail(error: &anyhow::Error) -> ExitCode {
    let message = crust_state::error_message(error.as_ref());
    let _ = writeln!(io::stderr(), "{message}");
    ExitCode::FAILURE
}

fn parse(file: &Path, text: io::Result<String>) -> anyhow::Result<Vec<Manifest>> {
    let text = text.with_context(|| format!("read {}", file.display()))?;
    read(&text).with_context(|| file.display().to_string())
}

/// Returns the manifest files of a directory, sorted by name.
fn manifest_files(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(directory).and_then(|entries| {
        entries
            .map(|entry| Ok(entry?.path()))
            .collect::<io::Result<_>>()
    });
    let mut files: Vec<PathBuf> =
        entries.with_context(|| format!("read {}", directory.display()))?;
    files.retain(|file| {
        let is_hidden = file
            .file_name()
            .is_some_and(|file_name| file_name.as_encoded_bytes().starts_with(b"."));
        let extension = file.extension().and_then(|extension| extension.to_str());
        !is_hidden && matches!(extension, Some("yaml" | "yml" | "json"))
    });
    files.sort();
    Ok(files)
}

#[derive(Debug, PartialEq)]
struct AdmitOutput {
    text: String,
    decisions: String,
}

/// Applies the policy to the pods among the manifests, and formats all manifests in their order.
fn admit_manifests(
    policy: &DeferPolicy,
    mut objects: Objects,
    manifests: Vec<Manifest>,
    format: Format,
) -> anyhow::Result<AdmitOutput> {
    let order: Vec<_> = manifests
        .iter()
        .map(|manifest| (manifest.kind, manifest.name.clone()))
        .collect();
    let pods: BTreeMap<_, _> = manifests
        .iter()
        .filter_map(|manifest| match &manifest.object {
            Object::Pod(pod) => Some((manifest.name.clone(), pod.clone())),
            _ => None,
        })
        .collect();
    for manifest in manifests {
        objects.insert(manifest);
    }
    let mut decisions = Vec::new();
    let documents = order.into_iter().map(|(kind, name)| {
        let document = Value::clone(&objects.documents[&(kind, name.clone())]);
        let Some(pod) = pods.get(&name).filter(|_| kind == Kind::Pod) else {
            return document;
        };
        let admission = admit(policy, &objects, pod, &document);
        for decision in admission.decisions {
            decisions.push(format!("pod {name}: {decision}\n"));
        }
        admission.document
    });
    let documents: Vec<Value> = documents.collect();
    let text = match format {
        Format::Yaml => serde_saphyr::to_string_multiple(&documents).context("write YAML")?,
        Format::Json => {
            let document = match <[Value; 1]>::try_from(documents) {
                Ok([document]) => document,
                Err(items) => json!({"apiVersion": "v1", "kind": "List", "items": items}),
            };
            format!("{document:#}\n")
        }
    };
    Ok(AdmitOutput {
        text,
        decisions: decisions.concat(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: &str = "
apiVersion: crustlet.crust.dev/v1alpha1
kind: DeferPolicy
rules:
- {driver: csi.example, runtimeClassName: crust, postMount: {subPath: true}}
";

    const POD: &str = "apiVersion: v1
kind: Pod
metadata:
  name: web
  annotations:
    octal: '0755'
    yes: 'no'
    time: '12:30:00'
spec:
  runtimeClassName: crust
  containers:
  - name: app
    image: app
    command: ['sh', '-c', \"a: b # c\\n\\td\"]
  volumes:
  - name: v
    csi:
      driver: csi.example
";

    const CLAIM: &str = "apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {}
";

    fn admitted(text: &str, format: Format) -> AdmitOutput {
        let policy = DeferPolicy::read(POLICY).unwrap();
        admit_manifests(&policy, Objects::default(), read(text).unwrap(), format).unwrap()
    }

    fn documents(text: &str) -> Vec<Value> {
        let manifests = read(text).unwrap().into_iter();
        manifests.map(|manifest| manifest.document).collect()
    }

    #[test]
    fn the_output_has_the_manifests_with_the_field_added() {
        let text = format!("{CLAIM}---\n{POD}");
        let mut expected = documents(&text);
        expected[1]["spec"]["volumes"][0]["csi"]["deferFSMount"] = Value::Bool(true);
        let yaml = admitted(&text, Format::Yaml);
        assert_eq!(
            yaml.decisions,
            "pod default/web: volume v: deferred: driver csi.example with runtime class crust\n"
        );
        let found = documents(&yaml.text);
        assert_eq!(
            found[1].to_string(),
            expected[1].to_string(),
            "{}",
            yaml.text
        );
        assert_eq!(found[0], expected[0]);
        let list: Value = serde_json::from_str(&admitted(&text, Format::Json).text).unwrap();
        assert_eq!(list["items"], Value::Array(expected.clone()));
        let single: Value = serde_json::from_str(&admitted(POD, Format::Json).text).unwrap();
        assert_eq!(single, expected[1]);
    }

    #[test]
    fn directories_provide_what_the_pods_use() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let pod = POD.replace(
            "csi:\n      driver: csi.example",
            "persistentVolumeClaim:\n      claimName: data",
        );
        let file = write("pod", &pod);
        let mut admit = Admit {
            file,
            admission_policy: Some(write("policy", POLICY)),
            manifests: Vec::new(),
            output: Format::Yaml,
        };
        let decisions = admit.admit().unwrap().decisions;
        assert!(
            decisions.contains("persistentvolumeclaim default/data not found"),
            "{decisions}"
        );
        write(".half.yaml", "kind: [");
        write("claim.yaml", CLAIM);
        admit.manifests.push(dir.path().to_owned());
        let decisions = admit.admit().unwrap().decisions;
        assert!(
            decisions.contains("default/data has no storage class"),
            "{decisions}"
        );
        write("wrong.yml", "kind: Pod");
        let error = crust_state::error_message(admit.admit().unwrap_err().as_ref());
        assert!(error.contains("wrong.yml: document 1: "), "{error}");
        admit.manifests.clear();
        admit.file = write("claim.yaml", CLAIM);
        let error = admit.admit().unwrap_err().to_string();
        assert!(error.contains("no Pod found"), "{error}");
    }
}
