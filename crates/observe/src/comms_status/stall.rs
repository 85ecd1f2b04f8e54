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
    /// When it changed.
    since: Instant,
    /// The statuses of the ranks with an operation in flight, and when one of them was written again.
    written: u64,
    fresh: Instant,
}

/// The state of a communicator in a snapshot.
#[derive(Debug, Clone, Copy, Default)]
struct Snapshot {
    /// Sums: independent of the order of the statuses.
    fingerprint: u64,
    written: u64,
    busy: bool,
}

impl StallTracker {
    /// For how long the communicator with the longest stall has had an operation in flight without any
    /// progress on any rank. A rank whose status is not written again may not be able to write it, and
    /// says nothing. An operation that no rank has started may wait for other work of the GPUs, or be one
    /// that NCCL does not report.
    pub fn update(&mut self, statuses: &[Status], now: Instant) -> Duration {
        let mut current: BTreeMap<_, Snapshot> = BTreeMap::new();
        for process in statuses {
            for status in &process.communicators {
                let (id, name, ranks) = key(status);
                current.entry((id, name.to_owned(), ranks)).or_default().add(process, status);
            }
        }
        self.communicators.retain(|key, _| current.contains_key(key));
        let mut longest = Duration::ZERO;
        for (key, Snapshot { fingerprint, written, busy }) in current {
            let start = || Progress { fingerprint, since: now, written, fresh: now };
            let progress = self.communicators.entry(key).or_insert_with(start);
            if progress.fingerprint != fingerprint || !busy {
                *progress = start();
            } else if progress.written != written {
                (progress.written, progress.fresh) = (written, now);
            }
            longest = longest.max(progress.fresh.saturating_duration_since(progress.since));
        }
        longest
    }

    /// Starts again: the ranks were stopped, or waited for a reader of their output.
    pub fn reset(&mut self) {
        self.communicators.clear();
    }
}

impl Snapshot {
    fn add(&mut self, process: &Status, status: &CommunicatorStatus) {
        let mut operations = [status.current, status.message].into_iter().flatten();
        let busy = operations.any(|operation| operation.started);
        let identity = (&process.process.host, process.process.pid, status.communicator.index);
        self.fingerprint = self.fingerprint.wrapping_add(hash(&(identity, counts(status))));
        if busy {
            self.written = self.written.wrapping_add(hash(&(identity, process.host_time)));
            self.busy = true;
        }
    }
}

/// What changes when a rank makes progress.
fn counts(status: &CommunicatorStatus) -> ([u64; 5], Option<(u64, u64, bool)>) {
    let CommunicatorStatus { enqueued, started, completed, messages, messages_completed, .. } =
        *status;
    let message = status.message.map(|message| (message.index, message.enqueued, message.started));
    ([enqueued, started, completed, messages, messages_completed], message)
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
