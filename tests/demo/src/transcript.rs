//! The output of the demo.

use std::cell::Cell;
use std::io::IsTerminal;
use std::path::Path;

use runcrust_harness::node::utf8;
use runcrust_harness::{Container, Node, Run, binary};
use serde_json::Value;

/// The arrays of a config to which runcrust adds elements.
const ARRAYS: [&str; 5] = [
    "/mounts",
    "/linux/devices",
    "/linux/resources/devices",
    "/hooks/createRuntime",
    "/hooks/poststop",
];

/// An attribute of a terminal's text (ECMA-48, "Select Graphic Rendition").
#[derive(Debug, Clone, Copy)]
enum Style {
    Bold = 1,
    Dim = 2,
    Red = 31,
    Green = 32,
    Cyan = 36,
}

/// Prints the transcript with long paths shortened.
#[derive(Debug)]
pub(crate) struct Transcript {
    /// Pairs of a long text and its replacement, the longest text first.
    short: Vec<(String, &'static str)>,
    has_colours: bool,
    /// Whether only the sentences of the steps are printed.
    is_brief: bool,
    steps: Cell<usize>,
}

impl Transcript {
    pub(crate) fn new() -> Self {
        Self {
            short: Vec::new(),
            has_colours: std::io::stdout().is_terminal(),
            is_brief: false,
            steps: Cell::new(0),
        }
    }

    /// Returns a transcript that contains only the sentences of the steps.
    pub(crate) fn brief() -> Self {
        Self {
            is_brief: true,
            ..Self::new()
        }
    }

    /// From now on prints the target path of a volume as `TARGET`, the node's directory as `…`, and programs and the
    /// configuration without their directories.
    pub(crate) fn shorten_paths_of(&mut self, node: &Node, target: &Path) {
        let handler = node.handler();
        let paths = [
            (target, "TARGET"),
            (handler.path(), "runcrust"),
            (&binary("crust-mount-hook"), "crust-mount-hook"),
            (&handler.configuration(), "runcrust.toml"),
            (node.dir().path(), "…"),
        ];
        self.short = paths
            .map(|(path, short)| (utf8(path).to_owned(), short))
            .into();
        self.short
            .sort_by_key(|(long, _)| std::cmp::Reverse(long.len()));
    }

    /// Prints the title of a part.
    pub(crate) fn title(&self, text: &str) {
        println!("\n{}", self.styled(Style::Bold, &format!("=== {text} ===")));
    }

    /// Prints the sentence that explains the next step.
    pub(crate) fn step(&self, sentence: &str) {
        self.steps.set(self.steps.get() + 1);
        let number = format!("{}.", self.steps.get());
        if !self.is_brief {
            println!();
        }
        println!("{} {sentence}", self.styled(Style::Bold, &number));
    }

    /// Prints a command and its output.
    pub(crate) fn run(&self, run: &Run) {
        self.command(&format!("$ {}", run.command));
        self.output(&run.stdout);
        self.output(&run.stderr);
    }

    /// Runs a script in a container, prints it with its output, and returns the output.
    pub(crate) fn inside(&self, name: &str, container: &Container, script: &str) -> String {
        self.command(&format!("{name}$ {script}"));
        let output = container.sh(script);
        self.output(&output);
        output
    }

    /// Prints a command line.
    pub(crate) fn command(&self, line: &str) {
        self.print(Some(Style::Cyan), line);
    }

    /// Prints the output of a command. An empty JSON object says only that the command succeeded.
    pub(crate) fn output(&self, text: &str) {
        let lines = text.lines().filter(|line| !matches!(*line, "" | "{}"));
        for line in lines {
            self.print(None, line);
        }
    }

    /// Prints that there is none of something. Panics if there is, because the step's sentence would be wrong.
    #[track_caller]
    pub(crate) fn none(&self, what: &str, number: usize) {
        assert_eq!(number, 0, "{what}");
        self.print(Some(Style::Green), &format!("{what}: {number}"));
    }

    /// Prints a line that is not a command's output.
    pub(crate) fn line(&self, text: &str) {
        self.print(Some(Style::Dim), text);
    }

    /// Prints an error that the step has to show.
    pub(crate) fn error(&self, message: &str) {
        self.print(Some(Style::Red), message);
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
                    Some(old) if old == element => continue,
                    Some(old) => {
                        self.print(Some(Style::Red), &format!("- {name}[{index}]: {old}"));
                    }
                    None => {}
                }
                self.print(Some(Style::Green), &format!("+ {name}[{index}]: {element}"));
            }
        }
    }

    /// Prints an indented line of a step.
    fn print(&self, style: Option<Style>, text: &str) {
        if self.is_brief {
            return;
        }
        let line = self.shorten(text);
        match style {
            Some(style) => println!("   {}", self.styled(style, &line)),
            None => println!("   {line}"),
        }
    }

    fn styled(&self, style: Style, text: &str) -> String {
        if self.has_colours {
            format!("\x1b[{}m{text}\x1b[0m", style as u8)
        } else {
            text.to_owned()
        }
    }

    fn shorten(&self, text: &str) -> String {
        let short = self.short.iter();
        short.fold(text.to_owned(), |text, (long, short)| {
            text.replace(long, short)
        })
    }
}
