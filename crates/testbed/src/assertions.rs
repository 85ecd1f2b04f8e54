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
/// If it does not hold after a minute.
#[track_caller]
pub fn wait_until(what: &str, holds: impl FnMut() -> bool) {
    poll_until(Duration::from_millis(10), what, holds);
}

/// Like [`wait_until`], with the given poll interval.
#[track_caller]
pub fn poll_until(interval: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !holds() {
        assert!(Instant::now() < deadline, "timed out waiting for {what}");
        std::thread::sleep(interval);
    }
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
