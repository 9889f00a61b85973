//! Checks that a container engine on this node has this program as a handler.

use std::path::Path;

use crust_engines::{ENGINES, Engine, Handler, HandlerError, NodeRoot, handlers};
use crust_state::check::Finding;

use crate::programs::is_this_program;

const CHECK: &str = "handler";

/// The handlers of an engine, each with whether it runs this program; `None` if the engine isn't on this node.
type EngineHandlers = Result<Option<Vec<(Handler, bool)>>, HandlerError>;

pub(super) fn check() -> Vec<Finding> {
    let node = NodeRoot::new(Path::new("/"));
    let is_own = |handler: Handler| {
        let is_own = is_this_program(&node.find(&handler.program));
        (handler, is_own)
    };
    let found = ENGINES.iter().map(|engine| {
        let found = handlers(&node, *engine);
        let found = found.map(|all| all.map(|all| all.into_iter().map(is_own).collect()));
        (*engine, found)
    });
    judge(found.collect())
}

/// A node with several engines needs the handler in only one of them.
fn judge(found: Vec<(&dyn Engine, EngineHandlers)>) -> Vec<Finding> {
    let (mut findings, mut own_handlers, mut other_handlers, mut engines) =
        (vec![], vec![], vec![], vec![]);
    for (engine, found) in found {
        match found {
            Err(error) => findings.push(Finding::from_error(CHECK, &error).at_most_warning()),
            Ok(None) => {}
            Ok(Some(handlers)) => {
                engines.push(engine.info().name);
                for (handler, is_own) in handlers {
                    let (file, program) = (handler.file.display(), handler.program.display());
                    let name = engine.info().name;
                    let text = format!("{name} ({file}): {} runs {program}", handler.name);
                    if is_own {
                        own_handlers.push(text);
                    } else if handler.is_runcrust() {
                        other_handlers.push(text);
                    }
                }
            }
        }
    }
    let names = |name: fn(&dyn Engine) -> &'static str| ENGINES.iter().map(move |it| name(*it));
    let all: Vec<&str> = names(|engine| engine.info().name).collect();
    let fix = format!(
        "run `runcrust install ENGINE`, where ENGINE is one of {}",
        all.join(", ")
    );
    findings.push(if !own_handlers.is_empty() {
        Finding::pass(CHECK, own_handlers.join(", "))
    } else if !other_handlers.is_empty() {
        let others = other_handlers.join(", ");
        Finding::warn(CHECK, format!("{others}, which isn't this program"), fix)
    } else if engines.is_empty() {
        let titles: Vec<&str> = names(|engine| engine.info().title).collect();
        let (last, first) = titles.split_last().unwrap_or((&"", &[]));
        let found = format!("neither {} nor {last} is configured here", first.join(", "));
        Finding::warn(CHECK, found, fix)
    } else {
        let engines = engines.join(", ");
        Finding::warn(
            CHECK,
            format!("no handler of {engines} runs this program"),
            fix,
        )
    });
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: (&str, &str, bool) = ("crust", "/usr/bin/runcrust", true);
    const RUNC: (&str, &str, bool) = ("runc", "/usr/sbin/runc", false);
    const OLDER: (&str, &str, bool) = ("crust", "/opt/runcrust", false);

    fn with(handlers: &[(&str, &str, bool)]) -> Vec<(Handler, bool)> {
        let handlers = handlers.iter().map(|(name, program, is_own)| {
            let (file, name) = ("/etc/f".into(), (*name).to_owned());
            let program = program.into();
            (
                Handler {
                    file,
                    name,
                    program,
                },
                *is_own,
            )
        });
        handlers.collect()
    }

    #[test]
    fn one_engine_that_runs_this_program_is_enough() {
        let unreadable = || Err(HandlerError::NotText("/etc/docker/daemon.json".into()));
        let none = "warn  handler: neither containerd, CRI-O, podman nor docker is configured here; \
                    hint: run `runcrust install ENGINE`, where ENGINE is one of containerd, crio, podman, docker";
        let pass = "pass  handler: containerd (/etc/f): crust runs /usr/bin/runcrust";
        for (found, expected) in [
            (
                vec![Ok(Some(with(&[RUNC, OWN]))), Ok(Some(with(&[]))), Ok(None)],
                &[pass][..],
            ),
            (vec![Ok(None)], &[none]),
            (
                vec![Ok(Some(with(&[RUNC]))), Ok(None)],
                &[
                    "warn  handler: no handler of containerd runs this program; hint: run `runcrust install",
                ],
            ),
            (
                vec![Ok(Some(with(&[OLDER])))],
                &["warn  handler: containerd (/etc/f): crust runs /opt/runcrust, which isn't this"],
            ),
            (
                vec![Ok(Some(with(&[OWN]))), unreadable()],
                &["warn  handler: /etc/docker/daemon.json", pass],
            ),
        ] {
            let engines = ENGINES.iter().copied().zip(found).collect();
            let lines = judge(engines)
                .into_iter()
                .map(|finding| finding.to_string());
            let lines: Vec<String> = lines.collect();
            assert_eq!(lines.len(), expected.len(), "{lines:?}");
            for (line, expected) in lines.iter().zip(expected) {
                assert!(line.starts_with(expected), "{line}");
            }
        }
    }
}
