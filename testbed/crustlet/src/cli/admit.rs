//! `crustlet admit`: applies a policy to pods, without an agent.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use crust_blockfs::bounded;
use serde_json::{Value, json};

use crate::admission::{Policy, admit};
use crate::objects::manifest::{Manifest, Object, read};
use crate::objects::{Kind, Objects};

/// In bytes, of a file of manifests.
const LARGEST: u64 = 16 << 20;

/// The arguments of `crustlet admit`.
#[derive(Debug, Args)]
pub(crate) struct Admit {
    /// Manifests, YAML; `-` is standard input. Claims and classes that the pods need may be among them
    file: PathBuf,
    /// The policy, as `crustlet serve` has it; without it volumes are left as they are
    #[arg(long, value_name = "FILE")]
    admission_policy: Option<PathBuf>,
    /// A directory of manifests that the pods need; more than once
    #[arg(long, value_name = "DIR")]
    manifests: Vec<PathBuf>,
    /// How the manifests are printed
    #[arg(short, long, value_name = "FORMAT", default_value = "yaml")]
    output: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Yaml,
    Json,
}

impl Admit {
    /// The manifests on stdout, and on stderr what was decided about each volume.
    pub(crate) fn run(&self) -> ExitCode {
        match self.answer() {
            Ok(Answer { text, decisions }) => {
                let _ = io::stderr().write_all(decisions.as_bytes());
                if let Err(error) = io::stdout().write_all(text.as_bytes()) {
                    return failed(&anyhow::Error::new(error).context("write to stdout"));
                }
                ExitCode::SUCCESS
            }
            Err(error) => failed(&error),
        }
    }

    fn answer(&self) -> anyhow::Result<Answer> {
        let policy = self.admission_policy.as_deref().map(Policy::load);
        let policy = policy.transpose()?.unwrap_or_default();
        let mut objects = Objects::default();
        for directory in &self.manifests {
            for file in files(directory)? {
                let text = bounded::read_to_string(&file, LARGEST);
                let manifests = manifests(&file, text)?;
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
        let text = bounded::read_to_string(file, LARGEST);
        let manifests = manifests(&self.file, text)?;
        if !manifests.iter().any(|it| it.kind == Kind::Pod) {
            bail!("{}: there is no Pod in it", self.file.display());
        }
        answer(&policy, objects, manifests, self.output)
    }
}

fn failed(error: &anyhow::Error) -> ExitCode {
    let sentence = crust_state::sentence(error.as_ref());
    let _ = writeln!(io::stderr(), "{sentence}");
    ExitCode::FAILURE
}

fn manifests(file: &Path, text: io::Result<String>) -> anyhow::Result<Vec<Manifest>> {
    let text = text.with_context(|| format!("read {}", file.display()))?;
    read(&text).with_context(|| file.display().to_string())
}

/// Those of a directory that are manifests by their names, in their order.
fn files(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(directory)
        .and_then(|entries| entries.map(|it| Ok(it?.path())).collect::<io::Result<_>>());
    let mut files: Vec<PathBuf> =
        entries.with_context(|| format!("read {}", directory.display()))?;
    files.retain(|file| {
        let hidden = file
            .file_name()
            .is_some_and(|it| it.as_encoded_bytes().starts_with(b"."));
        let extension = file.extension().and_then(|it| it.to_str());
        !hidden && matches!(extension, Some("yaml" | "yml" | "json"))
    });
    files.sort();
    Ok(files)
}

#[derive(Debug, PartialEq)]
struct Answer {
    text: String,
    decisions: String,
}

/// All the manifests in their order, pods as they are admitted.
fn answer(
    policy: &Policy,
    mut objects: Objects,
    manifests: Vec<Manifest>,
    format: Format,
) -> anyhow::Result<Answer> {
    let order: Vec<_> = manifests
        .iter()
        .map(|it| (it.kind, it.name.clone()))
        .collect();
    let pods: BTreeMap<_, _> = manifests
        .iter()
        .filter_map(|it| match &it.object {
            Object::Pod(pod) => Some((it.name.clone(), pod.clone())),
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
            let whole = match <[Value; 1]>::try_from(documents) {
                Ok([document]) => document,
                Err(items) => json!({"apiVersion": "v1", "kind": "List", "items": items}),
            };
            format!("{whole:#}\n")
        }
    };
    Ok(Answer {
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

    fn answered(text: &str, format: Format) -> Answer {
        let policy = Policy::read(POLICY).unwrap();
        answer(&policy, Objects::default(), read(text).unwrap(), format).unwrap()
    }

    fn documents(text: &str) -> Vec<Value> {
        let manifests = read(text).unwrap().into_iter();
        manifests.map(|it| it.document).collect()
    }

    #[test]
    fn the_output_is_the_manifests_with_the_field_added() {
        let text = format!("{CLAIM}---\n{POD}");
        let mut expected = documents(&text);
        expected[1]["spec"]["volumes"][0]["csi"]["deferFSMount"] = Value::Bool(true);
        let yaml = answered(&text, Format::Yaml);
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
        let list: Value = serde_json::from_str(&answered(&text, Format::Json).text).unwrap();
        assert_eq!(list["items"], Value::Array(expected.clone()));
        let one: Value = serde_json::from_str(&answered(POD, Format::Json).text).unwrap();
        assert_eq!(one, expected[1]);
    }

    #[test]
    fn directories_give_what_the_pods_need() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str, text: &str| {
            let path = place.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let pod = POD.replace(
            "csi:\n      driver: csi.example",
            "persistentVolumeClaim:\n      claimName: data",
        );
        let file = at("pod", &pod);
        let mut admit = Admit {
            file,
            admission_policy: Some(at("policy", POLICY)),
            manifests: Vec::new(),
            output: Format::Yaml,
        };
        let told = admit.answer().unwrap().decisions;
        assert!(
            told.contains("persistentvolumeclaim default/data not found"),
            "{told}"
        );
        at(".half.yaml", "kind: [");
        at("claim.yaml", CLAIM);
        admit.manifests.push(place.path().to_owned());
        let told = admit.answer().unwrap().decisions;
        assert!(told.contains("default/data has no storage class"), "{told}");
        at("wrong.yml", "kind: Pod");
        let error = crust_state::sentence(admit.answer().unwrap_err().as_ref());
        assert!(error.contains("wrong.yml: document 1: "), "{error}");
        admit.manifests.clear();
        admit.file = at("claim.yaml", CLAIM);
        let error = admit.answer().unwrap_err().to_string();
        assert!(error.contains("there is no Pod in it"), "{error}");
    }
}
