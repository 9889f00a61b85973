//! The output of the demo.

use std::io::IsTerminal;
use std::path::Path;

use runcrust_tests::{Container, Handler, Run};
use serde_json::Value;

/// The arrays of a config to which runcrust adds elements.
const ARRAYS: [&str; 5] = [
    "/mounts",
    "/linux/devices",
    "/linux/resources/devices",
    "/hooks/createRuntime",
    "/hooks/poststop",
];

/// Prints the transcript with long names shortened.
#[derive(Debug)]
pub(crate) struct Transcript {
    short: Vec<(String, &'static str)>,
    colours: bool,
}

impl Transcript {
    pub(crate) fn new(handler: &Handler, directory: &Path, title: &str) -> Self {
        let colours = std::io::stdout().is_terminal();
        let mut transcript = Self {
            short: Vec::new(),
            colours,
        };
        println!("\n{}", transcript.bold(&format!("=== {title} ===")));
        let hook = runcrust_tests::binary("crust-mount-hook");
        transcript.abbreviate(handler.path(), "runcrust");
        transcript.abbreviate(&hook, "crust-mount-hook");
        transcript.abbreviate(&handler.configuration(), "runcrust.toml");
        transcript.abbreviate(directory, "…");
        transcript
    }

    /// Prints `path` as `short` from now on. Longer paths are replaced first.
    pub(crate) fn abbreviate(&mut self, path: &Path, short: &'static str) {
        self.short.push((path.display().to_string(), short));
        self.short
            .sort_by_key(|(long, _)| std::cmp::Reverse(long.len()));
        println!("({short} stands for {})", path.display());
    }

    /// Prints the heading of a step.
    pub(crate) fn step(&self, text: &str) {
        println!("\n{}", self.bold(&format!("# {text}")));
    }

    /// Prints a command and its output.
    pub(crate) fn run(&self, run: &Run) {
        println!("$ {}", self.shorten(&run.command));
        self.text(&run.stdout);
        self.text(&run.stderr);
    }

    /// Runs a script in a container, and prints it with its output.
    pub(crate) fn run_in(&self, name: &str, container: &Container, script: &str) {
        println!("{name}$ {script}");
        self.text(&container.sh(script));
    }

    /// Prints lines of output.
    pub(crate) fn text(&self, text: &str) {
        for line in text.lines().filter(|line| !line.is_empty()) {
            println!("  {}", self.shorten(line));
        }
    }

    /// Prints the changes of a config.
    pub(crate) fn difference(&self, before: &Value, after: &Value) {
        for array in ARRAYS {
            let elements = |config: &Value| -> Vec<Value> {
                let found = config.pointer(array).and_then(Value::as_array);
                found.cloned().unwrap_or_default()
            };
            let (before, after) = (elements(before), elements(after));
            let name = array.trim_start_matches('/').replace('/', ".");
            for (index, element) in after.iter().enumerate() {
                match before.get(index) {
                    Some(same) if same == element => {}
                    Some(old) => {
                        self.print_change('-', &format!("{name}[{index}]: {old}"));
                        self.print_change('+', &format!("{name}[{index}]: {element}"));
                    }
                    None => self.print_change('+', &format!("{name}[{index}]: {element}")),
                }
            }
        }
    }

    fn print_change(&self, sign: char, line: &str) {
        let line = self.shorten(line);
        match (self.colours, sign) {
            (true, '-') => println!("  \x1b[31m- {line}\x1b[0m"),
            (true, _) => println!("  \x1b[32m+ {line}\x1b[0m"),
            (false, _) => println!("  {sign} {line}"),
        }
    }

    fn bold(&self, text: &str) -> String {
        if self.colours {
            format!("\x1b[1m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }

    fn shorten(&self, text: &str) -> String {
        self.short
            .iter()
            .fold(text.to_owned(), |text, (long, short)| {
                text.replace(long, short)
            })
    }
}
