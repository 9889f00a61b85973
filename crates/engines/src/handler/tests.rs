//! Tests that every engine has to pass, with the engine's own sample texts.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::config_file::MARK;
use crate::fuzzing::{PROGRAM, TEST_HANDLER, check, edits, file, try_install, try_uninstall};
use crate::{ENGINES, find_engine};

/// An older path of runcrust in the engines' samples.
pub(crate) const OLD_PROGRAM: &str = "/opt/runcrust";

pub(crate) fn install_into(engine: &dyn Engine, text: Option<&str>) -> String {
    try_install(engine, text).unwrap()
}

pub(crate) fn uninstall_from(engine: &dyn Engine, text: &str) -> Option<String> {
    try_uninstall(engine, text).unwrap()
}

fn second_file(text: &str) -> EngineConfigFile {
    EngineConfigFile::new("/etc/second", Some(text.to_owned()))
}

fn removal(engine: &dyn Engine, files: Vec<EngineConfigFile>) -> Result<ChangePlan> {
    plan_uninstall(engine, files, TEST_HANDLER.name, None)
}

#[test]
fn engines_have_different_names_and_files() {
    for (at, engine) in ENGINES.iter().enumerate() {
        let found = find_engine(engine.info().name).unwrap();
        assert_eq!(found.info().file, engine.info().file);
        let others = || ENGINES[at + 1..].iter();
        assert!(others().all(|other| other.info().file != engine.info().file));
    }
}

#[test]
fn a_file_that_install_creates_is_removed_again() {
    for engine in ENGINES {
        let once = install_into(*engine, None);
        let runtimes = engine.runtimes(&file(*engine, Some(&once))).unwrap();
        let runtime = runtimes
            .iter()
            .find(|runtime| runtime.name == "crust")
            .unwrap();
        assert!(runtime.programs == [PROGRAM] && runtime.mismatch.is_none());
        assert_eq!(install_into(*engine, Some(&once)), once);
        let back = uninstall_from(*engine, &once);
        let expected = (!once.starts_with(MARK)).then_some("{}\n");
        assert_eq!(back.as_deref(), expected, "{once}");
    }
}

#[test]
fn a_file_is_restored_byte_for_byte() {
    for engine in ENGINES {
        for text in engine.samples().kept {
            check(*engine, text);
            let lines = text.replace("\r\n", "\n");
            for text in [
                (*text).to_owned(),
                lines.replace('\n', "\r\n"),
                lines.replacen('\n', "\r\n", 1),
                format!("\u{feff}{}", text.trim_start_matches('\u{feff}')),
            ] {
                let once = install_into(*engine, Some(&text));
                assert_ne!(once, text);
                assert_eq!(install_into(*engine, Some(&once)), once);
                assert_eq!(uninstall_from(*engine, &once), Some(text), "{once}");
            }
        }
    }
}

#[test]
fn an_older_path_is_replaced_and_settings_are_kept() {
    for engine in ENGINES {
        for text in engine.samples().outdated {
            let once = install_into(*engine, Some(text));
            let expected = text.replace(OLD_PROGRAM, PROGRAM);
            assert!(once.starts_with(&expected), "{once}");
            check(*engine, text);
        }
    }
}

#[test]
fn texts_that_the_engine_cannot_read_are_refused_with_a_hint() {
    for engine in ENGINES {
        for (text, words) in engine.samples().refused {
            let error = try_install(*engine, Some(text)).unwrap_err().to_string();
            let has_hint = error.contains("hint: ");
            assert!(error.contains(words) && has_hint, "{text}: {error}");
            check(*engine, text);
        }
    }
}

#[test]
fn a_foreign_handler_is_neither_changed_nor_removed() {
    for engine in ENGINES {
        let with_handler = install_into(*engine, None);
        for (foreign, words) in engine.samples().foreign {
            let default_file = |text| file(*engine, text);
            let planned = [
                plan_install(*engine, vec![default_file(Some(foreign))], &TEST_HANDLER),
                plan_install(
                    *engine,
                    vec![default_file(None), second_file(foreign)],
                    &TEST_HANDLER,
                ),
                removal(*engine, vec![default_file(Some(foreign))]),
                removal(*engine, vec![default_file(None), second_file(foreign)]),
            ];
            for planned in planned {
                let error = planned.unwrap_err().to_string();
                let has_hint = error.contains("--handler");
                assert!(error.contains(words) && has_hint, "{error}");
            }
            let both = removal(
                *engine,
                vec![default_file(Some(foreign)), second_file(&with_handler)],
            );
            assert_eq!(both.is_err(), engine.info().merges_entries);
            let changed = both.map(edits).unwrap_or_default();
            let is_second = |edit: &(PathBuf, _)| edit.0 == second_file("").path;
            assert!(changed.iter().all(is_second), "{changed:?}");
        }
        let (foreign, _) = engine.samples().foreign[0];
        let files = vec![file(*engine, Some(foreign))];
        let named = plan_uninstall(*engine, files, "crust", Some("/usr/bin/crun"));
        assert_eq!(named.unwrap().changes.len(), 1, "{engine:?}");
    }
}

