//! Waiting, assertions and files in tests.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Timeout of [`wait_until`].
const TIMEOUT: Duration = Duration::from_secs(60);

/// Waits until a condition holds.
///
/// # Panics
/// If it does not hold after a minute, or after longer on a machine under load.
#[track_caller]
pub fn wait_until(what: &str, holds: impl FnMut() -> bool) {
    poll_until(Duration::from_millis(10), what, holds);
}

/// Like [`wait_until`], with the given poll interval.
#[track_caller]
pub fn poll_until(interval: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(is_within(start, TIMEOUT), "timed out waiting for {what}");
        std::thread::sleep(interval);
    }
}

/// Asserts that no more than `limit` has passed since `start`. The limit follows the machine's load.
///
/// # Panics
/// If more time has passed.
#[track_caller]
pub fn assert_within(start: Instant, limit: Duration) {
    assert!(is_within(start, limit), "took {:?} instead of {limit:?}", start.elapsed());
}

/// With more runnable threads than cores, each has a fraction of a core, and as many times as long.
fn is_within(start: Instant, limit: Duration) -> bool {
    let elapsed = start.elapsed();
    elapsed < limit || elapsed < limit.mul_f64(threads_per_core().max(1.0))
}

/// The number of runnable threads per core of this machine, now or in the last minute.
fn threads_per_core() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    runnable_threads(&text) / cores as f64
}

/// The larger of the average over a minute and the present number in `/proc/loadavg`.
fn runnable_threads(loadavg: &str) -> f64 {
    let number = |word: Option<&str>| word.and_then(|w| w.parse().ok()).unwrap_or(0.0f64);
    let mut words = loadavg.split([' ', '/']);
    number(words.next()).max(number(words.nth(2)))
}

/// One expected part of a text, or several.
pub trait Parts {
    /// All of them.
    fn parts(&self) -> impl Iterator<Item = &str>;
}

impl<T: AsRef<str> + ?Sized> Parts for &T {
    fn parts(&self) -> impl Iterator<Item = &str> {
        std::iter::once((**self).as_ref())
    }
}

impl<const N: usize> Parts for [&str; N] {
    fn parts(&self) -> impl Iterator<Item = &str> {
        self.iter().copied()
    }
}

/// Asserts that a text contains all parts.
///
/// # Panics
/// If a part is missing.
#[track_caller]
pub fn assert_contains(text: impl AsRef<str>, parts: impl Parts) {
    let text = text.as_ref();
    for part in parts.parts() {
        assert!(text.contains(part), "missing {part:?} in: {text}");
    }
}

/// Writes a file with these permissions.
///
/// # Panics
/// If that fails.
#[track_caller]
pub fn write_with_mode(path: impl AsRef<Path>, mode: u32, content: impl AsRef<[u8]>) {
    let path = path.as_ref();
    let written = fs::write(path, content)
        .and_then(|()| fs::set_permissions(path, PermissionsExt::from_mode(mode)));
    written.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_follow_the_load() {
        assert_eq!(runnable_threads("6.50 1.00 0.20 3/402 77\n"), 6.5);
        assert_eq!(runnable_threads("0.50 1.00 0.20 9/402 77\n"), 9.0);
        assert_eq!(runnable_threads(""), 0.0);
        assert!(is_within(Instant::now(), TIMEOUT));
        assert!(!is_within(Instant::now() - Duration::from_nanos(1), Duration::ZERO));
    }
}
