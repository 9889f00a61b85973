//! The containers of a docker daemon.

use std::fs;

use serde_json::Value;

use super::{DOCKER_IMAGE, Docker};
use crate::bundle::IDLE;
use crate::dir::unique;
use crate::{Engine as _, Run};

impl Docker {
    /// Runs `docker run` with [`DOCKER_IMAGE`], the runtime, and a command.
    pub fn run_image(&self, flags: &[&str], command: &[&str]) -> Run {
        self.run(&self.run_command(DOCKER_IMAGE, flags, command))
    }

    /// Starts a detached container that sleeps.
    pub fn start_container(&self, name: &str, flags: &[&str]) -> Run {
        let detached = ["--detach", "--name", name];
        self.run_image(&[&detached, flags].concat(), &IDLE)
    }

    /// Runs a script in the foreground, in a container with `--rm`. The container exits with `code` after the client
    /// has written these texts to its standard output and standard error. The client's warnings about the machine
    /// (`WARNING: IPv4 forwarding is disabled.`) are removed from standard error.
    ///
    /// The client stops writing when it learns that the container has ended, even if there is more to write (seen with
    /// docker 26.1 on a busy machine). So a part of what a container writes at its end may be missing.
    #[track_caller]
    pub fn run_attached(&self, flags: &[&str], script: &str, code: u8, texts: [&str; 2]) -> Run {
        let name = unique("attached");
        let script = format!("trap 'exit {code}' TERM; {script}; sleep 2147483647 & wait");
        let flags = [&["--rm", "--name", &name], flags].concat();
        let arguments = self.run_command(DOCKER_IMAGE, &flags, &["/bin/sh", "-ec", &script]);
        let run = Run::ended_after(self.files.client().args(arguments), texts, || {
            let _ = self.run(&["kill", "--signal=TERM", &name]);
        });
        let stderr = run.stderr.split_inclusive('\n');
        let stderr = stderr.filter(|line| !line.starts_with("WARNING: "));
        Run {
            stderr: stderr.collect(),
            ..run
        }
    }

    /// Runs a script in a new container, which must succeed, and returns its standard output from the container's log.
    #[track_caller]
    pub fn output_of(&self, flags: &[&str], script: &str) -> String {
        self.output_of_image(DOCKER_IMAGE, flags, script)
    }

    /// Runs a script in a new container of another image, as [`Self::output_of`] does.
    #[track_caller]
    pub fn output_of_image(&self, image: &str, flags: &[&str], script: &str) -> String {
        let name = unique("ends");
        let flags = [&["--detach", "--name", &name], flags].concat();
        let shell = ["/bin/sh", "-ec", script];
        let _ = self.run(&self.run_command(image, &flags, &shell)).success();
        let ended = self.run(&["wait", &name]).success();
        let log = self.run(&["logs", &name]).success();
        let _ = self.run(&["rm", &name]).success();
        assert_eq!(ended.stdout.trim(), "0", "{flags:?} {script}: {log}");
        log.stdout
    }

    /// Removes containers, running or not, with their volumes.
    #[track_caller]
    pub fn remove(&self, names: &[&str]) {
        let remove = ["rm", "--force", "--volumes"];
        let _ = self.run(&[&remove, names].concat()).success();
    }

    /// Reads the `config.json` of a running container as its runtime left it.
    #[track_caller]
    pub fn config(&self, name: &str) -> Value {
        let id = self.inspect(name, "{{.Id}}");
        let bundles = self.shims.bundles();
        let bundle = bundles.iter().find(|bundle| bundle.ends_with(&id));
        let file = bundle.expect("a bundle").join("config.json");
        let text = fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        serde_json::from_slice(&text).expect("a configuration")
    }

    /// Returns the control group of a container.
    #[track_caller]
    pub fn cgroup(&self, name: &str) -> String {
        format!("{}/{}", self.cgroup, self.inspect(name, "{{.Id}}"))
    }

    /// Returns the pids of the running shims, one for each container.
    pub fn shims(&self) -> Vec<i32> {
        self.shims.running()
    }

    /// Returns the arguments of `docker run`.
    fn run_command<'a>(
        &'a self,
        image: &'a str,
        flags: &[&'a str],
        command: &[&'a str],
    ) -> Vec<&'a str> {
        let runtime = self.runtime.as_ref().map(|name| ["--runtime", name]);
        let runtime = runtime.as_ref().map_or(&[][..], |words| words);
        [&["run"], runtime, flags, &[image], command].concat()
    }
}