#[test]
fn the_default_runtime_of_any_file_is_not_removed() {
    for engine in ENGINES {
        let (with_handler, default) = (install_into(*engine, None), engine.samples().default);
        let files = vec![file(*engine, Some(&with_handler)), second_file(default)];
        let error = removal(*engine, files).unwrap_err().to_string();
        let words = "/etc/second: handler crust is the default runtime; hint: change `";
        assert!(error.starts_with(words), "{error}");
        let other = default.replace("\"crust\"", "\"runc\"");
        let files = vec![file(*engine, Some(&with_handler)), second_file(&other)];
        assert_eq!(removal(*engine, files).unwrap().changes.len(), 1);
        let alone = removal(*engine, vec![second_file(default)]).unwrap();
        assert!(alone.changes.is_empty() && alone.programs.is_empty());
    }
}

#[test]
fn a_handler_is_not_removed_from_files_of_packages() {
    for engine in ENGINES {
        let with_handler = install_into(*engine, None);
        let packaged = || EngineConfigFile {
            is_packaged: true,
            ..EngineConfigFile::new("/usr/share/x", Some(with_handler.clone()))
        };
        let files = vec![
            file(*engine, Some(&with_handler)),
            second_file(&with_handler),
            packaged(),
        ];
        let plan = removal(*engine, files).unwrap();
        let note = "/usr/share/x still has handler crust: the file belongs to a package and is not changed";
        assert_eq!(plan.notes[0], note);
        assert_eq!(plan.programs, [PROGRAM, PROGRAM].map(PathBuf::from));
        assert_eq!(plan.changes.len(), 2);
        let plan = removal(
            *engine,
            vec![second_file(engine.samples().default), packaged()],
        )
        .unwrap();
        assert_eq!((plan.changes.len(), plan.notes[0].as_str()), (0, note));
    }
}

#[test]
fn several_handlers_are_removed_one_by_one() {
    for engine in ENGINES {
        let plan = |text: Option<&str>, handler| {
            let spec = HandlerSpec {
                name: handler,
                ..TEST_HANDLER
            };
            let plan = plan_install(*engine, vec![file(*engine, text)], &spec);
            edits(plan.unwrap()).remove(0).1.unwrap()
        };
        let remove = |text: &str, handler| {
            let files = vec![file(*engine, Some(text))];
            edits(plan_uninstall(*engine, files, handler, None).unwrap())
                .remove(0)
                .1
        };
        let alone = plan(None, "crust");
        for other in ["a-crust", "crust-crun"] {
            let both = plan(Some(&alone), other);
            assert_eq!(remove(&both, "crust"), Some(plan(None, other)));
            assert_eq!(remove(&both, other), Some(alone.clone()));
            let left = remove(&both, "crust").unwrap();
            assert_eq!(remove(&left, other), uninstall_from(*engine, &alone));
        }
    }
}

fn node(files: &[(&str, &str)]) -> (tempfile::TempDir, NodeRoot) {
    let root = tempfile::Builder::new().tempdir_in("/run").unwrap();
    fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for (path, text) in files {
        let file = root.path().join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
    let node = NodeRoot::new(root.path());
    (root, node)
}

#[test]
fn the_handlers_of_runcrust_are_found_in_every_file() {
    let (_root, node) = node(&[
        (
            "etc/containerd/config.toml",
            "version = 2\nimports = ['/etc/containerd/conf.d/*']\n\
             [plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes]\n\
             runc.options.BinaryName = '/usr/bin/runc'\none.options.BinaryName = '/x/runcrust-crun'\n",
        ),
        (
            "etc/containerd/conf.d/1.toml",
            "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes]\n\
             one.options.BinaryName = '/x/runcrust'\ntwo.options.BinaryName = '/x/runcrust'\n",
        ),
        (
            "etc/containerd/conf.d/2.toml",
            "[plugins.cri.containerd.runtimes]\nold.options.BinaryName = '/x/runcrust'\n",
        ),
        (
            "etc/crio/crio.conf",
            "[crio.runtime.runtimes]\nb.runtime_path = '/x/runcrust'\nrunc.runtime_path = ''\n",
        ),
        (
            "etc/crio/crio.conf.d/99-runcrust.conf",
            "[crio.runtime.runtimes.a]\nruntime_path = '/x/runcrust'\n",
        ),
        (
            "usr/share/containers/containers.conf",
            "[engine.runtimes]\ncrun = ['/x/crun']\nv = ['/x/crun', '/x/runcrust']\n",
        ),
        (
            "etc/containers/containers.conf",
            "[engine.runtimes]\ncrust = ['/x/runcrust']\n",
        ),
        (
            "etc/docker/daemon.json",
            "{\"runtimes\": {\"z\": {\"path\": \"/runcrust\"}, \"n\": null, \"k\": {}},\n\
             \"runtimes\": {\"My.crust\": {\"path\": \"/x/runcrust\"}}}",
        ),
    ]);
    for (engine, names) in [
        ("containerd", "old one two"),
        ("crio", "a b"),
        ("podman", "crust v"),
        ("docker", "My.crust z"),
    ] {
        let engine = find_engine(engine).unwrap();
        let found = runcrust_handlers(&node, engine).unwrap();
        assert_eq!(found.join(" "), names);
        assert!(handlers(&node, engine).unwrap().is_some());
    }
}

#[test]
fn a_node_without_an_engine_has_no_handlers() {
    let (_root, node) = node(&[]);
    for engine in ENGINES {
        assert_eq!(handlers(&node, *engine).unwrap(), None);
        assert!(runcrust_handlers(&node, *engine).unwrap().is_empty());
        // A file that can't be parsed may contain handlers.
        let file = node.find(engine.info().file.as_ref());
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "[").unwrap();
        let error = runcrust_handlers(&node, *engine).unwrap_err();
        assert!(matches!(error, HandlerError::Syntax(..)), "{error}");
    }
}
