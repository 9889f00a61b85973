//! The input of a hook: the arguments that runcrust writes into configs, and the container's state on standard input
//! (runtime-spec, "State").

use std::io::{BufReader, Read};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use crust_state::TargetPath;
use crust_state::bundle::HookMount;
use lexopt::prelude::*;
use serde::Deserialize;

/// The hook that is to be run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    /// createRuntime of a sandbox.
    Sandbox(SandboxArgs),
    /// createContainer of a container whose volumes it mounts.
    Mount(MountArgs),
    /// createRuntime of a container.
    Publish { volumes: Vec<TargetPath> },
    /// poststop of a container.
    Release { volumes: Vec<TargetPath> },
    /// poststop of a sandbox.
    ReleaseSandbox,
}

/// The arguments of a sandbox's hook.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SandboxArgs {
    /// The UID of its pod.
    pub(crate) pod_uid: String,
    /// The program that answers for volumes in use (KEP-2857: `runtime-cli`).
    pub(crate) cli: PathBuf,
    /// The root file system on the host: where `/.crust` is before the container pivots into it.
    pub(crate) rootfs: PathBuf,
    /// The SELinux label that the volumes' files are to have.
    pub(crate) label: Option<String>,
    /// The volumes that are staged for the pod.
    pub(crate) volumes: Vec<TargetPath>,
}

/// The arguments of the hook that mounts the volumes of a container.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MountArgs {
    /// See [`SandboxArgs::cli`].
    pub(crate) cli: PathBuf,
    /// The root file system on the host.
    pub(crate) rootfs: PathBuf,
    /// See [`SandboxArgs::label`].
    pub(crate) label: Option<String>,
    /// The mounts, in the order of the config.
    pub(crate) mounts: Vec<HookMount>,
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
            Some("sandbox") => Verb::Sandbox(SandboxArgs {
                pod_uid: pod_uid.context("sandbox: --pod-uid is missing")?,
                cli: cli.context("sandbox: --cli is missing")?,
                rootfs: rootfs.context("sandbox: --rootfs is missing")?,
                label,
                volumes,
            }),
            Some("mount") => Verb::Mount(MountArgs {
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

/// The part of a container's state that the hooks need.
#[derive(Debug, Deserialize)]
pub(crate) struct ContainerState {
    /// The container's id.
    pub(crate) id: String,
    /// Its first process in the host's pid namespace; none once it has ended.
    #[serde(default)]
    pub(crate) pid: i32,
}

/// The longest state that is read, in bytes. It has the config's annotations, at most 16 MiB of which are read for a
/// config with volumes, and Go may write each byte as six.
const MOST_BYTES: u64 = 6 * (16 << 20) + (1 << 20);

impl ContainerState {
    /// Reads the state from standard input, all of it.
    pub(crate) fn read() -> Result<Self> {
        let mut stdin = std::io::stdin().lock();
        let state = serde_json::from_reader(BufReader::new((&mut stdin).take(MOST_BYTES)));
        // Read to its end in any case: the delegate would die of SIGPIPE if it wrote to a pipe without a reader.
        std::io::copy(&mut stdin, &mut std::io::sink()).context("read state from stdin")?;
        state.context("the state on stdin")
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
        let verb = Verb::Sandbox(SandboxArgs {
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
