//! Time limits of jobs.

use std::str::FromStr;

use super::array::number;

/// A time limit of at least a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeLimit(u64);

/// Not a time limit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected a time limit as in 90m, 2h, 1h30m, 1d, 01:30:00 or 1-12:00:00 (days-hours)")]
pub struct TimeLimitError;

/// Longest limit: ten years, to catch typing errors.
const MAX_SECONDS: u64 = 3653 * 86_400;

impl TimeLimit {
    /// The limit in seconds.
    pub fn seconds(self) -> u64 {
        self.0
    }

    /// `HH:MM:SS`, with as many hours as it takes: Slurm and PBS read it.
    pub fn clock(self) -> String {
        let Self(seconds) = self;
        format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
    }
}

impl FromStr for TimeLimit {
    type Err = TimeLimitError;

    /// Slurm reads a plain number as minutes, PBS as seconds: a unit is required.
    fn from_str(text: &str) -> Result<Self, TimeLimitError> {
        let seconds = if text.contains(':') { parse_clock(text) } else { parse_units(text) };
        let limit = seconds.filter(|seconds| (1..=MAX_SECONDS).contains(seconds));
        limit.map(Self).ok_or(TimeLimitError)
    }
}

/// `HH:MM:SS` or `D-HH:MM:SS`.
fn parse_clock(text: &str) -> Option<u64> {
    let (days, clock) = text.split_once('-').unwrap_or(("0", text));
    let field = |text| number(text).map(u64::from);
    let fields: Vec<u64> = clock.split(':').map(field).collect::<Option<_>>()?;
    let &[hours, minutes, seconds] = &fields[..] else { return None };
    let in_range = minutes < 60 && seconds < 60;
    let days = field(days)?.checked_mul(86_400)?;
    let rest = hours.checked_mul(3600)?.checked_add(minutes * 60 + seconds)?;
    days.checked_add(rest).filter(|_| in_range)
}

/// `1d`, `2h`, `1h30m`, `90s`: units in descending order.
fn parse_units(text: &str) -> Option<u64> {
    let (mut rest, mut total) = (text, 0u64);
    for (unit, seconds) in [('d', 86_400), ('h', 3600), ('m', 60), ('s', 1)] {
        if let Some((count, after)) = rest.split_once(unit) {
            total = total.checked_add(u64::from(number(count)?).checked_mul(seconds)?)?;
            rest = after;
        }
    }
    (rest.is_empty() && !text.is_empty()).then_some(total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn limits_have_units() {
        let seconds = |text: &str| text.parse().map(TimeLimit::seconds);
        for (text, expected) in [
            ("90m", 5400),
            ("2h", 7200),
            ("1h30m", 5400),
            ("1d", 86_400),
            ("1d2h3m4s", 93_784),
            ("01:30:00", 5400),
            ("48:00:00", 172_800),
            ("1-12:00:00", 129_600),
        ] {
            assert_eq!(seconds(text), Ok(expected), "{text}");
        }
        for text in ["", "30", "1:30", "0s", "1m2h", "m", "1h-", "1:60:00", "-1h", "99999d", "h1"] {
            assert_eq!(seconds(text), Err(TimeLimitError), "{text}");
        }
    }

    proptest! {
        #[test]
        fn clock_round_trips(seconds in 1..MAX_SECONDS) {
            let limit = TimeLimit(seconds);
            prop_assert_eq!(limit.clock().parse(), Ok(limit));
        }

        #[test]
        fn any_text_is_a_limit_or_an_error(text in "[-:0-9dhms]{0,20}|\\PC{0,20}") {
            let _ = text.parse::<TimeLimit>();
        }
    }
}
