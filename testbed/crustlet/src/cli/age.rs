//! The age of objects in kubectl's format, with two or three digits.

use std::time::{Duration, SystemTime};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;
const YEAR: u64 = 365 * DAY;

/// The allowed clock skew: a time that is less than this in the future counts as now.
const MAX_CLOCK_SKEW: Duration = Duration::from_secs(2);

/// Formats the time since a timestamp of an object. A missing timestamp is `<unknown>`.
pub(super) fn since(now: SystemTime, then: Option<&Time>) -> String {
    let age = |then: &Time| between(now, from_millis(then.0.as_millisecond()));
    then.map_or_else(|| "<unknown>".to_owned(), age)
}

/// Converts milliseconds since the Unix epoch.
pub(super) fn from_millis(ms: i64) -> SystemTime {
    let since_epoch = Duration::from_millis(u64::try_from(ms).unwrap_or_default());
    SystemTime::UNIX_EPOCH + since_epoch
}

/// Formats the time from `then` to `now`.
pub(super) fn between(now: SystemTime, then: SystemTime) -> String {
    match now.duration_since(then) {
        Ok(age) => format_age(age),
        Err(ahead) if ahead.duration() < MAX_CLOCK_SKEW => "0s".to_owned(),
        Err(_) => "<invalid>".to_owned(),
    }
}

/// Formats an age as `duration.HumanDuration` of k8s.io/apimachinery does.
fn format_age(age: Duration) -> String {
    let seconds = age.as_secs();
    // The smaller unit is left out if it is zero.
    let two_units = |unit: u64, letter: char, smaller: u64, smaller_letter: char| {
        let (count, rest) = (seconds / unit, seconds % unit / smaller);
        match rest {
            0 => format!("{count}{letter}"),
            _ => format!("{count}{letter}{rest}{smaller_letter}"),
        }
    };
    let one_unit = |unit: u64, letter: char| format!("{}{letter}", seconds / unit);
    if seconds < 2 * MINUTE {
        one_unit(1, 's')
    } else if seconds < 10 * MINUTE {
        two_units(MINUTE, 'm', 1, 's')
    } else if seconds < 3 * HOUR {
        one_unit(MINUTE, 'm')
    } else if seconds < 8 * HOUR {
        two_units(HOUR, 'h', MINUTE, 'm')
    } else if seconds < 2 * DAY {
        one_unit(HOUR, 'h')
    } else if seconds < 8 * DAY {
        two_units(DAY, 'd', HOUR, 'h')
    } else if seconds < 2 * YEAR {
        one_unit(DAY, 'd')
    } else if seconds < 8 * YEAR {
        two_units(YEAR, 'y', DAY, 'd')
    } else {
        one_unit(YEAR, 'y')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_has_kubectls_format() {
        for (seconds, expected) in [
            (0, "0s"),
            (70, "70s"),
            (2 * MINUTE - 1, "119s"),
            (2 * MINUTE, "2m"),
            (2 * MINUTE + 1, "2m1s"),
            (10 * MINUTE - 1, "9m59s"),
            (10 * MINUTE + 1, "10m"),
            (3 * HOUR - 1, "179m"),
            (3 * HOUR, "3h"),
            (3 * HOUR + 59, "3h"),
            (3 * HOUR + MINUTE, "3h1m"),
            (8 * HOUR - 1, "7h59m"),
            (8 * HOUR + 59 * MINUTE, "8h"),
            (2 * DAY - 1, "47h"),
            (2 * DAY, "2d"),
            (2 * DAY + HOUR, "2d1h"),
            (8 * DAY - 1, "7d23h"),
            (8 * DAY + 23 * HOUR, "8d"),
            (2 * YEAR - 1, "729d"),
            (2 * YEAR + 23 * HOUR, "2y"),
            (2 * YEAR + DAY, "2y1d"),
            (8 * YEAR - 1, "7y364d"),
            (8 * YEAR + 364 * DAY, "8y"),
            (9 * YEAR, "9y"),
        ] {
            assert_eq!(
                format_age(Duration::from_secs(seconds)),
                expected,
                "{seconds}"
            );
        }
    }

    #[test]
    fn a_time_slightly_in_the_future_counts_as_now() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(100);
        let ahead = |millis| between(now, now + Duration::from_millis(millis));
        assert_eq!(ahead(1), "0s");
        assert_eq!(ahead(1999), "0s");
        assert_eq!(ahead(2000), "<invalid>");
        assert_eq!(since(now, None), "<unknown>");
        let then: Time = serde_json::from_str("\"1970-01-01T00:00:30Z\"").unwrap();
        assert_eq!(since(now, Some(&then)), "70s");
    }
}
