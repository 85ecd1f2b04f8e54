//! Deduplication of signals. A scheduler may signal every process of a job, so that one signal
//! arrives several times: at the reaper and its worker, at every node, and at the launcher. A copy
//! must not count as a second signal, which kills the ranks. No I/O.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Where a signal was delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Recipient {
    Reaper,
    Worker,
}

/// Time within which the copy of a signal arrives at the other process of this node.
const PROCESS_WINDOW: Duration = Duration::from_secs(1);
/// Time within which the copies of a signal arrive from the nodes.
const NODE_WINDOW: Duration = Duration::from_secs(2);

/// Merges the signals of the reaper and the worker: each signal to one cancels at most one copy to
/// the other.
#[derive(Debug, Default)]
pub struct ProcessSignalDedup {
    /// Recent signals whose copy has not arrived.
    unmatched: Vec<(i32, Recipient, Instant)>,
}

impl ProcessSignalDedup {
    /// The signals of both processes without the copies.
    pub fn merge(&mut self, reaper: &[i32], worker: &[i32], now: Instant) -> Vec<i32> {
        self.unmatched.retain(|(.., when)| now.saturating_duration_since(*when) < PROCESS_WINDOW);
        let reaper = reaper.iter().map(|s| (*s, Recipient::Reaper));
        let worker = worker.iter().map(|s| (*s, Recipient::Worker));
        let signals = reaper.chain(worker);
        let originals = signals.filter(|&(signal, to)| !self.is_copy(signal, to, now));
        originals.map(|(signal, _)| signal).collect()
    }

    fn is_copy(&mut self, signal: i32, recipient: Recipient, now: Instant) -> bool {
        let original = self.unmatched.iter().position(|(s, r, _)| *s == signal && *r != recipient);
        match original {
            Some(index) => drop(self.unmatched.remove(index)),
            None => self.unmatched.push((signal, recipient, now)),
        }
        original.is_some()
    }
}

/// Which process of the job reported a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignalSource {
    Launcher,
    Agent,
}

/// Merges the signals of the launcher and all agents.
#[derive(Debug, Default)]
pub struct NodeSignalDedup {
    /// The last occurrence of each signal that counted.
    last: HashMap<i32, (Instant, SignalSource)>,
}

impl NodeSignalDedup {
    /// Whether a signal is a new one. Two signals to the launcher always count as two: a user who
    /// presses Ctrl-C again means it.
    pub fn is_new(&mut self, signal: i32, source: SignalSource, now: Instant) -> bool {
        let duplicate = self.last.get(&signal).is_some_and(|&(when, previous)| {
            [source, previous].contains(&SignalSource::Agent)
                && now.saturating_duration_since(when) < NODE_WINDOW
        });
        if !duplicate {
            self.last.insert(signal, (now, source));
        }
        !duplicate
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libc::{SIGCONT, SIGINT, SIGTERM, SIGTSTP, SIGUSR1};

    #[test]
    fn a_signal_to_reaper_and_worker_counts_once() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut dedup = ProcessSignalDedup::default();
        assert_eq!(dedup.merge(&[SIGTERM], &[SIGTERM], at(0)), [SIGTERM]);
        assert_eq!(dedup.merge(&[], &[SIGINT], at(10)), [SIGINT]);
        assert!(dedup.merge(&[SIGINT], &[], at(60)).is_empty(), "a delayed copy");
        assert_eq!(dedup.merge(&[SIGINT], &[], at(70)), [SIGINT], "only one copy is dropped");
        assert_eq!(dedup.merge(&[], &[SIGINT], at(5000)), [SIGINT], "after the window");
    }

    #[test]
    fn signals_to_the_reaper_alone_all_count() {
        let now = Instant::now();
        let mut dedup = ProcessSignalDedup::default();
        let reaper = [SIGINT, SIGINT, SIGTSTP, SIGCONT];
        assert_eq!(dedup.merge(&reaper, &[SIGUSR1], now), [2, 2, SIGTSTP, SIGCONT, SIGUSR1]);
        assert_eq!(dedup.merge(&[SIGINT], &[], now), [SIGINT]);
    }

    #[test]
    fn a_signal_to_all_nodes_counts_once_per_window() {
        use SignalSource::{Agent, Launcher};
        let (mut dedup, start) = (NodeSignalDedup::default(), Instant::now());
        let mut is_new = |signal, source, millis| {
            dedup.is_new(signal, source, start + Duration::from_millis(millis))
        };
        assert!(is_new(10, Agent, 0) && !is_new(10, Agent, 5) && !is_new(10, Launcher, 10));
        assert!(is_new(15, Agent, 20), "a different signal");
        assert!(is_new(10, Agent, 60_000), "the same signal after the window");
        assert!(is_new(2, Launcher, 0) && !is_new(2, Agent, 10) && is_new(2, Launcher, 20));
    }
}
