//! The hook's arguments, as runcrust writes them into configs.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use crust_state::TargetPath;
use crust_state::hooked::HookedMount;
use lexopt::prelude::*;

/// What the hook was called for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    /// createRuntime of a sandbox.
    Sandbox(Sandbox),
    /// createContainer of a container whose volumes it mounts.
    Mount(Mount),
    /// createRuntime of a container.
    Publish { volumes: Vec<TargetPath> },
    /// poststop of a container.
    Release { volumes: Vec<TargetPath> },
    /// poststop of a sandbox.
    ReleaseSandbox,
}

/// What the hook is told of a sandbox.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Sandbox {
    /// The pod.
    pub(crate) pod_uid: String,
    /// The program that answers for volumes in use (KEP-2857: `runtime-cli`).
    pub(crate) cli: PathBuf,
    /// The root file system on the host: where `/.crust` is before the container pivots into it.
    pub(crate) rootfs: PathBuf,
    /// The SELinux label that the volumes' files are to have.
    pub(crate) label: Option<String>,
    /// What is staged for the pod.
    pub(crate) volumes: Vec<TargetPath>,
}

/// What the hook is told of a container whose volumes it mounts.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    /// As [`Sandbox::cli`].
    pub(crate) cli: PathBuf,
    /// The root file system on the host.
    pub(crate) rootfs: PathBuf,
    /// As [`Sandbox::label`].
    pub(crate) label: Option<String>,
    /// In order.
    pub(crate) mounts: Vec<HookedMount>,
}

/// The command line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HookArgs {
    /// The configuration that the runtime used.
    pub(crate) config: Option<PathBuf>,
    pub(crate) verb: Verb,
}

impl HookArgs {
    pub(crate) fn parse(mut parser: lexopt::Parser) -> Result<Self> {
        let (mut verb, mut config) = (None, None);
        let (mut pod_uid, mut cli, mut rootfs, mut label) = (None, None, None, None);
        let (mut volumes, mut mounts) = (Vec::new(), Vec::new());
        while let Some(argument) = parser.next()? {
            match argument {
                Long("config") => config = Some(PathBuf::from(parser.value()?)),
                Long("pod-uid") => pod_uid = Some(parser.value()?.string()?),
                Long("cli") => cli = Some(PathBuf::from(parser.value()?)),
                Long("rootfs") => rootfs = Some(PathBuf::from(parser.value()?)),
                Long("mount-label") => label = Some(parser.value()?.string()?),
                Long("volume") => volumes.push(TargetPath::new(parser.value()?)?),
                Long("mount") => mounts
                    .push(serde_json::from_str(&parser.value()?.string()?).context("--mount")?),
                Value(value) if verb.is_none() => verb = Some(value.string()?),
                other => return Err(other.unexpected().into()),
            }
        }
        let verb = match verb.as_deref() {
            Some("sandbox") => Verb::Sandbox(Sandbox {
                pod_uid: pod_uid.context("sandbox: --pod-uid is missing")?,
                cli: cli.context("sandbox: --cli is missing")?,
                rootfs: rootfs.context("sandbox: --rootfs is missing")?,
                label,
                volumes,
            }),
            Some("mount") => Verb::Mount(Mount {
                cli: cli.context("mount: --cli is missing")?,
                rootfs: rootfs.context("mount: --rootfs is missing")?,
                label,
                mounts,
            }),
            Some("publish") => Verb::Publish { volumes },
            Some("release") => Verb::Release { volumes },
            Some("release-sandbox") => Verb::ReleaseSandbox,
            _ => bail!(
                "usage: crust-mount-hook sandbox|mount|publish|release|release-sandbox \
                 [--config FILE] [--pod-uid UID] [--cli PROGRAM] [--rootfs DIRECTORY] \
                 [--mount-label LABEL] [--volume TARGET_PATH]... [--mount JSON]...; runcrust writes these hooks into \
                 configs, they aren't called by hand"
            ),
        };
        Ok(Self { config, verb })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<HookArgs> {
        HookArgs::parse(lexopt::Parser::from_args(line.split(' ')))
    }

    #[test]
    fn what_runcrust_writes_is_read() {
        let line = "sandbox --config /c --volume /a --volume /b --pod-uid u --cli /r --rootfs /f \
                    --mount-label u:object_r:t:s0:c1,c2";
        let volumes = ["/a", "/b"]
            .map(|path| TargetPath::new(path).unwrap())
            .into();
        let (pod_uid, cli, rootfs) = ("u".into(), "/r".into(), "/f".into());
        let label = Some("u:object_r:t:s0:c1,c2".into());
        let verb = Verb::Sandbox(Sandbox {
            pod_uid,
            cli,
            rootfs,
            label,
            volumes,
        });
        let expected = HookArgs {
            config: Some("/c".into()),
            verb,
        };
        assert_eq!(parse(line).unwrap(), expected);
    }

    #[test]
    fn mistakes_are_refused() {
        for line in [
            "",
            "mount",
            "mount --cli /r --rootfs /f --mount {}",
            "sandbox --pod-uid u",
            "publish extra",
            "publish --volume a",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
