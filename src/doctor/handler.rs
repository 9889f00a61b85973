//! Whether a container engine runs this program.

use std::path::Path;

use crust_engines::{Engine, Handler, HandlerError, Node, entries};
use crust_state::check::Finding;

use crate::programs::is_this_program;

const WHAT: &str = "handler";

const ENGINES: [(Engine, &str); 4] = [
    (Engine::Containerd, "containerd"),
    (Engine::Crio, "crio"),
    (Engine::Podman, "podman"),
    (Engine::Docker, "docker"),
];

/// An engine, and its handlers; whether each runs this program.
struct Seen {
    engine: &'static str,
    /// `None`: it isn't on this node.
    handlers: Result<Option<Vec<(Handler, bool)>>, HandlerError>,
}

pub(super) fn check() -> Vec<Finding> {
    let node = Node::new(Path::new("/"));
    let seen = ENGINES.map(|(engine, name)| {
        let found = entries(&node, engine);
        let with_answer = |handler: Handler| {
            let is_own = is_this_program(&node.find(&handler.program));
            (handler, is_own)
        };
        Seen {
            engine: name,
            handlers: found.map(|all| all.map(|all| all.into_iter().map(with_answer).collect())),
        }
    });
    judge(seen.into())
}

/// A node with several engines need have it in one of them.
fn judge(seen: Vec<Seen>) -> Vec<Finding> {
    let (mut findings, mut own, mut others, mut engines) = (vec![], vec![], vec![], vec![]);
    for Seen { engine, handlers } in seen {
        match handlers {
            Err(error) => findings.push(Finding::failed(WHAT, &error).softened()),
            Ok(None) => {}
            Ok(Some(handlers)) => {
                engines.push(engine);
                for (handler, is_own) in handlers {
                    let told = told(engine, &handler);
                    if is_own {
                        own.push(told);
                    } else if handler.is_runcrust() {
                        others.push(told);
                    }
                }
            }
        }
    }
    let fix = "runcrust install containerd, or crio, podman, docker";
    findings.push(if !own.is_empty() {
        Finding::pass(WHAT, own.join(", "))
    } else if !others.is_empty() {
        let others = others.join(", ");
        Finding::warn(WHAT, format!("{others}, which isn't this program"), fix)
    } else if engines.is_empty() {
        let found = "neither containerd, CRI-O, podman nor docker is configured here";
        Finding::warn(WHAT, found, fix)
    } else {
        let engines = engines.join(", ");
        Finding::warn(
            WHAT,
            format!("no handler of {engines} runs this program"),
            fix,
        )
    });
    findings
}

fn told(engine: &str, handler: &Handler) -> String {
    let (file, program) = (handler.file.display(), handler.program.display());
    format!("{engine} ({file}): {} runs {program}", handler.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(seen: Vec<Seen>) -> Vec<String> {
        judge(seen).iter().map(ToString::to_string).collect()
    }

    fn engine(engine: &'static str, handlers: &[(&str, &str, bool)]) -> Seen {
        let handlers = handlers.iter().map(|(name, program, is_own)| {
            let handler = Handler {
                file: "/etc/f".into(),
                name: (*name).to_owned(),
                program: program.into(),
            };
            (handler, *is_own)
        });
        Seen {
            engine,
            handlers: Ok(Some(handlers.collect())),
        }
    }

    fn absent() -> Seen {
        Seen {
            engine: "docker",
            handlers: Ok(None),
        }
    }

    #[test]
    fn one_engine_with_this_program_is_enough() {
        let runc = ("runc", "/usr/sbin/runc", false);
        let own = ("crust", "/usr/bin/runcrust", true);
        let found = lines(vec![
            engine("containerd", &[runc, own]),
            engine("podman", &[]),
            absent(),
        ]);
        let expected = "pass  handler: containerd (/etc/f): crust runs /usr/bin/runcrust";
        assert_eq!(found, [expected]);
    }

    #[test]
    fn none_is_a_warning_with_what_is_there_instead() {
        let older = ("crust", "/opt/runcrust", false);
        for (seen, expected) in [
            (vec![absent()], "warn  handler: neither containerd"),
            (
                vec![
                    engine("containerd", &[("runc", "/usr/sbin/runc", false)]),
                    absent(),
                ],
                "warn  handler: no handler of containerd runs this program; hint: runcrust install",
            ),
            (
                vec![engine("containerd", &[older])],
                "warn  handler: containerd (/etc/f): crust runs /opt/runcrust, which isn't this",
            ),
        ] {
            let found = lines(seen);
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].starts_with(expected), "{found:?}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_is_told_beside_the_others() {
        let unreadable = Seen {
            engine: "docker",
            handlers: Err(HandlerError::NotText("/etc/docker/daemon.json".into())),
        };
        let found = lines(vec![
            engine("containerd", &[("crust", "/r", true)]),
            unreadable,
        ]);
        assert!(
            found[0].starts_with("warn  handler: /etc/docker/daemon.json"),
            "{found:?}"
        );
        assert!(found[1].starts_with("pass  handler: "), "{found:?}");
    }
}
