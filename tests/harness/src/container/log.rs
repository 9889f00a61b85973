//! A runtime's JSON log, parsed as strictly as containerd's shim parses it.

use serde_json::Value;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    pub level: String,
    pub msg: String,
    /// The time as RFC 3339.
    pub time: String,
}

/// Parses a log: a sequence of JSON objects, which crun 1.28 writes over several lines each. The shim discards the
/// whole log if one entry isn't JSON or has an invalid time, so that is an error here as well.
#[track_caller]
pub fn parse_log(text: &str) -> Vec<LogLine> {
    let mut lines = Vec::new();
    for entry in serde_json::Deserializer::from_str(text).into_iter::<Value>() {
        match entry {
            Ok(entry) => lines.push(parse_entry(&entry)),
            Err(error) => panic!("the log is not JSON ({error}): {text}"),
        }
    }
    lines
}

#[track_caller]
fn parse_entry(entry: &Value) -> LogLine {
    let text = |key: &str| {
        let found = entry[key].as_str();
        found
            .unwrap_or_else(|| panic!("the log has an entry without {key}: {entry}"))
            .to_owned()
    };
    let parsed = LogLine {
        level: text("level"),
        msg: text("msg"),
        time: text("time"),
    };
    assert!(
        is_rfc3339(&parsed.time),
        "the log has an entry whose time is not RFC 3339: {entry}"
    );
    parsed
}

/// Returns whether a time has the form `2006-01-02T15:04:05[.fraction](Z|±07:00)`, which Go's `time.Time` accepts.
fn is_rfc3339(time: &str) -> bool {
    let Some((moment, rest)) = time.split_at_checked(19) else {
        return false;
    };
    let zone = match rest.strip_prefix('.') {
        Some(fraction) => {
            let zone = fraction.trim_start_matches(|c: char| c.is_ascii_digit());
            if zone.len() == fraction.len() {
                return false;
            }
            zone
        }
        None => rest,
    };
    let zone_is_good = match zone.strip_prefix(['+', '-']) {
        Some(offset) => {
            matches_shape(offset, "00:00")
                && in_range(&offset[..2], 0, 23)
                && in_range(&offset[3..], 0, 59)
        }
        None => zone == "Z",
    };
    zone_is_good
        && matches_shape(moment, "0000-00-00T00:00:00")
        && in_range(&moment[5..7], 1, 12)
        && in_range(&moment[8..10], 1, 31)
        && in_range(&moment[11..13], 0, 23)
        && in_range(&moment[14..16], 0, 59)
        && in_range(&moment[17..19], 0, 59)
}

/// Returns whether `text` has a digit wherever `shape` has a `0`, and is the same elsewhere.
fn matches_shape(text: &str, shape: &str) -> bool {
    let same = |(c, s): (char, char)| if s == '0' { c.is_ascii_digit() } else { c == s };
    text.len() == shape.len() && text.chars().zip(shape.chars()).all(same)
}

fn in_range(digits: &str, low: u32, high: u32) -> bool {
    digits
        .parse()
        .is_ok_and(|number: u32| (low..=high).contains(&number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_strictly_as_go_reads_them() {
        for good in [
            "2026-11-21T08:14:00Z",
            "2026-11-21T08:14:00.123456789Z",
            "2026-11-21T08:14:00+02:00",
        ] {
            assert!(is_rfc3339(good), "{good}");
        }
        for bad in [
            "",
            "2026-11-21",
            "2026-11-21 08:14:00Z",
            "2026-11-21T08:14:00",
            "2026-13-21T08:14:00Z",
            "2026-11-21T08:14:00.Z",
            "2026-11-21T08:14:00+0200",
            "1795248840",
            "ü026-11-21T08:14:00Z",
        ] {
            assert!(!is_rfc3339(bad), "{bad}");
        }
    }

    #[test]
    fn an_entry_may_have_several_lines() {
        let text = "{\n  \"msg\": \"a\",\n  \"level\": \"error\",\n  \"time\": \"2026-11-21T08:14:00Z\"\n}\n\
                    {\"level\":\"warning\",\"msg\":\"b\",\"time\":\"2026-11-21T08:14:01Z\"}\n";
        let messages: Vec<String> = parse_log(text).into_iter().map(|line| line.msg).collect();
        assert_eq!(messages, ["a", "b"]);
    }

    #[test]
    #[should_panic(expected = "not JSON")]
    fn an_entry_that_is_not_json_makes_the_log_invalid() {
        parse_log("{\"level\":\"error\",\"msg\":\"a\",\"time\":\"2026-11-21T08:14:00Z\"}\nhello\n");
    }
}
