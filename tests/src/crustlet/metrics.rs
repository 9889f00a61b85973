//! A parser for Prometheus' text format.

use std::collections::BTreeMap;

/// The samples of one scrape.
#[derive(Debug, Clone, PartialEq)]
pub struct Metrics(Vec<Sample>);

#[derive(Debug, Clone, PartialEq)]
struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

impl Metrics {
    /// Parses a text. The error is the first line that can't be parsed.
    pub fn parse(text: &str) -> Result<Self, String> {
        let is_sample = |line: &&str| !line.is_empty() && !line.starts_with('#');
        let lines = text.lines().filter(is_sample);
        let samples = lines.map(|line| sample(line).ok_or_else(|| line.to_owned()));
        samples.collect::<Result<_, _>>().map(Self)
    }

    /// Returns the sum of a metric's samples that have at least these labels; `None` if there are none.
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let has = |sample: &&Sample| {
            let mut labels = labels.iter();
            let is_there = |(key, value): &(&str, &str)| {
                sample.labels.get(*key).map(String::as_str) == Some(*value)
            };
            sample.name == name && labels.all(is_there)
        };
        let mut values = self.0.iter().filter(has).map(|sample| sample.value);
        let first = values.next()?;
        Some(first + values.sum::<f64>())
    }

    /// Returns the value of a counter, which is 0 before the first increment.
    pub fn count(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.value(name, labels).unwrap_or_default()
    }
}

/// Parses `name{key="value"} 1`, which a timestamp or an exemplar may follow.
fn sample(line: &str) -> Option<Sample> {
    let end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at(end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (BTreeMap::new(), rest),
    };
    let value = rest.strip_prefix(' ')?.split(' ').next()?;
    Some(Sample {
        name: name.to_owned(),
        labels,
        value: value.parse().ok()?,
    })
}

/// Parses labels up to the `}`, and returns them with the rest of the line.
fn labels(text: &str) -> Option<(BTreeMap<String, String>, &str)> {
    let mut labels = BTreeMap::new();
    let mut rest = text;
    loop {
        if let Some(rest) = rest.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (key, after) = rest.split_once("=\"")?;
        let (value, after) = quoted(after)?;
        labels.insert(key.to_owned(), value);
        rest = after.strip_prefix(',').unwrap_or(after);
    }
}

/// Parses a value up to the closing quote, and returns it with the rest of the line.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    loop {
        match characters.next()? {
            (at, '"') => return Some((value, &text[at + 1..])),
            (_, '\\') => value.push(match characters.next()?.1 {
                'n' => '\n',
                other => other,
            }),
            (_, other) => value.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"# HELP volumes_published_with_deferred_ops A sum.
# TYPE volumes_published_with_deferred_ops counter
volumes_published_with_deferred_ops_total 2
kubelet_volume_stats_used_bytes{namespace="default",persistentvolumeclaim="a"} 1.5e3
kubelet_volume_stats_used_bytes{persistentvolumeclaim="b",namespace="default",} 500
odd{text="a \"quoted\", {odd}\\\n=\"1\" 2"} +Inf 1700000000
csi_operations_seconds_bucket{le="0.5",method_name="/csi.v1.Node/NodeStageVolume"} 1 # {trace="x"} 0.1
# EOF
"#;

    #[test]
    fn values_are_found_by_their_labels_and_added_up() {
        let metrics = Metrics::parse(TEXT).unwrap();
        let used = "kubelet_volume_stats_used_bytes";
        let of = |claim| [("persistentvolumeclaim", claim)];
        let value = |name, labels: &[(&str, &str)]| metrics.value(name, labels);
        assert_eq!(
            value("volumes_published_with_deferred_ops_total", &[]),
            Some(2.0)
        );
        assert_eq!(value(used, &of("a")), Some(1500.0));
        assert_eq!(value(used, &of("b")), Some(500.0));
        assert_eq!(value(used, &[]), Some(2000.0));
        assert_eq!(value(used, &of("c")), None);
        assert_eq!(value(used, &[("namespace", "default"), ("none", "")]), None);
        let odd = [("text", "a \"quoted\", {odd}\\\n=\"1\" 2")];
        assert_eq!(value("odd", &odd), Some(f64::INFINITY));
        let bucket = [("le", "0.5")];
        assert_eq!(value("csi_operations_seconds_bucket", &bucket), Some(1.0));
        assert!(metrics.count(used, &of("c")).abs() < f64::EPSILON);
    }

    #[test]
    fn a_line_that_is_not_a_sample_is_returned_as_the_error() {
        for line in [
            "name",
            "name{a=\"b\" 1",
            "name{a=b} 1",
            "name one",
            "name{a=\"b\"}1",
        ] {
            assert_eq!(Metrics::parse(line), Err(line.to_owned()));
        }
    }
}
