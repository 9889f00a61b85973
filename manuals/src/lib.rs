//! The manual pages, from the command lines as the programs read them and the texts in `text/`, and
//! the shells' completions.

#![forbid(unsafe_code)]

use std::io;
use std::path::{Path, PathBuf};

use clap::Command;
use clap_complete::{Shell, generate};
use clap_mangen::Man;

/// A file to be written.
#[derive(Debug)]
pub struct File {
    /// Where it stands below a prefix's `share`, as `man` and the shells look for it.
    pub path: PathBuf,
    /// What is in it.
    pub text: String,
}

/// What stands in a page besides what its command line says: before the options, and at the end.
type Texts = (&'static str, &'static str);

/// By page. In `text/` they are roff, as `man(7)` has it.
const TEXTS: [(&str, Texts); 8] = [
    (
        "runcrust",
        (
            include_str!("../text/runcrust.roff"),
            include_str!("../text/runcrust-end.roff"),
        ),
    ),
    (
        "runcrust-install",
        ("", include_str!("../text/install-end.roff")),
    ),
    (
        "runcrust-uninstall",
        ("", include_str!("../text/uninstall-end.roff")),
    ),
    (
        "crust_ops",
        (
            include_str!("../text/crust_ops.roff"),
            include_str!("../text/crust_ops-end.roff"),
        ),
    ),
    (
        "crust-csi",
        (
            include_str!("../text/crust-csi.roff"),
            include_str!("../text/crust-csi-end.roff"),
        ),
    ),
    (
        "crustlet",
        (
            include_str!("../text/crustlet.roff"),
            include_str!("../text/crustlet-end.roff"),
        ),
    ),
    (
        "crustlet-run",
        ("", include_str!("../text/crustlet-run-end.roff")),
    ),
    (
        "crustlet-exec",
        ("", include_str!("../text/crustlet-exec-end.roff")),
    ),
];

/// The hook has a command line that only runcrust writes.
const HOOK: &str = include_str!("../text/crust-mount-hook.roff");

/// Of the verbs of `crust`.
const VERB_END: &str = include_str!("../text/crust-end.roff");

/// Of the commands of `crustlet` that have none of their own.
const AGENT_END: &str = include_str!("../text/crustlet-command-end.roff");

/// The programs' command lines.
#[must_use]
pub fn commands() -> [Command; 4] {
    [
        runcrust::command(),
        crust_ops::command(),
        crust_csi::command(),
        crustlet::command(),
    ]
}

/// The pages, of section 8. `date` is `YYYY-MM-DD`, or nothing.
pub fn pages(date: &str) -> io::Result<Vec<File>> {
    let mut pages = Vec::new();
    for mut command in commands() {
        command.build();
        add(&command, date, &mut pages)?;
    }
    let version = env!("CARGO_PKG_VERSION");
    let title = format!(".TH crust-mount-hook 8 \"{date}\" \"runcrust {version}\" \"runcrust\"\n");
    pages.push(File {
        path: page_path("crust-mount-hook"),
        text: title + HOOK,
    });
    Ok(pages)
}

/// A command's page, and those of its subcommands.
fn add(command: &Command, date: &str, pages: &mut Vec<File>) -> io::Result<()> {
    let called = command.get_display_name().unwrap_or(command.get_name());
    let name = called.replace(' ', "-");
    let texts = TEXTS.iter().find(|(page, _)| *page == name);
    let verb_end = if name.starts_with("crustlet-") {
        AGENT_END
    } else {
        VERB_END
    };
    let (begin, end) = texts.map_or(("", verb_end), |(_, texts)| *texts);
    let page = Man::new(command.clone().display_name(name.clone()))
        .title(&name)
        .section("8")
        .date(date)
        .source(concat!("runcrust ", env!("CARGO_PKG_VERSION")))
        .manual("runcrust");
    let mut text = Vec::new();
    page.render_title(&mut text)?;
    page.render_name_section(&mut text)?;
    if begin.is_empty() {
        page.render_synopsis_section(&mut text)?;
        page.render_description_section(&mut text)?;
    } else {
        text.extend(begin.as_bytes());
    }
    // What `runcrust --help` and `--version` say is the delegate's.
    if name != "runcrust" {
        page.render_options_section(&mut text)?;
    }
    if command.has_subcommands() {
        page.render_subcommands_section(&mut text)?;
    }
    text.extend(end.as_bytes());
    let text = String::from_utf8(text).map_err(io::Error::other)?;
    pages.push(File {
        path: page_path(&name),
        // rustdoc's marks of a word that isn't English.
        text: text.replace('`', ""),
    });
    for subcommand in command.get_subcommands() {
        add(subcommand, date, pages)?;
    }
    Ok(())
}

fn page_path(name: &str) -> PathBuf {
    Path::new("man/man8").join(format!("{name}.8"))
}

/// For bash, zsh and fish.
#[must_use]
pub fn completions() -> Vec<File> {
    let mut files = Vec::new();
    for mut command in commands() {
        let program = command.get_name().to_owned();
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut text = Vec::new();
            generate(shell, &mut command, &program, &mut text);
            let path = match shell {
                Shell::Zsh => format!("zsh/site-functions/_{program}"),
                Shell::Fish => format!("fish/vendor_completions.d/{program}.fish"),
                _ => format!("bash-completion/completions/{program}"),
            };
            let text = String::from_utf8_lossy(&text).into_owned();
            files.push(File {
                path: path.into(),
                text,
            });
        }
    }
    files
}
