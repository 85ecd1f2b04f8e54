//! Deduplication of signals. A scheduler may signal every process of a job, so that one signal
//! arrives several times: at the original process and its worker, at every node, and at the launcher. A copy
//! must not count as a second signal, which kills the ranks. No I/O.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::signals::is_job_control;

/// Time within which the same signal to this node counts once. `timeout` signals its child and then
/// the process group of the child; a scheduler may signal every process of a job.
const PROCESS_WINDOW: Duration = Duration::from_secs(1);
/// Time within which the copies of a signal arrive from the nodes.
const NODE_WINDOW: Duration = Duration::from_secs(2);

/// Drops duplicates of the signals to the processes of this node.
#[derive(Debug, Default)]
pub struct ProcessSignalDedup {
    /// The last occurrence of each signal that counted.
    last: HashMap<i32, Instant>,
}

impl ProcessSignalDedup {
    /// Whether a signal is a new one. Job-control signals always are: the order of stops and
    /// continues matters, and they arrive through one process only.
    pub fn is_new(&mut self, signal: i32, now: Instant) -> bool {
        let recent = |when: &Instant| now.saturating_duration_since(*when) < PROCESS_WINDOW;
        let duplicate = self.last.get(&signal).is_some_and(recent) && !is_job_control(signal);
        if !duplicate {
            self.last.insert(signal, now);
        }
        !duplicate
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
    /// Whether a signal is a new one. Two signals to the launcher always count as two:
    /// [`ProcessSignalDedup`] has dropped the duplicates, and a user who presses Ctrl-C again means
    /// it.
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
    use libc::{SIGCONT, SIGINT, SIGTERM, SIGTSTP};

    #[test]
    fn same_signal_within_a_second_counts_once() {
        let (mut dedup, start) = (ProcessSignalDedup::default(), Instant::now());
        let mut is_new =
            |signal, millis| dedup.is_new(signal, start + Duration::from_millis(millis));
        assert!(is_new(SIGTERM, 0) && !is_new(SIGTERM, 0) && !is_new(SIGTERM, 999));
        assert!(is_new(SIGINT, 500), "a different signal");
        assert!(is_new(SIGTERM, 1000), "a deliberate second signal");
        assert!(!is_new(SIGTERM, 1900), "relative to the last one that counted");
    }

    #[test]
    fn stops_and_continues_all_count() {
        let (mut dedup, now) = (ProcessSignalDedup::default(), Instant::now());
        assert!([SIGTSTP, SIGCONT, SIGTSTP, SIGCONT].iter().all(|&s| dedup.is_new(s, now)));
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
