//! Detects that a communicator makes no progress while an operation is in flight.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

use regatta_events::status::{CommunicatorStatus, Status};

use super::groups::key;

/// Follows the progress of all communicators. The caller passes the time, of a clock that stands still
/// while the job is stopped.
#[derive(Debug, Default)]
pub struct StallTracker {
    communicators: BTreeMap<(u64, String, u32), Progress>,
}

#[derive(Debug)]
struct Progress {
    fingerprint: u64,
    since: Instant,
}

impl StallTracker {
    /// For how long the communicator with the longest stall has had an operation in flight without any
    /// progress on any rank.
    pub fn update(&mut self, statuses: &[Status], now: Instant) -> Duration {
        let mut current: BTreeMap<_, (u64, bool)> = BTreeMap::new();
        for process in statuses {
            for status in &process.communicators {
                let (id, name, ranks) = key(status);
                let (sum, busy) = current.entry((id, name.to_owned(), ranks)).or_default();
                // A sum: independent of the order of the statuses.
                *sum = sum.wrapping_add(fingerprint(process, status));
                *busy |= status.current.is_some() || status.message.is_some();
            }
        }
        self.communicators.retain(|key, _| current.contains_key(key));
        let mut longest = Duration::ZERO;
        for (key, (fingerprint, busy)) in current {
            let progress =
                self.communicators.entry(key).or_insert(Progress { fingerprint, since: now });
            if progress.fingerprint != fingerprint || !busy {
                *progress = Progress { fingerprint, since: now };
            }
            longest = longest.max(now.saturating_duration_since(progress.since));
        }
        longest
    }

    /// Starts again: the ranks were stopped, or waited for a reader of their output.
    pub fn reset(&mut self) {
        self.communicators.clear();
    }
}

/// What changes when a rank makes progress.
fn fingerprint(process: &Status, status: &CommunicatorStatus) -> u64 {
    let mut hasher = DefaultHasher::new();
    let message = status.message.map(|message| (message.index, message.enqueued, message.started));
    let identity = (&process.process.host, process.process.pid, status.communicator.index);
    let counts = (status.enqueued, status.started, status.completed, message);
    (identity, counts).hash(&mut hasher);
    hasher.finish()
}
