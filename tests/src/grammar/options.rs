//! The options of a delegate, from its help text.

use crate::{Delegate, Run, Runtime};

/// Returns all names of all options in the help text, such as `--bundle` and `-b`.
pub(super) fn from_help(delegate: Delegate, verb: Option<&str>) -> Vec<String> {
    let mut command = Runtime::bare(delegate).command();
    command.args(verb).arg("--help");
    let help = Run::capture(&mut command).stdout;
    let mut options: Vec<String> = help.lines().flat_map(names).collect();
    options.sort();
    options.dedup();
    options
}

/// Parses a line such as `   --bundle value, -b value  path to …` or `  -b, --bundle=DIR           container …`.
fn names(line: &str) -> Vec<String> {
    let line = line.trim_start();
    if !line.starts_with('-') {
        return Vec::new();
    }
    let names = line.split("  ").next().unwrap_or_default();
    let names = names.split([' ', ',', '=']);
    names
        .filter(|word| word.starts_with('-'))
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_of_both_delegates_is_parsed() {
        assert_eq!(
            names("   --bundle value, -b value  path to --the bundle"),
            ["--bundle", "-b"]
        );
        assert_eq!(
            names("  -b, --bundle=DIR           container bundle (default \".\")"),
            ["-b", "--bundle"]
        );
        assert_eq!(
            names("      --debug                produce -v"),
            ["--debug"]
        );
        assert_eq!(names("the tty"), <[&str; 0]>::default());
    }
}
