//! Files by which a late victim learns that all other ranks have reported its fault. A fixed delay would
//! end too early on a machine that pauses.

use std::path::Path;
use std::time::{Duration, Instant};

use super::case::ChaosCase;

/// Longer than the other ranks take.
const TIMEOUT: Duration = Duration::from_secs(40);

/// Publishes that this rank has its error.
pub fn publish(dir: &Path, rank: usize) {
    std::fs::write(dir.join(file_name(rank)), "").unwrap();
}

/// Waits until all ranks but the victim have their errors.
pub fn wait_for_others(case: &ChaosCase, dir: &Path) {
    let until = Instant::now() + TIMEOUT;
    let has_failed = |rank: usize| rank == case.victim || dir.join(file_name(rank)).exists();
    while !(0..case.ranks()).all(has_failed) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn file_name(rank: usize) -> String {
    format!("failed-{rank}")
}
