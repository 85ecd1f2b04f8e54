//! IDs of runs: the names of run folders, and the time in them.

use std::time::{Duration, SystemTime};

/// ID of a run: time in UTC and process ID, `20261115-051200-4711`.
pub fn run_id(now: SystemTime, pid: u32) -> String {
    let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    let (year, month, day) = civil_date(since / 86_400);
    let (hour, minute, second) = (since / 3600 % 24, since / 60 % 60, since % 60);
    format!("{year:04}{month:02}{day:02}-{hour:02}{minute:02}{second:02}-{pid}")
}

/// Seconds since the Unix epoch.
pub fn unix_seconds(time: SystemTime) -> f64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// The date in UTC: `2026-11-15`.
pub fn utc_date(now: SystemTime) -> String {
    let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    let (year, month, day) = civil_date(since / 86_400);
    format!("{year:04}-{month:02}-{day:02}")
}

/// The time in a run ID; None if the text is not one.
pub fn run_id_time(id: &str) -> Option<SystemTime> {
    let number =
        |range| id.get(range).filter(|text: &&str| text.bytes().all(|b| b.is_ascii_digit()));
    let parts = [0..4, 4..6, 6..8, 9..11, 11..13, 13..15].map(|range| number(range)?.parse().ok());
    let [Some(year), Some(month), Some(day), Some(hour), Some(minute), Some(second)] = parts else {
        return None;
    };
    // Search by year, because the inverse of `civil_date` is only needed here.
    let first = (1970..=9999).contains(&year).then(|| (year - 1970) * 365)?;
    let last = first + (year - 1970) / 4 + 366;
    let days = (first..=last).find(|days| civil_date(*days) == (year, month, day))?;
    let since: u64 = days * 86_400 + hour * 3600 + minute * 60 + second;
    let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(since))?;
    // Hours, minutes and separators, too, must be valid.
    let process = id.get(16..).and_then(|process| process.parse().ok())?;
    (run_id(time, process) == id).then_some(time)
}

/// Converts days since 1970-01-01 to year, month and day. Years begin in March, so that the leap
/// day is the last day.
fn civil_date(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_id_formats_the_utc_date() {
        let late = SystemTime::UNIX_EPOCH + Duration::from_secs(1_709_251_199);
        assert_eq!(utc_date(late), "2024-02-29");
        let at = |secs: u64| run_id(SystemTime::UNIX_EPOCH + Duration::from_secs(secs), 7);
        assert_eq!(at(0), "19700101-000000-7");
        assert_eq!(at(951_782_400), "20000229-000000-7");
        assert_eq!(at(1_794_719_520), "20261115-051200-7");
    }

    #[test]
    fn run_id_time_is_the_inverse_of_run_id() {
        for seconds in [0, 951_782_400, 1_794_719_520, 4_102_444_799, 1_735_689_599] {
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(run_id_time(&run_id(time, 7)), Some(time), "{seconds}");
        }
        for other in [
            "",
            "mine",
            "20261115-051200",
            "20261115-256000-7",
            "20261315-051200-7",
            "20261115_051200-7",
        ] {
            assert_eq!(run_id_time(other), None, "{other}");
        }
    }
}
