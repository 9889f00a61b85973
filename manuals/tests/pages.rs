//! Checks that the pages document every option of the programs, and that groff renders them without warnings.

#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crust_manuals::{commands, completions, pages};

const DATE: &str = "2026-01-31";

/// Renders a page with groff. Returns its words separated by single spaces.
fn rendered(roff: &str) -> String {
    let mut groff = Command::new("groff");
    // Long lines and no hyphenation, so that groff doesn't split words.
    let arguments = ["-man", "-Tascii", "-P-cbou", "-ww", "-rLL=1000n", "-rHY=0"];
    let mut child = groff
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("groff (Debian's groff-base)");
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(roff.as_bytes()).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let warnings = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success() && warnings.is_empty(),
        "{warnings}\n{roff}"
    );
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn pages_render_without_warnings_and_have_all_sections() {
    for page in pages(DATE).unwrap() {
        let text = rendered(&page.text);
        let name = page.path.file_stem().unwrap().to_str().unwrap();
        assert!(text.starts_with(&format!("{name}(8)")), "{text}");
        for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "EXIT STATUS", "SEE ALSO"] {
            assert!(text.contains(section), "{name} has no {section}: {text}");
        }
        assert!(text.contains(DATE), "{text}");
        assert!(!text.contains('`'), "{text}");
    }
}

/// Checks that a command's page documents its options and subcommands, and that each subcommand has a page. Hidden
/// options must not be documented: `uninstall` accepts the options of `install`.
fn check(command: &clap::Command, path: &str, pages: &[crust_manuals::File]) {
    let file = format!("man/man8/{path}.8");
    let page = pages.iter().find(|page| page.path == Path::new(&file));
    let page = page.unwrap_or_else(|| panic!("no {file}"));
    let text = rendered(&page.text);
    for argument in command.get_arguments() {
        let long = argument.get_long().map(|long| format!("--{long}"));
        let name = long.or_else(|| Some(argument.get_value_names()?.first()?.to_string()));
        let name = name.expect("an argument has a name");
        if argument.is_hide_set() {
            assert!(
                !text.contains(&name),
                "{file} documents hidden {name}: {text}"
            );
            continue;
        }
        assert!(
            text.contains(&name),
            "{file} doesn't document {name}: {text}"
        );
        let is_from_clap = ["help", "version"].contains(&argument.get_id().as_str());
        if let Some(help) = argument.get_help().filter(|_| !is_from_clap) {
            let help = help.to_string();
            let first = help.split_whitespace().next().unwrap();
            assert!(
                text.contains(first),
                "{file} has no help for {name}: {text}"
            );
        }
    }
    for verb in command.get_subcommands() {
        if verb.is_hide_set() {
            let name = verb.get_name();
            assert!(!text.contains(name), "{file} documents hidden {name}");
            continue;
        }
        assert!(
            text.contains(verb.get_name()),
            "{file} doesn't name {}",
            verb.get_name()
        );
        check(verb, &format!("{path}-{}", verb.get_name()), pages);
    }
}

#[test]
fn every_subcommand_and_option_is_documented() {
    let pages = pages(DATE).unwrap();
    for mut command in commands() {
        command.build();
        let name = command.get_name().to_owned();
        check(&command, &name, &pages);
    }
    let paths: Vec<&Path> = pages.iter().map(|page| page.path.as_path()).collect();
    for name in [
        "man/man8/runcrust.8",
        "man/man8/runcrust-install.8",
        "man/man8/runcrust-uninstall.8",
        "man/man8/runcrust-crust.8",
        "man/man8/runcrust-crust-stage.8",
        "man/man8/crust_ops.8",
        "man/man8/crust-csi.8",
        "man/man8/crustlet.8",
        "man/man8/crustlet-get.8",
        "man/man8/crust-mount-hook.8",
    ] {
        assert!(paths.contains(&Path::new(name)), "{paths:?}");
    }
}

#[test]
fn pages_without_a_date_are_reproducible() {
    let text = |file: &crust_manuals::File| file.text.clone();
    let (one, two) = (pages("").unwrap(), pages("").unwrap());
    assert!(one.iter().map(text).eq(two.iter().map(text)));
}

#[test]
fn each_shell_completes_subcommands_and_options() {
    let files = completions();
    for (name, words) in [
        (
            "bash-completion/completions/runcrust",
            ["uninstall", "--copy-to", "crust"],
        ),
        (
            "zsh/site-functions/_runcrust",
            ["uninstall", "--copy-to", "crust"],
        ),
        (
            "fish/vendor_completions.d/runcrust.fish",
            ["uninstall", "copy-to", "crust"],
        ),
        (
            "bash-completion/completions/crust_ops",
            ["--config", "--check", "--version"],
        ),
        (
            "zsh/site-functions/_crust_ops",
            ["--config", "--check", "--version"],
        ),
        (
            "fish/vendor_completions.d/crust_ops.fish",
            ["config", "check", "version"],
        ),
        (
            "bash-completion/completions/crust-csi",
            ["--endpoint", "--without", "VOLUME_MOUNT_GROUP"],
        ),
        (
            "zsh/site-functions/_crust-csi",
            ["--endpoint", "--without", "VOLUME_MOUNT_GROUP"],
        ),
        (
            "fish/vendor_completions.d/crust-csi.fish",
            ["endpoint", "without", "VOLUME_MOUNT_GROUP"],
        ),
        (
            "bash-completion/completions/crustlet",
            ["delete", "--all-namespaces", "yaml"],
        ),
        (
            "zsh/site-functions/_crustlet",
            ["delete", "--all-namespaces", "yaml"],
        ),
        (
            "fish/vendor_completions.d/crustlet.fish",
            ["delete", "all-namespaces", "yaml"],
        ),
    ] {
        let file = files
            .iter()
            .find(|file| file.path == Path::new(name))
            .unwrap();
        for word in words {
            assert!(file.text.contains(word), "{name}: {word}");
        }
    }
}

#[test]
fn bash_parses_its_completions() {
    for file in completions() {
        if !file.path.starts_with("bash-completion") {
            continue;
        }
        let mut bash = Command::new("bash");
        let status = bash.args(["-n", "-c", &file.text]).status().unwrap();
        assert!(status.success(), "{}", file.path.display());
    }
}
