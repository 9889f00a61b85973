//! Parses the input of a hook: the arguments that runcrust writes into configs, and the container's state on standard
//! input (runtime-spec, "State").

use std::io::{BufReader, Read};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use crust_state::TargetPath;
use crust_state::bundle::HookMount;
use lexopt::prelude::*;
use serde::Deserialize;

/// The hook to run, with its arguments.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum HookVerb {
    /// The createRuntime hook of a sandbox.
    Sandbox(SandboxArgs),
    /// The createContainer hook of a container. It mounts the container's volumes.
    Mount(MountArgs),
    /// The createRuntime hook of a container.
    Publish { volumes: Vec<TargetPath> },
    /// The poststop hook of a container.
    Release { volumes: Vec<TargetPath> },
    /// The poststop hook of a sandbox.
    ReleaseSandbox,
}

/// The arguments of a sandbox's hook.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SandboxArgs {
    pub(crate) pod_uid: String,
    /// Path of the program that CSI drivers call about volumes in use (KEP-2857: `runtime-cli`).
    pub(crate) cli: PathBuf,
    /// Path of the sandbox's root file system on the host. `/.crust` is below it until the sandbox pivots.
    pub(crate) rootfs: PathBuf,
    /// SELinux label for the volumes' files.
    pub(crate) label: Option<String>,
    /// Target paths of the volumes that are staged for the pod.
    pub(crate) volumes: Vec<TargetPath>,
}

/// The arguments of the hook that mounts the volumes of a container.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MountArgs {
    /// See [`SandboxArgs::cli`].
    pub(crate) cli: PathBuf,
    /// Path of the container's root file system on the host.
    pub(crate) rootfs: PathBuf,
    /// See [`SandboxArgs::label`].
    pub(crate) label: Option<String>,
    /// The mounts, in the order of the config.
    pub(crate) mounts: Vec<HookMount>,
}

/// The command line of `crust-mount-hook`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HookArgs {
    /// Path of the configuration that runcrust read; `None` for the defaults.
    pub(crate) config: Option<PathBuf>,
    pub(crate) verb: HookVerb,
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
            Some("sandbox") => HookVerb::Sandbox(SandboxArgs {
                pod_uid: pod_uid.context("sandbox: --pod-uid is missing")?,
                cli: cli.context("sandbox: --cli is missing")?,
                rootfs: rootfs.context("sandbox: --rootfs is missing")?,
                label,
                volumes,
            }),
            Some("mount") => HookVerb::Mount(MountArgs {
                cli: cli.context("mount: --cli is missing")?,
                rootfs: rootfs.context("mount: --rootfs is missing")?,
                label,
                mounts,
            }),
            Some("publish") => HookVerb::Publish { volumes },
            Some("release") => HookVerb::Release { volumes },
            Some("release-sandbox") => HookVerb::ReleaseSandbox,
            _ => bail!(
                "usage: crust-mount-hook sandbox|mount|publish|release|release-sandbox \
                 [--config FILE] [--pod-uid UID] [--cli PROGRAM] [--rootfs DIRECTORY] \
                 [--mount-label LABEL] [--volume TARGET_PATH]... [--mount JSON]...; runcrust adds these hooks to the \
                 configs of containers, so that runc or crun runs them; don't run them by hand"
            ),
        };
        Ok(Self { config, verb })
    }
}

/// The part of a container's state that the hooks need.
#[derive(Debug, Deserialize)]
pub(crate) struct ContainerState {
    pub(crate) id: String,
    /// Pid of the container's first process in the host's pid namespace; 0 in poststop, where the state has no pid.
    #[serde(default)]
    pub(crate) pid: i32,
}

/// The size of the largest state that is parsed, in bytes. The state contains the config's annotations. A config with
/// volumes has at most 16 MiB, and Go may escape each byte as six.
const MAX_STATE_BYTES: u64 = 6 * (16 << 20) + (1 << 20);

impl ContainerState {
    /// Reads the state from standard input, to its end.
    pub(crate) fn read() -> Result<Self> {
        let mut stdin = std::io::stdin().lock();
        let state = serde_json::from_reader(BufReader::new((&mut stdin).take(MAX_STATE_BYTES)));
        // The rest is read even after an error: SIGPIPE would kill the delegate if it wrote to a pipe without a reader.
        std::io::copy(&mut stdin, &mut std::io::sink()).context("read state from stdin")?;
        state.context("parse the container's state on stdin")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<HookArgs> {
        HookArgs::parse(lexopt::Parser::from_args(line.split(' ')))
    }

    #[test]
    fn the_arguments_that_runcrust_writes_are_parsed() {
        let line = "sandbox --config /c --volume /a --volume /b --pod-uid u --cli /r --rootfs /f \
                    --mount-label u:object_r:t:s0:c1,c2";
        let volumes = ["/a", "/b"]
            .map(|path| TargetPath::new(path).unwrap())
            .into();
        let (pod_uid, cli, rootfs) = ("u".into(), "/r".into(), "/f".into());
        let label = Some("u:object_r:t:s0:c1,c2".into());
        let verb = HookVerb::Sandbox(SandboxArgs {
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
    fn invalid_arguments_are_refused() {
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
