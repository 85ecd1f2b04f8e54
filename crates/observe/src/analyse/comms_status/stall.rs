//! Detects that a communicator makes no progress while an operation is in flight.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use regatta_events::status::{CommunicatorStatus, Status};

use super::groups::key;

/// Follows the progress of all communicators. The caller passes the time, of a clock that stands still
/// while the job is stopped.
#[derive(Debug, Default)]
pub struct StallTracker {
    communicators: BTreeMap<(u64, String, u32), Progress>,
}

/// What changes when a rank makes progress, after its process and communicator.
type Counts = (u32, u32, [u64; 5], Option<(u64, u64, bool)>);

#[derive(Debug, Clone)]
struct Progress {
    /// The counts of all ranks.
    counts: Vec<Counts>,
    /// When they changed.
    since: Instant,
    /// The statuses of the ranks with an operation in flight, and when one of them was written again.
    written: Vec<u64>,
    fresh: Instant,
}

impl StallTracker {
    /// For how long the communicator with the longest stall has had an operation in flight without any
    /// progress on any rank. A rank whose status is not written again may not be able to write it, and
    /// says nothing. An operation that no rank has started may wait for other work of the GPUs, or be one
    /// that NCCL does not report.
    pub fn update(&mut self, statuses: &[Status], now: Instant) -> Duration {
        let mut current: BTreeMap<_, (Vec<Counts>, Vec<u64>)> = BTreeMap::new();
        for process in statuses {
            for status in &process.communicators {
                let (id, name, ranks) = key(status);
                let (all, written) = current.entry((id, name.to_owned(), ranks)).or_default();
                all.push(counts(process, status));
                let mut operations = [status.current, status.message].into_iter().flatten();
                let is_running = operations.any(|operation| operation.started);
                written.extend(is_running.then_some(process.host_time));
            }
        }
        self.communicators.retain(|key, _| current.contains_key(key));
        let mut longest = Duration::ZERO;
        for (key, (mut counts, mut written)) in current {
            counts.sort_unstable();
            written.sort_unstable();
            let start = Progress { counts, since: now, written, fresh: now };
            let progress = self.communicators.entry(key).or_insert(start.clone());
            if progress.counts != start.counts || start.written.is_empty() {
                *progress = start;
            } else if progress.written != start.written {
                (progress.written, progress.fresh) = (start.written, now);
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

fn counts(process: &Status, status: &CommunicatorStatus) -> Counts {
    let CommunicatorStatus { enqueued, started, completed, messages, messages_completed, .. } =
        *status;
    let message = status.message.map(|message| (message.index, message.enqueued, message.started));
    let counts = [enqueued, started, completed, messages, messages_completed];
    (process.process.pid, status.communicator.index, counts, message)
}
