//! Generates manual pages from the programs' clap definitions and the texts in `text/`, and shell completions from the
//! clap definitions.

#![forbid(unsafe_code)]

use std::io;
use std::path::{Path, PathBuf};

use clap::Command;
use clap_complete::{Shell, generate};
use clap_mangen::Man;

/// A generated file.
#[derive(Debug)]
pub struct File {
    /// The path below a prefix's `share` directory, where `man` or the shell finds the file.
    pub path: PathBuf,
    pub text: String,
}

/// The texts of a page that don't come from clap, in roff (`man(7)`): first the synopsis and the description, which
/// replace clap's unless they are empty, then the sections at the end.
type Texts = (&'static str, &'static str);

/// The names of pages, and their texts.
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

/// The page of the hook, which has no clap definition: only runcrust writes its command line.
const HOOK_PAGE: &str = include_str!("../text/crust-mount-hook.roff");

/// The last sections of pages about subcommands of `runcrust crust`.
const CRUST_END: &str = include_str!("../text/crust-end.roff");

/// The last sections of pages about subcommands of `crustlet` that aren't in [`TEXTS`].
const CRUSTLET_END: &str = include_str!("../text/crustlet-command-end.roff");

/// Returns the clap definitions of the programs.
#[must_use]
pub fn commands() -> [Command; 4] {
    [
        runcrust::command(),
        crust_ops::command(),
        crust_csi::command(),
        crustlet::command(),
    ]
}

/// Generates all manual pages, in section 8. `date` is `YYYY-MM-DD` or empty.
///
/// Fails if clap's output isn't UTF-8.
pub fn pages(date: &str) -> io::Result<Vec<File>> {
    let mut pages = Vec::new();
    for mut command in commands() {
        command.build();
        add_pages(&command, date, &mut pages)?;
    }
    let version = env!("CARGO_PKG_VERSION");
    let title = format!(".TH crust-mount-hook 8 \"{date}\" \"runcrust {version}\" \"runcrust\"\n");
    pages.push(File {
        path: page_path("crust-mount-hook"),
        text: title + HOOK_PAGE,
    });
    Ok(pages)
}

/// Adds the page of a command and, recursively, those of its subcommands.
fn add_pages(command: &Command, date: &str, pages: &mut Vec<File>) -> io::Result<()> {
    let display_name = command.get_display_name().unwrap_or(command.get_name());
    let name = display_name.replace(' ', "-");
    let texts = TEXTS.iter().find(|(page, _)| *page == name);
    let default_end = if name.starts_with("crustlet-") {
        CRUSTLET_END
    } else {
        CRUST_END
    };
    let (begin, end) = texts.map_or(("", default_end), |(_, texts)| *texts);
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
    // `runcrust --help` and `--version` are passed through to the delegate.
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
        text,
    });
    for subcommand in command.get_subcommands() {
        add_pages(subcommand, date, pages)?;
    }
    Ok(())
}

fn page_path(name: &str) -> PathBuf {
    Path::new("man/man8").join(format!("{name}.8"))
}

/// Generates the completions of all programs for bash, zsh and fish.
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
